"""What Google Cloud says of instances: many machines' questions, few calls.

Promises: what is asked within a moment of each other about one zone is one call; an instance that ran is believed to
run for seconds more, unless the caller wants a newer answer, and any other answer is not remembered; endorsement keys
are asked by the instance's numeric ID, whose keys never change, once. One project that is down or throttled delays no
other's machines. An answer that cannot be read is ``Unavailable``, not the machine's fault.
Source: Compute Engine API v1, ``instances.list`` (filter: AIP-160), ``instances.getShieldedInstanceIdentity``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar
from urllib.parse import quote

from nodeattest_providers.cloud_http import SingleFlight
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.gcp.api.instance import (
    FIELDS,
    ComputeInstance,
    Page,
    parse_instance,
    parse_instance_identity,
    parse_page,
)
from nodeattest_providers.gcp.provider_id import InstanceRef
from nodeattest_providers.node_interface import JsonObject

_WINDOW: Final = 0.02
"""Seconds in which questions about one zone gather."""
_MOST: Final = 60
"""Names in one call: a filter of 5 KB at most, in a URL."""
_PAGES: Final = 10
"""Pages of one answer; sixty instances fit into one, but a page may be empty and have another behind it."""
_FRESH: Final = 10.0
"""Seconds; what a join takes, so that its three reads are one call."""
_KEPT: Final = 10_000
"""Instances and identities that are remembered."""
_RUNNING: Final = "RUNNING"

Instances = Mapping[str, JsonObject]


@dataclass(frozen=True, slots=True)
class _Batch:
    """Questions about one zone that go out together."""

    names: set[str]
    answer: asyncio.Task[Instances]


class Get(Protocol):
    """Asks the Compute API."""

    async def get(self, path: str, parameters: Mapping[str, str]) -> bytes | None:
        """Get a document; None where there is no such thing; raises Unavailable."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


class Compute:
    """Answers from the Compute API."""

    def __init__(self, api: Get, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._asking: SingleFlight[InstanceRef, ComputeInstance | None] = SingleFlight()
        self._identifying: SingleFlight[tuple[str, str], frozenset[str]] = SingleFlight()
        self._batches: dict[tuple[str, str], _Batch] = {}
        self._answers: set[asyncio.Task[Instances]] = set()
        self._running: dict[InstanceRef, tuple[float, ComputeInstance]] = {}
        self._identities: dict[tuple[str, str], frozenset[str]] = {}

    def now(self) -> float:
        """Return the time, for ``since``."""
        return self._clock()

    def is_kept_from_before(self, place: InstanceRef, since: float) -> bool:
        """Return whether what is remembered of an instance was learned before that time."""
        return place in self._running and self._running[place][0] < since

    async def instance(self, place: InstanceRef, *, since: float | None = None) -> ComputeInstance | None:
        """Return an instance, or None where there is none; raises Unavailable.

        With ``since``, nothing that was learned before counts.
        """
        oldest = self._clock() - _FRESH if since is None else since
        if place in self._running and self._running[place][0] >= oldest:
            return self._running[place][1]
        return await self._asking.share(place, lambda: self._instance(place))

    async def endorsement_keys(self, instance: ComputeInstance) -> frozenset[str] | None:
        """Return the fingerprints of an instance's endorsement keys, None if it is gone; raises Unavailable."""
        key = (instance.place.project, instance.number)
        known = self._identities.get(key)
        if known is not None:
            return known
        found = await self._identifying.share(key, lambda: self._identity(instance))
        return found or None

    async def aclose(self) -> None:
        """End what is under way and close the connections."""
        await self._asking.cancel()
        await self._identifying.cancel()
        for answer in self._answers:
            answer.cancel()
        await asyncio.gather(*self._answers, return_exceptions=True)
        await self._api.aclose()

    async def _instance(self, place: InstanceRef) -> ComputeInstance | None:
        asked = self._clock()
        item = (await self._read_in_batch(place)).get(place.name)
        self._running.pop(place, None)
        if item is None:
            return None
        instance = _readable(lambda: parse_instance(item, place))
        if instance.status == _RUNNING:
            _remember(self._running, place, (asked, instance))
        return instance

    async def _read_in_batch(self, place: InstanceRef) -> Instances:
        """Ask together with every caller that asks about the same zone now."""
        zone = (place.project, place.zone)
        batch = self._batches.get(zone)
        if batch is None:
            names: set[str] = set()
            batch = self._batches[zone] = _Batch(names, asyncio.ensure_future(self._ask(zone, names)))
            self._answers.add(batch.answer)
            batch.answer.add_done_callback(self._answers.discard)
        batch.names.add(place.name)
        if len(batch.names) >= _MOST:
            del self._batches[zone]
        return await asyncio.shield(batch.answer)

    async def _ask(self, zone: tuple[str, str], names: set[str]) -> Instances:
        await asyncio.sleep(_WINDOW)
        if zone in self._batches and self._batches[zone].names is names:
            del self._batches[zone]
        project, name = zone
        path = f"/compute/v1/projects/{quote(project, safe=':')}/zones/{name}/instances"
        words = " OR ".join(f'(name = "{instance}")' for instance in sorted(names))
        found: dict[str, JsonObject] = {}
        parameters = {"filter": words, "fields": FIELDS, "maxResults": "500"}
        for _ in range(_PAGES):
            data = await self._api.get(path, parameters)
            page = Page((), None) if data is None else _readable(lambda data=data: parse_page(data))
            found.update({str(item.get("name")): item for item in page.items})
            if page.next_token is None:
                return found
            parameters["pageToken"] = page.next_token
        raise _unreadable("a list that ends")

    async def _identity(self, instance: ComputeInstance) -> frozenset[str]:
        place = instance.place
        path = (
            f"/compute/v1/projects/{quote(place.project, safe=':')}/zones/{place.zone}/instances/"
            f"{instance.number}/getShieldedInstanceIdentity"
        )
        data = await self._api.get(path, {})
        if data is None:
            return frozenset()
        found = _readable(lambda: parse_instance_identity(data))
        if not found:
            raise Unavailable(
                Reason.PLATFORM_UNAVAILABLE,
                "the Compute API has no endorsement key of the instance yet",
                remedy="wait; if this stays, stop and start the instance, which makes its vTPM",
                retry_after=10.0,
            )
        _remember(self._identities, (place.project, instance.number), found)
        return found


_K = TypeVar("_K")
_V = TypeVar("_V")


def _remember(kept: dict[_K, _V], key: _K, value: _V) -> None:
    """Keep a value; the one that was learned longest ago goes first."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > _KEPT:
        del kept[next(iter(kept))]


def _readable(read: Callable[[], _V]) -> _V:
    """Read an answer; one that cannot be read is the platform's fault, and asked for again."""
    try:
        return read()
    except Denied as denied:
        raise _unreadable(denied.expected) from None


def _unreadable(expected: str) -> Unavailable:
    return Unavailable(
        Reason.PLATFORM_UNAVAILABLE,
        f"the Compute API's answer cannot be read: expected {expected}",
        remedy="check that platforms.gcp.endpoints.compute is the Compute Engine API",
    )
