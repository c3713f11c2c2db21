"""Tokens of a cluster, looked after beside whoever else writes them."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Final, Literal

import pytest
from fake_api import FakeApi
from management_kit import CAPI, add_cluster, add_policy, cached, deps_of, management_api
from polling import until

from nodeattest_controller.controllers.bootstrap_token import (
    CLUSTER_ANNOTATION,
    DESCRIPTION,
    GRACE,
    LIFETIME,
    OWNER_ANNOTATION,
    OWNER_UID_ANNOTATION,
    BootstrapTokenReconciler,
    Record,
    Token,
    patch_of,
    renewal,
    token_of,
    token_owner,
)
from nodeattest_controller.model.machine_view import MachineResource
from nodeattest_controller.model.policy import Policy
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.references import KubeadmConfigs
from nodeattest_discovery.secret import SECRET_TYPE
from nodeattest_kube.errors import TooManyRequests
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


class StaleGuard(ClusterGuard):
    """Knows a Cluster as it was once read, as though the cache had not seen its changes."""

    def __init__(self, management: ManagementCache) -> None:
        super().__init__(management, lambda: True)
        self._known = super().enforced_cluster(KEY)

    def enforced_cluster(self, key: ClusterKey) -> tuple[JsonObject, Policy] | None:
        del key
        return self._known


class Scene:
    """One Cluster with its tokens, both clusters on one API server; Cluster API's kubeadm provider is the test."""

    def __init__(self, api: FakeApi, management: ManagementCache) -> None:
        self.api, self.management = api, management
        self.skipped = timedelta(0)
        self.guard = ClusterGuard(management, lambda: True)
        api.date = self.now

    def now(self) -> datetime:
        return datetime.now(UTC) + self.skipped

    async def reconcile(self, times: int = 1, known: KubeadmConfigs | None = None) -> None:
        """Reconcile as a process that just started, unless its watch of KubeadmConfigs is ``known``."""
        for _ in range(times):
            deps = replace(deps_of(self.management, now=self.now), guard=self.guard)
            configs = known or KubeadmConfigs(self.api, self.management.caches)
            await BootstrapTokenReconciler(deps, configs, KEY, self.api).reconcile()

    def token(self, *, left: timedelta = CABPK_TTL, description: str = DESCRIPTION) -> str:
        token_id = f"tk{next(NUMBERS):04d}"
        ends = (datetime.now(UTC) + left).isoformat()
        made = secret(id_=token_id, expiration=ends, description=description)
        self.api.put(f"{SECRETS}/bootstrap-token-{token_id}", {"type": made["type"], "data": made["data"]})
        return f"{token_id}.0123456789abcdef"

    def _config(self, name: str, token: str) -> JsonObject:
        spec: JsonObject = {"joinConfiguration": {"discovery": {"bootstrapToken": {"token": token}}}}
        self.api.put(f"{CONFIGS}/{name}", {"spec": spec})
        reference: JsonObject = {"apiGroup": BOOTSTRAP, "kind": "KubeadmConfig", "name": name}
        return {"configRef": reference, "dataSecretName": name}

    async def machine(self, name: str, token: str, *, node: str = "", **annotations: JsonValue) -> None:
        spec: JsonObject = {"clusterName": "blue", "providerID": f"x://{name}", "bootstrap": self._config(name, token)}
        status: JsonObject = {"nodeRef": {"name": node, "uid": "u"}} if node else {}
        await self._put("machines", "Machine", name, {"spec": spec, "status": status}, annotations)

    async def pool(self, name: str, token: str) -> None:
        template: JsonObject = {"spec": {"clusterName": "blue", "bootstrap": self._config(name, token)}}
        spec: JsonObject = {"clusterName": "blue", "providerIDList": [f"x://{name}/0"], "template": template}
        await self._put("machinepools", "MachinePool", name, {"spec": spec}, {})

    async def _put(
        self, resource: MachineResource, kind: str, name: str, parts: JsonObject, annotations: JsonObject
    ) -> None:
        """Store an object, and wait until the cache has it."""
        meta: JsonObject = {"labels": {"cluster.x-k8s.io/cluster-name": "blue"}, "annotations": annotations}
        path = f"{OBJECTS}/{resource}/{name}"
        self.api.put(path, {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind, "metadata": meta, **parts})
        version = text(self.api.objects[path], "metadata", "resourceVersion")

        def is_cached() -> bool:
            found = self.management.objects_of(KEY, resource)
            return any(text(one, "metadata", "resourceVersion") == version for one in found)

        await until(is_cached)

    async def remove(self, resource: MachineResource, name: str) -> None:
        self.api.remove(f"{OBJECTS}/{resource}/{name}")
        self.api.remove(f"{CONFIGS}/{name}")
        await until(lambda: not list(self.management.objects_of(KEY, resource)))

    def left(self, token: str) -> timedelta:
        moment = parse_rfc3339(base64.b64decode(text(self.api.objects[path_of(token)], "data", "expiration")).decode())
        assert moment is not None
        return moment - datetime.now(UTC)

    def writes(self) -> int:
        return len(self.api.writes(SECRETS)) + self.api.count("DELETE", SECRETS)


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    api = management_api()
    api.documents[f"/apis/{BOOTSTRAP}"] = {"preferredVersion": {"version": "v1beta2"}}
    add_cluster(api)
    add_policy(api)
    async with cached(api) as management:
        yield Scene(api, management)


def path_of(token: str) -> str:
    return f"{SECRETS}/bootstrap-token-{token[:6]}"


def near(found: timedelta, wanted: timedelta) -> bool:
    return abs(found - wanted) < timedelta(seconds=20)


async def test_a_machines_token_is_renewed_until_its_node_has_registered_and_then_runs_out(scene: Scene) -> None:
    token = scene.token()
    await scene.machine("m", token)
    await scene.reconcile(2)
    assert near(scene.left(token), LIFETIME)
    assert text(scene.api.objects[path_of(token)], "metadata", "annotations", OWNER_ANNOTATION) == "Machine/m"
    assert scene.writes() == 1
    scene.skipped = LIFETIME / 2 + timedelta(seconds=30)
    await scene.reconcile()
    assert scene.writes() == 2
    scene.skipped = timedelta(0)
    await scene.machine("m", token, node="m")
    await scene.reconcile(2)
    assert near(scene.left(token), GRACE)
    scene.skipped = GRACE + timedelta(minutes=1)
    await scene.reconcile()
    assert path_of(token) not in scene.api.objects
    assert scene.writes() == 4


async def test_the_token_of_a_machine_that_joined_between_two_runs_runs_out(scene: Scene) -> None:
    token, configs = scene.token(), KubeadmConfigs(scene.api, scene.management.caches)
    await scene.machine("m", token, node="m")
    await configs.follow()
    await until(lambda: bool(configs.naming("fleet", token[:6])))
    await scene.reconcile(known=configs)
    assert near(scene.left(token), GRACE)
    assert text(scene.api.objects[path_of(token)], "metadata", "annotations", OWNER_ANNOTATION) == "Machine/m"


@pytest.mark.parametrize(("ahead", "expired"), [(timedelta(hours=1), True), (timedelta(days=2), False)])
async def test_the_clusters_own_clock_decides_what_has_expired_unless_it_is_days_off(
    scene: Scene, ahead: timedelta, expired: bool
) -> None:
    token = scene.token()
    await scene.machine("m", token)
    scene.api.date = lambda: datetime.now(UTC) + ahead
    await scene.reconcile()
    assert (scene.writes() == 0) is expired


async def test_a_pools_token_is_kept_so_that_the_provider_rotates_none(scene: Scene) -> None:
    token = scene.token()
    await scene.pool("p", token)
    for turn in range(3):
        await scene.reconcile()
        assert scene.left(token) > CABPK_TTL / 2  # token.go: shouldRotate
        assert len(scene.api.writes(SECRETS)) == 2 * turn + 1
        raw = base64.b64encode((datetime.now(UTC) + LIFETIME / 3).isoformat().encode()).decode()
        await scene.api.merge_patch(path_of(token), {"data": {"expiration": raw}})


@pytest.mark.parametrize("resource", ["machines", "machinepools"])
async def test_the_token_of_what_is_gone_is_deleted_by_a_process_that_never_saw_it(
    scene: Scene, resource: MachineResource
) -> None:
    token = scene.token()
    await (scene.machine if resource == "machines" else scene.pool)("g", token)
    await scene.reconcile()
    await scene.remove(resource, "g")
    await scene.reconcile()
    assert path_of(token) not in scene.api.objects


async def test_objects_that_disappear_in_a_move_cost_no_token_its_life(scene: Scene) -> None:
    token = scene.token()
    await scene.machine("m", token)
    await scene.reconcile()
    scene.guard = StaleGuard(scene.management)
    add_cluster(scene.api, paused=True)  # clusterctl move: pause, create there, delete here, unpause there
    await scene.remove("machines", "m")
    await scene.reconcile(3)
    assert path_of(token) in scene.api.objects
    await scene.machine("m", token)  # in the other management cluster, with another UID
    add_cluster(scene.api)
    await scene.reconcile(2)
    assert near(scene.left(token), LIFETIME)
    assert scene.writes() == 2


async def test_the_token_of_a_machine_that_had_the_name_before_is_deleted_and_one_of_another_cluster_is_not(
    scene: Scene,
) -> None:
    former, mine, elsewhere = scene.token(), scene.token(), scene.token()
    green: JsonObject = {
        CLUSTER_ANNOTATION: "fleet/green",
        OWNER_ANNOTATION: "Machine/x",
        OWNER_UID_ANNOTATION: "u",
    }
    await scene.api.merge_patch(path_of(elsewhere), {"metadata": {"annotations": green}})
    await scene.machine("cp-0", former)
    await scene.reconcile()
    await scene.remove("machines", "cp-0")
    await scene.machine("cp-0", mine)
    await scene.reconcile(2)
    assert path_of(former) not in scene.api.objects
    assert near(scene.left(mine), LIFETIME)
    assert path_of(elsewhere) in scene.api.objects


async def test_a_token_that_is_renewed_meanwhile_is_not_deleted(scene: Scene) -> None:
    token = scene.token()
    await scene.machine("g", token)
    await scene.reconcile()
    await scene.remove("machines", "g")

    async def renew(method: str, path: str) -> None:
        if method == "DELETE" and path == path_of(token):
            scene.api.put(path, scene.api.objects[path])

    scene.api.on_call = renew
    await scene.reconcile()
    assert path_of(token) in scene.api.objects


async def test_what_is_paused_foreign_past_or_deleted_is_left_alone(scene: Scene) -> None:
    paused, foreign, past = scene.token(), scene.token(description="mine"), scene.token(left=timedelta(seconds=-5))
    await scene.machine("paused", paused, **{"cluster.x-k8s.io/paused": ""})
    await scene.machine("foreign", foreign)
    await scene.machine("past", past)
    await scene.machine("odd", "no token")
    await scene.machine("guesses", f"{scene.token()[:6]}.{'f' * 16}")
    held = scene.token()
    await scene.machine("held", held)
    of_config: JsonObject = {"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}}
    scene.api.put(f"{CONFIGS}/held", {**scene.api.objects[f"{CONFIGS}/held"], **of_config})
    scene.token()  # which no configuration names
    deleted = scene.token()
    await scene.machine("deleted", deleted)
    scene.api.remove(path_of(deleted))  # perhaps because it was stolen
    await scene.reconcile(3)
    assert scene.writes() == 0


async def test_a_record_that_names_no_object_costs_no_token_and_no_reconcile(scene: Scene) -> None:
    token = scene.token()
    record: JsonObject = {CLUSTER_ANNOTATION: str(KEY), OWNER_ANNOTATION: "Machine/a/../b", OWNER_UID_ANNOTATION: "u"}
    await scene.api.merge_patch(path_of(token), {"metadata": {"annotations": record}})
    await scene.reconcile()
    assert path_of(token) in scene.api.objects


async def test_a_server_that_wants_no_more_writes_gets_no_more(scene: Scene) -> None:
    for name in ("a", "b"):
        await scene.machine(name, scene.token())
    tried: list[str] = []

    async def busy(method: str, path: str) -> None:
        if method == "PATCH" and path.startswith(SECRETS):
            tried.append(path)
            raise TooManyRequests(429, "TooManyRequests", "busy", retry_after=30.0)

    scene.api.on_call = busy
    with pytest.raises(TooManyRequests):
        await scene.reconcile()
    assert len(tried) == 1


async def test_a_replica_that_lost_the_cluster_during_a_reconcile_writes_no_more(scene: Scene) -> None:
    for number in range(4):
        await scene.machine(f"m-{number}", scene.token())
    asked = count()
    scene.guard = ClusterGuard(scene.management, lambda: next(asked) < 2)
    await scene.reconcile()
    assert scene.writes() == 1


# What becomes of a bootstrap token is decided by facts alone

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
RECORD = Record("fleet/blue", "Machine/m", "uid-m")


def encoded(data: dict[str, str]) -> JsonObject:
    return {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}


def secret(*, left: timedelta = timedelta(minutes=12), id_: str = "abcdef", **changed: str) -> JsonObject:
    data = {
        "token-id": id_,
        "token-secret": "0123456789abcdef",
        "expiration": (NOW + left).isoformat(),
        "description": DESCRIPTION,
        **changed,
    }
    meta: JsonObject = {"name": "bootstrap-token-abcdef", "uid": "s", "resourceVersion": "7"}
    return {"type": SECRET_TYPE, "metadata": meta, "data": encoded(data)}


def read(raw: JsonObject) -> Token:
    found = token_of(raw, NOW)
    assert found is not None
    return found


GOING: JsonObject = {"metadata": {**mapping(secret(), "metadata"), "deletionTimestamp": "2026-05-04T12:00:00Z"}}


@pytest.mark.parametrize(
    "foreign",
    [
        secret(description="The default bootstrap token generated by 'kubeadm init'."),
        secret(expiration=""),
        secret(expiration="some day"),
        {**secret(), "data": {**mapping(secret(), "data"), "token-id": "ZmVkY2Jh"}},
        {**secret(), "type": "Opaque"},
        {**secret(), **GOING},
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


def test_a_renewal_never_shortens_and_a_token_that_has_expired_stays_so() -> None:
    assert renewal(read(secret(left=2 * LIFETIME)), RECORD, NOW) == NOW + 2 * LIFETIME
    for left in (timedelta(0), timedelta(seconds=-1)):
        assert renewal(read(secret(left=left)), RECORD, NOW) is None


def test_the_patch_is_for_one_version_of_one_secret_and_holds_no_token() -> None:
    patch = patch_of(read(secret()), RECORD, NOW)
    assert (text(patch, "metadata", "uid"), text(patch, "metadata", "resourceVersion")) == ("s", "7")
    assert base64.b64decode(text(patch, "data", "expiration")) == b"2026-05-04T12:00:00Z"
    assert text(patch, "metadata", "annotations", OWNER_UID_ANNOTATION) == "uid-m"
    assert set(mapping(patch, "data")) == {"expiration"}
