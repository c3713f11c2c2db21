"""Machines of CAPM3 in a ``csr_world``: Cluster API has no provider ID of them before their Node exists."""

from __future__ import annotations

from typing import Final

from csr_world import CAPI, World, machine

from nodeattest_parsing.objects import mapping
from nodeattest_parsing.values import JsonObject, JsonValue

GROUP: Final = "infrastructure.cluster.x-k8s.io"
BOOTSTRAP: Final = "bootstrap.cluster.x-k8s.io"
HOSTS: Final = "metal3.io"


def serve_metal3(world: World) -> None:
    """Let the management cluster serve KubeadmConfigs, Metal3Machines and BareMetalHosts."""
    documents = world.management_api.documents
    documents[f"/apis/{BOOTSTRAP}"] = {"preferredVersion": {"version": "v1beta1"}}
    kinds: list[JsonValue] = [{"name": "metal3machines", "kind": "Metal3Machine"}]
    documents[f"/apis/{GROUP}/v1beta1"] = {"resources": kinds}
    documents[f"/apis/{HOSTS}"] = {"versions": [{"version": "v1alpha1"}]}
    documents[f"/apis/{HOSTS}/v1alpha1"] = {"resources": [{"name": "baremetalhosts", "kind": "BareMetalHost"}]}


def owned(name: str, owner: str, **more: JsonValue) -> JsonObject:
    api_version = "cluster.x-k8s.io/v1beta1"
    owners: list[JsonValue] = [{"apiVersion": api_version, "kind": "Machine", "name": owner, "uid": f"uid-{owner}"}]
    return {"name": name, "namespace": "fleet", "ownerReferences": owners, **more}


def put_machine(
    world: World, name: str, token: str, *, provider_id: str = "", host: str = "rack-1", **status: JsonValue
) -> None:
    """Write a Machine with its KubeadmConfig and Metal3Machine, as Cluster API and CAPM3 do before it boots."""
    api = world.management_api
    made = machine(name, provider_id)
    made["status"] = {"bootstrapReady": True, **status}
    references: JsonObject = {
        "bootstrap": {"configRef": {"apiVersion": f"{BOOTSTRAP}/v1beta1", "kind": "KubeadmConfig", "name": name}},
        "infrastructureRef": {"apiVersion": f"{GROUP}/v1beta1", "kind": "Metal3Machine", "name": name},
    }
    made["spec"] = {**mapping(made, "spec"), **references}
    api.put(f"{CAPI}/machines/{name}", made)
    discovery: JsonObject = {"bootstrapToken": {"token": f"{token}.0123456789abcdef"}}
    config: JsonObject = {"spec": {"joinConfiguration": {"discovery": discovery}}, "status": {"ready": True}}
    path = f"/apis/{BOOTSTRAP}/v1beta1/namespaces/fleet/kubeadmconfigs/{name}"
    api.put(path, {"metadata": owned(name, name), **config})
    put_metal3(world, name, host=host)


def put_metal3(world: World, name: str, *, host: str = "rack-1", provider_id: str = "", owner: str = "") -> None:
    annotations: JsonObject = {"metal3.io/BareMetalHost": f"fleet/{host}"} if host else {}
    spec: JsonObject = {"providerID": provider_id} if provider_id else {}
    path = f"/apis/{GROUP}/v1beta1/namespaces/fleet/metal3machines/{name}"
    world.management_api.put(path, {"metadata": owned(name, owner or name, annotations=annotations), "spec": spec})


def put_host(world: World, name: str, *, namespace: str = "fleet", consumer: str = "") -> str:
    """Write a BareMetalHost, which CAPM3 has given to a Metal3Machine; returns its path."""
    reference: JsonObject = {"kind": "Metal3Machine", "namespace": "fleet", "name": consumer}
    path = f"/apis/{HOSTS}/v1alpha1/namespaces/{namespace}/baremetalhosts/{name}"
    meta: JsonObject = {"name": name, "namespace": namespace}
    world.management_api.put(path, {"metadata": meta, "spec": {"consumerRef": reference} if consumer else {}})
    return path
