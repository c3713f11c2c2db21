"""``nodeattest doctor``: a healthy installation is ok in every finding, and what is broken turns exactly its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from attested_fleet import attestation
from fake_api import FakeApi

from nodeattest_cli.doctor.command import examine
from nodeattest_cli.doctor.findings import TABLE, HealthFinding, HealthSeverity, exit_code
from nodeattest_cli.doctor.installation import ADMISSION, can_i, minor_version, shipped_rights
from nodeattest_cli.doctor.survey import Survey
from nodeattest_cli.output import AccessError
from nodeattest_controller import manifests
from nodeattest_controller.controllers.auto_approval.decide import CONDITION
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig import RenderOptions
from nodeattest_controller.controllers.bootstrap_config.render import render
from nodeattest_controller.controllers.node_attested.conditions import RefusedClaim
from nodeattest_controller.model.webhook_configuration import WEBHOOK_NAME, shipped_configuration
from nodeattest_controller.runtime.guard import SERVED, VERSION_ANNOTATION, lease_annotations
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Forbidden
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import ProviderName

ERROR, WARNING, UNKNOWN, OK = HealthSeverity.ERROR, HealthSeverity.WARNING, HealthSeverity.UNKNOWN, HealthSeverity.OK
DOCS = Path(__file__).parents[2] / "docs" / "monitor.md"
CAPI = "/apis/cluster.x-k8s.io/v1beta2/namespaces/fleet"
OWN = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/fleet"
CONFIGS = "/apis/bootstrap.cluster.x-k8s.io/v1beta2/namespaces/{}/kubeadmconfigs"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
LIMITS = f"/apis/{'/'.join(ADMISSION)}"
WEBHOOK = f"{LIMITS}/mutatingwebhookconfigurations/nodeattest-bootstrap-config"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/nodeattest-system/leases/node-attestation-controller"
DEPLOYMENT = "/apis/apps/v1/namespaces/nodeattest-system/deployments/node-attestation-controller"
REVIEWS = "/apis/authorization.k8s.io/v1/{}subjectaccessreviews"
POLICY, CONFIG, TRIAL = f"{OWN}/nodeattestationpolicies/prod", f"{CONFIGS.format('fleet')}/b", "{}?dryRun=All"
GROUP = "attestation.cluster.x-k8s.io"


class Installation:
    """A protected cluster ``blue`` with an attested machine ``a`` and a joining one ``b``; ``green`` has no policy."""

    def __init__(self) -> None:
        self.management, self.workload = FakeApi(), FakeApi()
        self.now = datetime.now(UTC)
        self.denied: tuple[str, str, str] | None = None
        """Verb and resource of a right that is lacking, and how the name of its user begins."""
        self.unreachable = False
        self.reviews: list[JsonObject] = []
        self.trials: list[JsonObject] = []
        api = self.management
        for group in ("cluster.x-k8s.io", "bootstrap.cluster.x-k8s.io"):
            api.documents[f"/apis/{group}"] = {"preferredVersion": {"version": "v1beta2"}}
        established: JsonObject = {"conditions": [{"type": "Established", "status": "True"}]}
        for one in manifests.crds():
            api.put(f"{CRDS}/{text(one, 'metadata', 'name')}", {**one, "status": established})
        api.put(POLICY, policy())
        api.put(f"{CAPI}/clusters/blue", cluster(env="prod"))
        api.put(f"{CAPI}/clusters/green", cluster())
        api.put(f"{CAPI}/machines/a", machine("a", nodeRef={"name": "a"}))
        api.put(f"{CAPI}/machines/b", machine("b"))
        api.put(f"{OWN}/machineattestations/blue-a", self.attestation())
        api.put(CONFIG, config())
        api.put(LEASE, self.lease())
        api.put(DEPLOYMENT, deployment())
        api.put(WEBHOOK, shipped_configuration())
        api.answers[TRIAL.format(CONFIGS.format("fleet"))] = self.create_config
        for each, kind in ((self.management, ""), (self.workload, "self"), (self.workload, "")):
            each.date = lambda: self.now
            each.documents["/version"] = {"gitVersion": "v1.34.1"}
            each.answers[REVIEWS.format(kind)] = self._review

    async def findings(self, namespace: str | None = "fleet") -> dict[str, HealthFinding]:
        """Check it; returns the findings by id."""

        async def reach(_cluster: JsonObject) -> ApiClient:
            if self.unreachable:
                raise AccessError("no route")
            return self.workload

        found = await examine(Survey(client=self.management, namespace=namespace), reach, is_controllers=True)
        return {one.id: one for one in found}

    def create_config(self, body: JsonObject) -> JsonObject:
        """Answer a dry run."""
        self.trials.append(body)
        return config()

    def _review(self, body: JsonObject) -> JsonObject:
        self.reviews.append(body)
        asked, user = mapping(body, "spec", "resourceAttributes"), text(body, "spec", "user")
        verb, resource, begin = self.denied or ("", "", "")
        denied = (text(asked, "verb"), text(asked, "resource")) == (verb, resource) and user.startswith(begin)
        return {"status": {"allowed": not denied}}

    def attestation(self, *, hours: int = 300, reason: str = "Attested") -> JsonObject:
        """Make the record of the machine ``a``, whose certificate ends so many hours from now."""
        return attestation("a", ends=self.now + timedelta(hours=hours), reason=reason)

    def lease(self, holder: str = "r1", *, seconds: int = -3, version: str = "") -> JsonObject:
        """Make the leader's Lease; ``seconds``: from now, when it was renewed by its holder's clock."""
        annotations: JsonObject = {**lease_annotations(holder), **({VERSION_ANNOTATION: version} if version else {})}
        renewed = (self.now + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: JsonObject = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}
        return {"metadata": {"annotations": annotations}, "spec": spec}


def policy(status: str = "True", reason: str = "Valid", generation: int = 1, **spec: JsonValue) -> JsonObject:
    """Make a policy for clusters with env=prod, and what the controller reports of it."""
    ready: JsonObject = {"type": "Ready", "status": status, "reason": reason, "message": "a message"}
    selector: JsonObject = {"matchLabels": {"env": "prod"}}
    return {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "NodeAttestationPolicy",
        "spec": {"clusterSelector": selector, "authorizedAttestors": ["tpm"], **spec},
        "status": {"observedGeneration": generation, "conditions": [ready]},
    }


def cluster(
    *,
    approval: tuple[str, str] = ("True", "Closed"),
    by: str = "nodeattest-system/node-attestation-controller",
    **labels: JsonValue,
) -> JsonObject:
    """Make a Cluster with the controller's conditions."""
    reported: list[JsonValue] = [
        {"type": CONDITION, "status": approval[0], "reason": approval[1], "message": "a message"},
        {"type": SERVED, "status": "True", "reason": "Serving", "message": f"by {by}"},
    ]
    status: JsonObject = {"conditions": reported}
    return {"kind": "Cluster", "metadata": {"labels": labels}, "spec": {}, "status": status}


def machine(name: str, **status: JsonValue) -> JsonObject:
    """Make a Machine of the cluster blue."""
    reference: JsonObject = {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "name": name}
    spec: JsonObject = {
        "clusterName": "blue",
        "providerID": f"metal://blue/{name}",
        "bootstrap": {"configRef": reference},
    }
    return {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "spec": spec, "status": status}


def config(*, rendered: bool = True) -> JsonObject:
    """Make the KubeadmConfig of the machine ``b``."""
    plain: JsonObject = {
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
        "kind": "KubeadmConfig",
        "metadata": {"name": "b", "namespace": "fleet"},
        "spec": {"joinConfiguration": {"nodeRegistration": {"name": "b"}}},
    }
    return render(plain, RenderOptions(provider=ProviderName("tpm"), provider_id="metal://x")) if rendered else plain


def deployment(*arguments: JsonValue) -> JsonObject:
    """Make the controller's Deployment."""
    [shipped] = [one for one in manifests.objects("manager") if one["kind"] == "Deployment"]
    [container] = items(shipped, "spec", "template", "spec", "containers")
    container["args"] = [*arguments]
    return shipped


Spoil = Callable[[Installation], object]


def put(path: str, body: JsonObject) -> Spoil:
    return lambda world: world.management.put(path, body)


def remove(*paths: str) -> Spoil:
    return lambda world: [world.management.remove(path) for path in paths]


def lease(*, seconds: int = -3, version: str = "") -> Spoil:
    return lambda world: world.management.put(LEASE, world.lease(seconds=seconds, version=version))


def record(*, hours: int = 300, reason: str = "Attested") -> Spoil:
    path = f"{OWN}/machineattestations/blue-a"
    return lambda world: world.management.put(path, world.attestation(hours=hours, reason=reason))


def version(version: str, *, workload: bool = False) -> Spoil:
    def spoil(world: Installation) -> None:
        (world.workload if workload else world.management).documents["/version"] = {"gitVersion": version}

    return spoil


def another_schema(world: Installation) -> None:
    [one] = items(world.management.objects[f"{CRDS}/machineattestations.{GROUP}"], "spec", "versions")
    mapping(one, "schema", "openAPIV3Schema", "properties", "spec")["description"] = "older"


def without(verb: str, resource: str, user: str = "") -> Spoil:
    return lambda world: setattr(world, "denied", (verb, resource, user))


def creating_secrets(world: Installation) -> None:
    """Have the policy ask for Secrets, which a ValidatingAdmissionPolicy without rules limits."""
    world.management.put(POLICY, policy(generation=2, challenge={"createSecrets": True}))
    for shipped in manifests.objects("challenge-secrets"):
        kind, name = text(shipped, "kind"), text(shipped, "metadata", "name")
        if kind == "ValidatingAdmissionPolicyBinding":
            world.management.put(f"{LIMITS}/validatingadmissionpolicybindings/{name}", shipped)
        elif kind == "ValidatingAdmissionPolicy":
            weak: JsonObject = {**shipped, "spec": {**mapping(shipped, "spec"), "validations": []}}
            world.management.put(f"{LIMITS}/validatingadmissionpolicies/{name}", weak)


def refusing(webhook: str) -> Spoil:
    def answer(_body: JsonObject) -> JsonObject:
        raise ApiError(500, "InternalError", f'failed calling webhook "{webhook}": certificate has expired')

    return lambda world: world.management.answers.update({TRIAL.format(CONFIGS.format("fleet")): answer})


def unrendered(world: Installation) -> None:
    world.management.answers[TRIAL.format(CONFIGS.format("fleet"))] = lambda _body: config(rendered=False)


def another_contract(world: Installation) -> None:
    world.management.documents["/apis/cluster.x-k8s.io"] = {"preferredVersion": {"version": "v1alpha4"}}


def behind(seconds: int) -> Spoil:
    return lambda world: setattr(world.workload, "date", lambda: world.now - timedelta(seconds=seconds))


def out_of_reach(world: Installation) -> None:
    world.unreachable = True


def claimed(world: Installation) -> None:
    message = str(RefusedClaim(world.now.replace(microsecond=0), Reason.POLICY_INVALID))
    reported: JsonObject = {"type": "NodeAttested", "status": "Unknown", "message": message}
    world.management.put(f"{CAPI}/machines/b", machine("b", conditions=[reported]))


BLUE = f"{CAPI}/clusters/blue"
SPOILT: dict[str, tuple[Spoil, HealthSeverity, str]] = {
    "an old management cluster": (version("v1.30.14"), ERROR, "management-version"),
    "a management cluster too old for Cluster API": (version("v1.32.0"), WARNING, "management-version"),
    "an old workload cluster": (version("v1.30.14", workload=True), ERROR, "workload-version"),
    "a workload cluster newer than tested": (version("v1.99.0", workload=True), WARNING, "workload-version"),
    "a version that is none": (version("unknown", workload=True), UNKNOWN, "workload-version"),
    "another contract": (another_contract, ERROR, "cluster-api-version, clusters-without-policy"),
    "another controller": (lease(version="9.9.9"), WARNING, "controller-version"),
    "a definition is missing": (remove(f"{CRDS}/clusterrecords.{GROUP}"), ERROR, "definitions"),
    "a definition of another release": (another_schema, WARNING, "definitions"),
    "no Lease": (remove(LEASE), ERROR, "controller-leader, controller-version"),
    "the leader is silent": (lease(seconds=-40), ERROR, "controller-leader"),
    "the leader's clock is off": (lease(seconds=420), ERROR, "controller-leader"),
    "a right is missing": (without("patch", "machines"), ERROR, "management-rights"),
    "a right is missing in the workload cluster": (without("sign", "signers"), ERROR, "workload-rights"),
    "tokens may not ask": (
        without("create", "certificatesigningrequests", "system:bootstrap:"),
        ERROR,
        "bootstrap-tokens",
    ),
    "a limit that limits nothing": (creating_secrets, ERROR, "challenge-secrets-policy"),
    "the webhook does not answer": (refusing(WEBHOOK_NAME), ERROR, "webhook-answers"),
    "the webhook renders nothing": (unrendered, ERROR, "webhook-answers"),
    "another webhook does not answer": (refusing("another"), UNKNOWN, "webhook-answers"),
    "a policy is invalid": (put(POLICY, policy("False", "Invalid")), ERROR, "policies"),
    "a policy is not looked at yet": (put(POLICY, policy(generation=0)), WARNING, "policies"),
    "a policy selects nothing": (put(POLICY, policy(reason="SelectsNothing")), WARNING, "policies"),
    "nothing is known of the webhook": (put(POLICY, policy(reason="WebhookNotRead")), WARNING, "policies"),
    "there is no cluster": (remove(BLUE, f"{CAPI}/clusters/green"), WARNING, "clusters-without-policy"),
    "automatic approval is open": (
        put(BLUE, cluster(approval=("False", "Open"), env="prod")),
        ERROR,
        "cluster-conditions",
    ),
    "another controller serves the cluster": (put(BLUE, cluster(by="x/y", env="prod")), WARNING, "cluster-conditions"),
    "an audit": (put(BLUE, cluster(approval=("False", "Audit"), env="prod")), WARNING, "cluster-conditions"),
    "nobody serves the cluster": (put(BLUE, {**cluster(env="prod"), "status": {}}), WARNING, "cluster-conditions"),
    "a machine is about to join without the agent": (put(CONFIG, config(rendered=False)), ERROR, "bootstrap-data"),
    "a renewal is refused": (record(reason="PCRValueNotAllowed"), ERROR, "machines"),
    "a certificate has ended": (record(hours=-1), ERROR, "machines"),
    "a request that claims a machine is refused": (claimed, WARNING, "machines"),
    "a node joined without attestation": (
        put(f"{CAPI}/machines/b", machine("b", nodeRef={"name": "b"})),
        WARNING,
        "machines",
    ),
    "a clock is a little off": (behind(90), WARNING, "cluster-reachable"),
    "a clock is off": (behind(400), ERROR, "cluster-reachable"),
    "a cluster is out of reach": (out_of_reach, UNKNOWN, "cluster-reachable"),
}


async def test_a_healthy_installation_is_ok_in_every_finding() -> None:
    found = await Installation().findings()
    assert [one for one in found.values() if one.severity is not OK] == []
    assert exit_code(found.values()) == 0
    assert found.keys() == TABLE.keys() - {"challenge-secrets-policy"}
    assert found["clusters-without-policy"].found == "fleet/green"
    assert found["machines"].found.startswith("1 Attested; 1 NotYetAttested; the first certificate expires at ")


@pytest.mark.parametrize("case", SPOILT)
async def test_what_is_broken_turns_exactly_its_finding(case: str) -> None:
    spoil, severity, ids = SPOILT[case]
    world = Installation()
    spoil(world)
    found = (await world.findings()).values()
    wrong = [one for one in found if one.severity is not OK]
    assert {one.id for one in wrong} == set(ids.split(", "))
    assert severity in {one.severity for one in wrong}
    assert all(one.remedy and one.found and one.expected for one in wrong)
    assert exit_code(found) == {ERROR: 1, UNKNOWN: 3, WARNING: 0}[severity]


def test_every_finding_is_documented_and_broken_by_a_test() -> None:
    section = DOCS.read_text(encoding="utf-8").partition("\n## Doctor\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE) == [*TABLE]
    assert {name for _, _, names in SPOILT.values() for name in names.split(", ")} == TABLE.keys()


@pytest.mark.parametrize("spoil", [remove(WEBHOOK), put(POLICY, policy(reason="RenderingDisabled"))])
async def test_an_installation_without_the_webhook_is_whole_if_the_controller_says_so(spoil: Spoil) -> None:
    world = Installation()
    spoil(world)
    assert {one.severity for one in (await world.findings()).values()} == {OK}


async def test_nothing_is_said_of_what_could_not_be_read() -> None:
    """No finding is ok by an empty list that stands for a refusal."""
    world = Installation()

    async def refuse(_method: str, path: str) -> None:
        if path not in world.management.documents:
            raise Forbidden(403, "Forbidden", "cannot list")

    world.management.on_call = refuse
    fine = {name for name, one in (await world.findings()).items() if one.severity is OK}
    assert fine == {"management-version", "cluster-api-version"}


async def test_the_webhook_is_tried_once_in_each_namespace_whose_policy_enforces() -> None:
    world = Installation()
    for where, enforcement in (("two", "Enforce"), ("audited", "Audit")):
        world.management.answers[TRIAL.format(CONFIGS.format(where))] = world.create_config
        world.management.put(POLICY.replace("/fleet/", f"/{where}/"), policy(enforcement=enforcement))
        for name in ("x", "y"):
            world.management.put(f"{CAPI}/clusters/{name}".replace("/fleet/", f"/{where}/"), cluster(env="prod"))
    found = await world.findings(namespace=None)
    assert [text(one, "metadata", "namespace") for one in world.trials] == ["fleet", "two"]
    assert found["webhook-answers"].found == "tried in fleet, two"


async def test_a_right_is_asked_for_in_the_namespace_that_the_controller_watches() -> None:
    world = Installation()
    world.management.put(DEPLOYMENT, deployment("--watch-namespace=fleet"))
    await world.findings()
    asked = [mapping(body, "spec", "resourceAttributes") for body in world.reviews if text(body, "spec", "user")]
    words = {" ".join(text(one, name) for name in ("verb", "resource", "subresource", "namespace")) for one in asked}
    assert {"list machines  fleet", "patch machines status fleet", "update secrets  nodeattest-system"} <= words
    rights = {can_i(right) for right in shipped_rights(["rbac"], "nodeattest-system")}
    assert "update secrets node-attestation-challenge-keys -n nodeattest-system" in rights


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
