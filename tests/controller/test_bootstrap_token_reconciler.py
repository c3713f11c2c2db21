"""Tokens of a cluster, looked after beside whoever else writes them, on the sandbox's API server."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Final, cast

import pytest
from node_attested_kit import certificate
from polling import until

from nodeattest_controller.controllers.bootstrap_token.decide import (
    DESCRIPTION,
    GRACE,
    LIFETIME,
    OWNER_ANNOTATION,
    OWNER_UID_ANNOTATION,
    Owner,
    Record,
    Token,
    patch_of,
    renewal,
    token_of,
)
from nodeattest_controller.controllers.bootstrap_token.reconciler import (
    BootstrapTokenReconciler,
    TokenEvents,
    bootstrap_token_controller,
)
from nodeattest_controller.manifests import crds
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.attestation import new_attestation, render_attestation
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.kubeadm_configs import KubeadmConfigs
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.sources import OWN_GROUP, OWN_VERSION
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.periodic import ResyncConfig
from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.times import parse_rfc3339
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane, start_sandbox
from nodeattest_sandbox.definitions import install_cluster_api, install_definitions

SECRETS: Final = "/api/v1/namespaces/kube-system/secrets"
CAPI: Final = "/apis/cluster.x-k8s.io/v1beta1"
CABPK_TTL: Final = timedelta(minutes=15)
NUMBERS: Final = count(1)


OWNED = tuple(
    f"/apis/{group}.cluster.x-k8s.io/v1beta1/namespaces/{{}}/{resource}"
    for group, resource in (("bootstrap", "kubeadmconfigs"), ("infrastructure", "devmachines"))
)
"""What a Machine owns."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One server is both clusters."""
    with start_sandbox(tmp_path_factory.mktemp("keeper"), name="both") as plane:
        install_cluster_api(plane.client())
        install_definitions(plane.client(), crds())
        yield plane


@dataclass
class Told(TokenEvents):
    """Hears what the keeper says."""

    writes: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    failures: list[ApiError] = field(default_factory=list[ApiError])
    puzzles: list[str] = field(default_factory=list[str])

    def written(self, what: str, token_id: str, owner: str) -> None:
        self.writes.append((what, token_id, owner))

    def failed(self, error: ApiError, token_id: str) -> None:
        assert token_id
        self.failures.append(error)

    def unreadable(self, owner: Owner, detail: str) -> None:
        self.puzzles.append(f"{owner.key}: {detail}")


@dataclass
class Scene:
    """One Cluster with its keeper, and Cluster API's kubeadm provider played by the test."""

    admin: Client
    client: ApiClient
    management: ManagementCache
    cluster: JsonMap
    told: Told = field(default_factory=Told)

    @property
    def namespace(self) -> str:
        return text_at(self.cluster, "metadata", "namespace")

    @property
    def key(self) -> ClusterKey:
        return ClusterKey(f"{self.namespace}/blue")

    def keeper(self, may_write: Callable[[], bool] = lambda: True) -> BootstrapTokenReconciler:
        configs = KubeadmConfigs(self.management.client, self.management.start_watch)
        return BootstrapTokenReconciler(self.key, self.client, self.management, configs, self.told, may_write=may_write)

    async def look(
        self, keeper: BootstrapTokenReconciler | None = None, now: datetime | None = None, times: int = 1
    ) -> None:
        keeper = keeper or self.keeper()
        for _ in range(times):
            cluster = self.management.cluster(self.key)
            assert cluster is not None
            await keeper.reconcile(cluster, now or datetime.now(UTC))

    def token(self, *, left: timedelta = CABPK_TTL, description: str = DESCRIPTION) -> str:
        """Make a token as the provider does."""
        value = f"tk{next(NUMBERS):04d}.0123456789abcdef"
        fleet.create_bootstrap_token(self.admin, value, expiration=datetime.now(UTC) + left)
        described = base64.b64encode(description.encode()).decode()
        self.admin.patch(path_of(value), {"data": {"description": described}})
        return value

    def machine(self, name: str, token: str, **options: object) -> None:
        fleet.create_machine(
            self.admin,
            name,
            cluster=self.cluster,
            provider_id=f"x://{name}",
            bootstrap_token=token,
            **options,  # pyright: ignore[reportArgumentType] - the tests name real options
        )

    def pool(self, name: str, token: str) -> None:
        fleet.create_machine_pool(
            self.admin, name, cluster=self.cluster, provider_ids=[f"x://{name}/0"], bootstrap_token=token
        )

    def register(self, name: str) -> None:
        path = f"{CAPI}/namespaces/{self.namespace}/machines/{name}/status"
        self.admin.patch(path, {"status": {"nodeRef": {"name": name, "uid": "u"}}})

    def remember(self, name: str, owner_uid: str = "") -> None:
        """Write down that the machine has a certificate."""
        [member] = self.management.inventory.members(self.key, f"x://{name}")
        known = replace(new_attestation(member), issued=(certificate(),))
        document = render_attestation(known, replace(member, uid=owner_uid or member.uid), "signer")
        self.management.inventory.put_attestation(f"{self.namespace}/{known.name}", document)

    def rename(self, name: str, token: str) -> None:
        path = f"/apis/bootstrap.cluster.x-k8s.io/v1beta1/namespaces/{self.namespace}/kubeadmconfigs/{name}"
        spec: JsonMap = {"joinConfiguration": {"discovery": {"bootstrapToken": {"token": token}}}}
        self.admin.patch(path, {"spec": spec})

    def pause(self, *, paused: bool) -> None:
        self.admin.patch(f"{CAPI}/namespaces/{self.namespace}/clusters/blue", {"spec": {"paused": paused}})

    def remove(self, resource: str, name: str) -> None:
        self.admin.delete(f"{CAPI}/namespaces/{self.namespace}/{resource}/{name}")
        owned = [f"{path.format(self.namespace)}/{name}" for path in OWNED]
        for path in (*owned, f"/api/v1/namespaces/{self.namespace}/secrets/{name}-bootstrap"):
            with suppress(ApiRefusal):  # nobody collects garbage on the sandbox
                self.admin.delete(path)

    async def sees(self, holds: Callable[[], bool]) -> None:
        """Wait for the caches."""
        await until(holds)

    def owned(self) -> list[JsonMap]:
        """Return what the garbage collector has still to remove."""
        return [one for path in OWNED for one in self.admin.list(path.format(self.namespace))]

    def names(self, resource: str) -> set[str]:
        found = self.management.objects_of(self.key, "machines" if resource == "machines" else "machinepools")
        return {text_at(cast("JsonMap", one), "metadata", "name") for one in found}


@asynccontextmanager
async def staged(plane: ControlPlane, kubeconfig: Path | None = None) -> AsyncGenerator[Scene]:
    namespace = f"fleet-{next(NUMBERS)}"
    admin = plane.client()
    fleet.create_namespace(admin, namespace)
    cluster = fleet.create_cluster(
        admin, "blue", namespace=namespace, kubeconfig=b"x", ca_certificate=b"x", ca_key=b"x"
    )
    async with (
        ApiClient.from_kubeconfig_file(plane.admin_kubeconfig) as here,
        ApiClient.from_kubeconfig_file(kubeconfig or plane.admin_kubeconfig) as there,
    ):
        management = ManagementCache(here, namespace=namespace, on_change=lambda _cluster, _machines: None)
        ready = asyncio.Event()
        running = asyncio.create_task(management.run(ready))
        try:
            await asyncio.wait_for(ready.wait(), 60)
            yield Scene(admin, there, management, cluster)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def path_of(token: str) -> str:
    return f"{SECRETS}/bootstrap-token-{token[:6]}"


def left(scene: Scene, token: str) -> timedelta:
    found = map_at(scene.admin.get(path_of(token)), "data")
    moment = parse_rfc3339(base64.b64decode(text_at(found, "expiration")).decode())
    assert moment is not None
    return moment - datetime.now(UTC)


def is_there(scene: Scene, token: str) -> bool:
    names = {text_at(one, "metadata", "name") for one in scene.admin.list(SECRETS)}
    return f"bootstrap-token-{token[:6]}" in names


def near(found: timedelta, wanted: timedelta) -> bool:
    return abs(found - wanted) < timedelta(seconds=20)


async def test_a_machines_token_is_renewed_until_its_node_has_registered_and_then_runs_out(plane: ControlPlane) -> None:
    async with staged(plane) as scene:
        token = scene.token()
        scene.machine("m", token)
        await scene.sees(lambda: scene.names("machines") == {"m"})
        await scene.look()
        assert near(left(scene, token), LIFETIME)
        assert text_at(scene.admin.get(path_of(token)), "metadata", "annotations", OWNER_ANNOTATION) == "Machine/m"
        await scene.look()
        await scene.look(now=datetime.now(UTC) + LIFETIME / 2 + timedelta(seconds=30))
        assert [what for what, *_ in scene.told.writes] == ["renewed", "renewed"]
        scene.register("m")
        inventory = scene.management.inventory
        await scene.sees(lambda: any(member.node_ref_name for member in inventory.members(scene.key, "x://m")))
        await scene.look(times=2)
        assert near(left(scene, token), GRACE)
        later = datetime.now(UTC) + GRACE + timedelta(minutes=1)
        await scene.look(now=later)
        assert not is_there(scene, token)
        assert [what for what, *_ in scene.told.writes[2:]] == ["let run out", "deleted"]


async def test_a_pools_token_is_kept_so_that_the_provider_rotates_none(plane: ControlPlane) -> None:
    async with staged(plane) as scene:
        token = scene.token()
        scene.pool("p", token)
        await scene.sees(lambda: scene.names("machinepools") == {"p"})
        for _ in range(3):
            await scene.look()
            assert left(scene, token) > CABPK_TTL / 2  # token.go: shouldRotate
            raw = base64.b64encode((datetime.now(UTC) + LIFETIME / 3).isoformat().encode()).decode()
            scene.admin.patch(path_of(token), {"data": {"expiration": raw}})
        assert len(scene.told.writes) == 3


@pytest.mark.parametrize("kind", ["machines", "machinepools"])
async def test_the_token_of_what_is_gone_is_deleted_by_a_process_that_never_saw_it(
    plane: ControlPlane, kind: str
) -> None:
    async with staged(plane) as scene:
        token = scene.token()
        (scene.machine if kind == "machines" else scene.pool)("g", token)
        await scene.sees(lambda: scene.names(kind) == {"g"})
        await scene.look()
        scene.remove(kind, "g")
        await scene.sees(lambda: not scene.names(kind))
        after_a_kill = scene.keeper()
        await scene.look(after_a_kill)
        assert not is_there(scene, token)


async def test_objects_that_disappear_in_a_move_cost_no_token_its_life(plane: ControlPlane) -> None:
    async with staged(plane) as scene:
        token = scene.token()
        scene.machine("m", token)
        await scene.sees(lambda: scene.names("machines") == {"m"})
        keeper = scene.keeper()
        await scene.look(keeper)
        unpaused = scene.management.cluster(scene.key)
        assert unpaused is not None
        scene.pause(paused=True)  # clusterctl move: pause, create there, delete here, unpause there
        scene.remove("machines", "m")
        await scene.sees(lambda: not scene.names("machines"))
        for _ in range(3):  # as though the cache had not seen the pause
            await keeper.reconcile(unpaused, datetime.now(UTC))
        assert is_there(scene, token)
        scene.machine("m", token)  # in the other management cluster, with another UID
        scene.pause(paused=False)
        await scene.sees(lambda: scene.names("machines") == {"m"})
        await scene.look(keeper, times=2)
        assert near(left(scene, token), LIFETIME)
        assert [what for what, *_ in scene.told.writes] == ["renewed", "renewed"]


async def test_what_is_paused_foreign_or_past_is_left_alone(plane: ControlPlane) -> None:
    async with staged(plane) as scene:
        paused, foreign, past = scene.token(), scene.token(description="mine"), scene.token(left=timedelta(seconds=-5))
        stray = scene.token()
        scene.machine("paused", paused, annotations={"cluster.x-k8s.io/paused": ""})
        scene.machine("foreign", foreign)
        scene.machine("past", past)
        scene.machine("odd", "no token")
        await scene.sees(lambda: len(scene.names("machines")) == 4)
        before = [scene.admin.get(path_of(one)) for one in (paused, foreign, past, stray)]
        keeper = scene.keeper()
        await scene.look(keeper, times=3)
        assert [scene.admin.get(path_of(one)) for one in (paused, foreign, past, stray)] == before
        assert scene.told.writes == []


async def test_a_token_that_somebody_deleted_is_not_made_again(plane: ControlPlane) -> None:
    async with staged(plane) as scene:
        token = scene.token()
        scene.machine("m", token)
        await scene.sees(lambda: scene.names("machines") == {"m"})
        keeper = scene.keeper()
        await scene.look(keeper)
        scene.admin.delete(path_of(token))
        await scene.look(keeper, times=3)
        assert not is_there(scene, token)


async def test_a_replica_that_lost_the_cluster_during_a_reconcile_writes_no_more(plane: ControlPlane) -> None:
    async with staged(plane) as scene:
        tokens = [scene.token() for _ in range(4)]
        for number, token in enumerate(tokens):
            scene.machine(f"m-{number}", token)
        await scene.sees(lambda: len(scene.names("machines")) == len(tokens))
        answers = iter([True, False, False, False])
        await scene.look(scene.keeper(lambda: next(answers)))
        assert len([one for one in tokens if near(left(scene, one), LIFETIME)]) == 1
        assert len(scene.told.writes) == 1


async def test_runs_under_audit_write_no_token_and_the_next_one_under_enforce_does(plane: ControlPlane) -> None:
    runs: list[None] = []
    async with staged(plane) as scene:
        policies = f"/apis/{OWN_GROUP}/{OWN_VERSION}/namespaces/{scene.namespace}/nodeattestationpolicies"
        spec: JsonMap = {"authorizedAttestors": ["insecure"], "enforcement": "Audit"}
        kind: JsonMap = {"apiVersion": f"{OWN_GROUP}/{OWN_VERSION}", "kind": "NodeAttestationPolicy"}
        scene.admin.create(policies, {**kind, "metadata": {"name": "policy"}, "spec": spec})
        token = scene.token()
        scene.machine("m", token)
        await scene.sees(lambda: scene.names("machines") == {"m"} and bool(scene.management.policies(scene.namespace)))
        before = scene.admin.get(path_of(token))
        controller = bootstrap_token_controller(
            scene.management,
            configs=KubeadmConfigs(scene.management.client, scene.management.start_watch),
            guard=ClusterGuard(scene.management, lambda: runs.append(None) is None),
            events=EventRecorder(scene.management.client, component="test", instance="test", now=_utc_now),
            metrics=Metrics(),
            now=_utc_now,
            resync=ResyncConfig(spread=0.0, period=0.02, min_interval=0.02, urgent=0.02),
        )
        running = asyncio.create_task(controller.for_cluster(scene.key, scene.client).run())
        try:
            await until(lambda: len(runs) >= 3, "runs under Audit")
            assert scene.admin.get(path_of(token)) == before
            scene.admin.patch(f"{policies}/policy", {"spec": {"enforcement": "Enforce"}})
            await until(lambda: near(left(scene, token), LIFETIME), "the renewal under Enforce")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def _utc_now() -> datetime:
    return datetime.now(UTC)


# What becomes of a bootstrap token is decided by facts alone


NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
RECORD = Record("fleet/blue", "Machine/m", "uid-m")


def encoded(data: dict[str, str]) -> JsonObject:
    return {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}


def secret(*, left: timedelta = timedelta(minutes=12), record: Record | None = None, **changed: str) -> JsonObject:
    """Make a token as Cluster API's kubeadm provider does."""
    data = {
        "token-id": "abcdef",
        "token-secret": "0123456789abcdef",
        "expiration": (NOW + left).isoformat(),
        "description": DESCRIPTION,
        **changed,
    }
    meta: JsonObject = {"name": "bootstrap-token-abcdef", "uid": "s", "resourceVersion": "7"}
    made: JsonObject = {"type": "bootstrap.kubernetes.io/token", "metadata": meta, "data": encoded(data)}
    if record is not None:
        meta["annotations"] = mapping(patch_of(read(secret()), record, NOW), "metadata", "annotations")
    return made


def read(raw: JsonObject) -> Token:
    found = token_of(raw, NOW)
    assert found is not None
    return found


def changed(raw: JsonObject, *path: str, value: JsonValue) -> JsonObject:
    mapping(raw, *path[:-1])[path[-1]] = value
    return raw


@pytest.mark.parametrize(
    "foreign",
    [
        secret(description="The default bootstrap token generated by 'kubeadm init'."),
        secret(expiration=""),
        secret(expiration="some day"),
        changed(secret(), "data", "token-id", value="ZmVkY2Jh"),
        changed(secret(), "type", value="Opaque"),
        changed(secret(), "metadata", "deletionTimestamp", value="2026-05-04T12:00:00Z"),
        {},
    ],
)
def test_what_the_provider_did_not_make_or_what_never_ends_is_left_alone(foreign: JsonObject) -> None:
    assert token_of(foreign, NOW) is None


@pytest.mark.parametrize("left", [timedelta(0), timedelta(seconds=-1), timedelta(days=-1)])
def test_a_token_that_has_run_out_stays_so(left: timedelta) -> None:
    assert renewal(read(secret(left=left)), RECORD, NOW) is None


def test_the_patch_is_for_one_version_of_one_secret_and_holds_no_token() -> None:
    patch = patch_of(read(secret()), RECORD, NOW)
    assert (text(patch, "metadata", "uid"), text(patch, "metadata", "resourceVersion")) == ("s", "7")
    assert base64.b64decode(text(patch, "data", "expiration")) == b"2026-05-04T12:00:00Z"
    assert text(patch, "metadata", "annotations", OWNER_UID_ANNOTATION) == "uid-m"
    assert set(mapping(patch, "data")) == {"expiration"}
