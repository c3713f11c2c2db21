"""Finds the control planes that are not rendered: what the webhook was not called for, or what is older than it.

A KubeadmControlPlane with machines stays as it is until its next roll-out, and until then each of its new machines is
made of it. What else machines are made of is written anew for each, and the webhook sees it.
Promises: one ``get`` for each Cluster, of the first ``MAX_READ`` by name, and not again within the period; None where
they may not be read. One that cannot be read for what it is (too large) counts as not rendered: it hides no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from nodeattest_controller.logs import fields
from nodeattest_controller.model.machine_view import ContractReference, control_plane_ref
from nodeattest_controller.model.objects import text
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, ApiError, Forbidden, NotFound
from nodeattest_kube.errors import Malformed
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["MAX_READ", "UnrenderedControlPlanes"]

_LOG: Final = logging.getLogger(__name__)
MAX_READ: Final = 200
"""Control planes of a namespace that are read at one time."""
_GROUP: Final = "controlplane.cluster.x-k8s.io"
_KIND: Final = "KubeadmControlPlane"
_RESOURCE: Final = "kubeadmcontrolplanes"
_REMEDY: Final = "apply manifests/webhook in the management cluster"


class UnrenderedControlPlanes:
    """What was found in each namespace, and when."""

    def __init__(
        self,
        client: ApiClient,
        *,
        is_rendered: Callable[[JsonObject], bool],
        clock: Callable[[], float],
        period: float,
    ) -> None:
        self._client = client
        self._renders = is_rendered
        self._clock = clock
        self._period = period
        self._found: dict[str, tuple[Mapping[str, str] | None, float]] = {}

    async def unrendered(self, namespace: str, clusters: Sequence[JsonObject]) -> Mapping[str, str] | None:
        """Name the Clusters whose control plane is not rendered; None: not known.

        Each with why its control plane could not be read; empty where it was.
        """
        known = self._found.get(namespace)
        if known is not None and self._clock() - known[1] < self._period:
            return known[0]
        try:
            found = await self._read(namespace, clusters)
        except ApiError as error:
            found = None if known is None or isinstance(error, Forbidden) else known[0]
            remedy = _REMEDY if isinstance(error, Forbidden) else ""
            more = fields(namespace=namespace, error=str(error), remedy=remedy)
            _LOG.log(logging.DEBUG if known is not None else logging.WARNING, "cannot read control planes", extra=more)
        self._found[namespace] = found, self._clock()
        return found

    def forget(self, namespace: str) -> None:
        """Drop what was found in a namespace."""
        self._found.pop(namespace, None)

    async def _read(self, namespace: str, clusters: Sequence[JsonObject]) -> Mapping[str, str]:
        named = {text(one, "metadata", "name"): control_plane_ref(one) for one in clusters}
        ours = {name: one for name, one in sorted(named.items()) if one and (one.group, one.kind) == (_GROUP, _KIND)}
        version, left = "", dict[str, str]()
        for name, reference in list(ours.items())[:MAX_READ]:
            if not reference.version and not version:
                version = text(await self._client.get(paths.api_group(_GROUP)), "preferredVersion", "version")
            try:
                if not await self._is_rendered(replace(reference, version=reference.version or version), namespace):
                    left[name] = ""
            except Malformed as error:
                _LOG.debug("cannot read a control plane", extra=fields(namespace=namespace, error=str(error)))
                left[name] = error.reason
        return left

    async def _is_rendered(self, reference: ContractReference, namespace: str) -> bool:
        """Return whether a control plane is rendered; one that is not there yet will be."""
        if not all(map(paths.is_segment, (reference.version, reference.name))):
            return True
        path = paths.object_path(_GROUP, reference.version, _RESOURCE, reference.name, namespace=namespace)
        try:
            return self._renders(await self._client.get(path))
        except NotFound:
            return True
