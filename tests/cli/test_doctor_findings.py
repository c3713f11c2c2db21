"""``nodeattest doctor``: a healthy installation is ok in every finding, and what is spoilt turns exactly its own."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from doctor_installation import (
    ADMISSION,
    BINDINGS,
    CAPI,
    CONFIGS,
    CRDS,
    DEPLOYMENT,
    LEASE,
    OWN,
    SLICE,
    WEBHOOK,
    Installation,
    binding,
    cluster,
    config,
    deployment,
    machine,
    policy,
)
from fake_api import FakeApi

from nodeattest_cli.doctor.installation import minor_version
from nodeattest_cli.doctor.model import IDS, HealthFinding, HealthSeverity, exit_code
from nodeattest_cli.doctor.rights import shipped_rights
from nodeattest_cli.doctor.survey import Move
from nodeattest_controller import manifests
from nodeattest_controller.controllers.auto_approval.permissions import NODE_CLIENT_ROLE
from nodeattest_controller.model.webhook_configuration import LABEL
from nodeattest_kube.errors import ApiError, Forbidden
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue

ERROR, WARNING, UNKNOWN = HealthSeverity.ERROR, HealthSeverity.WARNING, HealthSeverity.UNKNOWN
DOCS = Path(__file__).parents[2] / "docs" / "monitor.md"
Spoil = Callable[[Installation], object]
POLICY, CONFIG = f"{OWN}/nodeattestationpolicies/prod", f"{CONFIGS.format('fleet')}/b"
GROUP = "attestation.cluster.x-k8s.io"
NAMESPACE = "/api/v1/namespaces/fleet"
LIMITS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
TRIAL = f"{CONFIGS.format('fleet')}?dryRun=All"
CLAIMED: JsonObject = {
    "type": "NodeAttested",
    "status": "Unknown",
    "message": "no certificate yet; a request that claims this machine was refused at 2026-05-04T11:00:00Z: "
    "TokenNotThisMachines; any holder",
}
REFUSED: JsonObject = {"kind": "MachineSet", "name": "blue-md", "reason": "PolicyInvalid", "message": "which attestor?"}


def put(path: str, body: JsonObject) -> Spoil:
    return lambda world: world.management.put(path, body)


def remove(path: str) -> Spoil:
    return lambda world: world.management.remove(path)


def lease(*, written: int = -3, version: str = "") -> Spoil:
    """Write the leader's Lease so many seconds from now."""
    return lambda world: world.management.put(LEASE, world.lease(written=timedelta(seconds=written), version=version))


def hook(*, days: int = 300, **fields: JsonValue) -> Spoil:
    """Configure the webhook with a CA that ends so many days from now."""
    return lambda world: world.management.put(WEBHOOK, world.webhook(until=timedelta(days=days), **fields))


def record(*, hours: int = 300, reason: str = "Attested") -> Spoil:
    """Write the record of the machine ``a``, whose certificate ends so many hours from now."""
    path = f"{OWN}/machineattestations/blue-a"
    return lambda world: world.management.put(path, world.attestation(left=timedelta(hours=hours), reason=reason))


def change(*fields: str, value: JsonValue) -> Spoil:
    """Set a field of the policy."""
    return lambda world: world.change(POLICY, *fields, value=value)


def machine_b(**status: JsonValue) -> Spoil:
    return put(f"{CAPI}/machines/b", machine("b", **status))


def version(version: str, *, workload: bool = False) -> Spoil:
    def spoil(world: Installation) -> None:
        (world.workload if workload else world.management).documents["/version"] = {"gitVersion": version}

    return spoil


def moving(labels: JsonObject, *paused: str) -> Spoil:
    def spoil(world: Installation) -> None:
        world.move = Move(kubeconfig="target", paused=[*paused], namespaces=["fleet"])
        world.management.put(NAMESPACE, {"metadata": {"labels": labels}})

    return spoil


def another_schema(world: Installation) -> None:
    path = f"{CRDS}/machineattestations.{GROUP}"
    [one] = items(world.management.objects[path], "spec", "versions")
    mapping(one, "schema", "openAPIV3Schema", "properties", "spec")["description"] = "older"


def without(verb: str, resource: str) -> Spoil:
    return lambda world: setattr(world, "denied", (verb, resource))


def creating_secrets(world: Installation) -> None:
    """Have the policy ask for Secrets, which a ValidatingAdmissionPolicy without rules limits."""
    taken = policy(challenge={"createSecrets": True})
    mapping(taken, "status")["observedGeneration"] = 2
    world.management.put(POLICY, taken)
    for shipped in manifests.objects("challenge-secrets"):
        kind = text(shipped, "kind")
        if kind in LIMITS:
            world.management.put(f"{ADMISSION}/{LIMITS[kind]}/nodeattest-challenge-secrets", shipped)
    world.change(
        f"{ADMISSION}/{LIMITS['ValidatingAdmissionPolicy']}/nodeattest-challenge-secrets",
        "spec",
        "validations",
        value=[],
    )


def refusing(webhook: str) -> Spoil:
    def answer(_body: JsonObject) -> JsonObject:
        raise ApiError(500, "InternalError", f'failed calling webhook "{webhook}": certificate has expired')

    return lambda world: world.management.answers.update({TRIAL: answer})


def no_cluster(world: Installation) -> None:
    for name in ("blue", "green"):
        world.management.remove(f"{CAPI}/clusters/{name}")


def condition(status: str, reason: str) -> Spoil:
    def spoil(world: Installation) -> None:
        [said] = items(world.management.objects[f"{CAPI}/clusters/blue"], "status", "conditions")
        said.update({"status": status, "reason": reason})

    return spoil


def settled(*, named: bool = False, first: bool = False) -> JsonObject:
    """Return a KubeadmConfig of which bootstrap data was made; ``first``: of the first control plane."""
    found = config()
    if named:
        token: JsonObject = {"bootstrapToken": {"token": "abcdef.0123456789abcdef"}}
        mapping(found, "spec", "joinConfiguration")["discovery"] = token
    if first:
        mapping(found, "spec")["initConfiguration"] = mapping(found, "spec").pop("joinConfiguration")
    return {**found, "status": {"initialization": {"dataSecretCreated": True}}}


def clock_of_controller(world: Installation) -> None:
    """Renew the Lease before each read, by a clock that is seven minutes ahead."""

    async def renew(method: str, path: str) -> None:
        if method == "LIST" and path.endswith("/leases"):
            world.management.put(LEASE, world.lease(written=timedelta(minutes=7)))

    world.management.on_call = renew


def other_service(world: Installation) -> None:
    [hook] = items(world.management.objects[WEBHOOK], "webhooks")
    mapping(hook, "clientConfig", "service")["name"] = "another"
    labels = mapping(world.management.objects[SLICE], "metadata", "labels")
    labels["kubernetes.io/service-name"] = "another"


def another_contract(world: Installation) -> None:
    world.management.documents["/apis/cluster.x-k8s.io"] = {"preferredVersion": {"version": "v1alpha4"}}


def bound_again(world: Installation) -> None:
    world.workload.put(f"{BINDINGS}/kubeadm:node-autoapprove-bootstrap", binding(NODE_CLIENT_ROLE))


def unbound(world: Installation) -> None:
    world.workload.remove(f"{BINDINGS}/nodeattest:node-bootstrapper")


def ahead(world: Installation) -> None:
    Installation.__init__(world, ahead=timedelta(seconds=4000))


def behind(world: Installation) -> None:
    world.workload.date = lambda: world.now - timedelta(seconds=90)


def out_of_reach(world: Installation) -> None:
    world.unreachable = True


SPOILT: dict[str, tuple[Spoil, HealthSeverity, str]] = {
    "an earlier move stopped": (moving({LABEL: "enabled"}, "Cluster fleet/blue"), ERROR, "move-source"),
    "a namespace to move to without the label": (moving({}), ERROR, "move-namespace"),
    "an old management cluster": (version("v1.30.14"), ERROR, "management-version"),
    "a management cluster too old for Cluster API": (version("v1.32.0"), WARNING, "management-version"),
    "an old workload cluster": (version("v1.30.14", workload=True), ERROR, "workload-version"),
    "a workload cluster newer than tested": (version("v1.99.0", workload=True), WARNING, "workload-version"),
    "another contract": (another_contract, ERROR, "cluster-api-version, clusters-without-policy"),
    "another controller": (lease(version="9.9.9"), WARNING, "controller-version"),
    "a definition is missing": (remove(f"{CRDS}/clusterrecords.{GROUP}"), ERROR, "definitions-served"),
    "a definition of another release": (another_schema, WARNING, "definitions-of-release"),
    "the leader is silent": (lease(written=-40), ERROR, "controller-leader"),
    "a right is missing": (without("patch", "machines"), ERROR, "management-rights"),
    "a right is missing in the workload cluster": (without("sign", "signers"), ERROR, "workload-rights"),
    "a limit that limits nothing": (creating_secrets, ERROR, "challenge-secrets-policy"),
    "the webhook is not configured": (remove(WEBHOOK), ERROR, "webhook-configuration"),
    "other rules": (hook(rules=[]), ERROR, "webhook-configuration"),
    "another Service": (other_service, ERROR, "webhook-configuration"),
    "the webhook may be passed over": (hook(failurePolicy="Ignore"), WARNING, "webhook-configuration"),
    "the CA has ended": (hook(days=-1), ERROR, "webhook-ca"),
    "no endpoint": (remove(SLICE), ERROR, "webhook-endpoints"),
    "the webhook does not answer": (refusing(f"bootstrap-config.{GROUP}"), ERROR, "webhook-answers"),
    "another webhook does not answer": (refusing("another"), UNKNOWN, "webhook-answers"),
    "a policy is invalid": (put(POLICY, policy(("tpm", "insecure"))), ERROR, "policies-valid, policies-accepted"),
    "a provider is not known": (put(POLICY, policy(("tpn",))), WARNING, "policies-providers, policies-accepted"),
    "a policy is not looked at yet": (change("status", "observedGeneration", value=0), WARNING, "policies-accepted"),
    "two policies": (put(f"{OWN}/nodeattestationpolicies/rival", policy()), ERROR, "policies-overlap"),
    "there is no cluster": (no_cluster, WARNING, "clusters-without-policy"),
    "automatic approval is open": (condition("False", "Open"), ERROR, "automatic-approval"),
    "a binding was made again": (bound_again, ERROR, "automatic-approval"),
    "a machine is about to join without the agent": (put(CONFIG, config(rendered=False)), ERROR, "bootstrap-data"),
    "a machine's token was never named": (put(CONFIG, settled()), ERROR, "bootstrap-data"),
    "a configuration was refused": (
        change("status", "refusedConfigurations", value=[REFUSED]),
        WARNING,
        "bootstrap-refused",
    ),
    "tokens may not ask": (unbound, ERROR, "bootstrap-tokens"),
    "a renewal is refused": (record(reason="PCRValueNotAllowed"), ERROR, "machines-attested"),
    "a request that claims a machine is refused": (machine_b(conditions=[CLAIMED]), WARNING, "machines-attested"),
    "a node joined without attestation": (machine_b(nodeRef={"name": "b"}), WARNING, "machines-attested"),
    "a certificate has ended": (record(hours=-1), ERROR, "certificates"),
    "this machine's clock is off": (ahead, WARNING, "local-clock"),
    "the controller's clock is off": (clock_of_controller, ERROR, "controller-clock"),
    "the workload cluster's clock is a little off": (behind, WARNING, "workload-clock"),
    "a cluster is out of reach": (out_of_reach, UNKNOWN, "cluster-reachable, automatic-approval"),
}


def severities(found: list[HealthFinding]) -> dict[str, HealthSeverity]:
    return {one.id: one.severity for one in found}


async def test_a_healthy_installation_is_ok_in_every_finding() -> None:
    found = await Installation().findings()
    assert [one for one in found if one.severity is not HealthSeverity.OK] == []
    assert exit_code(found) == 0
    told = {one.id: one.found for one in found}
    assert told["clusters-without-policy"] == "fleet/green"
    assert told["machines-attested"] == "1 Attested; 1 NotYetAttested"
    assert told["certificates"].endswith("Z (a)")


@pytest.mark.parametrize("case", SPOILT)
async def test_what_is_spoilt_turns_exactly_its_finding(case: str) -> None:
    spoil, severity, ids = SPOILT[case]
    world = Installation()
    spoil(world)
    found = await world.findings()
    wrong = [one for one in found if one.severity is not HealthSeverity.OK]
    assert {one.id for one in wrong} == set(ids.split(", "))
    assert severity in {one.severity for one in wrong}
    assert all(one.remedy and one.found and one.expected for one in wrong)
    assert exit_code(found) == {ERROR: 1, UNKNOWN: 3, WARNING: 0}[severity]


async def test_without_the_webhook_and_without_flags_for_it_an_installation_is_whole() -> None:
    world = Installation()
    world.management.remove(WEBHOOK)
    world.management.put(DEPLOYMENT, deployment("--webhook-bind-address=0"))
    assert set(severities(await world.findings()).values()) == {HealthSeverity.OK}


@pytest.mark.parametrize(("namespaces", "severity"), [(["fleet"], HealthSeverity.OK), (["other"], ERROR)])
async def test_an_overlay_may_name_the_namespaces_of_all_protected_clusters(
    namespaces: list[JsonValue], severity: HealthSeverity
) -> None:
    world = Installation()
    [hook] = items(world.management.objects[WEBHOOK], "webhooks")
    own: JsonObject = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": namespaces}
    mapping(hook, "namespaceSelector")["matchExpressions"] = [
        *items(hook, "namespaceSelector", "matchExpressions"),
        own,
    ]
    assert severities(await world.findings())["webhook-configuration"] is severity


@pytest.mark.parametrize("found", [settled(named=True), settled(first=True)])
async def test_a_machine_with_bootstrap_data_may_join_if_its_token_is_named_or_it_needs_none(found: JsonObject) -> None:
    world = Installation()
    world.management.put(CONFIG, found)
    assert severities(await world.findings())["bootstrap-data"] is HealthSeverity.OK


async def test_nothing_is_said_of_what_could_not_be_read() -> None:
    """No finding is ok by an empty list that stands for a refusal."""
    world = Installation()

    async def refuse(_method: str, path: str) -> None:
        if path not in world.management.documents:
            raise Forbidden(403, "Forbidden", "cannot list")

    world.management.on_call = refuse
    fine = {one.id for one in await world.findings() if one.severity is HealthSeverity.OK}
    assert fine == {"management-version", "cluster-api-version", "local-clock"}


class Endless(FakeApi):
    """A server one of whose lists has pages without end."""

    async def pages(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        limit: int = 500,
        *,
        skipped: Callable[[], None] | None = None,
    ) -> AsyncGenerator[JsonObject]:
        while path.endswith("/nodeattestationpolicies"):
            await self.get("/version")
            yield {"items": []}
        async for page in super().pages(path, query, limit, skipped=skipped):
            yield page


async def test_a_list_that_never_ends_is_left_in_time_and_what_comes_after_it_is_said_to_be_unread() -> None:
    found = await Installation(Endless()).findings(timeout=0.3)
    told = {one.id: one for one in found}
    assert "the time in which this process may ask is over" in told["policies-valid"].found
    assert {told[one].severity for one in ("policies-valid", "machines-attested")} == {UNKNOWN}
    assert exit_code(found) != 0


async def test_the_webhook_is_tried_once_in_each_namespace_whose_policy_enforces() -> None:
    world = Installation()
    for where, enforcement in (("two", "Enforce"), ("audited", "Audit")):
        world.management.answers[f"{CONFIGS.format(where)}?dryRun=All"] = world.management.answers[TRIAL]
        world.management.put(POLICY.replace("/fleet/", f"/{where}/"), policy(enforcement=enforcement))
        for name in ("x", "y"):
            world.management.put(f"{CAPI}/clusters/{name}".replace("/fleet/", f"/{where}/"), cluster(env="prod"))
    found = await world.findings(namespace=None)
    assert [text(one, "metadata", "namespace") for one in world.looked] == ["fleet", "two"]
    assert [one.cluster for one in found if one.id == "webhook-answers"] == ["fleet/blue", "two/x"]


async def test_a_right_is_asked_for_in_the_namespace_that_the_controller_watches() -> None:
    world, asked = Installation(), set[str]()
    world.management.put(DEPLOYMENT, deployment("--watch-namespace=fleet", "--webhook-bind-address=:9443"))

    def review(body: JsonObject) -> JsonObject:
        attributes = mapping(body, "spec", "resourceAttributes")
        asked.add(" ".join(text(attributes, name) for name in ("verb", "resource", "subresource", "namespace")))
        return {"status": {"allowed": True}}

    world.management.answers["/apis/authorization.k8s.io/v1/subjectaccessreviews"] = review
    await world.findings()
    assert {"list machines  fleet", "patch machines status fleet", "update secrets  nodeattest-system"} <= asked
    rights = {str(right) for right in shipped_rights(["rbac"], "nodeattest-system")}
    assert "update secrets node-attestation-challenge-keys -n nodeattest-system" in rights


def test_the_page_has_every_finding_and_no_other() -> None:
    section = DOCS.read_text(encoding="utf-8").partition("\n## Doctor\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE) == [*IDS]
    assert {name for _, _, names in SPOILT.values() for name in names.split(", ")} == set(IDS)


@pytest.mark.parametrize(
    ("version", "minor"),
    [
        ("v1.37.2", (1, 37)),
        ("1.37", (1, 37)),
        ("v1.37.7-gke.1026000", (1, 37)),
        ("v1.37+", (1, 37)),
        ("", None),
        ("v1.", None),
        ("v1.99999.1", None),
        ("release-1.37", None),
        ("v\u0661.37", None),
    ],
)
def test_the_minor_version_is_read_from_every_form(version: str, minor: tuple[int, int] | None) -> None:
    assert minor_version(version) == minor
