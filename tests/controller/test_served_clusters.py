"""A replica that shares clusters keeps whole what belongs to those that it serves, and of others a summary."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from fake_api import FakeApi
from management_kit import CAPI, add_cluster, add_policy, cluster_path
from polling import until

from nodeattest_controller.model.objects import rfc3339
from nodeattest_controller.runtime.changes import ChangeBus
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.served_clusters import is_summary
from nodeattest_controller.runtime.takeover import LONGEST_VALUE, MOST_NAMED
from nodeattest_kube.client import WATCH_SECONDS, ApiError, Gone
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.paging import PageSize
from nodeattest_kube.watch_events import WatchEvent

BLUE, RED = ClusterKey("fleet/blue"), ClusterKey("fleet/red")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OWN = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/fleet/machineattestations"
MACHINES = f"{CAPI}/v1beta2/namespaces/fleet/machines"
CERTIFICATE = "-----BEGIN CERTIFICATE-----"


class PagedApi(FakeApi):
    """Lists in two pages; a test may hold the second one of a collection."""

    def __init__(self) -> None:
        super().__init__("https://management.example")
        self.documents[CAPI] = {"preferredVersion": {"version": "v1beta2"}}
        self.held = ""
        self.busy = ""
        """An object that changes whenever its collection is listed."""
        self.selectors: set[str] = set()
        """Of labels, of all lists."""
        self.listed: Counter[str] = Counter()
        """How often each collection was."""
        self.first_page, self.go_on = asyncio.Event(), asyncio.Event()
        self._broken = asyncio.Event()

    def break_watches(self) -> None:
        """End all watches before they show anything more."""
        self._broken.set()
        self._broken = asyncio.Event()

    async def watch(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        opened: Callable[[], None] | None = None,
        skipped: Callable[[], None] | None = None,
        seconds: tuple[int, int] = WATCH_SECONDS,
    ) -> AsyncGenerator[WatchEvent]:
        broken = asyncio.create_task(self._broken.wait())
        async with aclosing(super().watch(path, query, opened=opened, skipped=skipped, seconds=seconds)) as events:
            while True:
                event = asyncio.ensure_future(anext(events))
                try:
                    await asyncio.wait({event, broken}, return_when=asyncio.FIRST_COMPLETED)
                    if broken.done():
                        return
                    shown = await event
                finally:
                    event.cancel()
                    await asyncio.gather(event, return_exceptions=True)
                yield shown

    async def pages(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        limit: int | PageSize = 500,
        *,
        skipped: Callable[[], None] | None = None,
    ) -> AsyncGenerator[JsonObject]:
        self.listed[path] += 1
        self.selectors.add((query or {}).get("labelSelector", ""))
        if re.search(r"[^\s(,)=]{64}", (query or {}).get("labelSelector", "")):
            raise ApiError(400, "BadRequest", "a label's value has at most 63 characters")
        if self.busy.startswith(path):
            self.put(self.busy, {**self.objects[self.busy], "n": self.listed[path]})
        async for page in super().pages(path, query, limit, skipped=skipped):
            yield page
            if path == self.held:
                self.first_page.set()
                await self.go_on.wait()
            yield {**page, "items": []}


@dataclass
class Replica:
    """A cache of a replica that shares, and how long it waited between two looks."""

    api: PagedApi
    cache: ManagementCache
    waits: list[float] = field(default_factory=list[float])

    def kept(self) -> dict[str, JsonObject]:
        """Return what is kept of the machine and its record, by cluster."""
        found: dict[str, JsonObject] = {}
        for name in ("blue", "red"):
            machine = self.cache.object_at("machines", "fleet", f"{name}-0")
            assert machine is not None
            found[name] = machine
        return found

    def certificates(self, cluster: ClusterKey) -> list[str]:
        """Return the certificates that the records of a cluster have here."""
        records = self.cache.inventory.attestations_of(cluster)
        return [entry.certificate for record in records for entry in record.issued]


def fill(api: FakeApi, name: str) -> None:
    """Add a cluster with a machine that has joined."""
    add_cluster(api, name, kubeconfig=f"kubeconfig of {name}".encode())
    label: JsonObject = {"cluster.x-k8s.io/cluster-name": name}
    spec: JsonObject = {"clusterName": name, "providerID": f"metal://{name}/0", "bootstrap": {"dataSecretName": "d"}}
    machine: JsonObject = {"kind": "Machine", "metadata": {"labels": dict(label)}, "spec": spec, "status": {}}
    api.put(f"{MACHINES}/{name}-0", machine)
    entry: JsonObject = {
        "spki": "sha256:" + "0a" * 32, "serial": "1", "policy": "p", "certificate": f"{CERTIFICATE} {name}",
        "notBefore": rfc3339(NOW), "notAfter": rfc3339(NOW + timedelta(days=14)), "issuedAt": rfc3339(NOW),
    }  # fmt: skip
    older: JsonObject = {**entry, "policy": "older"}
    serving: JsonObject = {**entry, "purpose": "serving", "policy": "other"}
    record: JsonObject = {
        "clusterName": name, "providerID": f"metal://{name}/0", "nodeName": f"{name}-0",
        "issued": [older, entry, serving],
    }  # fmt: skip
    api.put(f"{OWN}/{name}-0", {"metadata": {"labels": dict(label)}, "spec": record})


@asynccontextmanager
async def sharing(*more: str) -> AsyncGenerator[Replica]:
    """``more``: clusters beside blue and red."""
    api, changes, waits = PagedApi(), ChangeBus(), list[float]()
    add_policy(api)
    for name in ("blue", "red", *more):
        fill(api, name)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    cache = ManagementCache(
        api, namespace=None, on_change=changes.cluster_changed, sleep=sleep, now=lambda: NOW, shares=True
    )
    ready = asyncio.Event()
    task = asyncio.create_task(cache.run(ready))
    await asyncio.wait_for(ready.wait(), 10)
    try:
        yield Replica(api, cache, waits)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def machines(replica: Replica, cluster: ClusterKey) -> int:
    return len(list(replica.cache.inventory.members_of(cluster)))


async def test_before_a_cluster_is_served_there_are_summaries_without_keys_and_certificates() -> None:
    async with sharing() as replica:
        assert all(map(is_summary, replica.kept().values()))
        assert (machines(replica, BLUE), machines(replica, RED)) == (0, 0)
        assert replica.cache.kubeconfig(BLUE) is None
        assert replica.certificates(BLUE) == [""]
        assert replica.cache.opted_in_clusters() == {BLUE, RED}  # which are shared, every replica knows


async def test_who_takes_a_cluster_over_has_all_of_it_and_nothing_of_others() -> None:
    async with sharing() as replica:
        await replica.cache.take_over(BLUE)
        assert {name: is_summary(kept) for name, kept in replica.kept().items()} == {"blue": False, "red": True}
        assert (machines(replica, BLUE), machines(replica, RED)) == (1, 0)
        assert replica.cache.kubeconfig(BLUE) == b"kubeconfig of blue"
        assert replica.cache.kubeconfig(RED) is None
        recorded = replica.cache.inventory.attestation(BLUE, "metal://blue/0")
        assert recorded is not None
        assert len(recorded.issued) == 3
        assert replica.certificates(BLUE) == [f"{CERTIFICATE} blue"] * 3
        assert replica.certificates(RED) == [""]
        assert replica.waits == []


async def test_clusters_that_are_taken_over_together_share_their_lists() -> None:
    names = [f"green-{number}" for number in range(40)]
    async with sharing(*names) as replica:
        replica.api.listed.clear()
        taken = [ClusterKey(f"fleet/{name}") for name in names]
        await asyncio.gather(*map(replica.cache.take_over, taken))
        assert [machines(replica, cluster) for cluster in taken] == [1] * len(taken)
        assert replica.certificates(taken[-1]) == [f"{CERTIFICATE} {names[-1]}"] * 3
        assert (machines(replica, BLUE), replica.waits) == (0, [])
        assert {path: count for path, count in replica.api.listed.items() if count > 1} == {}


async def test_more_clusters_than_a_selector_names_are_taken_over_by_a_list_of_their_namespace() -> None:
    names = [f"green-{number}" for number in range(MOST_NAMED + 1)]
    async with sharing(*names) as replica:
        await asyncio.gather(*(replica.cache.take_over(ClusterKey(f"fleet/{name}")) for name in names))
        assert max(selector.count(",") for selector in replica.api.selectors) < MOST_NAMED
        assert [machines(replica, ClusterKey(f"fleet/{name}")) for name in names] == [1] * len(names)
        assert (machines(replica, BLUE), replica.waits) == (0, [])


async def test_a_cluster_that_changes_all_the_time_holds_up_no_other_takeover() -> None:
    async with sharing() as replica:
        replica.api.busy = f"{MACHINES}/red-0"
        taking = asyncio.create_task(replica.cache.take_over(RED))
        await asyncio.wait_for(replica.cache.take_over(BLUE), 5)
        assert machines(replica, BLUE) == 1
        assert [each for each in replica.api.selectors if each.endswith("(blue)")] == [], "it was read once"
        replica.api.busy = ""
        await asyncio.wait_for(taking, 5)


async def test_a_cluster_whose_name_no_label_can_hold_keeps_no_other_from_being_taken_over() -> None:
    long = "l" * (LONGEST_VALUE + 1)
    async with sharing(long) as replica:
        await asyncio.gather(*map(replica.cache.take_over, [BLUE, ClusterKey(f"fleet/{long}")]))
        assert (machines(replica, BLUE), machines(replica, ClusterKey(f"fleet/{long}"))) == (1, 1)
        assert replica.waits == []


async def test_who_asks_while_a_list_is_under_way_gets_the_next_one() -> None:
    async with sharing() as replica:
        replica.api.listed.clear()
        replica.api.held = MACHINES
        first = asyncio.create_task(replica.cache.take_over(BLUE))
        await replica.api.first_page.wait()
        second = asyncio.create_task(replica.cache.take_over(RED))
        await asyncio.sleep(0)
        replica.api.held = ""
        replica.api.go_on.set()
        await asyncio.gather(first, second)
        assert (machines(replica, BLUE), machines(replica, RED)) == (1, 1)
        assert replica.api.listed[MACHINES] == 2


async def test_what_changes_of_a_served_cluster_is_kept_whole_and_of_another_one_is_not() -> None:
    async with sharing() as replica:
        await replica.cache.take_over(BLUE)
        for name in ("blue", "red"):
            kept = replica.api.objects[f"{MACHINES}/{name}-0"]
            replica.api.put(f"{MACHINES}/{name}-0", {**kept, "status": {"phase": "Running"}})
        await until(lambda: "status" in replica.kept()["blue"] and replica.kept()["blue"]["status"] != {})
        assert is_summary(replica.kept()["red"])
        assert machines(replica, RED) == 0


async def test_a_cluster_that_is_given_up_leaves_a_summary_and_can_be_taken_over_again() -> None:
    async with sharing() as replica:
        before = replica.cache.memory.used
        for _ in range(2):
            await replica.cache.take_over(BLUE)
            assert replica.cache.memory.used > before
            replica.cache.give_up(BLUE)
            assert replica.cache.memory.used <= before
            assert machines(replica, BLUE) == 0
            assert replica.certificates(BLUE) == [""]
            assert replica.cache.kubeconfig(BLUE) is None


async def test_which_of_several_policies_rules_a_cluster_is_known_of_all_clusters() -> None:
    async with sharing() as replica:
        for name in ("blue", "red"):
            cluster = replica.api.objects[cluster_path(name)]
            assert replica.cache.machines_under(cluster, "p") == 1
            assert replica.cache.machines_under(cluster, "older") == 0
        await replica.cache.take_over(RED)
        replica.cache.give_up(RED)
        assert replica.cache.machines_under(replica.api.objects[cluster_path("red")], "p") == 1


async def test_a_machine_without_the_label_is_found_by_its_spec() -> None:
    async with sharing() as replica:
        machine = replica.api.objects[f"{MACHINES}/blue-0"]
        replica.api.put(f"{MACHINES}/blue-0", {**machine, "metadata": {"labels": {}}})
        await replica.cache.take_over(BLUE)
        assert machines(replica, BLUE) == 1


@pytest.mark.parametrize("written", ["blue-0", "blue-1"])
async def test_a_takeover_waits_until_the_watch_has_what_the_last_owner_wrote(written: str) -> None:
    async with sharing() as replica:
        await replica.cache.take_over(BLUE)  # so that what is kept is whole, and old
        caught_up = asyncio.Event()

        async def lag(method: str, path: str) -> None:
            if method == "WATCH" and path.endswith("machineattestations"):
                await caught_up.wait()

        replica.api.on_call = lag
        replica.api.break_watches()
        record = replica.api.objects[f"{OWN}/blue-0"]
        labels: JsonObject = {"cluster.x-k8s.io/cluster-name": "blue"}
        replica.api.put(f"{OWN}/{written}", {**record, "metadata": {"labels": labels}, "status": {"newer": True}})
        taking = asyncio.create_task(replica.cache.take_over(BLUE))
        await until(lambda: len(replica.waits) > 3)
        assert not taking.done()
        caught_up.set()
        await asyncio.wait_for(taking, 10)
        assert len(replica.cache.inventory.attestations_of(BLUE)) == (1 if written == "blue-0" else 2)


@pytest.mark.parametrize("collection", ["machines", "secrets"])
async def test_a_list_that_began_before_the_takeover_leaves_no_summary_behind(collection: str) -> None:
    async with sharing() as replica:
        api = replica.api
        api.held = {"machines": f"{CAPI}/v1beta2/machines", "secrets": "/api/v1/secrets"}[collection]
        path = {"machines": f"{MACHINES}/blue-0", "secrets": "/api/v1/namespaces/fleet/secrets/blue-kubeconfig"}[
            collection
        ]

        async def expired(method: str, called: str) -> None:
            if method == "WATCH" and called == api.held and not api.first_page.is_set():
                raise Gone(410, "Expired", "too old")

        api.on_call = expired
        api.put(path, {**api.objects[path], "touched": True})  # in a version that only that list brings
        api.break_watches()
        await asyncio.wait_for(api.first_page.wait(), 10)
        taking = asyncio.create_task(replica.cache.take_over(BLUE))
        await until(lambda: len(replica.waits) > 3)
        assert not taking.done()
        api.go_on.set()
        await asyncio.wait_for(taking, 10)
        assert machines(replica, BLUE) == 1
        assert replica.cache.kubeconfig(BLUE) == b"kubeconfig of blue"
