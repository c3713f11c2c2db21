"""Which resource a kind is served as: what an object's reference leaves to discovery.

Leaves keeping the answer to whoever asks. Source: apimachinery APIResourceList; cluster-api contract, "v1beta2
references name a group only".
"""

from __future__ import annotations

from nodeattest_controller.core.clusterapi import InfraRef
from nodeattest_controller.core.objects import items, text
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, NotFound

__all__ = ["path_of_reference"]


async def path_of_reference(client: ApiClient, reference: InfraRef, namespace: str) -> str:
    """Return the path of the object that is referred to; raises NotFound where nobody serves its kind, or ApiError."""
    version = reference.version or text(await client.get(f"/apis/{reference.group}"), "preferredVersion", "version")
    served = await client.get(f"/apis/{reference.group}/{version}")
    for resource in items(served, "resources"):
        if text(resource, "kind") == reference.kind and "/" not in text(resource, "name"):
            return paths.named(reference.group, version, text(resource, "name"), reference.name, namespace=namespace)
    raise NotFound(404, "NotFound", f"{reference.group}/{version} serves no {reference.kind}")
