"""Reading the management cluster: whole collections, and which version of Cluster API it serves."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Final

from nodeattest_cli.errors import StateError
from nodeattest_controller.model.objects import items, text
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, NotFound
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["CLUSTER_API", "OWN", "cluster_api_version", "list_objects", "list_served", "no_cluster", "require_cluster"]

CLUSTER_API: Final = "cluster.x-k8s.io"
OWN: Final = ("attestation.cluster.x-k8s.io", "v1alpha1")


async def cluster_api_version(client: ApiClient) -> str:
    """Return the version of Cluster API that a server prefers; empty where it has none."""
    try:
        return text(await client.get(paths.api_group(CLUSTER_API)), "preferredVersion", "version")
    except NotFound:
        return ""


async def list_objects(
    client: ApiClient, path: str, query: Mapping[str, str] | None = None
) -> AsyncGenerator[JsonObject]:
    """Yield the objects of a collection; what a list leaves out of each (its kind) is put back."""
    async for page in client.pages(path, query):
        kind = text(page, "kind").removesuffix("List")
        for item in items(page, "items"):
            yield {"apiVersion": text(page, "apiVersion"), "kind": kind, **item}


async def list_served(
    client: ApiClient, group: tuple[str, str], resource: str, namespace: str | None, selector: str | None = None
) -> AsyncGenerator[JsonObject]:
    """Yield the objects of a namespace's collection, or of all; one that the server does not have is empty."""
    query = {"labelSelector": selector} if selector else None
    try:
        async for one in list_objects(client, paths.collection_path(*group, resource, namespace=namespace), query):
            yield one
    except NotFound:
        return


async def require_cluster(client: ApiClient, name: str, namespace: str | None) -> None:
    """Check that there is a Cluster or a ClusterRecord of this name; raises ``StateError``."""
    version = await cluster_api_version(client)
    kinds = [(OWN, "clusterrecords"), *([((CLUSTER_API, version), "clusters")] if version else [])]
    for group, resource in kinds:
        async for one in list_served(client, group, resource, namespace):
            if text(one, "metadata", "name") == name:
                return
    raise no_cluster(name, namespace)


def no_cluster(name: str | None, namespace: str | None) -> StateError:
    """Make the error for a cluster that is not there, or for none at all."""
    what = f"Cluster or ClusterRecord {name}" if name else "Cluster or ClusterRecord"
    return StateError(f"no {what} in {f'namespace {namespace}' if namespace else 'any namespace'}")
