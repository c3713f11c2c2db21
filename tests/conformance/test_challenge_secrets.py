"""manifests/challenge-secrets on a real API server; tests/capi has a Machine that joins by such a Secret."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from polling import eventually
from webhook_world import NAMESPACE, TREE, WebhookWorld

from nodeattest_controller.model.kubeadm_config import SECRET_TYPE
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at
from nodeattest_sandbox.child_process import free_ports
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import start_real

pytestmark = pytest.mark.conformance
SECRETS: Final = f"/api/v1/namespaces/{NAMESPACE}/secrets"
RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
OWN: Final = "own-attestation-challenge"
TENANT: Final = "tenant"
LIMITS: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/nodeattest-challenge-secrets"


@pytest.fixture(scope="module")
def world(assets: Path, capi_definitions: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebhookWorld]:
    directory = tmp_path_factory.mktemp("challenge-secrets")
    with start_real(directory / "plane", assets, name="management") as plane:
        made = WebhookWorld(plane, directory, "v1beta2", free_ports(1)[0])
        made.install(capi_definitions)
        rules: list[JsonValue] = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "update", "get"]}]
        made.client.create(f"{RBAC}/namespaces/{NAMESPACE}/roles", {"metadata": {"name": TENANT}, "rules": rules})
        subjects: list[JsonValue] = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": TENANT}]
        role: JsonMap = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": TENANT}
        binding: JsonMap = {"metadata": {"name": TENANT}, "subjects": subjects, "roleRef": role}
        made.client.create(f"{RBAC}/namespaces/{NAMESPACE}/rolebindings", binding)
        yield made


@pytest.fixture(scope="module")
def limited(world: WebhookWorld) -> WebhookWorld:
    """The world with the right to create Secrets, and what limits it."""
    world.kubectl("apply", "-k", str(TREE / "challenge-secrets"))
    account = world.plane.client(world.account())

    def is_limited() -> bool:
        return refusal_of(account, secret(name="probe", type="Opaque")).startswith("ValidatingAdmissionPolicy")

    eventually(is_limited, seconds=60, what="the ValidatingAdmissionPolicy")
    return world


def owner(name: str = "own", **fields: JsonValue) -> JsonMap:
    return {
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
        "kind": "KubeadmConfig",
        "name": name,
        "uid": "6a4ae0ff-55cd-4b29-8d1a-11d1a1a1a1a1",
        **fields,
    }


def secret(name: str = OWN, owners: list[JsonMap] | None = None, **fields: JsonValue) -> JsonMap:
    """Make a Secret as the controller does, but for these."""
    references: list[JsonValue] = [*([owner()] if owners is None else owners)]
    return {
        "metadata": {"name": name, "ownerReferences": references},
        "type": SECRET_TYPE,
        "immutable": True,
        "data": {"secret": base64.b64encode(b"5e" * 32).decode()},
        **fields,
    }


def owned_by(stored: JsonMap, *owners: JsonMap) -> JsonMap:
    references: list[JsonValue] = [*owners]
    metadata: JsonMap = {**map_at(stored, "metadata"), "ownerReferences": references}
    return {**stored, "metadata": metadata}


def refusal_of(client: Client, body: JsonMap, namespace: str = NAMESPACE) -> str:
    """Say why a Secret may not be created, by whom; empty where it may. Nothing is stored."""
    try:
        client.create(f"/api/v1/namespaces/{namespace}/secrets", body, dryRun="All")
    except ApiRefusal as refusal:
        _, _, said = str(refusal).partition("is forbidden: ")
        return said or str(refusal)
    return ""


TOKEN_OF: Final[JsonMap] = {"annotations": {"kubernetes.io/service-account.name": "default"}}
REFUSED: Final[dict[str, JsonMap]] = {
    "a ServiceAccount's token": {"metadata": {"name": OWN, **TOKEN_OF}, "type": "kubernetes.io/service-account-token"},
    "a bootstrap token": {"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token"},
    "no type": {"metadata": {"name": OWN}},
    "another type": secret(type="cluster.x-k8s.io/secret"),
    "another name": secret(name="prod-kubeconfig"),
    "the name of another configuration": secret(owners=[owner("other")]),
    "no owner": secret(owners=[]),
    "two owners": secret(owners=[owner(), owner("own", uid="6a4ae0ff-55cd-4b29-8d1a-11d1a1a1a1a2")]),
    "an owner of another kind": secret(owners=[owner(kind="Machine")]),
    "an owner of another group": secret(owners=[owner(apiVersion="example.com/v1")]),
    "one that can be changed": secret(immutable=False),
    "one that does not say": {name: value for name, value in secret().items() if name != "immutable"},
    "a second key": secret(data={"secret": "eA==", "more": "eA=="}),
    "another key": secret(data={"value": "eA=="}),
}


def test_without_the_optional_role_the_controller_creates_secrets_in_its_own_namespace_only(
    world: WebhookWorld,
) -> None:
    account = world.plane.client(world.account())
    assert "cannot create resource" in refusal_of(account, secret())


def test_the_controllers_account_may_create_the_one_secret_of_a_configuration(limited: WebhookWorld) -> None:
    account = limited.plane.client(limited.account())
    assert refusal_of(account, secret()) == ""
    own: JsonMap = {"metadata": {"name": "node-attestation-challenge-keys"}, "type": "Opaque"}
    assert refusal_of(account, own, "nodeattest-system") == ""


@pytest.mark.parametrize("what", REFUSED)
def test_the_controllers_account_may_create_nothing_else(limited: WebhookWorld, what: str) -> None:
    account = limited.plane.client(limited.account())
    for namespace in (NAMESPACE, "kube-system"):
        assert "ValidatingAdmissionPolicy 'nodeattest-challenge-secrets'" in refusal_of(
            account, REFUSED[what], namespace
        )


def test_in_its_own_namespace_it_may_make_no_serviceaccounts_token(limited: WebhookWorld) -> None:
    account = limited.plane.client(limited.account())
    for what in ("a ServiceAccount's token", "a bootstrap token"):
        assert "ValidatingAdmissionPolicy" in refusal_of(account, REFUSED[what], "nodeattest-system")


def test_nobody_else_creates_one_or_takes_one_over(limited: WebhookWorld) -> None:
    tenant = limited.plane.client(limited.plane.client_kubeconfig(TENANT))
    assert "only the node attestation controller" in refusal_of(tenant, secret())
    assert refusal_of(tenant, secret(type="Opaque")) == ""  # of other types it is none of our business
    made = limited.client.create(SECRETS, secret())  # clusterctl move, as cluster-admin
    with pytest.raises(ApiRefusal, match="only the node attestation controller"):
        tenant.replace(f"{SECRETS}/{OWN}", owned_by(made, owner(uid="another")))
    tenant.replace(f"{SECRETS}/{OWN}", owned_by(made))  # as the garbage collector does; then nobody uses it
    limited.client.delete(f"{SECRETS}/{OWN}")
