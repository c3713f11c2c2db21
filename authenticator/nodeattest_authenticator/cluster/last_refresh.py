"""How the last refresh went, for ``status``: a note that nothing depends on."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from nodeattest_authenticator.formats.strict_json import ConfigFields, FieldsError, parse_config_object
from nodeattest_authenticator.state.private_files import UnsafeFileError
from nodeattest_authenticator.state.storage import Storage

__all__ = ["FILE", "LastRefresh", "load", "parse", "save"]

FILE: Final = "refresh"
_LATEST: Final = 1 << 53
"""Seconds since the epoch: what every reader of JSON can hold."""
_MOST: Final = 2000
"""Characters that are kept of what was said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRefresh:
    """The last refresh."""

    at: int
    """Seconds since the epoch."""
    outcome: str
    """``changed``, ``unchanged`` or ``failed``."""
    text: str


def load(storage: Storage) -> LastRefresh | None:
    """Read it; None when there was none, or what is there makes no sense."""
    try:
        data = storage.read(FILE)
        return None if data is None else parse(data)
    except (UnsafeFileError, FieldsError):
        return None


def parse(data: bytes) -> LastRefresh:
    """Read what ``save`` wrote; raises ``FieldsError``."""
    fields = ConfigFields(parse_config_object(data))
    at, outcome, text = fields.number("at", low=0, high=_LATEST), fields.required("outcome"), fields.required("text")
    fields.end()
    if at is None:
        raise FieldsError("at is missing")
    return LastRefresh(at=at, outcome=outcome, text=text)


def save(storage: Storage, last: LastRefresh) -> None:
    """Write it down; a full disk costs nothing but the note. Hold the lock."""
    document = {"at": last.at, "outcome": last.outcome, "text": last.text[:_MOST]}
    with suppress(OSError):
        storage.write(FILE, json.dumps(document).encode(), durable=False)
