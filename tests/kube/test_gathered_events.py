"""What is told of many objects at once is one Event, and what is told of one is about that one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nodeattest_kube.events import EventRecorder, ObjectRef
from nodeattest_kube.gathered_events import PERIOD, GatheredEvents


class Recorded(EventRecorder):
    """Notes what would be written."""

    def __init__(self) -> None:  # pyright: ignore[reportMissingSuperCall]
        self.written: list[tuple[str, str]] = []

    def record(self, subject: ObjectRef, kind: str, reason: str, message: str, **_more: Any) -> None:
        assert (kind, reason) == ("Normal", "NodeAttested")
        self.written.append((subject.name, message))


def ref(name: str) -> ObjectRef:
    return ObjectRef(api_version="v1", kind="Machine", namespace="fleet", name=name, uid=f"uid-{name}")


class Site:
    def __init__(self) -> None:
        self.planned: list[Callable[[], None]] = []
        self.events = Recorded()
        self.gathered = GatheredEvents(self.events, "NodeAttested", what="nodes attested", call_later=self.plan)

    def plan(self, delay: float, callback: Callable[[], None], /) -> None:
        assert delay == PERIOD
        self.planned.append(callback)

    def tell(self, *names: str, cluster: str = "blue") -> None:
        for name in names:
            self.gathered.record(ref(cluster), ref(name), f"node-{name}", f"about {name}")

    def period_ends(self) -> None:
        planned, self.planned = self.planned, []
        for callback in planned:
            callback()


def test_the_first_is_told_at_once_and_those_after_it_together() -> None:
    site = Site()
    site.tell("a")
    assert site.events.written == [("a", "about a")]
    site.tell("b", "c")
    assert len(site.events.written) == 1
    site.period_ends()
    assert site.events.written[1:] == [("blue", "2 nodes attested: node-b, node-c")]
    site.tell("d")  # the burst goes on
    assert len(site.events.written) == 2
    site.period_ends()
    assert site.events.written[2:] == [("d", "about d")]
    site.period_ends()
    site.tell("e")  # and this is another one
    assert site.events.written[3:] == [("e", "about e")]


def test_a_burst_of_any_size_is_two_events_and_names_the_first_nodes() -> None:
    site = Site()
    site.tell(*(f"{number:03}" for number in range(500)))
    site.period_ends()
    [(_, _first), (about, told)] = site.events.written
    assert about == "blue"
    assert told.startswith("499 nodes attested: node-001, node-002")
    assert told.endswith("node-020 and 479 more")


def test_clusters_wait_apart() -> None:
    site = Site()
    site.tell("a", "b")
    site.tell("x", cluster="green")
    assert [name for name, _ in site.events.written] == ["a", "x"]


async def test_what_waits_is_written_at_the_end() -> None:
    site = Site()
    site.tell("a", "b", "c")
    await site.gathered.close()
    assert site.events.written[1:] == [("blue", "2 nodes attested: node-b, node-c")]
    site.period_ends()
    assert len(site.events.written) == 2
