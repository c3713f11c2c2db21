"""A healthy installation in memory, for tests that spoil one part of it and let ``nodeattest doctor`` look."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from cert_manager import ca_until
from fake_api import FakeApi

from nodeattest_cli.doctor.command import examine
from nodeattest_cli.doctor.model import HealthFinding
from nodeattest_cli.doctor.survey import VALIDATING, HealthTarget, Move, read_survey
from nodeattest_cli.errors import AccessError
from nodeattest_controller import manifests
from nodeattest_controller.controllers.auto_approval.permissions import NODE_CLIENT_ROLE
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.fields import RenderOptions
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.render import render
from nodeattest_controller.model.lease_annotations import VERSION_ANNOTATION, lease_annotations
from nodeattest_controller.model.webhook_configuration import MUTATING, shipped_configuration
from nodeattest_kube.client import ApiClient
from nodeattest_parsing.objects import items, mapping, rfc3339, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.identifiers import ProviderName

BLUE = "fleet/blue"
CAPI = "/apis/cluster.x-k8s.io/v1beta2/namespaces/fleet"
OWN = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/fleet"
CONFIGS = "/apis/bootstrap.cluster.x-k8s.io/v1beta2/namespaces/{}/kubeadmconfigs"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
WEBHOOK = f"{ADMISSION}/mutatingwebhookconfigurations/nodeattest-bootstrap-config"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/nodeattest-system/leases/node-attestation-controller"
DEPLOYMENT = "/apis/apps/v1/namespaces/nodeattest-system/deployments/node-attestation-controller"
SLICE = "/apis/discovery.k8s.io/v1/namespaces/nodeattest-system/endpointslices/one"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
REVIEWS = "/apis/authorization.k8s.io/v1/{}subjectaccessreviews"


class Installation:
    """A protected cluster ``blue`` with an attested machine ``a`` and ``b`` that is about to join; ``green`` has none.

    ``ahead``: of the servers' clocks.
    """

    def __init__(self, management: FakeApi | None = None, *, ahead: timedelta = timedelta()) -> None:
        self.management, self.workload = management or FakeApi(), FakeApi()
        self.now = datetime.now(UTC) + ahead
        self.denied: tuple[str, str] | None = None
        """Verb and resource of the right that the controller lacks."""
        self.unreachable = False
        self.move: Move | None = None
        self.looked: list[JsonObject] = []
        """What was created on trial."""
        self._fill_management()
        self._fill_workload()
        for api in (self.management, self.workload):
            api.date = lambda: self.now

    async def findings(self, timeout: float = 600.0, namespace: str | None = "fleet") -> list[HealthFinding]:  # noqa: ASYNC109 - the command's own
        """Look at it."""

        async def reach(_cluster: JsonObject) -> ApiClient:
            if self.unreachable:
                raise AccessError("no route")
            return self.workload

        target = HealthTarget(namespace=namespace, timeout=timeout, pause=0.0)
        return await examine(await read_survey(self.management, target, self.move), reach, is_controllers=True)

    def change(self, path: str, *fields: str, value: JsonValue) -> None:
        """Set a field of an object of the management cluster."""
        body = self.management.objects[path]
        for field in fields[:-1]:
            body.setdefault(field, {})
        mapping(body, *fields[:-1])[fields[-1]] = value
        self.management.put(path, body)

    def _fill_management(self) -> None:
        api = self.management
        api.documents["/version"] = {"gitVersion": "v1.34.1"}
        for group in ("cluster.x-k8s.io", "bootstrap.cluster.x-k8s.io"):
            api.documents[f"/apis/{group}"] = {"preferredVersion": {"version": "v1beta2"}}
        established: JsonObject = {"conditions": [{"type": "Established", "status": "True"}]}
        for one in manifests.crds():
            api.put(f"{CRDS}/{text(one, 'metadata', 'name')}", {**one, "status": established})
        api.put(f"{OWN}/nodeattestationpolicies/prod", policy())
        api.put(f"{CAPI}/clusters/blue", cluster(env="prod"))
        api.put(f"{CAPI}/clusters/green", cluster())
        api.put(f"{CAPI}/machines/a", machine("a", nodeRef={"name": "a"}))
        api.put(f"{CAPI}/machines/b", machine("b"))
        api.put(f"{OWN}/machineattestations/blue-a", self.attestation())
        api.put(f"{CONFIGS.format('fleet')}/b", config())
        api.put(LEASE, self.lease())
        api.put(DEPLOYMENT, deployment("--webhook-bind-address=:9443"))
        for kind in (MUTATING, VALIDATING):
            api.put(f"{ADMISSION}/{kind.lower()}s/nodeattest-bootstrap-config", self.webhook(kind))
        labels: JsonObject = {"kubernetes.io/service-name": "node-attestation-webhook"}
        [hook] = items(shipped_configuration(), "webhooks")
        labels["kubernetes.io/service-name"] = text(hook, "clientConfig", "service", "name")
        api.put(SLICE, {"metadata": {"labels": labels}, "endpoints": [{"conditions": {"ready": True}}]})
        api.answers[f"{CONFIGS.format('fleet')}?dryRun=All"] = self._try
        api.answers[REVIEWS.format("")] = self._review

    def _fill_workload(self) -> None:
        api = self.workload
        api.documents["/version"] = {"gitVersion": "v1.33.0"}
        roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
        api.put(f"{roles}/{NODE_CLIENT_ROLE}", {"kind": "ClusterRole", "rules": []})
        api.put(f"{BINDINGS}/nodeattest:node-bootstrapper", binding("system:node-bootstrapper"))
        info: JsonObject = {"data": {"kubeconfig": "", "jws-kubeconfig-abcdef": ""}}
        api.put("/api/v1/namespaces/kube-public/configmaps/cluster-info", info)
        api.answers[REVIEWS.format("self")] = self._review

    def _try(self, body: JsonObject) -> JsonObject:
        self.looked.append(body)
        return config()

    def _review(self, body: JsonObject) -> JsonObject:
        asked = mapping(body, "spec", "resourceAttributes")
        return {"status": {"allowed": (text(asked, "verb"), text(asked, "resource")) != self.denied}}

    def attestation(self, *, left: timedelta = timedelta(days=13), reason: str = "Attested") -> JsonObject:
        """Make the record of the machine ``a``, whose certificate lasts 14 days; ``left``: until its end."""
        end, begin = self.now + left, self.now + left - timedelta(days=14)
        entry: JsonObject = {"requestName": "r", "requestUID": "u", "spki": "sha256:" + "5" * 64, "serial": "1f"}
        entry |= {"notBefore": rfc3339(begin), "issuedAt": rfc3339(begin), "notAfter": rfc3339(end)}
        verdict = "Approved" if reason == "Attested" else "Denied"
        spec: JsonObject = {
            "clusterName": "blue",
            "machineName": "a",
            "providerID": "metal://a",
            "nodeName": "a",
            "provider": "tpm",
            "issued": [{**entry, "certificate": "pem"}],
            "expires": rfc3339(end),
            "lastVerdict": {"verdict": verdict, "reason": reason, "time": rfc3339(self.now)},
        }
        return {"kind": "MachineAttestation", "spec": spec}

    def lease(self, holder: str = "r1", *, written: timedelta = timedelta(seconds=-3), version: str = "") -> JsonObject:
        """Make the leader's Lease; ``written``: when by its holder's clock, from now."""
        annotations: JsonObject = {**lease_annotations(holder), **({VERSION_ANNOTATION: version} if version else {})}
        renewed = (self.now + written).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: JsonObject = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}
        return {"metadata": {"annotations": annotations}, "spec": spec}

    def webhook(
        self, kind: str = MUTATING, /, *, until: timedelta = timedelta(days=300), **fields: JsonValue
    ) -> JsonObject:
        """Make the shipped configuration with a CA that ends so far from now."""
        bundle = base64.b64encode(ca_until(self.now + until)).decode()
        found = shipped_configuration(kind)
        for one in items(found, "webhooks"):
            mapping(one, "clientConfig")["caBundle"] = bundle
            one.update(fields)
        return found


def policy(attestors: Iterable[str] = ("tpm",), **spec: JsonValue) -> JsonObject:
    """Make a policy for clusters with env=prod, taken by the controller."""
    ready: JsonObject = {"type": "Ready", "status": "True", "reason": "Valid", "message": "admits tpm"}
    selector: JsonObject = {"matchLabels": {"env": "prod"}}
    return {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "NodeAttestationPolicy",
        "spec": {"clusterSelector": selector, "authorizedAttestors": [*attestors], **spec},
        "status": {"observedGeneration": 1, "conditions": [ready]},
    }


def cluster(**labels: JsonValue) -> JsonObject:
    """Make a Cluster whose automatic approval is closed."""
    closed: JsonObject = {"type": "SideDoorsClosed", "status": "True", "reason": "Closed", "message": "closed"}
    return {"kind": "Cluster", "metadata": {"labels": labels}, "spec": {}, "status": {"conditions": [closed]}}


def machine(name: str, **status: JsonValue) -> JsonObject:
    """Make a Machine of the cluster blue."""
    reference: JsonObject = {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "name": name}
    spec: JsonObject = {"clusterName": "blue", "providerID": f"metal://{name}", "bootstrap": {"configRef": reference}}
    return {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "spec": spec, "status": status}


def config(*, rendered: bool = True) -> JsonObject:
    """Make the KubeadmConfig of the machine ``b``."""
    plain: JsonObject = {
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
        "kind": "KubeadmConfig",
        "metadata": {"name": "b", "namespace": "fleet"},
        "spec": {"joinConfiguration": {"nodeRegistration": {"name": "b"}}},
    }
    options = RenderOptions(provider=ProviderName("tpm"), provider_id="metal://x")
    return render(plain, options) if rendered else plain


def deployment(*arguments: JsonValue) -> JsonObject:
    """Make the controller's Deployment."""
    [shipped] = [one for one in manifests.objects("manager") if one["kind"] == "Deployment"]
    [container] = items(shipped, "spec", "template", "spec", "containers")
    container["args"] = [*arguments]
    return shipped


def binding(role: str, group: str = "system:bootstrappers") -> JsonObject:
    """Make a ClusterRoleBinding for a group."""
    reference: JsonObject = {"kind": "ClusterRole", "name": role}
    return {"kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [{"kind": "Group", "name": group}]}
