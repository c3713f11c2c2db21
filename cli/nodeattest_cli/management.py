"""Reading the management cluster: whole collections, and which version of Cluster API it serves."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Final

from nodeattest_controller.model.objects import items, text
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, NotFound
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["CLUSTER_API", "OWN", "cluster_api_version", "list_objects", "list_served"]

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
    client: ApiClient, group: tuple[str, str], resource: str, namespace: str, selector: str | None = None
) -> AsyncGenerator[JsonObject]:
    """Yield the objects of a namespace's collection; one that the server does not have is empty."""
    query = {"labelSelector": selector} if selector else None
    try:
        async for one in list_objects(client, paths.collection_path(*group, resource, namespace=namespace), query):
            yield one
    except NotFound:
        return
