"""An exported bundle: a request, and what it is evaluated by, as one List of objects without secrets. Pure.

Only what is named here leaves the clusters: of each kind the fields that checks read. Of a KubeadmConfig that is also
the ids of its tokens, of Secrets the CA's certificate alone. What was not understood is left out, never kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Final

from nodeattest_cli.explain.collect import CSR, Collected
from nodeattest_cli.fleet import ATTESTATION, POLICY, named, of_kind, rows_of
from nodeattest_controller.controllers.node_attested.conditions import CONDITION
from nodeattest_controller.model.kubeadm_config import KUBEADM_CONFIG
from nodeattest_controller.model.machine_view import (
    CLUSTER_KINDS,
    CLUSTER_RECORD,
    CONTROL_PLANE_LABEL,
    MACHINE_KINDS,
    MACHINE_RECORD,
    PAUSED_ANNOTATION,
)
from nodeattest_discovery.token import is_token, is_token_id
from nodeattest_parsing.objects import items, mapping, moment, rfc3339, strings, text, text_map
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY
from nodeattest_providers.tpm.endorsement_key import MACHINE_ANNOTATION

BUNDLE: Final = "EvidenceBundle"
"""Kind of the bundle's first object: whose it is, when it was exported, what could not be read."""
_TOKEN_ID: Final = "bootstrapTokenID"
"""Field of a MachineRecord."""
_VERSION: Final = "cli.attestation.cluster.x-k8s.io/v1alpha1"
_ALL: Final = "*"
"""The last step of a path to a whole value."""
_LABELS: Final = (CONTROL_PLANE_LABEL,)
"""Those of a cluster are kept whole: a policy may select by any."""
_ANNOTATIONS: Final = (ANNOTATION_TPM_ENDORSEMENT_KEY, MACHINE_ANNOTATION, PAUSED_ANNOTATION)
_CONDITIONS: Final = ("BootstrapConfigReady", "BootstrapReady")
"""Of a machine: whether they are true. Of ``NodeAttested``, which the controller writes, also the message."""
_META: Final = (
    *("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"),
    *(f"ownerReferences.{name}" for name in ("apiVersion", "kind", "name", "uid")),
)


def _reference(path: str) -> tuple[str, ...]:
    return tuple(f"{path}.{name}" for name in ("apiGroup", "apiVersion", "kind", "name"))


_CLUSTER: Final = (
    "spec.paused",
    "spec.controlPlaneEndpoint.host",
    "spec.clusterNetwork.serviceDomain",
    "spec.clusterNetwork.services.cidrBlocks",
    "spec.security.authorizedAttestors",
    "spec.security.kubeletAuthentication",
)
_MACHINE_STATUS: Final = (
    *("status.nodeRef.name", "status.nodeRef.uid", "status.addresses.type", "status.addresses.address"),
    *("status.bootstrapReady", "status.initialization.bootstrapDataSecretCreated"),
)
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        CSR: (
            *("spec.request", "spec.signerName", "spec.usages", "spec.expirationSeconds", "spec.username"),
            *("spec.groups", "status.certificate"),
            *(f"status.conditions.{name}" for name in ("type", "status", "reason", "message")),
        ),
        "Cluster": _CLUSTER,
        CLUSTER_RECORD: _CLUSTER,
        "Machine": (
            *("spec.clusterName", "spec.providerID", *_MACHINE_STATUS),
            *_reference("spec.infrastructureRef"),
            *_reference("spec.bootstrap.configRef"),
        ),
        "MachinePool": (
            *("spec.clusterName", "spec.providerIDList", *_MACHINE_STATUS),
            *_reference("spec.template.spec.infrastructureRef"),
            *_reference("spec.template.spec.bootstrap.configRef"),
        ),
        MACHINE_RECORD: (
            *(f"spec.{name}" for name in ("clusterName", "providerID", "nodeName", "controlPlane", "paused")),
            *("spec.addresses.type", "spec.addresses.address", "spec.endorsementKeyHash", *_MACHINE_STATUS),
        ),
        "Node": ("spec.providerID",),
        KUBEADM_CONFIG[1]: ("status.ready", "status.dataSecretName", "status.initialization.dataSecretCreated"),
        POLICY: ("spec.*",),
        ATTESTATION: ("spec.*", "status.refusals.*"),
    }
)
"""By kind: paths, through the entries of lists, to values. Infrastructure machines have annotations only."""
_OF_POOL: Final = ("status.infrastructureMachineKind",)
"""Of the infrastructure object of a pool, whose kind is its provider's."""
_NO_SECRET: Final = "." + "0" * 16
"""In the place of a bootstrap token's secret part: it still reads as a token."""
_NO_TOKEN: Final = "(not a token)"
"""In the place of what may be a token with a slip of the pen: checks refuse the one as the other."""


def make_bundle(found: Collected, exported_at: datetime) -> JsonObject:
    """Make the List of what was collected about a machine."""
    row, request = found.row, text(found.csr or {}, "metadata", "name")
    head: JsonObject = {
        "apiVersion": _VERSION,
        "kind": BUNDLE,
        "metadata": {"name": row.machine if row is not None else request},
        "spec": {
            "providerID": row.provider_id if row is not None else "",
            "request": request,
            "exportedAt": rfc3339(exported_at),
            "leftOut": [*found.left_out],
        },
    }
    documents = [*([found.csr] if found.csr is not None else []), *found.documents]
    return {"apiVersion": "v1", "kind": "List", "items": [head, *map(_reduced, documents)]}


def read_bundle(documents: Sequence[JsonObject]) -> Collected | None:
    """Read a bundle as what was collected then; None for documents of another kind."""
    head = next((one for one in documents if text(one, "kind") == BUNDLE), None)
    if head is None:
        return None
    spec, rest = mapping(head, "spec"), [one for one in documents if one is not head]
    csr = named(of_kind(rest, CSR), text(spec, "request"))
    then = moment(text(spec, "exportedAt"))
    rows = rows_of(rest, then) if then is not None else ()
    row = next((one for one in rows if one.provider_id and one.provider_id == text(spec, "providerID")), None)
    left = [one for one in rest if one is not csr]
    return Collected(csr=csr, row=row, documents=left, left_out=[*strings(spec, "leftOut")])


def _reduced(document: JsonObject) -> JsonObject:
    """Keep of an object what checks read."""
    kind, spec, status = text(document, "kind"), mapping(document, "spec"), mapping(document, "status")
    body = _kept(document, _FIELDS.get(kind, _OF_POOL))
    if kind == KUBEADM_CONFIG[1]:
        body["spec"] = _token_ids(spec)
    elif kind == "Secret":  # the CA's certificate; its key was never read
        body["data"] = _only(mapping(document, "data"), ("tls.crt",))
    elif kind in {MACHINE_RECORD, CLUSTER_RECORD}:
        body["spec"] = _with_flaws(spec, mapping(body, "spec"))
    if kind in MACHINE_KINDS:
        conditions = _conditions(status)
        if "v1beta2" in status:
            conditions["v1beta2"] = _conditions(mapping(status, "v1beta2"))
        body["status"] = {**mapping(body, "status"), **conditions}
    return {"apiVersion": text(document, "apiVersion"), "kind": kind, "metadata": _meta(document), **body}


def _meta(document: JsonObject) -> JsonObject:
    is_cluster = text(document, "kind") in CLUSTER_KINDS
    labels, annotations = (text_map(document, "metadata", name) for name in ("labels", "annotations"))
    read = {
        "labels": {name: value for name, value in labels.items() if is_cluster or name in _LABELS},
        "annotations": {name: value for name, value in annotations.items() if name in _ANNOTATIONS},
    }
    shown: JsonObject = {name: dict[str, JsonValue](kept) for name, kept in read.items() if kept}
    return {**_kept(mapping(document, "metadata"), _META), **shown}


def _conditions(status: JsonObject) -> JsonObject:
    """Keep the conditions of a machine that are read; what the bootstrap provider says of its own is not."""
    kept: list[JsonValue] = [
        _only(one, ("type", "status", "message") if text(one, "type") == CONDITION else ("type", "status"))
        for one in items(status, "conditions")
        if text(one, "type") in {CONDITION, *_CONDITIONS}
    ]
    return {"conditions": kept} if kept else {}


def _with_flaws(spec: JsonObject, kept: JsonObject) -> JsonObject:
    """Keep of a record that it has a field which nobody reads, since that makes it invalid, and not what stands there.

    The token that it names is kept if it is an id.
    """
    shown: JsonObject = {name: None for name in spec if name not in kept}
    if token_id := text(spec, _TOKEN_ID):
        shown[_TOKEN_ID] = token_id if is_token_id(token_id) else _NO_TOKEN
    return {**kept, **shown}


def _token_ids(spec: JsonObject) -> JsonObject:
    """Keep which tokens a KubeadmConfig names, without their secret parts."""
    discovery = mapping(spec, "joinConfiguration", "discovery")
    kept: JsonObject = {}
    if token := text(discovery, "bootstrapToken", "token"):
        kept["bootstrapToken"] = {"token": _id_only(token)}
    if token := text(discovery, "tlsBootstrapToken"):
        kept["tlsBootstrapToken"] = _id_only(token)
    named = [text(one, "token") for one in items(spec, "initConfiguration", "bootstrapTokens")]
    made: list[JsonValue] = [{"token": _id_only(token)} for token in named if token]
    reduced: JsonObject = {"joinConfiguration": {"discovery": kept}} if kept else {}
    return {**reduced, "initConfiguration": {"bootstrapTokens": made}} if made else reduced


def _id_only(token: str) -> str:
    """Keep the id of a token; what is none may be a secret without an id."""
    return token.partition(".")[0] + _NO_SECRET if is_token(token) else _NO_TOKEN


def _kept(obj: JsonObject, paths: Iterable[str]) -> JsonObject:
    """Keep the values at these paths, in each entry of a list; an object only where a path ends with ``*``."""
    below: dict[str, list[str]] = {}
    for path in paths:
        name, _, rest = path.partition(".")
        below.setdefault(name, []).append(rest)
    return {name: _value(obj[name], rest) for name, rest in below.items() if name in obj}


def _value(value: JsonValue, paths: Sequence[str]) -> JsonValue:
    if _ALL in paths:
        return value
    if isinstance(value, list):
        return [_value(entry, paths) for entry in value]
    if isinstance(value, dict):
        return _kept(value, filter(None, paths))
    return None if any(paths) else value


def _only(obj: JsonObject, names: Iterable[str]) -> JsonObject:
    return {name: obj[name] for name in names if name in obj}
