"""Machines in a ``csr_world`` whose provider ID Cluster API has not set, with infrastructure and host objects."""

from __future__ import annotations

from typing import Final

from csr_world import CAPI, World, machine

from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY

GROUP: Final = "infrastructure.cluster.x-k8s.io"
FOREIGN_GROUP: Final = "infrastructure.example.com"
BOOTSTRAP: Final = "bootstrap.cluster.x-k8s.io"
HOSTS: Final = "metal3.io"
_KINDS: Final = {
    GROUP: ("Metal3Machine", "DevMachine", "ByoMachine", "ByoHost", "KubevirtMachine"),
    FOREIGN_GROUP: ("KubevirtMachine",),
    HOSTS: ("BareMetalHost",),
}


def serve_metal3(world: World) -> None:
    documents = world.management_api.documents
    documents[f"/apis/{BOOTSTRAP}"] = {"preferredVersion": {"version": "v1beta1"}}
    for group, kinds in _KINDS.items():
        resources: list[JsonValue] = [{"name": f"{kind.lower()}s", "kind": kind} for kind in kinds]
        documents[f"/apis/{group}"] = {"versions": [{"version": "v1beta1"}]}
        documents[f"/apis/{group}/v1beta1"] = {"resources": resources}


def put(world: World, group: str, kind: str, name: str, body: JsonObject, *, owner: str = "", **meta: JsonValue) -> str:
    """Write an object that a Machine owns, or nobody; returns its path."""
    namespace = meta.get("namespace", "fleet")
    path = f"/apis/{group}/v1beta1/namespaces/{namespace}/{kind.lower()}s/{name}"
    reference: JsonObject = {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "name": owner}
    owners: list[JsonValue] = [{**reference, "uid": f"uid-{owner}"}] if owner else []
    metadata: JsonObject = {"name": name, "namespace": "fleet", "ownerReferences": owners, **meta}
    world.management_api.put(path, {"metadata": metadata, **body})
    return path


def put_machine(
    world: World,
    name: str,
    token: str,
    *,
    provider_id: str = "",
    host: str = "rack-1",
    kind: str = "Metal3Machine",
    group: str = GROUP,
    infra: str = "",
    config: str = "",
    **status: JsonValue,
) -> None:
    """Write a Machine with its KubeadmConfig and infrastructure machine, as they are before it boots.

    ``infra`` and ``config``: names of what the Machine references in the place of its own.
    """
    made = machine(name, provider_id)
    made["status"] = {"bootstrapReady": True, **status}
    references: JsonObject = {
        "bootstrap": {
            "configRef": {"apiVersion": f"{BOOTSTRAP}/v1beta1", "kind": "KubeadmConfig", "name": config or name}
        },
        "infrastructureRef": {"apiVersion": f"{group}/v1beta1", "kind": kind, "name": infra or name},
    }
    made["spec"] = {**mapping(made, "spec"), **references}
    world.management_api.put(f"{CAPI}/machines/{name}", made)
    if not config:
        put_config(world, name, token, owner=name)
    if not infra and kind == "Metal3Machine":
        put_metal3(world, name, host=host)


def put_config(world: World, name: str, token: str, *, owner: str = "") -> None:
    """Write a KubeadmConfig that names a token."""
    discovery: JsonObject = {"bootstrapToken": {"token": f"{token}.0123456789abcdef"}}
    body: JsonObject = {"spec": {"joinConfiguration": {"discovery": discovery}}, "status": {"ready": True}}
    put(world, BOOTSTRAP, "KubeadmConfig", name, body, owner=owner)


def put_metal3(world: World, name: str, *, host: str = "rack-1", provider_id: str = "", owner: str = "") -> None:
    annotations: JsonObject = {"metal3.io/BareMetalHost": f"fleet/{host}"} if host else {}
    spec: JsonObject = {"providerID": provider_id} if provider_id else {}
    put(world, GROUP, "Metal3Machine", name, {"spec": spec}, owner=owner or name, annotations=annotations)


def put_host(world: World, name: str, *, namespace: str = "fleet", consumer: str = "", key: str = "") -> str:
    """Write a BareMetalHost, which CAPM3 has given to a Metal3Machine; returns its path."""
    reference: JsonObject = {"kind": "Metal3Machine", "namespace": "fleet", "name": consumer}
    annotations: JsonObject = {ANNOTATION_TPM_ENDORSEMENT_KEY: key} if key else {}
    spec: JsonObject = {"consumerRef": reference} if consumer else {}
    return put(world, HOSTS, "BareMetalHost", name, {"spec": spec}, namespace=namespace, annotations=annotations)


def put_byo(world: World, name: str, *hosts: str, key: str = "") -> None:
    """Write a ByoMachine, and the ByoHosts that say that they are its host."""
    path = put(world, GROUP, "ByoMachine", name, {}, owner=name)
    uid = text(world.management_api.objects[path], "metadata", "uid")
    status: JsonObject = {"machineRef": {"name": name, "namespace": "fleet", "uid": uid}}
    labels: JsonObject = {"byoh.infrastructure.cluster.x-k8s.io/byomachine-name": f"fleet.{name}"}
    annotations: JsonObject = {ANNOTATION_TPM_ENDORSEMENT_KEY: key} if key else {}
    for host in hosts:
        put(world, GROUP, "ByoHost", host, {"status": status}, labels=labels, annotations=annotations)
