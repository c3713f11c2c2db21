"""An exported bundle: a request, and what it is evaluated by, as one List of objects without secrets. Pure.

Promises: only the fields that are named here leave the clusters: of a KubeadmConfig the ids of its tokens, of Secrets
the CA's certificate alone, of the machine's own record all. What is made here, ``read_bundle`` reads.
Leaves to others: fetching (``collect``), reading and writing files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from nodeattest_cli.explain.collect import Collected
from nodeattest_cli.machines.row import rows_of
from nodeattest_controller.model.attestation import parse_attestation
from nodeattest_controller.model.machine_kinds import MACHINE_KINDS
from nodeattest_controller.model.objects import items, mapping, moment, rfc3339, strings, text, text_map
from nodeattest_controller.model.token_binding import KUBEADM_CONFIG
from nodeattest_kube.jsontypes import JsonObject, JsonValue

__all__ = ["BUNDLE", "make_bundle", "read_bundle"]

BUNDLE: Final = "EvidenceBundle"
"""Kind of the bundle's first object: whose it is, when it was exported, what could not be read."""
_VERSION: Final = "cli.attestation.cluster.x-k8s.io/v1alpha1"
_CSR: Final = "CertificateSigningRequest"
_RECORD: Final = "MachineAttestation"
_META: Final = ("name", "namespace", "uid", "labels", "creationTimestamp", "deletionTimestamp", "ownerReferences")
_ANNOTATIONS: Final = ("cluster-x-k8s-io/", "attestation.cluster.x-k8s.io/", "cluster.x-k8s.io/paused")
"""How the annotations begin that checks read; others may hold anything, such as a whole configuration."""
_PARTS: Final = {"Cluster": ("paused", "controlPlaneEndpoint", "infrastructureRef"), "Node": ("providerID",)}
"""Fields of a spec that are kept."""
_WHOLE: Final = frozenset({"NodeAttestationPolicy", "ClusterRecord", "MachineRecord", _CSR, *MACHINE_KINDS})
_UNUSED_ENTRY: Final = "certificate"
_ID_ONLY: Final = "." + "0" * 16
"""In the place of a bootstrap token's secret part: it still reads as a token."""


def make_bundle(found: Collected, exported_at: datetime) -> JsonObject:
    """Make the List of what was collected about a machine."""
    row = found.row
    head: JsonObject = {
        "apiVersion": _VERSION,
        "kind": BUNDLE,
        "metadata": {"name": row.machine if row is not None else text(found.csr or {}, "metadata", "name")},
        "spec": {
            "providerID": row.provider_id if row is not None else "",
            "request": text(found.csr or {}, "metadata", "name"),
            "exportedAt": rfc3339(exported_at),
            "leftOut": [*found.left_out],
        },
    }
    own = row.attestation if row is not None else ""
    kept = [_reduced(one, own) for one in (*([found.csr] if found.csr is not None else []), *found.documents)]
    listed: list[JsonValue] = [head, *kept]
    return {"apiVersion": "v1", "kind": "List", "items": listed}


def read_bundle(documents: Sequence[JsonObject]) -> Collected | None:
    """Read a bundle as what was collected then; None for documents of another kind."""
    head = next((one for one in documents if text(one, "kind") == BUNDLE), None)
    if head is None:
        return None
    spec, rest = mapping(head, "spec"), [one for one in documents if one is not head]
    requests = [one for one in rest if text(one, "kind") == _CSR]
    csr = next((one for one in requests if text(one, "metadata", "name") == text(spec, "request")), None)
    machines = [one for one in rest if text(one, "kind") in MACHINE_KINDS]
    records = [one for one in rest if text(one, "kind") == _RECORD]
    then = moment(text(spec, "exportedAt"))
    rows = rows_of(machines, records, then) if then is not None else ()
    row = next((one for one in rows if one.provider_id and one.provider_id == text(spec, "providerID")), None)
    record = next(
        (one for one in records if row is not None and text(one, "metadata", "name") == row.attestation), None
    )
    return Collected(
        csr=csr,
        row=row,
        documents=[one for one in rest if one is not csr],
        attestation=parse_attestation(record) if record is not None else None,
        left_out=list(strings(spec, "leftOut")),
    )


def _reduced(document: JsonObject, own: str) -> JsonObject:
    """Keep of an object what checks read."""
    head = {"apiVersion": text(document, "apiVersion"), "kind": text(document, "kind"), "metadata": _meta(document)}
    return {**head, **_body(document, is_own=text(document, "metadata", "name") == own)}


def _body(document: JsonObject, *, is_own: bool) -> JsonObject:
    kind, spec, status = text(document, "kind"), mapping(document, "spec"), mapping(document, "status")
    body: JsonObject = {}  # of an infrastructure machine, whose annotations are what is read
    if kind in _WHOLE or (kind == _RECORD and is_own):
        body = {"spec": spec, "status": status}
    elif kind == _RECORD:
        issued: list[JsonValue] = [_without(one, _UNUSED_ENTRY) for one in items(spec, "issued")]
        body = {"spec": {**spec, "issued": issued}}
    elif kind in _PARTS:
        body = {"spec": _only(spec, _PARTS[kind])}
    elif kind == KUBEADM_CONFIG[1]:
        body = {"spec": _token_ids(spec), "status": status}
    elif kind == "Secret":  # the CA's certificate; its key was never read
        body = {"data": _only(mapping(document, "data"), ("tls.crt",))}
    return body


def _meta(document: JsonObject) -> JsonObject:
    meta = _only(mapping(document, "metadata"), _META)
    annotations = text_map(document, "metadata", "annotations")
    kept = {name: value for name, value in annotations.items() if name.startswith(_ANNOTATIONS)}
    return {**meta, "annotations": dict[str, JsonValue](kept)} if kept else meta


def _token_ids(spec: JsonObject) -> JsonObject:
    """Keep which tokens a KubeadmConfig names, without their secret parts."""
    discovery = mapping(spec, "joinConfiguration", "discovery")
    kept: JsonObject = {}
    if token := text(discovery, "bootstrapToken", "token"):
        kept["bootstrapToken"] = {"token": _id_only(token)}
    if token := text(discovery, "tlsBootstrapToken"):
        kept["tlsBootstrapToken"] = _id_only(token)
    made: list[JsonValue] = [
        {"token": _id_only(text(one, "token"))} for one in items(spec, "initConfiguration", "bootstrapTokens")
    ]
    reduced: JsonObject = {"joinConfiguration": {"discovery": kept}} if kept else {}
    return {**reduced, "initConfiguration": {"bootstrapTokens": made}} if made else reduced


def _id_only(token: str) -> str:
    return token.partition(".")[0] + _ID_ONLY


def _only(obj: JsonObject, names: Iterable[str]) -> JsonObject:
    return {name: obj[name] for name in names if name in obj}


def _without(obj: JsonObject, name: str) -> JsonObject:
    return {key: value for key, value in obj.items() if key != name}
