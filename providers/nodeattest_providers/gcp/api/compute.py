"""Google Cloud's instances and their endorsement keys, for many requests at once.

Questions of one zone share a call. A running instance is remembered for some seconds, unless the caller wants a newer
answer. An instance's numeric ID never gets other endorsement keys, so those are asked for once. An answer that cannot
be read is ``Unavailable``.
Source: Compute Engine API v1, ``instances.list`` (filter: AIP-160), ``instances.getShieldedInstanceIdentity``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Final, Protocol, TypeVar
from urllib.parse import quote

from nodeattest_providers.cloud_http import Batches, Remembered
from nodeattest_providers.errors import Denied, Unavailable, platform_unavailable
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
        self._batches = Batches(self._ask, window=_WINDOW, most=_MOST)
        self._instances: Remembered[InstanceRef, ComputeInstance] = Remembered(
            _FRESH, monotonic=clock, most=_KEPT, keep=lambda instance: instance.status == _RUNNING
        )
        self._identities: Remembered[tuple[str, str], frozenset[str]] = Remembered(inf, monotonic=clock, most=_KEPT)

    async def instance(self, place: InstanceRef, *, fresh: bool = False) -> ComputeInstance | None:
        """Return an instance, or None where there is none; raises Unavailable. A fresh answer is asked for now."""
        return await self._instances.get(place, lambda: self._instance(place), fresh=fresh)

    async def endorsement_keys(self, instance: ComputeInstance) -> frozenset[str] | None:
        """Return the fingerprints of an instance's endorsement keys, None if it is gone; raises Unavailable."""
        key = (instance.place.project, instance.number)
        return await self._identities.get(key, lambda: self._identity(instance))

    async def aclose(self) -> None:
        """End what is under way and close the connections."""
        await self._instances.cancel()
        await self._identities.cancel()
        await self._batches.cancel()
        await self._api.aclose()

    async def _instance(self, place: InstanceRef) -> ComputeInstance | None:
        item = await self._batches.find((place.project, place.zone), place.name)
        return None if item is None else _readable(lambda: parse_instance(item, place))

    async def _ask(self, zone: tuple[str, str], names: Sequence[str]) -> Mapping[str, JsonObject]:
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

    async def _identity(self, instance: ComputeInstance) -> frozenset[str] | None:
        place = instance.place
        path = (
            f"/compute/v1/projects/{quote(place.project, safe=':')}/zones/{place.zone}/instances/"
            f"{instance.number}/getShieldedInstanceIdentity"
        )
        data = await self._api.get(path, {})
        if data is None:
            return None
        found = _readable(lambda: parse_instance_identity(data))
        if not found:
            raise platform_unavailable(
                "the Compute API has no endorsement key of the instance yet",
                remedy="wait; if this stays, stop and start the instance, which makes its vTPM",
                retry_after=10.0,
            )
        return found


_V = TypeVar("_V")


def _readable(read: Callable[[], _V]) -> _V:
    """Read an answer; one that cannot be read is the platform's fault, and asked for again."""
    try:
        return read()
    except Denied as denied:
        raise _unreadable(denied.expected) from None


def _unreadable(expected: str) -> Unavailable:
    return platform_unavailable(
        f"the Compute API's answer cannot be read: expected {expected}",
        remedy="check that platforms.gcp.endpoints.compute is the Compute Engine API",
    )
