"""A fleet in control planes: Cluster API objects in a management cluster, tokens and nodes in workload clusters.

Promises: what is created is what Cluster API's controllers and kubeadm leave behind, as far as node registration reads
it, in contract v1beta1; a Cluster may be of v1beta2. The definitions of the kinds are in definitions.py.
Source: cluster-api docs/proposals and book, "Contracts"; kubeadm's bootstrap token Secrets.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, text_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.definitions import BOOTSTRAP_GROUP, CLUSTER_GROUP, INFRASTRUCTURE_GROUP

Contract = Literal["v1beta1", "v1beta2"]

_CLUSTER_LABEL: Final = "cluster.x-k8s.io/cluster-name"
_SECRET_TYPE: Final = "cluster.x-k8s.io/secret"
_TOKEN_TYPE: Final = "bootstrap.kubernetes.io/token"


@dataclass(frozen=True, slots=True)
class Machine:
    """One created Machine with the infrastructure object behind it."""

    machine: JsonMap
    infrastructure: JsonMap

    @property
    def name(self) -> str:
        """The name, which both objects share."""
        return text_at(self.machine, "metadata", "name")

    @property
    def uid(self) -> str:
        """The UID of the Machine."""
        return text_at(self.machine, "metadata", "uid")


def create_namespace(client: Client, name: str) -> None:
    """Create the namespace unless it is there."""
    client.ensure("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


def create_cluster(
    client: Client,
    name: str,
    *,
    kubeconfig: bytes,
    ca_certificate: bytes,
    ca_key: bytes | None,
    namespace: str = "default",
    spec: JsonMap | None = None,
    labels: Mapping[str, str] | None = None,
    contract: Contract = "v1beta1",
) -> JsonMap:
    """Create a Cluster with its kubeconfig and CA Secrets; without ``ca_key`` its CA is an external one."""
    create_namespace(client, namespace)
    body: JsonMap = {
        "apiVersion": f"{CLUSTER_GROUP}/{contract}",
        "kind": "Cluster",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": spec or {},
    }
    cluster = client.create(f"/apis/{CLUSTER_GROUP}/{contract}/namespaces/{namespace}/clusters", body)
    cluster = _set_status(client, cluster, "clusters", _cluster_status(contract))
    ca = {"tls.crt": ca_certificate, **({"tls.key": ca_key} if ca_key is not None else {})}
    creator = _Creator(client, namespace, {_CLUSTER_LABEL: name})
    creator.create_secret(f"{name}-kubeconfig", {"value": kubeconfig}, owner=cluster)
    creator.create_secret(f"{name}-ca", ca, owner=cluster)
    return cluster


def create_machine(
    client: Client,
    name: str,
    *,
    cluster: JsonMap,
    provider_id: str,
    addresses: Sequence[tuple[str, str]] = (),
    infrastructure_annotations: Mapping[str, str] | None = None,
    bootstrap_token: str = "",
    node: JsonMap | None = None,
) -> Machine:
    """Create a Machine of the cluster, its DevMachine, KubeadmConfig and bootstrap data Secret.

    ``addresses`` are pairs of type (Hostname, InternalDNS, InternalIP, …) and address; ``bootstrap_token`` goes into
    the KubeadmConfig's discovery, as kubeadm's provider puts it there; ``node`` becomes ``status.nodeRef``.
    """
    namespace, cluster_name = text_at(cluster, "metadata", "namespace"), text_at(cluster, "metadata", "name")
    creator = _Creator(client, namespace, {_CLUSTER_LABEL: cluster_name})
    spec: JsonMap = {
        "clusterName": cluster_name,
        "providerID": provider_id,
        "infrastructureRef": _reference(INFRASTRUCTURE_GROUP, "DevMachine", name),
        "bootstrap": _bootstrap(name),
    }
    machine = creator.create(_MACHINE, name, spec, owner=cluster)
    infrastructure = creator.create(
        _INFRASTRUCTURE, name, {"providerID": provider_id}, owner=machine, annotations=infrastructure_annotations
    )
    creator.create_bootstrap(name, bootstrap_token, owner=machine)
    return Machine(_set_status(client, machine, "machines", _machine_status(addresses, node)), infrastructure)


def create_machine_pool(
    client: Client, name: str, *, cluster: JsonMap, provider_ids: Sequence[str], bootstrap_token: str = ""
) -> JsonMap:
    """Create a MachinePool of the cluster with its KubeadmConfig and bootstrap data; it is ready."""
    namespace, cluster_name = text_at(cluster, "metadata", "namespace"), text_at(cluster, "metadata", "name")
    creator = _Creator(client, namespace, {_CLUSTER_LABEL: cluster_name})
    template: JsonMap = {"spec": {"clusterName": cluster_name, "bootstrap": _bootstrap(name)}}
    spec: JsonMap = {"clusterName": cluster_name, "providerIDList": list(provider_ids), "template": template}
    pool = creator.create(_POOL, name, spec, owner=cluster)
    creator.create_bootstrap(name, bootstrap_token, owner=pool)
    return _set_status(client, pool, "machinepools", _machine_status((), None))


def create_bootstrap_token(
    client: Client,
    token: str,
    *,
    expiration: datetime | None = None,
    groups: Sequence[str] = ("system:bootstrappers:kubeadm:default-node-token",),
    authentication: bool = True,
    signing: bool = True,
) -> str:
    """Create the Secret of a bootstrap token (``id.secret``) unless it is there; returns the token."""
    token_id, _, token_secret = token.partition(".")
    data = {
        "token-id": token_id,
        "token-secret": token_secret,
        "usage-bootstrap-authentication": "true" if authentication else "false",
        "usage-bootstrap-signing": "true" if signing else "false",
        "auth-extra-groups": ",".join(groups),
        **({"expiration": expiration.isoformat(timespec="seconds")} if expiration else {}),
    }
    secret = _secret(f"bootstrap-token-{token_id}", _TOKEN_TYPE, {key: text.encode() for key, text in data.items()})
    client.ensure("/api/v1/namespaces/kube-system/secrets", secret)
    return token


@dataclass(frozen=True, slots=True)
class _Kind:
    group: str
    plural: str
    kind: str


_MACHINE: Final = _Kind(CLUSTER_GROUP, "machines", "Machine")
_POOL: Final = _Kind(CLUSTER_GROUP, "machinepools", "MachinePool")
_INFRASTRUCTURE: Final = _Kind(INFRASTRUCTURE_GROUP, "devmachines", "DevMachine")
_CONFIG: Final = _Kind(BOOTSTRAP_GROUP, "kubeadmconfigs", "KubeadmConfig")


@dataclass(frozen=True, slots=True)
class _Creator:
    """Creates the objects of one cluster in one namespace."""

    client: Client
    namespace: str
    labels: JsonMap

    def create(
        self, kind: _Kind, name: str, spec: JsonMap, *, owner: JsonMap, annotations: Mapping[str, str] | None = None
    ) -> JsonMap:
        metadata: JsonMap = {"name": name, "labels": self.labels, "ownerReferences": [_owner(owner)]}
        if annotations:
            metadata["annotations"] = dict(annotations)
        body: JsonMap = {
            "apiVersion": f"{kind.group}/v1beta1", "kind": kind.kind, "metadata": metadata, "spec": spec
        }  # fmt: skip
        path = f"/apis/{kind.group}/v1beta1/namespaces/{self.namespace}/{kind.plural}"
        return self.client.create(path, body)

    def create_bootstrap(self, name: str, token: str, *, owner: JsonMap) -> None:
        """Create the KubeadmConfig and the Secret with the bootstrap data."""
        discovery: JsonMap = {"discovery": {"bootstrapToken": {"token": token}}} if token else {}
        config = self.create(_CONFIG, name, {"joinConfiguration": discovery}, owner=owner)
        _set_status(self.client, config, _CONFIG.plural, {"dataSecretName": f"{name}-bootstrap", "ready": True})
        data = {"value": b"#cloud-config\n", "format": b"cloud-config"}
        self.create_secret(f"{name}-bootstrap", data, owner=owner)

    def create_secret(self, name: str, data: Mapping[str, bytes], *, owner: JsonMap) -> JsonMap:
        secret = _secret(name, _SECRET_TYPE, data)
        map_at(secret, "metadata").update({"labels": self.labels, "ownerReferences": [_owner(owner)]})
        return self.client.create(f"/api/v1/namespaces/{self.namespace}/secrets", secret)


def _set_status(client: Client, value: JsonMap, plural: str, status: JsonMap) -> JsonMap:
    namespace, name = text_at(value, "metadata", "namespace"), text_at(value, "metadata", "name")
    path = f"/apis/{text_at(value, 'apiVersion')}/namespaces/{namespace}/{plural}/{name}/status"
    return client.patch(path, {"status": status})


def _cluster_status(contract: Contract) -> JsonMap:
    if contract == "v1beta1":
        return {"phase": "Provisioned", "infrastructureReady": True, "controlPlaneReady": True}
    initialization: JsonMap = {"infrastructureProvisioned": True, "controlPlaneInitialized": True}
    return {"phase": "Provisioned", "initialization": initialization}


def _machine_status(addresses: Sequence[tuple[str, str]], node: JsonMap | None) -> JsonMap:
    condition: JsonMap = {"type": "BootstrapReady", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    reported: list[JsonValue] = [{"type": kind, "address": address} for kind, address in addresses]
    return {
        "phase": "Provisioned",
        "addresses": reported,
        "conditions": [condition],
        "bootstrapReady": True,
        "infrastructureReady": True,
        **({"nodeRef": node} if node else {}),
    }


def _bootstrap(name: str) -> JsonMap:
    return {"configRef": _reference(BOOTSTRAP_GROUP, "KubeadmConfig", name), "dataSecretName": f"{name}-bootstrap"}


def _reference(group: str, kind: str, name: str) -> JsonMap:
    return {"apiVersion": f"{group}/v1beta1", "kind": kind, "name": name}


def _owner(value: JsonMap) -> JsonMap:
    name, uid = text_at(value, "metadata", "name"), text_at(value, "metadata", "uid")
    return {"apiVersion": value["apiVersion"], "kind": value["kind"], "name": name, "uid": uid, "controller": True}


def _secret(name: str, kind: str, data: Mapping[str, bytes]) -> JsonMap:
    encoded: JsonMap = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind, "data": encoded}
