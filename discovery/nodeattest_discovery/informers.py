"""Informers of bootstrap tokens and cluster-info. Field selectors limit the watches and so the necessary permissions.

Source: Kubernetes API concepts, "Field selectors".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from nodeattest_discovery import clusterinfo, secret
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.objects import dig
from nodeattest_parsing.values import JsonObject, JsonValue

ChangeFunction = Callable[[str, JsonObject | None], None]

_MAX_INFO: Final = 256 << 20
"""Bytes; one object may take a 64th of it (``Reflector``)."""
_MAX_INFO_OBJECTS: Final = 4
"""The selector matches one object."""
_KEPT_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")


def watch_tokens(
    client: ApiClient,
    on_change: ChangeFunction,
    *,
    data_keys: Collection[str] | None,
    max_objects: int,
    max_bytes: int,
    clock: Callable[[], float] = time.monotonic,
) -> Reflector:
    """Watch the bootstrap tokens. ``data_keys``: the keys of their data to keep; None keeps all."""
    return Reflector(
        client,
        paths.core_path("secrets", namespace=secret.NAMESPACE),
        on_change=on_change,
        query={"fieldSelector": f"type={secret.SECRET_TYPE}"},
        transform=partial(_slim, data_keys=data_keys),
        max_objects=max_objects,
        max_bytes=max_bytes,
        clock=clock,
    )


def watch_cluster_info(
    client: ApiClient, on_change: ChangeFunction, *, clock: Callable[[], float] = time.monotonic
) -> Reflector:
    """Watch cluster-info. It is kept whole, to be written back whole."""
    return Reflector(
        client,
        paths.core_path("configmaps", namespace=clusterinfo.NAMESPACE),
        on_change=on_change,
        query={"fieldSelector": f"metadata.name={clusterinfo.NAME}"},
        max_objects=_MAX_INFO_OBJECTS,
        max_bytes=_MAX_INFO,
        clock=clock,
    )


def _slim(item: JsonObject, data_keys: Collection[str] | None) -> JsonObject:
    data = dig(item, "data")
    return {
        "type": item.get("type"),
        "metadata": _chosen(dig(item, "metadata"), _KEPT_METADATA),
        "data": data if data_keys is None else _chosen(data, data_keys),
    }


def _chosen(value: JsonValue, names: Collection[str]) -> JsonObject:
    return {name: value[name] for name in names if name in value} if isinstance(value, dict) else {}
