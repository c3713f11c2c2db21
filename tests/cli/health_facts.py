"""The facts of a healthy installation, for tests that spoil one of them."""

from __future__ import annotations

import base64
import copy
from datetime import UTC, datetime, timedelta
from functools import cache

from cert_manager import ca_until

from nodeattest_cli.doctor.facts import (
    HealthFacts,
    ManagementFacts,
    WorkloadFacts,
    management_folders,
    shipped_rights,
    workload_folders,
)
from nodeattest_cli.doctor.webhook import VALIDATING
from nodeattest_controller import manifests
from nodeattest_controller.controllers.auto_approval.permissions import NODE_CLIENT_ROLE
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.fields import RenderOptions
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.render import render
from nodeattest_controller.model.lease_annotations import VERSION_ANNOTATION, lease_annotations
from nodeattest_controller.model.webhook_configuration import MUTATING, shipped_configuration
from nodeattest_parsing.objects import items, mapping, rfc3339, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.identifiers import ProviderName

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
BLUE = "fleet/blue"
_CAPI = "cluster.x-k8s.io/v1beta2"
_OWN = "attestation.cluster.x-k8s.io/v1alpha1"


def healthy_facts() -> HealthFacts:
    """Return them: one protected cluster with an attested machine and one that is about to join."""
    return copy.deepcopy(_made())


@cache
def _made() -> HealthFacts:
    management = ManagementFacts(
        version="v1.34.1",
        ahead=0.4,
        cluster_api="v1beta2",
        definitions={text(one, "metadata", "name"): _established(one) for one in manifests.crds()},
        policies=[policy()],
        clusters=[cluster("blue", env="prod"), cluster("green")],
        machines=[machine("a", joined=True), machine("b")],
        attestations=[attestation("a")],
        configs=[config("b")],
        leases=[lease()],
        deployments=[deployment("--webhook-bind-address=:9443")],
        webhook=webhook(),
        validation=webhook(VALIDATING),
        endpoints=[{"endpoints": [{"addresses": ["10.0.0.7"], "conditions": {"ready": True}}]}],
        trials={BLUE: config("trial")},
    )
    facts = HealthFacts(now=NOW, management=management)
    management.reviews = dict.fromkeys(shipped_rights(management_folders(facts)), True)
    workload = WorkloadFacts(
        version="v1.33.0",
        ahead=0.2,
        roles=[{"metadata": {"name": NODE_CLIENT_ROLE}, "rules": []}],
        bindings=[binding("nodeattest:node-bootstrapper", "system:node-bootstrapper", "system:bootstrappers")],
        cluster_info={"data": {"kubeconfig": "", "jws-kubeconfig-abcdef": ""}},
        reviews=dict.fromkeys(shipped_rights(workload_folders(facts)), True),
    )
    facts.workloads = {BLUE: workload}
    return facts


def policy(name: str = "prod", *attestors: JsonValue) -> JsonObject:
    """Make a policy for clusters with env=prod, taken by the controller."""
    ready: JsonObject = {"type": "Ready", "status": "True", "reason": "Valid", "message": "admits tpm"}
    return {
        "apiVersion": _OWN,
        "kind": "NodeAttestationPolicy",
        "metadata": {"name": name, "namespace": "fleet", "generation": 3},
        "spec": {"clusterSelector": {"matchLabels": {"env": "prod"}}, "authorizedAttestors": [*(attestors or ["tpm"])]},
        "status": {"observedGeneration": 3, "conditions": [ready]},
    }


def cluster(name: str, **labels: JsonValue) -> JsonObject:
    """Make a Cluster whose automatic approval is closed."""
    closed: JsonObject = {"type": "SideDoorsClosed", "status": "True", "reason": "Closed", "message": "closed"}
    return {
        "apiVersion": _CAPI,
        "kind": "Cluster",
        "metadata": {"name": name, "namespace": "fleet", "labels": labels},
        "spec": {},
        "status": {"conditions": [closed]},
    }


def machine(name: str, *, joined: bool = False, kind: str = "KubeadmConfig") -> JsonObject:
    """Make a Machine of the cluster blue."""
    reference: JsonObject = {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": kind, "name": name}
    return {
        "apiVersion": _CAPI,
        "kind": "Machine",
        "metadata": {"name": name, "namespace": "fleet", "uid": name},
        "spec": {"clusterName": "blue", "providerID": f"metal://{name}", "bootstrap": {"configRef": reference}},
        "status": {"nodeRef": {"name": name}} if joined else {},
    }


def attestation(name: str, *, left: timedelta = timedelta(days=13), verdict: str = "Approved") -> JsonObject:
    """Make a machine's MachineAttestation, whose certificate lasts 14 days."""
    end = NOW + left
    entry: JsonObject = {
        "requestName": "r",
        "requestUID": "u",
        "spki": "sha256:" + "5" * 64,
        "serial": "1f",
        "notBefore": rfc3339(end - timedelta(days=14)),
        "issuedAt": rfc3339(end - timedelta(days=14)),
        "notAfter": rfc3339(end),
        "certificate": "pem",
    }
    reason = "Attested" if verdict == "Approved" else "PCRValueNotAllowed"
    spec: JsonObject = {
        "clusterName": "blue",
        "machineName": name,
        "providerID": f"metal://{name}",
        "nodeName": name,
        "provider": "tpm",
        "issued": [entry],
        "expires": rfc3339(end),
        "lastVerdict": {"verdict": verdict, "reason": reason, "time": rfc3339(NOW)},
    }
    head: JsonObject = {"name": f"blue-{name}", "namespace": "fleet"}
    return {"apiVersion": _OWN, "kind": "MachineAttestation", "metadata": head, "spec": spec}


def config(name: str, *, rendered: bool = True) -> JsonObject:
    """Make a KubeadmConfig."""
    plain: JsonObject = {
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
        "kind": "KubeadmConfig",
        "metadata": {"name": name, "namespace": "fleet"},
        "spec": {"joinConfiguration": {"nodeRegistration": {"name": name}}},
    }
    options = RenderOptions(provider=ProviderName("tpm"), provider_id="metal://x")
    return render(plain, options).document if rendered else plain


def lease(
    holder: str = "replica-1", *, written: timedelta = timedelta(seconds=-3), version: str = "", wrote: str = ""
) -> JsonObject:
    """Make the leader's Lease; ``written``: when by its holder's clock, from now; ``wrote``: whose version it has."""
    annotations: JsonObject = {**lease_annotations(wrote or holder)}
    if version:
        annotations[VERSION_ANNOTATION] = version
    return {
        "metadata": {
            "name": "node-attestation-controller",
            "namespace": "nodeattest-system",
            "uid": "1",
            "resourceVersion": "7",
            "annotations": annotations,
        },
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": 15,
            "renewTime": (NOW + written).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


def deployment(*arguments: JsonValue) -> JsonObject:
    """Make the controller's Deployment."""
    [shipped] = [one for one in manifests.objects("manager") if one["kind"] == "Deployment"]
    [container] = items(shipped, "spec", "template", "spec", "containers")
    container["args"] = [*arguments]
    return shipped


def webhook(kind: str = MUTATING, *, until: timedelta = timedelta(days=300), **fields: JsonValue) -> JsonObject:
    """Make the shipped configuration with a CA that ends so far from now."""
    bundle = base64.b64encode(ca_until(NOW + until)).decode()
    found = shipped_configuration(kind)
    for one in items(found, "webhooks"):
        mapping(one, "clientConfig")["caBundle"] = bundle
        one.update(fields)
    return found


def binding(name: str, role: str, *groups: str) -> JsonObject:
    """Make a ClusterRoleBinding for groups."""
    subjects: list[JsonValue] = [{"kind": "Group", "name": group} for group in groups]
    return {"metadata": {"name": name}, "roleRef": {"kind": "ClusterRole", "name": role}, "subjects": subjects}


def _established(definition: JsonObject) -> JsonObject:
    established: JsonObject = {"type": "Established", "status": "True"}
    status: JsonObject = {"conditions": [established], "storedVersions": ["v1alpha1"]}
    return {**definition, "status": status}
