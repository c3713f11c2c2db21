"""What a controller says of its writes to a workload cluster: each thing once in a while, in words of metrics."""

from __future__ import annotations

from collections.abc import Callable

from nodeattest_kube.client import ApiError, Conflict, Forbidden, Unreachable

__all__ = ["EventLimiter", "outcome_of"]


class EventLimiter:
    """Remembers what was told lately."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        """What need not be told again, and until when."""

    def may_tell(self, about: str, period: float) -> bool:
        """Tell whether something is due to be told, and take it for told: not again within ``period`` seconds."""
        now = self._clock()
        self._until = {known: until for known, until in self._until.items() if now < until}
        if about in self._until:
            return False
        self._until[about] = now + period
        return True


def outcome_of(error: ApiError) -> str:
    """Name what became of a write, as a metric's label."""
    match error:
        case Conflict():
            return "conflict"
        case Forbidden():
            return "forbidden"
        case Unreachable():
            return "unreachable"
        case _:
            return "refused"
