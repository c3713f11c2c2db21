"""The definitions of Cluster API's kinds: small ones of our own, or the real ones from a folder.

Promises: after an install the kinds are served. Source: cluster-api config/crd.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Final, cast

import yaml

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, maps_at, text_at
from nodeattest_sandbox.client import ApiRefusal, Client

CLUSTER_GROUP: Final = "cluster.x-k8s.io"
INFRASTRUCTURE_GROUP: Final = "infrastructure.cluster.x-k8s.io"
BOOTSTRAP_GROUP: Final = "bootstrap.cluster.x-k8s.io"
_KINDS: Final = (
    (CLUSTER_GROUP, "clusters", "Cluster"),
    (CLUSTER_GROUP, "machines", "Machine"),
    (CLUSTER_GROUP, "machinepools", "MachinePool"),
    (INFRASTRUCTURE_GROUP, "devclusters", "DevCluster"),
    (INFRASTRUCTURE_GROUP, "devmachines", "DevMachine"),
    (BOOTSTRAP_GROUP, "kubeadmconfigs", "KubeadmConfig"),
)
_ANY_FIELDS: Final[JsonMap] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_ESTABLISH_LIMIT: Final = 30.0  # seconds


def install_cluster_api(client: Client) -> None:
    """Install small definitions of the Cluster API kinds, served as v1beta1 and v1beta2."""
    install_definitions(client, [small_definition(*kind) for kind in _KINDS])


def install_definitions(client: Client, source: Path | Iterable[JsonMap]) -> None:
    """Install CustomResourceDefinitions, given or from the YAML files of a folder, and wait until they are served.

    Conversion webhooks are left out. Of several versions that need conversion the stored one is served.
    """
    given = _read_definitions(source) if isinstance(source, Path) else source
    installed = [_install(client, definition) for definition in given]
    for definition in installed:
        _await_served(client, definition)


def small_definition(
    group: str,
    plural: str,
    kind: str,
    served: Sequence[str] = ("v1beta1", "v1beta2"),
    schema: JsonMap = _ANY_FIELDS,
    **metadata: JsonValue,
) -> JsonMap:
    """Make a namespaced definition; the last version served is the stored one."""
    versions: list[JsonValue] = [
        {"name": version, "served": True, "storage": version == served[-1], "schema": {"openAPIV3Schema": schema},
         "subresources": {"status": {}}}
        for version in served
    ]  # fmt: skip
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", **metadata},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind},
            "versions": versions,
        },
    }


def _read_definitions(folder: Path) -> list[JsonMap]:
    documents = [
        cast("JsonValue", document)
        for path in sorted(folder.glob("*.yaml"))
        for document in yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    ]
    found = [map_at(document) for document in documents]
    return [definition for definition in found if text_at(definition, "kind") == "CustomResourceDefinition"]


def _install(client: Client, definition: JsonMap) -> JsonMap:
    kept = deepcopy(definition)
    spec = map_at(kept, "spec")
    if text_at(spec, "conversion", "strategy") == "Webhook":
        spec.pop("conversion")
        for version in maps_at(spec, "versions"):
            version["served"] = version.get("storage") is True
    kept.pop("status", None)
    client.ensure(_DEFINITIONS, kept)
    return kept


def _await_served(client: Client, definition: JsonMap) -> None:
    group, plural = text_at(definition, "spec", "group"), text_at(definition, "spec", "names", "plural")
    served = [text_at(v, "name") for v in maps_at(definition, "spec", "versions") if v.get("served") is True]
    end = time.monotonic() + _ESTABLISH_LIMIT
    for version in served:
        while not _is_served(client, f"/apis/{group}/{version}/{plural}"):
            if time.monotonic() > end:
                raise TimeoutError(f"{plural}.{group} is not served after {_ESTABLISH_LIMIT:.0f} s")
            time.sleep(0.02)


def _is_served(client: Client, path: str) -> bool:
    try:
        client.get(path, limit="1")
    except ApiRefusal:
        return False
    return True
