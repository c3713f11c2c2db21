"""The CertificateSigningRequests of one workload cluster: one watch, and all writes.

Every write carries the resourceVersion that was evaluated: an approval without it overwrites blindly. A request that
was deleted and created again in between is a Conflict, never an approval. The controller's own writes do not wake it.
"""

from __future__ import annotations

import base64
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.model.csr_request import MAX_BASE64, CSRSummary, RequestState, summarize
from nodeattest_controller.runtime.conditions import MAX_MESSAGE
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import AlreadyExists, NotFound
from nodeattest_kube.reflector import Reflector
from nodeattest_kube.store import MemoryPool
from nodeattest_parsing.objects import items, mapping, metadata, rfc3339, text, text_map
from nodeattest_parsing.values import JsonObject, JsonValue, one_line
from nodeattest_providers.identifiers import (
    ANNOTATION_CHALLENGE,
    ANNOTATION_PROVIDER_ID,
    ANNOTATION_REASON,
    ANNOTATION_SUPPORTED_VERSIONS,
    NodeName,
    ProviderName,
)

_LOG: Final = logging.getLogger(__name__)
_CSR: Final = ("certificates.k8s.io", "v1", "certificatesigningrequests")
_RBAC: Final = ("rbac.authorization.k8s.io", "v1", "clusterrolebindings")
CURRENT: Final = 10.0
"""Seconds since the watch's last sign of life within which it tells that nobody has decided a request."""
MAX_ANNOTATIONS: Final = 32 * 1024
"""Characters; the API server would take 256 KiB."""
MAX_METADATA: Final = 8 * 1024
"""Characters of labels, owner references or finalizers; an honest request has none."""
_FREE_METADATA: Final = ("labels", "ownerReferences", "finalizers")
OUR_ANNOTATIONS: Final = frozenset(
    {ANNOTATION_CHALLENGE, ANNOTATION_PROVIDER_ID, ANNOTATION_REASON, ANNOTATION_SUPPORTED_VERSIONS}
)
BOOTSTRAP_BINDING: Final = "nodeattest:node-bootstrapper"
KUBEADM_BINDING: Final = "kubeadm:kubelet-bootstrap"
_NO_ANNOTATIONS: Final[Mapping[str, str]] = MappingProxyType({})
_SETTLED: Final[Mapping[RequestState, JsonObject]] = MappingProxyType(
    {
        RequestState.APPROVED: {"conditions": [{"type": "Approved"}]},
        RequestState.DENIED: {"conditions": [{"type": "Denied"}]},
        RequestState.FAILED: {"conditions": [{"type": "Failed"}]},
        RequestState.ISSUED: {"certificate": "kept on the server"},
    }
)
"""The status that is kept of a settled request; shared by all requests of a state."""


class WorkloadClient:
    """The connection to one workload cluster."""

    def __init__(
        self,
        key: ClusterKey,
        client: ApiClient,
        *,
        has_provider: Callable[[ProviderName], bool],
        on_request: Callable[[str], None],
        now: Callable[[], datetime],
        memory: MemoryPool,
        on_settled: Callable[[str, str], None] = lambda _name, _uid: None,
    ) -> None:
        """``has_provider``: whose signers are ours; requests for any other signer are left alone.

        ``memory``: of the requests of all clusters; an ordinary one takes 4.5 KiB.
        ``on_settled``: called at least once for a request that is no longer open, by name and UID (empty: deleted).
        """
        self.key = key
        self.client = client
        self._has_provider = has_provider
        self._on_request, self._on_settled = on_request, on_settled
        self._now = now
        self._own_writes: dict[str, set[str]] = defaultdict(set)
        """Versions that our writes made of open requests."""
        self._writing: set[str] = set()
        self.kubelet_requests: set[str] = set()
        """Names of kubelet's own open requests, which a change of the policy may concern."""
        self.requests = Reflector(
            client,
            paths.collection_path(*_CSR),
            on_change=self._changed,
            transform=self._slim,
            max_bytes=memory,
            shares=True,
            owner=key.partition("/")[0],
        )

    async def run(self) -> None:
        """Watch the cluster's requests until cancelled, then release their memory."""
        try:
            await self.requests.run()
        finally:
            self.requests.close()

    async def ensure_bootstrappers_may_ask(self) -> None:
        """Create the binding that lets bootstrap tokens file requests, unless kubeadm did."""
        for name in (KUBEADM_BINDING, BOOTSTRAP_BINDING):
            try:
                await self.client.get(paths.object_path(*_RBAC, name))
            except NotFound:
                continue
            return
        try:
            await self.client.create(paths.collection_path(*_RBAC), _bootstrap_binding())
        except AlreadyExists:
            return
        _LOG.info("let bootstrap tokens file requests", extra=fields(cluster=self.key, binding=BOOTSTRAP_BINDING))

    def summarize(self, request: JsonObject) -> CSRSummary | None:
        stored = summarize(request)
        ours = stored is not None and (stored.is_kubelets or self._has_provider(stored.provider))
        return stored if ours else None

    # Reads

    def pending_request(self, name: str, uid: str) -> JsonObject | None:
        """Return a request that nobody has decided, from the watch; None if only a read can tell."""
        if not self.requests.is_current(CURRENT):
            return None
        found = self.requests.get(name)
        stored = self.summarize(found) if found is not None else None
        is_it = stored is not None and stored.uid == uid and stored.state is RequestState.PENDING
        return found if is_it and stored is not None and not stored.is_kubelets else None

    async def read_request(self, name: str) -> JsonObject | None:
        try:
            return await self.client.get(paths.object_path(*_CSR, name))
        except NotFound:
            return None

    async def read_node(self, name: NodeName) -> JsonObject | None:
        try:
            return await self.client.get(paths.core_path("nodes", name))
        except NotFound:
            return None

    # Writes

    async def publish_annotations(self, request: JsonObject, annotations: Mapping[str, str]) -> None:
        """Write our output annotations, over what is there; raises Conflict if the request changed."""
        meta = metadata(request)
        patch: JsonObject = {
            "metadata": {
                "uid": meta.get("uid"),
                "resourceVersion": meta.get("resourceVersion"),
                "annotations": dict[str, JsonValue](annotations),
            }
        }
        name = text(request, "metadata", "name")
        await self._write(name, self.client.merge_patch(paths.object_path(*_CSR, name), patch))

    async def approve(self, request: JsonObject, reason: str, message: str) -> JsonObject:
        return await self._put(self._with_condition(request, "Approved", reason, message), "approval")

    async def deny(
        self, request: JsonObject, reason: str, message: str, annotations: Mapping[str, str] = _NO_ANNOTATIONS
    ) -> JsonObject:
        """Deny for good, with output annotations in the same write."""
        denied = self._with_condition(request, "Denied", reason, message)
        return await self._put(_annotated(denied, annotations), "approval")

    async def fail(
        self, request: JsonObject, reason: str, message: str, annotations: Mapping[str, str] = _NO_ANNOTATIONS
    ) -> JsonObject:
        """Fail an approved request that must not be signed: it cannot be denied any more."""
        failed = self._with_condition(request, "Failed", reason, message)
        return await self._put(_annotated(failed, annotations), "status")

    async def publish_certificate(self, request: JsonObject, pem: str) -> JsonObject:
        """Set ``status.certificate``; the API server lets this happen once."""
        status = {**mapping(request, "status"), "certificate": base64.b64encode(pem.encode()).decode()}
        return await self._put({**request, "status": status}, "status")

    # The rest

    async def _put(self, request: JsonObject, subresource: str) -> JsonObject:
        name = text(request, "metadata", "name")
        return await self._write(
            name, self.client.replace(paths.object_path(*_CSR, name, subresource=subresource), request)
        )

    def _with_condition(self, request: JsonObject, kind: str, reason: str, message: str) -> JsonObject:
        stamp = rfc3339(self._now())
        entry: JsonObject = {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": one_line(message, MAX_MESSAGE),
            "lastUpdateTime": stamp,
            "lastTransitionTime": stamp,
        }
        kept: list[JsonValue] = list(items(request, "status", "conditions"))
        return {**request, "status": {**mapping(request, "status"), "conditions": [*kept, entry]}}

    async def _write(self, name: str, request: Awaitable[JsonObject]) -> JsonObject:
        """Write, and wake the request for what somebody else wrote meanwhile."""
        before = self._open_version(name)
        self._writing.add(name)
        try:
            written = await request
            if self._open_version(name):  # else the watch has shown how it ended
                self._own_writes[name].add(text(written, "metadata", "resourceVersion"))
            return written
        finally:
            self._writing.discard(name)
            now = self._open_version(name)
            if now not in {"", before} and now not in self._own_writes.get(name, ()):
                self._on_request(name)

    def _open_version(self, name: str) -> str:
        """Return the resourceVersion of an open request; empty if there is none."""
        kept = self.requests.get(name)
        stored = self.summarize(kept) if kept is not None else None
        return stored.resource_version if stored is not None and stored.is_open else ""

    def _slim(self, request: JsonObject) -> JsonObject:
        return _slim_request(request, self.summarize(request))

    def _changed(self, name: str, request: JsonObject | None) -> None:
        stored = self.summarize(request) if request is not None else None
        if stored is not None and stored.is_kubelets and stored.is_open:
            self.kubelet_requests.add(name)
        else:
            self.kubelet_requests.discard(name)
        if stored is None or not stored.is_open:
            self._own_writes.pop(name, None)
            self._on_settled(name, stored.uid if stored is not None else "")
        elif name not in self._writing and stored.resource_version not in self._own_writes.get(name, ()):
            self._on_request(name)


def _annotated(request: JsonObject, annotations: Mapping[str, str]) -> JsonObject:
    """Write output annotations over whatever is there.

    Neither /approval nor /status resets metadata (pkg/registry/certificates/certificates/strategy.go).
    """
    if not annotations:
        return request
    meta = metadata(request)
    written: dict[str, JsonValue] = {**mapping(meta, "annotations"), **annotations}
    return {**request, "metadata": {**meta, "annotations": written}}


def _slim_request(request: JsonObject, stored: CSRSummary | None) -> JsonObject:
    """Keep open requests within bounds; of settled requests and kubelet's own, only identity and state.

    A settled request averages 4.5 KB, and each join leaves two for an hour. If nobody approves kubelet's own requests,
    each kubelet leaves one every 15 minutes.
    """
    if stored is not None and stored.is_open and not stored.is_kubelets:
        return _bounded(request)
    meta = metadata(request)
    kept: JsonObject = {name: meta[name] for name in ("name", "uid", "resourceVersion") if name in meta}
    if stored is None:
        return {"metadata": kept}
    signer = text(request, "spec", "signerName")
    if not stored.is_open:
        return {"metadata": kept, "spec": {"signerName": signer}, "status": _SETTLED[stored.state]}
    kept["creationTimestamp"] = text(meta, "creationTimestamp")
    return {"metadata": kept, "spec": {"signerName": signer, "username": text(request, "spec", "username")}}


def _bounded(request: JsonObject) -> JsonObject:
    """Leave out oversized metadata, and an envelope that is refused anyway.

    A request without its envelope is denied as malformed. A write back removes oversized metadata and changes nothing
    in the spec, which the API server restores, or in ``managedFields`` (apimachinery pkg/util/managedfields).
    """
    fat = {name for name in _FREE_METADATA if len(str(metadata(request).get(name, ""))) > MAX_METADATA}
    kept: JsonObject = {
        name: value for name, value in metadata(request).items() if name not in fat and name != "managedFields"
    }
    request = {**request, "metadata": kept}
    meta, spec = metadata(request), mapping(request, "spec")
    annotations = text_map(meta, "annotations")
    if sum(len(key) + len(value) for key, value in annotations.items()) > MAX_ANNOTATIONS:
        ours: dict[str, JsonValue] = {key: value for key, value in annotations.items() if key in OUR_ANNOTATIONS}
        request = {**request, "metadata": {**meta, "annotations": ours}}
    if len(text(spec, "request")) > MAX_BASE64:
        request = {**request, "spec": {**spec, "request": ""}}
    return request


def _bootstrap_binding() -> JsonObject:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": BOOTSTRAP_BINDING},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:node-bootstrapper",
        },
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:bootstrappers"}],
    }
