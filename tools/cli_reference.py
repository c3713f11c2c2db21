#!/usr/bin/env python3
"""Write the reference of the commands from the commands themselves: docs/commands.md, and man pages.

``cli_reference.py --markdown FILE`` and ``cli_reference.py --man FOLDER``. Source of the pages' form: groff_man(7).
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from nodeattest_cli.main import cli
from nodeattest_providers import __version__

_LINE: Final = 120
"""Columns of a page's lines."""
_WIDTH: Final = 110
"""Columns of usage lines."""
_EXIT: Final = "0: done; 1: refused by what was found; 2: usage; 3: not reachable, not allowed or not yet."
_NAME: Final = "nodeattest"


@dataclass(frozen=True, slots=True)
class Page:
    """One command as its own help shows it."""

    words: tuple[str, ...]
    usage: str
    summary: str
    text: tuple[str, ...]
    """Paragraphs."""
    options: tuple[tuple[str, str], ...]

    @property
    def title(self) -> str:
        """How it is called."""
        return " ".join((_NAME, *self.words))


def pages(group: click.Group = cli, words: tuple[str, ...] = ()) -> Iterator[Page]:
    """Yield every command that does something, in the order of ``--help``."""
    parent = click.Context(group, info_name=" ".join((_NAME, *words)), terminal_width=_WIDTH)
    for name in group.list_commands(parent):
        _, command, _ = group.resolve_command(parent, [name])
        if isinstance(command, click.Group):
            yield from pages(command, (*words, name))
        elif command is not None:
            yield _page(command, (*words, name))


def _page(command: click.Command, words: tuple[str, ...]) -> Page:
    context = click.Context(command, info_name=" ".join((_NAME, *words)), terminal_width=_WIDTH, show_default=True)
    paragraphs = tuple(" ".join(part.split()) for part in re.split(r"\n\s*\n", (command.help or "").strip()))
    records = (param.get_help_record(context) for param in command.params if isinstance(param, click.Option))
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    options = tuple((names, " ".join(text.split())) for names, text in filter(None, records))
    return Page(words, usage, paragraphs[0], paragraphs, options)


def markdown(before: str) -> str:
    """Write the page of the documentation anew; what is before the first command stays."""
    parts = [before.partition(f"\n## {_NAME}")[0].rstrip()]
    for page in pages():
        parts.append(f"## {page.title}\n\n```text\n{page.usage}\n```")
        parts += [_wrapped(_escaped(text)) for text in page.text]
        if page.options:
            rows = [f"| `{_cell(names)}` | {_cell(_escaped(text))} |" for names, text in page.options]
            parts.append("\n".join(["| option | |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _escaped(text: str) -> str:
    return text.replace("*", "\\*").replace("<", "\\<")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _LINE, break_long_words=False, break_on_hyphens=False)


def man(page: Page) -> str:
    """Write a man page."""
    name = "-".join((_NAME, *page.words))
    lines = [f'.TH "{name.upper()}" 1 "" "nodeattest {__version__}"', ".SH NAME"]
    lines += [f"{_roff(name)} \\- {_roff(page.summary)}", ".SH SYNOPSIS", _roff(page.usage), ".SH DESCRIPTION"]
    lines += [line for text in page.text for line in (_roff(text), ".PP")][:-1]
    if page.options:
        lines.append(".SH OPTIONS")
        lines += [line for names, text in page.options for line in (".TP", f"\\fB{_roff(names)}\\fR", _roff(text))]
    lines += [".SH EXIT STATUS", _EXIT]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def main() -> int:
    """Write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--man", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    if given.markdown:
        given.markdown.write_text(markdown(given.markdown.read_text(encoding="utf-8")), encoding="utf-8")
    if given.man:
        given.man.mkdir(parents=True, exist_ok=True)
        for page in pages():
            (given.man / f"{'-'.join((_NAME, *page.words))}.1").write_text(man(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
