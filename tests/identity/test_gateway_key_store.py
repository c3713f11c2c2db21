"""One Secret for all replicas: they agree on the keys, whoever writes first and whoever is killed."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from polling import until

from nodeattest_identity.addon.gateway.keyset import (
    SECRET_NAME,
    KeySetError,
    KeyStore,
    RotationSchedule,
    parse_keyset,
)
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_parsing.objects import text
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.fleet import create_namespace

SCHEDULE = RotationSchedule()


@dataclass
class Replicas:
    """Gateways' keepers of one namespace, and the time."""

    plane: ControlPlane
    namespace: str
    client: ApiClient
    now: float = 1_800_000_000.0
    clock: float = 0.0
    keepers: list[KeyStore] = field(default_factory=list[KeyStore])

    def add(self) -> KeyStore:
        key_store = KeyStore(
            self.client, self.namespace, SCHEDULE, "ES256", now=lambda: self.now, clock=lambda: self.clock
        )
        self.keepers.append(key_store)
        return key_store

    async def stored(self) -> bytes:
        secret = await self.client.get(paths.core_path("secrets", SECRET_NAME, namespace=self.namespace))
        return base64.b64decode(text(secret, "data", "keys.json"))

    async def write(self, data: str) -> None:
        path = paths.core_path("secrets", SECRET_NAME, namespace=self.namespace)
        await self.client.merge_patch(path, {"data": {"keys.json": data}})


@asynccontextmanager
async def replicas(plane: ControlPlane, namespace: str) -> AsyncGenerator[Replicas]:
    create_namespace(plane.client(), namespace)
    async with ApiClient.from_kubeconfig_file(plane.admin_kubeconfig) as client:
        yield Replicas(plane, namespace, client)


async def test_replicas_that_start_at_once_share_one_key(control_plane: ControlPlane) -> None:
    async with replicas(control_plane, "gateway-start") as world:
        await asyncio.gather(*(world.add().refresh() for _ in range(4)))
        await asyncio.gather(*(key_store.refresh() for key_store in world.keepers))
        signers = [key_store.signer(world.now) for key_store in world.keepers]
        kids = {signer.verifying.kid for signer in signers if signer is not None}
        assert len(kids) == 1
        assert all(key_store.unready_reason() is None for key_store in world.keepers)
        assert [key.kid for key in parse_keyset(await world.stored()).published] == list(kids)


async def test_replicas_that_rotate_at_once_announce_one_successor(control_plane: ControlPlane) -> None:
    async with replicas(control_plane, "gateway-rotation") as world:
        for _ in range(3):
            await world.add().refresh()
        [first] = world.keepers[0].keyset.published
        world.now += SCHEDULE.period - SCHEDULE.ahead
        await asyncio.gather(*(key_store.refresh() for key_store in world.keepers))
        await asyncio.gather(*(key_store.refresh() for key_store in world.keepers))
        rings = {tuple(key.kid for key in key_store.keyset.published) for key_store in world.keepers}
        assert len(rings) == 1
        [(old, new)] = rings
        assert old == first.kid
        assert {signer.verifying.kid for key_store in world.keepers if (signer := key_store.signer(world.now))} == {old}
        world.now += SCHEDULE.ahead + 1
        assert {signer.verifying.kid for key_store in world.keepers if (signer := key_store.signer(world.now))} == {new}
        world.now += SCHEDULE.behind
        await asyncio.gather(*(key_store.refresh() for key_store in world.keepers))
        assert [key.kid for key in parse_keyset(await world.stored()).published] == [new]


async def test_keys_that_were_not_compared_for_long_sign_nothing(control_plane: ControlPlane) -> None:
    async with replicas(control_plane, "gateway-stale") as world:
        key_store = world.add()
        await key_store.refresh()
        world.clock += SCHEDULE.behind
        assert key_store.signer(world.now) is None
        await key_store.refresh()
        assert key_store.signer(world.now) is not None


async def test_a_replica_killed_before_or_after_its_write_leaves_keys_that_another_uses(
    control_plane: ControlPlane,
) -> None:
    async with replicas(control_plane, "gateway-killed") as world:
        killed = asyncio.create_task(world.add().refresh())
        await asyncio.sleep(0)
        killed.cancel()
        await asyncio.gather(killed, return_exceptions=True)
        survivor = world.add()
        await survivor.refresh()
        before = await world.stored()
        again = world.add()
        await again.refresh()
        assert await world.stored() == before
        assert again.keyset.published == survivor.keyset.published


async def test_a_secret_that_cannot_be_read_is_reported_and_never_replaced(
    control_plane: ControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    async with replicas(control_plane, "gateway-spoilt") as world:
        key_store = world.add()
        await key_store.refresh()
        spoilt = base64.b64encode(b'{"keys":[]}').decode()
        await world.write(spoilt)
        fresh = world.add()
        with pytest.raises(KeySetError):
            await fresh.refresh()
        assert fresh.signer(world.now) is None
        with caplog.at_level(logging.WARNING):
            running = asyncio.create_task(fresh.run())
            await until(lambda: "delete it" in (fresh.unready_reason() or ""), state=fresh.unready_reason)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        assert SECRET_NAME in caplog.text
        assert await world.stored() == b'{"keys":[]}'
        assert key_store.signer(world.now) is not None
