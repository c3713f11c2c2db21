"""Informers of bootstrap tokens and of cluster-info.

Promises: field selectors limit the watch to bootstrap tokens and cluster-info, so that a watcher needs no further
permissions (``manifests/workload-discovery``, ``manifests/discovery-front``).
Leaves to others: limits of memory, the meaning of the objects (``secret``, ``clusterinfo``).
Source: Kubernetes API concepts, "Field selectors".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

from nodeattest_discovery import clusterinfo, secret
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.jsontypes import JsonObject, JsonValue, dig
from nodeattest_kube.reflector import Reflector

__all__ = ["ChangeFunction", "cluster_info_informer", "slim", "tokens"]

ChangeFunction = Callable[[str, JsonObject | None], None]

_MOST_OBJECTS: Final = 100_000
_KEPT_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")


def tokens(
    client: ApiClient,
    on_change: ChangeFunction,
    *,
    transform: Callable[[JsonObject], JsonObject],
    max_bytes: int,
    max_objects: int = _MOST_OBJECTS,
    clock: Callable[[], float] = time.monotonic,
) -> Reflector:
    """Watch the bootstrap tokens; the rest is the reflector's."""
    return Reflector(
        client,
        paths.core_path("secrets", namespace=secret.NAMESPACE),
        on_change=on_change,
        query={"fieldSelector": f"type={secret.SECRET_TYPE}"},
        transform=transform,
        max_objects=max_objects,
        max_bytes=max_bytes,
        clock=clock,
    )


def cluster_info_informer(
    client: ApiClient,
    on_change: ChangeFunction,
    *,
    max_bytes: int,
    max_objects: int = _MOST_OBJECTS,
    clock: Callable[[], float] = time.monotonic,
) -> Reflector:
    """Watch cluster-info, which is kept whole."""
    return Reflector(
        client,
        paths.core_path("configmaps", namespace=clusterinfo.NAMESPACE),
        on_change=on_change,
        query={"fieldSelector": f"metadata.name={clusterinfo.NAME}"},
        max_objects=max_objects,
        max_bytes=max_bytes,
        clock=clock,
    )


def slim(item: JsonObject, data_keys: Collection[str] | None = None) -> JsonObject:
    """Return of a Secret what decides about a token, and of its data these keys; None: all of it."""
    data = dig(item, "data")
    return {
        "type": item.get("type"),
        "metadata": _chosen(dig(item, "metadata"), _KEPT_METADATA),
        "data": data if data_keys is None else _chosen(data, data_keys),
    }


def _chosen(value: JsonValue, names: Collection[str]) -> JsonObject:
    return {name: value[name] for name in names if name in value} if isinstance(value, dict) else {}
