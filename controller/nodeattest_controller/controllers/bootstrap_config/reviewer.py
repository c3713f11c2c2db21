"""What reads and decides the reviews of one path. Interfaces."""

from __future__ import annotations

from typing import ClassVar, Protocol

from nodeattest_controller.controllers.bootstrap_config.admission_review import AdmissionReview
from nodeattest_controller.controllers.bootstrap_config.decide import Unable, Verdict

__all__ = ["ReadReview", "Reviewer"]


class ReadReview(Protocol):
    """A review that was read and is not decided yet."""

    @property
    def question(self) -> AdmissionReview:
        """What the API server asks."""
        ...

    async def verdict(self, client: str, deadline: float) -> Verdict | Unable:
        """Decide, before a time of the event loop's clock; ``client``: the caller's address."""
        ...


class Reviewer(Protocol):
    """Reads the reviews of one path."""

    log_message: ClassVar[str]
    """What its verdicts are logged as."""

    def read(self, content: bytes) -> ReadReview:
        """Read a review; raises ``Denied``. It may be called in a thread."""
        ...
