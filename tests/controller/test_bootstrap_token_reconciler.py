"""Tokens of a cluster, looked after beside whoever else writes them."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Final, Literal

import pytest
from fake_api import FakeApi
from management_kit import CAPI, add_cluster, add_policy, cached, management_api, tasks
from polling import until

from nodeattest_controller.controllers.bootstrap_token.decide import (
    CLUSTER_ANNOTATION,
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
    token_owner,
)
from nodeattest_controller.controllers.bootstrap_token.reconciler import (
    BootstrapTokenReconciler,
    TokenEvents,
    bootstrap_token_controller,
)
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.machine_view import MachineResource
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.kubeadm_configs import KubeadmConfigs
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.supervisor import ChangeBus
from nodeattest_discovery.secret import SECRET_TYPE
from nodeattest_kube.errors import ApiError
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.periodic import ResyncConfig
from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.times import parse_rfc3339
from nodeattest_parsing.values import JsonObject, JsonValue

SECRETS: Final = "/api/v1/namespaces/kube-system/secrets"
BOOTSTRAP: Final = "bootstrap.cluster.x-k8s.io"
CONFIGS: Final = f"/apis/{BOOTSTRAP}/v1beta2/namespaces/fleet/kubeadmconfigs"
OBJECTS: Final = f"{CAPI}/v1beta2/namespaces/fleet"
KEY: Final = ClusterKey("fleet/blue")
CABPK_TTL: Final = timedelta(minutes=15)
NUMBERS: Final = count(1)


@dataclass
class Told(TokenEvents):
    """Hears what the keeper says."""

    writes: list[str] = field(default_factory=list[str])

    def written(self, what: str, token_id: str, owner: str) -> None:
        del token_id, owner
        self.writes.append(what)

    def failed(self, error: ApiError, token_id: str) -> None:
        raise AssertionError(token_id) from error

    def unreadable(self, owner: Owner, detail: str) -> None:
        assert owner.key == "Machine/odd", detail


class Scene:
    """One Cluster with its keeper, both clusters on one API server; Cluster API's kubeadm provider is the test."""

    def __init__(self, api: FakeApi, management: ManagementCache) -> None:
        self.api, self.management = api, management
        self.told = Told()

    @property
    def configs(self) -> KubeadmConfigs:
        return KubeadmConfigs(self.api, self.management.caches)

    def keeper(self, may_write: Callable[[], bool] = lambda: True) -> BootstrapTokenReconciler:
        return BootstrapTokenReconciler(KEY, self.api, self.management, self.configs, self.told, may_write=may_write)

    async def look(
        self, keeper: BootstrapTokenReconciler | None = None, now: datetime | None = None, times: int = 1
    ) -> None:
        keeper = keeper or self.keeper()
        for _ in range(times):
            cluster = self.management.cluster(KEY)
            assert cluster is not None
            await keeper.reconcile(cluster, now or datetime.now(UTC))

    def token(self, *, left: timedelta = CABPK_TTL, description: str = DESCRIPTION) -> str:
        """Make a token as the provider does."""
        token_id = f"tk{next(NUMBERS):04d}"
        ends = (datetime.now(UTC) + left).isoformat()
        data = {"token-id": token_id, "token-secret": "0123456789abcdef", "expiration": ends}
        secret: JsonObject = {"type": SECRET_TYPE, "data": encoded({**data, "description": description})}
        self.api.put(f"{SECRETS}/bootstrap-token-{token_id}", secret)
        return f"{token_id}.0123456789abcdef"

    def _config(self, name: str, token: str) -> JsonObject:
        spec: JsonObject = {"joinConfiguration": {"discovery": {"bootstrapToken": {"token": token}}}}
        self.api.put(f"{CONFIGS}/{name}", {"spec": spec})
        reference: JsonObject = {"apiGroup": BOOTSTRAP, "kind": "KubeadmConfig", "name": name}
        return {"configRef": reference, "dataSecretName": name}

    def machine(self, name: str, token: str, *, node: str = "", **annotations: JsonValue) -> None:
        spec: JsonObject = {"clusterName": "blue", "providerID": f"x://{name}", "bootstrap": self._config(name, token)}
        status: JsonObject = {"nodeRef": {"name": node, "uid": "u"}} if node else {}
        kind: JsonObject = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine"}
        labels: JsonObject = {"cluster.x-k8s.io/cluster-name": "blue"}
        meta: JsonObject = {"labels": labels, "annotations": annotations}
        self.api.put(f"{OBJECTS}/machines/{name}", {**kind, "metadata": meta, "spec": spec, "status": status})

    def pool(self, name: str, token: str) -> None:
        template: JsonObject = {"spec": {"clusterName": "blue", "bootstrap": self._config(name, token)}}
        spec: JsonObject = {"clusterName": "blue", "providerIDList": [f"x://{name}/0"], "template": template}
        kind: JsonObject = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachinePool"}
        meta: JsonObject = {"labels": {"cluster.x-k8s.io/cluster-name": "blue"}}
        self.api.put(f"{OBJECTS}/machinepools/{name}", {**kind, "metadata": meta, "spec": spec})

    def remove(self, resource: str, name: str) -> None:
        self.api.remove(f"{OBJECTS}/{resource}/{name}")
        self.api.remove(f"{CONFIGS}/{name}")

    async def sees(self, *names: str, resource: MachineResource = "machines") -> None:
        """Wait for the caches."""
        await until(
            lambda: {text(one, "metadata", "name") for one in self.management.objects_of(KEY, resource)} == {*names}
        )


@asynccontextmanager
async def staged() -> AsyncGenerator[Scene]:
    api = management_api()
    api.documents[f"/apis/{BOOTSTRAP}"] = {"preferredVersion": {"version": "v1beta2"}}
    add_cluster(api)
    async with cached(api, ChangeBus()) as management:
        yield Scene(api, management)


def path_of(token: str) -> str:
    return f"{SECRETS}/bootstrap-token-{token[:6]}"


def left(scene: Scene, token: str) -> timedelta:
    found = mapping(scene.api.objects[path_of(token)], "data")
    moment = parse_rfc3339(base64.b64decode(text(found, "expiration")).decode())
    assert moment is not None
    return moment - datetime.now(UTC)


def near(found: timedelta, wanted: timedelta) -> bool:
    return abs(found - wanted) < timedelta(seconds=20)


async def test_a_machines_token_is_renewed_until_its_node_has_registered_and_then_runs_out() -> None:
    async with staged() as scene:
        token = scene.token()
        scene.machine("m", token)
        await scene.sees("m")
        await scene.look()
        assert near(left(scene, token), LIFETIME)
        assert text(scene.api.objects[path_of(token)], "metadata", "annotations", OWNER_ANNOTATION) == "Machine/m"
        await scene.look()
        await scene.look(now=datetime.now(UTC) + LIFETIME / 2 + timedelta(seconds=30))
        assert scene.told.writes == ["renewed", "renewed"]
        scene.machine("m", token, node="m")
        inventory = scene.management.inventory
        await until(lambda: any(member.node_ref_name for member in inventory.members(KEY, "x://m")))
        await scene.look(times=2)
        assert near(left(scene, token), GRACE)
        later = datetime.now(UTC) + GRACE + timedelta(minutes=1)
        await scene.look(now=later)
        assert path_of(token) not in scene.api.objects
        assert scene.told.writes[2:] == ["let run out", "deleted"]


async def test_a_pools_token_is_kept_so_that_the_provider_rotates_none() -> None:
    async with staged() as scene:
        token = scene.token()
        scene.pool("p", token)
        await scene.sees("p", resource="machinepools")
        for _ in range(3):
            await scene.look()
            assert left(scene, token) > CABPK_TTL / 2  # token.go: shouldRotate
            raw = base64.b64encode((datetime.now(UTC) + LIFETIME / 3).isoformat().encode()).decode()
            await scene.api.merge_patch(path_of(token), {"data": {"expiration": raw}})
        assert len(scene.told.writes) == 3


@pytest.mark.parametrize("kind", ["machines", "machinepools"])
async def test_the_token_of_what_is_gone_is_deleted_by_a_process_that_never_saw_it(kind: MachineResource) -> None:
    async with staged() as scene:
        token = scene.token()
        (scene.machine if kind == "machines" else scene.pool)("g", token)
        await scene.sees("g", resource=kind)
        await scene.look()
        scene.remove(kind, "g")
        await scene.sees(resource=kind)
        after_a_kill = scene.keeper()
        await scene.look(after_a_kill)
        assert path_of(token) not in scene.api.objects


async def test_objects_that_disappear_in_a_move_cost_no_token_its_life() -> None:
    async with staged() as scene:
        token = scene.token()
        scene.machine("m", token)
        await scene.sees("m")
        keeper = scene.keeper()
        await scene.look(keeper)
        unpaused = scene.management.cluster(KEY)
        assert unpaused is not None
        add_cluster(scene.api, paused=True)  # clusterctl move: pause, create there, delete here, unpause there
        scene.remove("machines", "m")
        await scene.sees()
        for _ in range(3):  # as though the cache had not seen the pause
            await keeper.reconcile(unpaused, datetime.now(UTC))
        assert path_of(token) in scene.api.objects
        scene.machine("m", token)  # in the other management cluster, with another UID
        add_cluster(scene.api)
        await scene.sees("m")
        await scene.look(keeper, times=2)
        assert near(left(scene, token), LIFETIME)
        assert scene.told.writes == ["renewed", "renewed"]


async def test_the_token_of_a_machine_that_had_the_name_before_is_deleted_and_one_of_another_cluster_is_not() -> None:
    async with staged() as scene:
        former, mine, elsewhere = scene.token(), scene.token(), scene.token()
        green: JsonObject = {
            CLUSTER_ANNOTATION: "fleet/green",
            OWNER_ANNOTATION: "Machine/x",
            OWNER_UID_ANNOTATION: "u",
        }
        await scene.api.merge_patch(path_of(elsewhere), {"metadata": {"annotations": green}})
        scene.machine("cp-0", former)
        await scene.sees("cp-0")
        await scene.look()
        scene.remove("machines", "cp-0")
        await scene.sees()
        scene.machine("cp-0", mine)
        await scene.sees("cp-0")
        await scene.look(times=2)
        assert path_of(former) not in scene.api.objects
        assert near(left(scene, mine), LIFETIME)
        assert path_of(elsewhere) in scene.api.objects


async def test_a_token_that_is_renewed_meanwhile_or_after_the_lead_is_lost_is_not_deleted() -> None:
    async with staged() as scene:
        token = scene.token()
        scene.machine("g", token)
        await scene.sees("g")
        await scene.look()
        scene.remove("machines", "g")
        await scene.sees()
        await scene.look(scene.keeper(lambda: False))
        assert path_of(token) in scene.api.objects

        async def renew(method: str, path: str) -> None:
            if method == "DELETE" and path == path_of(token):
                scene.api.put(path, scene.api.objects[path])

        scene.api.on_call = renew
        await scene.look()
        assert path_of(token) in scene.api.objects


async def test_what_is_paused_foreign_or_past_is_left_alone() -> None:
    async with staged() as scene:
        paused, foreign, past = scene.token(), scene.token(description="mine"), scene.token(left=timedelta(seconds=-5))
        stray = scene.token()
        scene.machine("paused", paused, **{"cluster.x-k8s.io/paused": ""})
        scene.machine("foreign", foreign)
        scene.machine("past", past)
        scene.machine("odd", "no token")
        await scene.sees("paused", "foreign", "past", "odd")
        before = [scene.api.objects[path_of(one)] for one in (paused, foreign, past, stray)]
        keeper = scene.keeper()
        await scene.look(keeper, times=3)
        assert [scene.api.objects[path_of(one)] for one in (paused, foreign, past, stray)] == before
        assert scene.told.writes == []


async def test_a_token_that_somebody_deleted_is_not_made_again() -> None:
    async with staged() as scene:
        token = scene.token()
        scene.machine("m", token)
        await scene.sees("m")
        keeper = scene.keeper()
        await scene.look(keeper)
        scene.api.remove(path_of(token))
        await scene.look(keeper, times=3)
        assert path_of(token) not in scene.api.objects


async def test_a_replica_that_lost_the_cluster_during_a_reconcile_writes_no_more() -> None:
    async with staged() as scene:
        tokens = [scene.token() for _ in range(4)]
        for number, token in enumerate(tokens):
            scene.machine(f"m-{number}", token)
        await scene.sees(*(f"m-{number}" for number in range(4)))
        answers = iter([True, False, False, False])
        await scene.look(scene.keeper(lambda: next(answers)))
        assert len([one for one in tokens if near(left(scene, one), LIFETIME)]) == 1
        assert len(scene.told.writes) == 1


async def test_runs_under_audit_write_no_token_and_the_next_one_under_enforce_does() -> None:
    runs: list[None] = []
    async with staged() as scene:
        add_policy(scene.api, enforcement="Audit")
        token = scene.token()
        scene.machine("m", token)
        await scene.sees("m")
        await until(lambda: bool(scene.management.policies("fleet")))
        before = scene.api.objects[path_of(token)]
        controller = bootstrap_token_controller(
            scene.management,
            configs=scene.configs,
            guard=ClusterGuard(scene.management, lambda: runs.append(None) is None),
            events=EventRecorder(scene.api, component="test", instance="test", now=_utc_now),
            metrics=Metrics(),
            now=_utc_now,
            resync=ResyncConfig(spread=0.0, period=0.02, min_interval=0.02, urgent=0.02),
        )
        async with tasks(controller.for_cluster(KEY, scene.api).run()):
            await until(lambda: len(runs) >= 3, "runs under Audit")
            assert scene.api.objects[path_of(token)] == before
            add_policy(scene.api)
            await until(lambda: near(left(scene, token), LIFETIME), "the renewal under Enforce")


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


REGISTERED: Final[JsonObject] = {"spec": {"providerID": "x://m"}, "status": {"nodeRef": {"name": "m"}}}


@pytest.mark.parametrize(
    ("kind", "found", "attested", "settled"),
    [
        ("Machine", {}, False, False),
        ("Machine", REGISTERED, False, True),
        ("Machine", {"status": {"nodeRef": {"name": "m"}}}, False, False),
        ("Machine", {"spec": {"providerID": "x://m"}}, True, True),  # after a move, which drops the status
        ("Machine", {"metadata": {"deletionTimestamp": "2026-05-04T12:00:00Z"}}, False, True),
        ("MachinePool", REGISTERED, True, False),
    ],
)
def test_who_has_joined_or_goes_needs_its_token_no_more(
    kind: Literal["Machine", "MachinePool"], found: JsonObject, attested: bool, settled: bool
) -> None:
    assert token_owner(found, kind, attested=attested).settled is settled


def test_a_renewal_never_shortens() -> None:
    moved = Record("fleet/blue", "Machine/m", "uid-after-the-move")
    assert renewal(read(secret(left=2 * LIFETIME, record=RECORD)), moved, NOW) == NOW + 2 * LIFETIME


@pytest.mark.parametrize("left", [timedelta(0), timedelta(seconds=-1), timedelta(days=-1)])
def test_a_token_that_has_run_out_stays_so(left: timedelta) -> None:
    assert renewal(read(secret(left=left)), RECORD, NOW) is None


def test_the_patch_is_for_one_version_of_one_secret_and_holds_no_token() -> None:
    patch = patch_of(read(secret()), RECORD, NOW)
    assert (text(patch, "metadata", "uid"), text(patch, "metadata", "resourceVersion")) == ("s", "7")
    assert base64.b64decode(text(patch, "data", "expiration")) == b"2026-05-04T12:00:00Z"
    assert text(patch, "metadata", "annotations", OWNER_UID_ANNOTATION) == "uid-m"
    assert set(mapping(patch, "data")) == {"expiration"}
