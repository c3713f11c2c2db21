"""Informers of bootstrap tokens and of cluster-info.

Promises: field selectors limit the watch to bootstrap tokens and cluster-info, so that a watcher needs no further
permissions (``manifests/workload-discovery``, ``manifests/discovery-front``).
Leaves to others: limits of memory, the meaning of the objects (``secret``, ``clusterinfo``).
Source: Kubernetes API concepts, "Field selectors".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from nodeattest_discovery import clusterinfo, secret
from nodeattest_kube import client as paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.objects import dig
from nodeattest_parsing.values import JsonObject, JsonValue

ChangeFunction = Callable[[str, JsonObject | None], None]

_MOST_OBJECTS: Final = 100_000
_KEPT_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")


@dataclass(frozen=True, slots=True)
class Watched:
    """A collection, and which objects of it are watched."""

    path: str
    field_selector: str


TOKENS: Final = Watched(paths.core_path("secrets", namespace=secret.NAMESPACE), f"type={secret.SECRET_TYPE}")
"""The bootstrap tokens."""
CLUSTER_INFO: Final = Watched(
    paths.core_path("configmaps", namespace=clusterinfo.NAMESPACE), f"metadata.name={clusterinfo.NAME}"
)


def informer(
    client: ApiClient,
    watched: Watched,
    on_change: ChangeFunction,
    *,
    transform: Callable[[JsonObject], JsonObject] | None = None,
    max_bytes: int,
    max_objects: int = _MOST_OBJECTS,
    clock: Callable[[], float] = time.monotonic,
) -> Reflector:
    """Watch ``TOKENS`` or ``CLUSTER_INFO``; without ``transform`` objects are kept whole."""
    return Reflector(
        client,
        watched.path,
        on_change=on_change,
        query={"fieldSelector": watched.field_selector},
        transform=transform,
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
