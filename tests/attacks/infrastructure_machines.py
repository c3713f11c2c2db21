"""Machines whose provider ID Cluster API has not set yet, with infrastructure machines and host objects of any kind."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from exchanges import Exchange
from serving_requests import Node
from world import CLUSTER, NAMESPACE, World

from nodeattest_providers import pkcs10, registry
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY, ProviderName
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, text_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.definitions import INFRASTRUCTURE_GROUP, install_definitions

FOREIGN_GROUP: Final = "infrastructure.example.com"
_METAL: Final = "metal3.io"
_VERSION: Final = "v1beta1"
_CLUSTER_LABEL: Final = "cluster.x-k8s.io/cluster-name"
_BYO_LABEL: Final = "byoh.infrastructure.cluster.x-k8s.io/byomachine-name"
_KINDS: Final = (
    (INFRASTRUCTURE_GROUP, "Metal3Machine"),
    (INFRASTRUCTURE_GROUP, "ByoMachine"),
    (INFRASTRUCTURE_GROUP, "ByoHost"),
    (INFRASTRUCTURE_GROUP, "KubevirtMachine"),
    (FOREIGN_GROUP, "KubevirtMachine"),
    (_METAL, "BareMetalHost"),
)


def install_kinds(world: World, *namespaces: str) -> None:
    """Install the kinds, and make the namespaces in which hosts are."""
    install_definitions(world.admin, [_definition(*kind) for kind in _KINDS])
    for namespace in namespaces:
        fleet.create_namespace(world.admin, namespace)


def _definition(group: str, kind: str) -> JsonMap:
    schema: JsonMap = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version: JsonMap = {"name": _VERSION, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    plural = f"{kind.lower()}s"
    names: JsonMap = {"plural": plural, "kind": kind}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Machinery:
    """What an infrastructure machine is, and what it says."""

    kind: str = "DevMachine"
    group: str = INFRASTRUCTURE_GROUP
    spec: Mapping[str, JsonValue] | None = None
    annotations: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Seat:
    """A Machine that boots now: what answers for it, and its bootstrap token."""

    node: Node
    token: str

    @property
    def client(self) -> Client:
        """Act with the machine's own bootstrap token."""
        workload = self.node.world.workload
        return workload.client(workload.token_kubeconfig(self.token))

    def asks(self, provider_id: str, node: str = "", key: ec.EllipticCurvePrivateKey | None = None) -> Exchange:
        """Make the machine's request with a provider ID, or without one where that is empty."""
        key = key or ec.generate_private_key(ec.SECP256R1())
        return Exchange(self.node, pkcs10.build_csr(key, node or self.node.name, provider_id))


def take_seat(
    world: World,
    name: str,
    machinery: Machinery = Machinery(),
    *,
    provider_id: str = "",
    addresses: Sequence[tuple[str, str]] = (),
    token: str = "",
    node: Node | None = None,
) -> Seat:
    """Make a Machine as Cluster API has it before it boots, with a secret of its own unless ``node`` answers for it."""
    token = token or world.token()
    machine = make_machine(world, name, machinery, provider_id=provider_id, addresses=addresses)
    make_infra(world, machine, machinery)
    make_config(world, machine, token)
    return Seat(node or secret_holder(world, name), token)


def make_machine(
    world: World,
    name: str,
    machinery: Machinery = Machinery(),
    *,
    infra: str = "",
    config: str = "",
    cluster: str = CLUSTER,
    provider_id: str = "",
    addresses: Sequence[tuple[str, str]] = (),
) -> JsonMap:
    """Make a Machine; ``infra`` and ``config`` are the names of what it references, by default its own."""
    spec: JsonMap = {
        "clusterName": cluster,
        "infrastructureRef": _reference(machinery.group, machinery.kind, infra or name),
        "bootstrap": {
            "configRef": _reference("bootstrap.cluster.x-k8s.io", "KubeadmConfig", config or name),
            "dataSecretName": f"{name}-bootstrap",
        },
        **({"providerID": provider_id} if provider_id else {}),
    }
    path = f"/apis/cluster.x-k8s.io/{_VERSION}/namespaces/{NAMESPACE}/machines"
    body = _object("cluster.x-k8s.io", "Machine", name, spec, world.cluster, cluster=cluster)
    machine = world.admin.create(path, body)
    reported: list[JsonValue] = [{"type": kind, "address": address} for kind, address in addresses]
    ready: JsonMap = {"type": "BootstrapReady", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    world.admin.patch(f"{path}/{name}/status", {"status": {"addresses": reported, "conditions": [ready]}})
    return machine


def make_infra(world: World, machine: JsonMap, machinery: Machinery = Machinery()) -> JsonMap:
    """Make a Machine's infrastructure machine, under its name."""
    name = text_at(machine, "metadata", "name")
    body = _object(machinery.group, machinery.kind, name, dict(machinery.spec or {}), machine)
    map_at(body, "metadata")["annotations"] = dict(machinery.annotations or {})
    return world.admin.create(_path(machinery.group, machinery.kind, NAMESPACE), body)


def make_config(world: World, machine: JsonMap, token: str) -> JsonMap:
    """Make a Machine's KubeadmConfig, as it is when its bootstrap data are made."""
    name = text_at(machine, "metadata", "name")
    spec: JsonMap = {"joinConfiguration": {"discovery": {"bootstrapToken": {"token": token}}}}
    path = _path("bootstrap.cluster.x-k8s.io", "KubeadmConfig", NAMESPACE)
    made = world.admin.create(path, _object("bootstrap.cluster.x-k8s.io", "KubeadmConfig", name, spec, machine))
    status: JsonMap = {"ready": True, "dataSecretName": f"{name}-bootstrap"}
    return world.admin.patch(f"{path}/{text_at(made, 'metadata', 'name')}/status", {"status": status})


def bare_metal_host(
    world: World, name: str, consumer: str, *, namespace: str = NAMESPACE, key: str = "", of: str = NAMESPACE
) -> None:
    """Make a BareMetalHost that a Metal3Machine consumes; ``key`` is the fingerprint of its endorsement key."""
    reference: JsonMap = {"kind": "Metal3Machine", "name": consumer, "namespace": of}
    body = _object(_METAL, "BareMetalHost", name, {"consumerRef": reference} if consumer else {}, None)
    map_at(body, "metadata")["annotations"] = {ANNOTATION_TPM_ENDORSEMENT_KEY: key} if key else {}
    world.admin.create(_path(_METAL, "BareMetalHost", namespace), body)


def byo_host(world: World, name: str, machine: JsonMap, *, key: str = "") -> None:
    """Make a ByoHost that says that it is the host of a ByoMachine."""
    consumer = text_at(machine, "metadata", "name")
    body = _object(INFRASTRUCTURE_GROUP, "ByoHost", name, {}, None)
    metadata = map_at(body, "metadata")
    metadata["labels"] = {_BYO_LABEL: f"{NAMESPACE}.{consumer}"}
    metadata["annotations"] = {ANNOTATION_TPM_ENDORSEMENT_KEY: key} if key else {}
    reference: JsonMap = {"name": consumer, "namespace": NAMESPACE, "uid": text_at(machine, "metadata", "uid")}
    body["status"] = {"machineRef": reference}
    world.admin.create(_path(INFRASTRUCTURE_GROUP, "ByoHost", NAMESPACE), body)


def secret_holder(world: World, name: str) -> Node:
    """Give a Machine a secret of its own, and return what answers by it."""
    secret = secrets.token_hex(32).encode()
    body: JsonMap = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{name}-attestation"},
        "data": {"secret": base64.b64encode(secret).decode()},
    }
    world.admin.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", body)
    path = world.directory / f"{name}.secret"
    path.touch(mode=0o600)
    path.write_bytes(secret)
    provider = ProviderName("challenge")
    return Node(world, name, provider, registry.make_attestor(provider, {"secretFile": str(path)}))


def _object(
    group: str, kind: str, name: str, spec: JsonMap, owner: JsonMap | None, *, cluster: str = CLUSTER
) -> JsonMap:
    metadata: JsonMap = {"name": name}
    if owner is not None:
        reference: JsonMap = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True}
        reference |= {key: map_at(owner, "metadata")[key] for key in ("name", "uid")}
        metadata |= {"labels": {_CLUSTER_LABEL: cluster}, "ownerReferences": [reference]}
    return {"apiVersion": f"{group}/{_VERSION}", "kind": kind, "metadata": metadata, "spec": spec}


def _reference(group: str, kind: str, name: str) -> JsonMap:
    return {"apiVersion": f"{group}/{_VERSION}", "kind": kind, "name": name}


def _path(group: str, kind: str, namespace: str) -> str:
    return f"/apis/{group}/{_VERSION}/namespaces/{namespace}/{kind.lower()}s"
