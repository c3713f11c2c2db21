"""What can keep documents from being published: each says what was expected, what was found and what to do.

Promises: no key and no credential in a message. ``StoreUnavailableError`` and ``WriteConflictError`` pass by
themselves; the others need a person.
"""

from __future__ import annotations

__all__ = ["ForeignIssuerError", "PublishError", "StoreRefusedError", "StoreUnavailableError", "WriteConflictError"]


class PublishError(Exception):
    """The documents could not be published as they should be."""


class ForeignIssuerError(PublishError):
    """What stands in the place is not this issuer's, or nobody can tell that it is: nothing was overwritten."""


class StoreRefusedError(PublishError):
    """The store is not there, or does not let us read or write: somebody must change something."""


class StoreUnavailableError(PublishError):
    """The store cannot be reached or asks to be left alone for a while."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        """``retry_after``: seconds, where the store says so."""
        super().__init__(message)
        self.retry_after = retry_after


class WriteConflictError(PublishError):
    """An object is not what it was when it was read: read again, and decide again."""
