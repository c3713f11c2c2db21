"""What can keep documents from being published: each says what was expected, what was found and what to do.

Promises: no key and no credential in a message. ``StoreUnavailable`` and ``LostRace`` pass by themselves; the others
need a person.
"""

from __future__ import annotations

__all__ = ["ForeignIssuer", "LostRace", "PublishError", "StoreRefused", "StoreUnavailable"]


class PublishError(Exception):
    """The documents could not be published as they should be."""


class ForeignIssuer(PublishError):  # noqa: N818 - says what stands there
    """What stands in the place is not this issuer's, or nobody can tell that it is: nothing was overwritten."""


class StoreRefused(PublishError):  # noqa: N818 - says what the store did
    """The store is not there, or does not let us read or write: somebody must change something."""


class StoreUnavailable(PublishError):  # noqa: N818 - says what the store is
    """The store cannot be reached or asks to be left alone for a while."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        """``retry_after``: seconds, where the store says so."""
        super().__init__(message)
        self.retry_after = retry_after


class LostRace(PublishError):  # noqa: N818 - says what happened
    """An object is not what it was when it was read: read again, and decide again."""
