"""The Secret of a Machine for provider challenge: whose it is, when it is created, and what the webhook refers to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import pytest
from bootstrap_config_kit import CLUSTER, config, control_plane, made_of, subject
from fake_api import FakeApi
from management_kit import add_cluster, add_policy, cached, cluster_path, deps_of, management_api, tasks
from polling import until

from nodeattest_controller.controllers.bootstrap_config.admission_review import UNCHANGED, Verdict
from nodeattest_controller.controllers.bootstrap_config.decide import decide
from nodeattest_controller.controllers.bootstrap_config.render import render_for_policy
from nodeattest_controller.controllers.challenge_secret import (
    NOT_CREATED,
    ChallengeSecretReconciler,
    Step,
    candidate,
    evaluate,
    new_secret,
)
from nodeattest_controller.model.kubeadm_config import SECRET_FILE, read_config, read_secret
from nodeattest_controller.model.policy import parse_attestation_policy
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.references import KubeadmConfigs
from nodeattest_kube.errors import ApiError, Forbidden
from nodeattest_kube.periodic import ResyncConfig
from nodeattest_parsing.objects import items, mapping, strings, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason

SECRETS: Final = "/api/v1/namespaces/fleet/secrets"
MACHINES: Final = "/apis/cluster.x-k8s.io/v1beta2/namespaces/fleet/machines"
BOOTSTRAP: Final = "/apis/bootstrap.cluster.x-k8s.io"
CONFIGS: Final = f"{BOOTSTRAP}/v1beta2/namespaces/fleet/kubeadmconfigs"
KEY: Final = ClusterKey("fleet/blue")
OWN: Final = f"{SECRETS}/w-attestation-challenge"
FILE: JsonObject = {
    "path": SECRET_FILE,
    "owner": "root:root",
    "permissions": "0600",
    "contentFrom": {"secret": {"name": "w-attestation-challenge", "key": "secret"}},
}


def machine(*, name: str = "w", bootstrap: JsonObject | None = None, **metadata: JsonValue) -> JsonObject:
    reference: JsonObject = {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "name": name}
    labels: JsonObject = {"cluster.x-k8s.io/cluster-name": "blue"}
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Machine",
        "metadata": {"name": name, "namespace": "fleet", "uid": f"uid-{name}", "labels": labels, **metadata},
        "spec": {"clusterName": "blue", "bootstrap": {"configRef": reference, **(bootstrap or {})}},
    }


def machine_owner(uid: str = "uid-w") -> JsonObject:
    return {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "w", "uid": uid, "controller": True}


def own_config(
    *, owners: tuple[JsonObject, ...] | None = None, files: tuple[JsonObject, ...] = (FILE,), **status: JsonValue
) -> JsonObject:
    references: list[JsonValue] = [*((machine_owner(),) if owners is None else owners)]
    return {
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
        "kind": "KubeadmConfig",
        "metadata": {"name": "w", "namespace": "fleet", "uid": "uid-config", "ownerReferences": references},
        "spec": {"files": list[JsonValue](files)},
        "status": status,
    }


def owned(secret: JsonObject, *owners: JsonObject) -> JsonObject:
    return {**secret, "metadata": {**mapping(secret, "metadata"), "ownerReferences": list[JsonValue](owners)}}


SECRET: Final = new_secret(own_config(), cluster="blue", value="5e" * 32)
[OWNER] = items(SECRET, "metadata", "ownerReferences")


# Whose a Secret is; the rest is in the attacks (D4-170 and following)


@pytest.mark.parametrize(
    ("secret", "whole"),
    [
        ({**SECRET, "data": {}}, own_config()),
        ({**SECRET, "data": {"secret": "?"}}, own_config()),
        (owned(SECRET), own_config()),
        (owned(SECRET, {**OWNER, "kind": "Machine"}), own_config()),
        (owned(SECRET, {**OWNER, "apiVersion": "example.com/v1"}), own_config()),
        (owned(SECRET, OWNER, machine_owner()), own_config()),
        (SECRET, own_config(owners=())),
        (SECRET, own_config(owners=(machine_owner(), machine_owner("uid-of-another")))),
    ],
)
def test_any_other_secret_is_refused(secret: JsonObject, whole: JsonObject) -> None:
    found = read_secret(secret, read_config(whole), "uid-w")
    assert isinstance(found, Denied)
    assert found.reason is Reason.SECRET_UNTRUSTED
    assert "delete" in found.remedy


# Who gets one


@pytest.mark.parametrize(
    "given",
    [
        machine(deletionTimestamp="2026-01-01T00:00:00Z"),
        machine(labels={"cluster.x-k8s.io/control-plane": ""}),
        machine(annotations={"cluster.x-k8s.io/paused": ""}),
        machine(bootstrap={"dataSecretName": "w"}),
        machine(bootstrap={"configRef": {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "RKE2Config", "name": "w"}}),
        machine(bootstrap={"configRef": None}),
    ],
)
def test_no_other_machine_gets_a_secret(given: JsonObject) -> None:
    assert candidate(given) is None


@pytest.mark.parametrize(
    ("whole", "step"),
    [
        (own_config(), Step.CREATE),
        (own_config(owners=()), Step.WAIT),
        (own_config(owners=(machine_owner("uid-of-another"),)), Step.NOTHING),
        (own_config(files=()), Step.NOTHING),
        (own_config(files=({**FILE, "contentFrom": {"secret": {"name": "another", "key": "secret"}}},)), Step.NOTHING),
        (own_config(dataSecretName="w"), Step.NOTHING),
        (own_config(initialization={"dataSecretCreated": True}), Step.NOTHING),
        (own_config(ready=True), Step.NOTHING),
        ({**own_config(), "metadata": {**mapping(own_config(), "metadata"), "deletionTimestamp": "x"}}, Step.NOTHING),
    ],
)
def test_a_secret_is_created_before_the_bootstrap_data_and_never_again(whole: JsonObject, step: Step) -> None:
    wanted = candidate(machine())
    assert wanted is not None
    assert evaluate(whole, wanted) is step


# The controller


@dataclass
class Site:
    """A management cluster, and the controller in it."""

    api: FakeApi = field(default_factory=management_api)
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.api.documents[BOOTSTRAP] = {"preferredVersion": {"version": "v1beta2"}}
        add_cluster(self.api)
        self.policy(createSecrets=True)
        self.limited = True
        self.api.answers[f"{SECRETS}?dryRun=All"] = self._probed
        self.api.put(f"{MACHINES}/w", machine())
        self.api.put(f"{CONFIGS}/w", own_config())

    def policy(self, enforcement: str = "Enforce", **challenge: JsonValue) -> None:
        add_policy(self.api, authorizedAttestors=["challenge"], challenge=challenge, enforcement=enforcement)

    def _probed(self, body: JsonObject) -> JsonObject:
        if self.limited:
            raise Forbidden(403, "Forbidden", "ValidatingAdmissionPolicy")
        return body

    def recorded(self) -> list[JsonObject]:
        return [one for path, one in self.api.objects.items() if "/events/" in path]

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        resync = ResyncConfig(spread=0.0, period=0.02, min_interval=0.02, retry=0.02)
        async with cached(self.api) as management:
            deps, configs = deps_of(management, clock=lambda: self.now), KubeadmConfigs(self.api, management.caches)
            async with tasks(ChallengeSecretReconciler(deps, configs, KEY, self.api, resync).run()):
                yield


async def test_a_secret_that_a_tenant_made_is_reported_and_left() -> None:
    site = Site()
    site.api.put(OWN, {"type": "Opaque", "data": {"secret": "eA=="}})
    async with site.running():
        await until(lambda: bool(site.recorded()), "the Event")
    [event] = site.recorded()
    assert (text(event, "reason"), text(event, "involvedObject", "name")) == (NOT_CREATED, "w")
    assert text(site.api.objects[OWN], "type") == "Opaque"


async def test_nothing_is_created_while_any_secret_may_be() -> None:
    site = Site()
    site.limited = False
    async with site.running():
        await until(lambda: bool(site.recorded()), "the Event")
    assert OWN not in site.api.objects
    assert "manifests/challenge-secrets" in text(site.recorded()[0], "message")


@pytest.mark.parametrize("error", [Forbidden(403, "Forbidden", ""), ApiError(500, "", "")])
async def test_a_refused_secret_is_tried_again(error: ApiError) -> None:
    site = Site()

    def refuse(_secret: JsonObject) -> JsonObject:
        raise error

    site.api.answers[SECRETS] = refuse
    async with site.running():
        await until(lambda: site.api.count("POST", SECRETS) >= 2, "the refusal")
        del site.api.answers[SECRETS]
        site.now += 73.0  # the period's longest
        await until(lambda: OWN in site.api.objects, "the Secret")


@pytest.mark.parametrize("why", ["not asked", "audit", "paused"])
async def test_nothing_is_created_where_no_policy_that_enforces_asks(why: str) -> None:
    site = Site()
    if why == "paused":
        add_cluster(site.api, paused=True)
    else:
        site.policy("Audit" if why == "audit" else "Enforce", createSecrets=why == "audit")
    async with site.running():
        before = site.api.count("GET", "")
        site.api.put(cluster_path(), {**site.api.objects[cluster_path()]})
        for _ in range(100):
            await asyncio.sleep(0)
        assert site.api.count("GET", "") == before
    assert site.api.count("POST", SECRETS) == 0


# The webhook


SPEC: JsonObject = {"authorizedAttestors": ["challenge"], "challenge": {"createSecrets": True}}
POLICY: Final = parse_attestation_policy({"metadata": {"name": "p"}, "spec": SPEC})


def with_id(whole: JsonObject) -> JsonObject:
    arguments: list[JsonValue] = [{"name": "provider-id", "value": "metal://1"}]
    join: JsonObject = {"nodeRegistration": {"kubeletExtraArgs": arguments}}
    return {**whole, "spec": {**mapping(whole, "spec"), "joinConfiguration": join}}


def decided(whole: JsonObject, before: JsonObject | None = None) -> Verdict:
    old = subject(before) if before else None
    return decide(subject(whole), old, policy=POLICY, cluster=CLUSTER, has_machines=False, render=render_for_policy)


def test_the_webhook_refers_to_the_secret_and_tells_the_agent_where_it_will_be() -> None:
    whole = with_id(config())
    stored = made_of(whole, decided(whole).patch)
    [file] = [one for one in items(stored, "spec", "files") if text(one, "path") == SECRET_FILE]
    assert file["contentFrom"] == {"secret": {"name": "prod-md-0-attestation-challenge", "key": "secret"}}
    assert file["permissions"] == "0600"
    assert "content" not in file
    [command] = strings(stored, "spec", "preKubeadmCommands")
    assert f"--set 'secretFile=\"{SECRET_FILE}\"'" in command
    assert decided(stored) == UNCHANGED


POOL: JsonObject = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachinePool", "name": "pool", "uid": "p"}


def pooled(whole: JsonObject) -> JsonObject:
    return {**whole, "metadata": {**mapping(whole, "metadata"), "ownerReferences": [POOL]}}


@pytest.mark.parametrize(
    ("whole", "before", "got"),
    [
        (control_plane(), None, "KubeadmControlPlane"),
        (pooled(with_id(config())), None, "MachinePool"),
        (pooled(with_id(config())), with_id(config()), "MachinePool"),
        ({**config(), "metadata": {"generateName": "w-", "labels": {}}}, None, "generateName"),
        ({**config(), "metadata": {"name": "w" * 240, "labels": {}}}, None, "240 characters"),
    ],
)
def test_what_several_machines_share_is_refused(whole: JsonObject, before: JsonObject | None, got: str) -> None:
    denied = decided(whole, before).denied
    assert denied is not None
    assert denied.reason is Reason.BOOTSTRAP_CONFIG_REFUSED
    assert got in denied.got
    assert "createSecrets" in denied.remedy
