"""A bootstrap token of the command line: an argument, a file, standard input, or none.

Promises: at most one source; one line end after the token is forgiven; ``UserError`` shows no character of it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from nodeattest_cli.errors import UserError, user_errors
from nodeattest_discovery.token import BootstrapToken, parse

__all__ = ["parse_token", "read_token", "read_token_text"]

_LARGEST: Final = 1024
"""Bytes of a file with a token."""
_STANDARD_INPUT: Final = "-"


def read_token(word: str | None, file: str | None) -> BootstrapToken | None:
    """Read the token of an argument (``-``: standard input) or of a file (the same); None where neither is given."""
    text = read_token_text(word, file)
    return None if text is None else parse_token(text)


def read_token_text(word: str | None, file: str | None) -> str | None:
    """Read the text of an argument or a file, without white space around it."""
    if word is not None and file is not None:
        raise UserError("the token: expected an argument or --token-file, got both")
    if file is not None:
        return _read(file)
    return _read(_STANDARD_INPUT) if word == _STANDARD_INPUT else word


def parse_token(text: str) -> BootstrapToken:
    """Parse a token; raises ``UserError``."""
    with user_errors("the token"):
        return parse(text)


def _read(path: str) -> str:
    try:
        if path == _STANDARD_INPUT:
            content = sys.stdin.buffer.read(_LARGEST + 1)
        else:
            with Path(path).open("rb") as file:
                content = file.read(_LARGEST + 1)
        text = content.decode("ascii").strip()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: expected a bootstrap token, got no ASCII") from None
    if not text or len(content) > _LARGEST:
        raise UserError(f"{path}: expected a bootstrap token, got {'nothing' if not text else 'too much'}")
    return text
