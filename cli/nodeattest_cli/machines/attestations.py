"""The MachineAttestations of a management cluster: all, or the one of a machine by one of its names.

Promises: a name that fits several machines is an error that lists them; a server without that resource is an
error, one without such objects is not.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from nodeattest_cli.errors import StateError, UserError
from nodeattest_cli.management import require_cluster
from nodeattest_controller.model.objects import text
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, NotFound
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["attestation_path", "attestations_path", "find_attestation", "list_attestations", "title"]

_KIND: Final = ("attestation.cluster.x-k8s.io", "v1alpha1", "machineattestations")
_SHOWN: Final = 10
"""Candidates that an error lists."""


async def list_attestations(
    client: ApiClient, namespace: str | None, cluster: str | None
) -> AsyncGenerator[JsonObject]:
    """Yield the ledgers of a namespace, or of all; raises ``UserError`` where there is no such kind."""
    try:
        async for page in client.pages(paths.collection_path(*_KIND, namespace=namespace)):
            items = page.get("items")
            for item in items if isinstance(items, list) else []:
                if isinstance(item, dict) and cluster in {None, text(item, "spec", "clusterName")}:
                    yield item
    except NotFound:
        raise StateError(
            f"{client.server} knows no MachineAttestation; if this is a workload cluster, point --kubeconfig "
            "at the management cluster; if it is that one, install manifests/crd there"
        ) from None


async def find_attestation(client: ApiClient, name: str, *, namespace: str, cluster: str | None) -> JsonObject:
    """Find the one record by the name of its Machine or node, its own, or the provider ID; raises ``UserError``."""
    found = [item async for item in list_attestations(client, namespace, cluster) if name in _names(item)]
    if not found:
        if cluster is not None:
            await require_cluster(client, cluster, namespace)
        where = f"namespace {namespace}" + (f", cluster {cluster}" if cluster else "")
        raise StateError(
            f"no machine {name} has a MachineAttestation in {where}: it never joined attested, or say -n and "
            "--cluster; nodeattest machines -A lists all"
        )
    if len(found) > 1:
        listed = "; ".join(f"{title(item)}, {text(item, 'metadata', 'name')}" for item in found[:_SHOWN])
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        how = "name it by its provider ID or MachineAttestation"
        raise UserError(f"{name} is one of {len(found)} machines, {how}: {listed}{more}")
    return found[0]


def attestation_path(attestation: JsonObject) -> str:
    """Return the path of an attestation record's object."""
    meta = attestation.get("metadata", {})
    return paths.object_path(*_KIND, text(meta, "name"), namespace=text(meta, "namespace"))


def attestations_path(namespace: str) -> str:
    """Return the path of a namespace's ledgers."""
    return paths.collection_path(*_KIND, namespace=namespace)


def title(attestation: JsonObject) -> str:
    """Name an attestation record's machine in a message."""
    machine, cluster = text(attestation, "spec", "machineName"), text(attestation, "spec", "clusterName")
    namespace, provider_id = text(attestation, "metadata", "namespace"), text(attestation, "spec", "providerID")
    return f"{machine or '(no name)'} of {namespace}/{cluster} ({provider_id})"


def _names(attestation: JsonObject) -> set[str]:
    spec = attestation.get("spec", {})
    return {
        text(attestation, "metadata", "name"),
        text(spec, "machineName"),
        text(spec, "nodeName"),
        text(spec, "providerID"),
    } - {""}
