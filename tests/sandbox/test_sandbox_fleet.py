"""A fleet as Cluster API leaves it behind, in both contracts."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, items_at, map_at, maps_at, text_at, value_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.definitions import install_cluster_api
from nodeattest_sandbox.fleet import (
    Contract,
    create_bootstrap_token,
    create_cluster,
    create_machine,
    create_machine_pool,
)


@pytest.fixture(scope="module", autouse=True)
def cluster_api(control_plane: ControlPlane) -> None:
    install_cluster_api(control_plane.client())


def cluster_of(admin: Client, name: str, contract: Contract, *, ca_key: bytes | None = b"key") -> JsonMap:
    return create_cluster(
        admin, name, kubeconfig=b"kubeconfig", ca_certificate=b"ca", ca_key=ca_key, namespace=name, contract=contract
    )


def decoded(secret: JsonMap) -> dict[str, bytes]:
    return {key: base64.b64decode(str(value)) for key, value in map_at(secret, "data").items()}


@pytest.mark.parametrize("contract", ["v1beta1", "v1beta2"])
def test_cluster_has_its_secrets(admin: Client, unique: str, contract: Contract) -> None:
    cluster = cluster_of(admin, unique, contract)
    path = f"/api/v1/namespaces/{unique}/secrets"
    assert decoded(admin.get(f"{path}/{unique}-kubeconfig")) == {"value": b"kubeconfig"}
    ca = admin.get(f"{path}/{unique}-ca")
    assert decoded(ca) == {"tls.crt": b"ca", "tls.key": b"key"}
    assert text_at(ca, "type") == "cluster.x-k8s.io/secret"
    assert text_at(ca, "metadata", "labels", "cluster.x-k8s.io/cluster-name") == unique
    (owner,) = maps_at(ca, "metadata", "ownerReferences")
    assert text_at(owner, "uid") == text_at(cluster, "metadata", "uid")


def test_external_ca_has_no_key(admin: Client, unique: str) -> None:
    cluster_of(admin, unique, "v1beta1", ca_key=None)
    assert decoded(admin.get(f"/api/v1/namespaces/{unique}/secrets/{unique}-ca")) == {"tls.crt": b"ca"}


def test_machine_of_v1beta1_is_ready_by_condition_and_field(admin: Client, unique: str) -> None:
    made = create_machine(
        admin,
        "m",
        cluster=cluster_of(admin, unique, "v1beta1"),
        provider_id="demo:///m",
        addresses=[("Hostname", "m.example"), ("InternalIP", "10.0.0.1")],
        infrastructure_annotations={"ek": "pem"},
        bootstrap_token="abcdef.0123456789abcdef",
    )
    machine = made.machine
    assert (made.name, text_at(machine, "apiVersion")) == ("m", "cluster.x-k8s.io/v1beta1")
    assert text_at(machine, "spec", "providerID") == "demo:///m"
    assert text_at(machine, "spec", "bootstrap", "dataSecretName") == "m-bootstrap"
    assert text_at(machine, "spec", "infrastructureRef", "apiVersion") == "infrastructure.cluster.x-k8s.io/v1beta1"
    assert value_at(machine, "status", "bootstrapReady") is True
    assert [text_at(c, "type") for c in maps_at(machine, "status", "conditions")] == ["BootstrapReady"]
    assert len(items_at(machine, "status", "addresses")) == 2
    assert text_at(made.infrastructure, "metadata", "annotations", "ek") == "pem"
    path = f"/apis/bootstrap.cluster.x-k8s.io/v1beta1/namespaces/{unique}/kubeadmconfigs/m"
    token = text_at(admin.get(path), "spec", "joinConfiguration", "discovery", "bootstrapToken", "token")
    assert token == "abcdef.0123456789abcdef"


def test_machine_of_v1beta2_is_ready_by_its_own_names(admin: Client, unique: str) -> None:
    machine = create_machine(
        admin, "m", cluster=cluster_of(admin, unique, "v1beta2"), provider_id="demo:///m", node={"name": "m"}
    ).machine
    assert [text_at(c, "type") for c in maps_at(machine, "status", "conditions")] == ["BootstrapConfigReady"]
    assert value_at(machine, "status", "initialization", "bootstrapDataSecretCreated") is True
    assert text_at(machine, "spec", "infrastructureRef", "apiGroup") == "infrastructure.cluster.x-k8s.io"
    assert text_at(machine, "status", "nodeRef", "name") == "m"


def test_machine_that_is_not_ready_has_no_bootstrap_data(admin: Client, unique: str) -> None:
    cluster = cluster_of(admin, unique, "v1beta1")
    machine = create_machine(admin, "m", cluster=cluster, provider_id="demo:///m", ready=False).machine
    assert value_at(machine, "status", "bootstrapReady") is False
    assert value_at(machine, "spec", "bootstrap", "dataSecretName") is None


def test_pool_lists_its_instances(admin: Client, unique: str) -> None:
    pool = create_machine_pool(
        admin, "p", cluster=cluster_of(admin, unique, "v1beta1"), provider_ids=["demo:///1", "demo:///2"]
    )
    assert items_at(pool, "spec", "providerIDList") == ["demo:///1", "demo:///2"]
    assert value_at(pool, "status", "bootstrapReady") is True


def test_token_expires_when_it_says(admin: Client, unique: str) -> None:
    moment = datetime.now(UTC) + timedelta(hours=1)
    token = create_bootstrap_token(admin, f"{unique:x>6.6}.0123456789abcdef", expiration=moment)
    secret = decoded(admin.get(f"/api/v1/namespaces/kube-system/secrets/bootstrap-token-{token[:6]}"))
    assert datetime.fromisoformat(secret["expiration"].decode()) == moment.replace(microsecond=0)
