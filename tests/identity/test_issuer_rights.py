"""The shipped rights of who reads an issuer's documents, on a real kube-apiserver: enough, and nothing besides."""

from __future__ import annotations

from typing import Final, cast

import pytest

from nodeattest_controller import manifests
from nodeattest_identity.issuer.keys import read_jwks
from nodeattest_identity.serve.sources import SourceError, read_api_server
from nodeattest_kube.client import ApiClient
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane

RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
DEFAULT: Final = "system:service-account-issuer-discovery"
READER: Final = "nodeattest-issuer-reader"
COLLECTIONS: Final = {
    "ServiceAccount": "/api/v1/namespaces/kube-system/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
}
URLS: Final = {
    "/.well-known/openid-configuration",
    "/.well-known/openid-configuration/",
    "/openid/v1/jwks",
    "/openid/v1/jwks/",
}
JWKS_TYPE: Final = {"Accept": "application/jwk-set+json"}


def shipped(name: str = "") -> list[JsonMap]:
    made = cast("list[JsonMap]", manifests.objects("workload-issuer"))
    return [each for each in made if name in {"", text_at(each, "metadata", "name")}]


def apply(admin: Client, objects: list[JsonMap]) -> None:
    for made in objects:
        try:
            admin.create(COLLECTIONS[str(made["kind"])], made)
        except ApiRefusal as refusal:
            if refusal.code != 409:
                raise
            admin.patch(f"{COLLECTIONS[str(made['kind'])]}/{text_at(made, 'metadata', 'name')}", made)


def reader_token(admin: Client) -> str:
    path = f"{COLLECTIONS['ServiceAccount']}/{READER}/token"
    made = admin.create(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
    return text_at(made, "status", "token")


def may(client: Client, **attributes: JsonMap) -> bool:
    body: JsonMap = {"spec": {**attributes}}
    answer = client.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return cast("JsonMap", answer["status"])["allowed"] is True


@pytest.mark.conformance
async def test_the_reader_reads_both_documents_and_may_nothing_else(real_control_plane: ControlPlane) -> None:
    plane, admin = real_control_plane, real_control_plane.client()
    default = f"{RBAC}/clusterrolebindings/{DEFAULT}"
    admin.delete(default)  # the reader's own binding has to suffice
    try:
        apply(admin, [each for each in shipped() if text_at(each, "metadata", "name") == READER])
        kubeconfig = plane.token_kubeconfig(reader_token(admin))
        issuer = plane.server  # what the control plane of tests is started with
        async with ApiClient.from_kubeconfig_file(kubeconfig) as client:
            with pytest.raises(SourceError, match="manifests/workload-issuer"):
                await read_api_server(client, issuer)
            apply(admin, shipped("nodeattest:issuer-reader"))
            keys = await _read(client, issuer)
        theirs = admin.send("GET", "/openid/v1/jwks", headers=JWKS_TYPE)[1]
        assert keys == read_jwks(theirs)
        bearer = plane.client(kubeconfig)
        for path, verb, allowed in (
            ("/openid/v1/jwks", "get", True),
            ("/.well-known/openid-configuration", "get", True),
            ("/openid/v1/jwks", "post", False),
            ("/metrics", "get", False),
            ("/logs", "get", False),
        ):
            assert may(bearer, nonResourceAttributes={"path": path, "verb": verb}) == allowed
        for resource, verb in (("secrets", "get"), ("secrets", "list"), ("configmaps", "get"), ("pods", "list"),
                               ("serviceaccounts/token", "create"), ("users", "impersonate")):  # fmt: skip
            assert not may(bearer, resourceAttributes={"resource": resource, "verb": verb, "namespace": "kube-system"})
    finally:
        apply(admin, shipped(DEFAULT))


async def _read(client: ApiClient, issuer: str) -> object:
    """Read as soon as the binding is known to the server's authorizer."""
    for _ in range(200):
        try:
            return await read_api_server(client, issuer)
        except SourceError as error:
            if error.outcome != "forbidden":
                raise
    raise AssertionError("the binding had no effect")


def test_the_role_has_kubernetes_own_name_and_its_four_urls() -> None:
    role, binding = shipped(DEFAULT)
    assert role["rules"] == [{"nonResourceURLs": sorted(URLS), "verbs": ["get"]}]
    assert binding["subjects"] == [
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:serviceaccounts"}
    ]
    assert role["metadata"] == binding["metadata"]
