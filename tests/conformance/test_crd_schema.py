"""The CRDs and RBAC on an API server, the sandbox's and a real one: what they refuse, default, show and allow."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from needs import kubernetes_folder
from polling import succeeds

from nodeattest_controller import manifests
from nodeattest_controller.model.attestation import (
    KEEP_ENDED,
    KEEP_ISSUED,
    MAX_LIVE,
    Attestation,
    IssuedCertificate,
    RetiredKey,
    new_attestation,
)
from nodeattest_controller.model.attestation_object import (
    KEEP_RESETS,
    MAX_REASON,
    parse_attestation,
    render_attestation,
    reset,
)
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName, Purpose
from nodeattest_providers.verifier_interface import BootState
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, maps_at, text_at
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane, start_real, start_sandbox

GROUP = "attestation.cluster.x-k8s.io"
BASE = f"/apis/{GROUP}/v1alpha1/namespaces/default"
POLICIES, LEDGERS = f"{BASE}/nodeattestationpolicies", f"{BASE}/machineattestations"
SHA256 = "sha256:" + "0a" * 32
TIME = "2026-01-02T03:04:05Z"
MOST_BYTES = 256 << 10
"""Of a record, as model/retired_keys.py has it; etcd takes 1.5 MiB."""
CONTROLLER = "system:serviceaccount:nodeattest-system:node-attestation-controller"
WORKLOAD = "system:serviceaccount:kube-system:node-attestation-controller"
OPERATOR = "alice"
CREATED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MEMBER = MachineView(
    kind="Machine", api_version="cluster.x-k8s.io/v1beta1", name="m" * 253, namespace="default", uid="m-0",
    cluster_name="c", provider_id=ProviderID("x" * 512),
)  # fmt: skip
OPERATORS: JsonMap = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "operators"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "nodeattest:operator"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": OPERATOR}],
}

POLICY_SPEC: JsonMap = {
    "clusterSelector": {
        "matchLabels": {"env": "prod"},
        "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a"]}],
    },
    "authorizedAttestors": ["tpm", "challenge"],
    "enforcement": "Audit",
    "certificateLifetime": "1h30m",
    "tokenBinding": "Preferred",
    "onFailure": "Taint",
    "maxFailedShare": 20,
    "tpm": {
        "endorsementKeys": [
            {"providerID": "metal://a", "sha256": SHA256, "nodeName": "a-1.lan", "description": "rack 1"},
            {"providerID": "metal://a", "sha256": "sha256:" + "1" * 64},
        ],
        "endorsementCAs": "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
        "trustOnFirstUse": True,
        "eventLog": "Require",
        "pcrs": {"bank": "sha384", "selection": [0, 7, 23], "values": {"7": ["ab" * 48]}},
    },
    "challenge": {},
    "insecure": {},
    "providers": {"acme": {"anything": {"deep": [1]}}},
}
LEDGER_SPEC: JsonMap = {
    "clusterName": "prod",
    "machineName": "machine-a",
    "providerID": "metal://a",
    "nodeName": "node-a",
    "provider": "tpm",
    "signerName": "cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm",
    "expires": TIME,
    "fingerprints": {"ek": SHA256, "ak": "000b" + "ab" * 32},
    "boot": {
        "clock": 2**62,
        "resetCount": 2**32 - 1,
        "restartCount": 0,
        "safe": False,
        "pcrDigest": "ab" * 32,
        "bank": "sha256",
        "pcrs": {"0": "ab" * 32, "23": "cd" * 64},
        "observedAt": TIME,
    },
    "issued": [
        {
            "requestName": "node-a-1",
            "requestUID": "uid",
            "firstRequestUID": "first-uid",
            "spki": SHA256,
            "serial": "1f",
            "notBefore": TIME,
            "notAfter": TIME,
            "issuedAt": TIME,
            "certificate": "-----BEGIN CERTIFICATE-----\n",
        }
    ],
    "retiredKeys": [{"spki": SHA256, "serial": "1f", "notAfter": TIME, "firstRequestUID": "first-uid"}],
    "resets": [{"time": TIME, "by": "alice", "reason": "new mainboard", "fingerprints": {"ek": SHA256}}],
    "lastVerdict": {"verdict": "Approved", "reason": "Attested", "time": TIME},
    "onFailure": {
        "action": "Cordon",
        "nodeName": "node-a",
        "nodeUID": "uid",
        "reason": "PCRValueNotAllowed",
        "time": TIME,
    },
}


@pytest.fixture(scope="module", params=["sandbox", pytest.param("real", marks=pytest.mark.conformance)])
def plane(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Run a server with every manifest applied that its version knows."""
    directory = tmp_path_factory.mktemp("schema")
    with _start(cast("str", request.param), directory) as running:
        client = running.client()
        for base in ("base", "crd", "rbac", "workload-rbac"):
            for document in manifests.objects(base):
                client.create(_collection(document), cast("JsonMap", document))
        client.create(_collection(cast("JsonObject", OPERATORS)), OPERATORS)
        for kind in (POLICIES, LEDGERS):
            assert succeeds(lambda kind=kind: client.list(kind)) == []
        yield running


def _start(kind: str, directory: Path) -> ControlPlane:
    if kind == "sandbox":
        return start_sandbox(directory, name="schema")
    return start_real(directory, kubernetes_folder(), name="schema")


def _collection(document: JsonObject) -> str:
    version, kind = str(document["apiVersion"]), str(document["kind"])
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = text_at(cast("JsonMap", document), "metadata", "namespace")
    return f"{root}/namespaces/{namespace}/{kind.lower()}s" if namespace else f"{root}/{kind.lower()}s"


@pytest.fixture
def api(plane: ControlPlane) -> Client:
    return plane.client()


def made(kind: str, name: str, spec: JsonMap) -> JsonMap:
    return {"apiVersion": f"{GROUP}/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def spoilt(spec: JsonMap, path: str, value: JsonValue) -> JsonMap:
    """Copy a spec with one field set, or removed where the value is None."""
    changed = dict(copy.deepcopy(spec))
    where: JsonValue = changed
    *steps, last = path.split(".")
    for step in steps:
        where = (
            cast("list[JsonValue]", where)[int(step)]
            if isinstance(where, list)
            else cast("Mapping[str, JsonValue]", where)[step]
        )
    holder = cast("dict[str, JsonValue]", where)
    if value is None:
        del holder[last]
    else:
        holder[last] = value
    return changed


def refusal(api: Client, collection: str, document: JsonMap) -> str:
    with pytest.raises(ApiRefusal) as refused:
        api.create(collection, document, dryRun="All")
    assert refused.value.code == 422
    return str(refused.value)


FULL: dict[str, tuple[str, JsonMap]] = {
    "NodeAttestationPolicy": (POLICIES, POLICY_SPEC),
    "MachineAttestation": (LEDGERS, LEDGER_SPEC),
}
REAL = pytest.mark.parametrize("plane", [pytest.param("real", marks=pytest.mark.conformance)], indirect=True)
"""The sandbox evaluates neither rules, list types nor formats."""


@pytest.mark.parametrize("kind", FULL)
def test_a_full_object_is_accepted_and_kept_whole(api: Client, kind: str) -> None:
    collection, spec = FULL[kind]
    assert api.create(collection, made(kind, "full", spec))["spec"] == spec


def test_a_minimal_policy_gets_no_field_that_a_controller_of_the_version_before_would_refuse(api: Client) -> None:
    created = api.create(POLICIES, made("NodeAttestationPolicy", "minimal", {"authorizedAttestors": []}))
    assert created["spec"] == {
        "authorizedAttestors": [],
        "clusterSelector": {},
        "enforcement": "Enforce",
    }


@pytest.mark.parametrize(
    "path", ["certificateLifetme", "tpm.endorsmentKeys", "tpm.pcrs.value", "clusterSelector.match"]
)
def test_a_misspelt_policy_field_is_kept_for_the_controller_to_refuse(api: Client, path: str) -> None:
    document = made("NodeAttestationPolicy", "misspelt", spoilt(POLICY_SPEC, path, "x"))
    kept: JsonValue = api.create(POLICIES, document, dryRun="All")["spec"]
    for step in path.split("."):
        kept = cast("Mapping[str, JsonValue]", kept)[step]
    assert kept == "x"


BAD: dict[str, list[tuple[str, JsonValue]]] = {
    "NodeAttestationPolicy": [
        ("authorizedAttestors", None),
        ("authorizedAttestors", ["TPM"]),
        ("authorizedAttestors", [f"p{n}" for n in range(17)]),
        ("enforcement", "Off"),
        ("certificateLifetime", "14d"),
        ("clusterSelector.matchExpressions.0.operator", "Like"),
        ("tpm.trustOnFirstUse", "yes"),
        ("tpm.endorsementKeys.0.sha256", "sha256:" + "A" * 64),
        ("tpm.endorsementKeys.0.sha256", None),
        ("tpm.endorsementKeys.0.nodeName", "Node_1"),
        ("tpm.endorsementKeys.0.providerID", None),
        ("tpm.eventLog", "require"),
        ("tpm.pcrs.bank", "sha1"),
        ("tpm.pcrs.selection", []),
        ("tpm.pcrs.selection", [24]),
        ("tpm.pcrs.values.7", []),
        ("tpm.pcrs.values.7", ["ab" * 20]),
        ("challenge", []),
        ("providers.acme", "x"),
    ],
    "MachineAttestation": [
        ("clusterName", None),
        ("providerID", None),
        ("boot.clock", None),
        ("boot.clock", -1),
        ("boot.pcrDigest", "xyz"),
        ("boot.pcrs.0", "ab" * 20),
        ("issued.0.spki", "0" * 64),
        ("issued.0.serial", "0x1F"),
        ("issued.0.notAfter", None),
        ("issued.0.certificate", None),
        ("retiredKeys.0.notAfter", None),
        ("retiredKeys.0.firstRequestUID", "u" * 65),
        ("resets.0.by", None),
        ("resets.0.reason", ""),
        ("lastVerdict.time", None),
        ("onFailure.action", "None"),
        ("onFailure.nodeUID", None),
    ],
}
DOUBLES_AND_FORMATS: dict[str, list[tuple[str, JsonValue]]] = {
    "NodeAttestationPolicy": [
        ("authorizedAttestors", ["tpm", "tpm"]),
        ("tpm.endorsementKeys.1.sha256", SHA256),
        ("tpm.pcrs.selection", [0, 0]),
    ],
    "MachineAttestation": [
        *((path, "now") for path in ("expires", "issued.0.issuedAt", "retiredKeys.0.notAfter", "resets.0.time"))
    ],
}


def refuses_each(api: Client, bad: dict[str, list[tuple[str, JsonValue]]]) -> None:
    for kind, changes in bad.items():
        collection, spec = FULL[kind]
        for path, value in changes:
            message = refusal(api, collection, made(kind, "bad", spoilt(spec, path, value)))
            assert f"spec.{path.split('.', maxsplit=1)[0]}" in message, (path, value)


def test_a_bad_object_is_refused(api: Client) -> None:
    refuses_each(api, BAD)


@REAL
def test_doubles_formats_and_what_the_controller_would_refuse_are_refused(api: Client) -> None:
    refuses_each(api, DOUBLES_AND_FORMATS)
    document = made("NodeAttestationPolicy", "mixed", {"authorizedAttestors": ["tpm", "insecure"]})
    assert "take insecure out" in refusal(api, POLICIES, document)


def test_status_is_written_by_its_own_subresource_only(api: Client) -> None:
    document = made("NodeAttestationPolicy", "with-status", {"authorizedAttestors": []})
    condition: JsonMap = {
        "type": "Ready", "status": "True", "reason": "Valid", "message": "is valid", "lastTransitionTime": TIME,
    }  # fmt: skip
    created = api.create(POLICIES, {**document, "status": {"conditions": [condition]}})
    assert "status" not in created
    patched = api.patch(f"{POLICIES}/with-status/status", {"status": {"conditions": [condition]}})
    assert list(maps_at(patched, "status", "conditions")) == [condition]


def fullest_ledger() -> Attestation:
    """Make what the controller itself may come to write: every list at its end, every optional field there and not."""
    later = CREATED + timedelta(days=14)
    entry = IssuedCertificate(
        request_name="r" * 253, request_uid="u" * 64, first_request_uid="", spki=SHA256, serial="f" * 40,
        not_before=CREATED, not_after=later, issued_at=CREATED, certificate="c" * 2000,
    )  # fmt: skip
    old = RetiredKey(spki=SHA256, serial="", not_after=later, first_request_uid="u" * 36)
    return replace(
        new_attestation(MEMBER),
        node_name=NodeName("n" * 253),
        provider=ProviderName("p" * 40),
        fingerprints={"ek": SHA256, "ak": "000b" + "ab" * 32},
        boot=BootState(clock=2**62, reset_count=7, restart_count=7, safe=True, pcr_digest="ab" * 32, bank="sha256",
                       pcrs=dict.fromkeys(range(24), "ab" * 32)),
        issued=(entry, replace(entry, purpose=Purpose.SERVING, first_request_uid="u" * 36)) * KEEP_ISSUED,
        retired=(old,) * MAX_LIVE[Purpose.CLIENT]
        + (replace(old, purpose=Purpose.SERVING, serial="1"),) * MAX_LIVE[Purpose.SERVING]
        + (replace(old, not_after=CREATED),) * KEEP_ENDED,
    )  # fmt: skip


def test_what_the_controller_and_an_operators_reset_write_is_accepted_and_read_back_as_written(api: Client) -> None:
    written = fullest_ledger()
    made_first = api.create(LEDGERS, cast("JsonMap", render_attestation(written, MEMBER, "s" * 571)))
    assert len(json.dumps(made_first["spec"])) < MOST_BYTES
    path = f"{LEDGERS}/{written.name}"
    changed = replace(
        parse_attestation(cast("JsonObject", made_first)),
        boot=BootState(clock=1, reset_count=8, restart_count=0, safe=False, pcr_digest="cd" * 32, bank="sha256",
                       pcrs={7: "cd" * 32}),
    )  # fmt: skip
    patched = cast("JsonObject", api.patch(path, cast("JsonMap", render_attestation(changed, MEMBER, "signer"))))
    assert replace(parse_attestation(patched), resource_version=changed.resource_version) == changed
    for _ in range(KEEP_RESETS + 1):
        patched = reset(patched, by="o" * 999, reason="r" * MAX_REASON, now=CREATED)
    kept = cast("JsonObject", api.replace(path, cast("JsonMap", patched)))
    bare = parse_attestation(kept)
    assert bare.was_reset
    assert (bare.boot, bare.issued, bare.fingerprints) == (None, (), {})
    again = replace(written, resource_version=bare.resource_version, issued=written.issued[:1], retired=bare.retired)
    final = cast("JsonObject", api.patch(path, cast("JsonMap", render_attestation(again, MEMBER, "signer"))))
    assert len(parse_attestation(final).retired) == len(bare.retired)
    assert not parse_attestation(final).was_reset, "the next client certificate closes what a reset opened"


def allowed(plane: ControlPlane, user: str, verb: str, what: str, *, namespace: str = "", name: str = "") -> bool:
    resource, _, group = what.partition(".")
    resource, _, subresource = resource.partition("/")
    attributes: JsonMap = {
        "verb": verb, "group": group, "resource": resource, "subresource": subresource, "namespace": namespace,
        "name": name,
    }  # fmt: skip
    review: JsonMap = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    answer = plane.client().create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return map_at(answer, "status")["allowed"] is True


# That the controller gets what it asks for: tests/system/test_least_privilege.py.
@pytest.mark.parametrize(
    ("user", "verb", "what", "namespace", "name", "expected"),
    [
        (CONTROLLER, "update", "machineattestations.attestation.cluster.x-k8s.io", "team-a", "x", False),
        (CONTROLLER, "delete", "machineattestations.attestation.cluster.x-k8s.io", "team-a", "x", False),
        (CONTROLLER, "update", "machines.cluster.x-k8s.io", "team-a", "x", False),
        (CONTROLLER, "create", "secrets", "team-a", "", False),
        (CONTROLLER, "update", "secrets", "nodeattest-system", "another", False),
        (CONTROLLER, "delete", "secrets", "nodeattest-system", "node-attestation-challenge-keys", False),
        (CONTROLLER, "update", "nodeattestationpolicies.attestation.cluster.x-k8s.io", "team-a", "x", False),
        (CONTROLLER, "patch", "nodeattestationpolicies.attestation.cluster.x-k8s.io", "team-a", "x", False),
        (CONTROLLER, "patch", "devmachines/status.infrastructure.cluster.x-k8s.io", "team-a", "x", False),
        (CONTROLLER, "create", "pods", "nodeattest-system", "", False),
        (WORKLOAD, "sign", "signers.certificates.k8s.io", "", "kubernetes.io/kube-apiserver-client", False),
        (WORKLOAD, "sign", "signers.certificates.k8s.io", "", "kubernetes.io/kubelet-serving", False),
        (WORKLOAD, "approve", "signers.certificates.k8s.io", "", "kubernetes.io/kube-apiserver-client", False),
        (WORKLOAD, "bind", "clusterroles.rbac.authorization.k8s.io", "", "cluster-admin", False),
        (WORKLOAD, "get", "secrets", "kube-system", "x", False),
        (WORKLOAD, "delete", "nodes", "", "x", False),
        (OPERATOR, "update", "machineattestations.attestation.cluster.x-k8s.io", "team-a", "x", True),
        (OPERATOR, "delete", "machineattestations.attestation.cluster.x-k8s.io", "team-a", "x", False),
        (OPERATOR, "update", "nodeattestationpolicies.attestation.cluster.x-k8s.io", "team-a", "x", False),
        (OPERATOR, "get", "secrets", "team-a", "blue-kubeconfig", False),
    ],
)
def test_the_roles_allow_no_more_than_is_needed(
    plane: ControlPlane, *, user: str, verb: str, what: str, namespace: str, name: str, expected: bool
) -> None:
    assert allowed(plane, user, verb, what, namespace=namespace, name=name) is expected
