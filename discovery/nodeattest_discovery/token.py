"""Bootstrap tokens: ``<id>.<secret>``, six and sixteen characters of ``[a-z0-9]``.

The ID is public: it names the Secret and the user. The secret has 82.7 bits of entropy and is not part of ``repr``.
Source: k8s.io/cluster-bootstrap token/api/types.go and token/util.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from nodeattest_providers.errors import Denied, Reason

USER_PREFIX: Final = "system:bootstrap:"
"""Prefix of a token holder's username; the token's ID follows."""
BOOTSTRAP_GROUP: Final = "system:bootstrappers"
"""The group of each token's holder."""

_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID_LENGTH: Final = 6
_SECRET_LENGTH: Final = 16
_ID: Final = re.compile(rf"[a-z0-9]{{{_ID_LENGTH}}}", re.ASCII)
_TOKEN: Final = re.compile(rf"([a-z0-9]{{{_ID_LENGTH}}})\.([a-z0-9]{{{_SECRET_LENGTH}}})", re.ASCII)
# Use fullmatch: Python's $ matches before a final line end, Go's \z does not.


@dataclass(frozen=True, slots=True)
class BootstrapToken:
    """A bootstrap token."""

    id: str
    secret: str = field(repr=False)

    @property
    def username(self) -> str:
        """The holder's username."""
        return USER_PREFIX + self.id

    def reveal(self) -> str:
        """Return the whole token, for its file, a header of a verified connection, or the user who requested it."""
        return f"{self.id}.{self.secret}"


def parse(text: str) -> BootstrapToken:
    """Parse a token without surrounding white space. Raises ``Denied``."""
    found = _TOKEN.fullmatch(text)
    if found is None:
        raise Denied(
            Reason.TOKEN_MALFORMED,
            expected="six, a dot, and sixteen lower-case letters or digits",
            got=_shape(text),
            remedy="take the token from the bootstrap data, or make one with: nodeattest token create",
        )
    return BootstrapToken(found[1], found[2])


def is_token(text: str) -> bool:
    """Return whether a text is a token."""
    return _TOKEN.fullmatch(text) is not None


def is_token_id(text: str) -> bool:
    """Return whether a text is a token's ID."""
    return _ID.fullmatch(text) is not None


def generate(choose: Callable[[str], str] = secrets.choice) -> BootstrapToken:
    """Generate a token. ``choose``: picks a character of a string, all equally likely."""
    token_id = "".join(choose(_ALPHABET) for _ in range(_ID_LENGTH))
    return BootstrapToken(token_id, "".join(choose(_ALPHABET) for _ in range(_SECRET_LENGTH)))


def _shape(text: str) -> str:
    """Describe a text without quoting it, because it may be a secret with a typo."""
    before, dot, after = text.partition(".")
    return f"{len(before)} and {len(after)} characters around a dot" if dot else f"{len(text)} characters without a dot"
