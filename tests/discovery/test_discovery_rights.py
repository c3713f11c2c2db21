"""The shipped rights of the token controllers: enough for all that they do, and for nothing else."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

import pytest
from polling import until
from token_world import TokenCluster, working

from nodeattest_controller import manifests
from nodeattest_discovery.clusterinfo import PATH
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane

USER: Final = "system:serviceaccount:kube-system:node-attestation-controller"
GROUPS: Final = ("system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated")
RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"


def apply(admin: Client, objects: list[JsonMap]) -> list[str]:
    """Create namespaced RBAC objects; return their paths."""
    paths: list[str] = []
    for made in objects:
        folder = "roles" if made["kind"] == "Role" else "rolebindings"
        collection = f"{RBAC}/namespaces/{text_at(made, 'metadata', 'namespace')}/{folder}"
        admin.create(collection, made)
        paths.append(f"{collection}/{text_at(made, 'metadata', 'name')}")
    return paths


def withdraw(admin: Client, paths: list[str]) -> None:
    for path in paths:
        with suppress(ApiRefusal):
            admin.send("DELETE", path)


def shipped(base: str, role: str = "") -> list[JsonMap]:
    """Return the objects of a base, or those of one role in it."""
    found = cast("list[JsonMap]", manifests.objects(base))
    return [made for made in found if role in {"", text_at(made, "metadata", "name")}]


class Call(NamedTuple):
    """What may be asked of an API server."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    group: str = ""


SIGNER_CALLS: Final = (
    Call("list", "secrets", "kube-system"),
    Call("watch", "secrets", "kube-system"),
    *(Call(verb, "configmaps", "kube-public", "cluster-info") for verb in ("get", "list", "watch", "update")),
)
CLEANER_CALLS: Final = (
    Call("list", "secrets", "kube-system"),
    Call("watch", "secrets", "kube-system"),
    Call("delete", "secrets", "kube-system", "bootstrap-token-abcdef"),
)
NOBODYS_CALLS: Final = (
    *(
        Call(verb, "secrets", "kube-system", "bootstrap-token-abcdef")
        for verb in ("get", "create", "update", "patch", "deletecollection")
    ),
    *(Call(verb, "secrets", namespace) for verb in ("list", "watch", "delete") for namespace in ("", "default")),
    *(Call(verb, "configmaps", "kube-public", "cluster-info") for verb in ("create", "patch", "delete")),
    *(Call(verb, "configmaps", "kube-public", "another") for verb in ("get", "update")),
    *(Call(verb, "configmaps", "kube-public") for verb in ("list", "watch", "create", "deletecollection")),
    *(Call(verb, "configmaps", "kube-system", "cluster-info") for verb in ("get", "update")),
    Call("create", "events", "kube-system"),
    Call("create", "serviceaccounts/token", "kube-system"),
    Call("get", "nodes"),
    Call("list", "pods", "kube-system"),
    Call("impersonate", "users"),
    Call("list", "certificatesigningrequests", group="certificates.k8s.io"),
    Call("approve", "signers", group="certificates.k8s.io"),
    *(Call(verb, "roles", "kube-system", group="rbac.authorization.k8s.io") for verb in ("create", "bind", "escalate")),
    Call("create", "rolebindings", "kube-system", group="rbac.authorization.k8s.io"),
)


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[TokenCluster]:
    made = TokenCluster(control_plane, USER, GROUPS)
    made.clean()
    yield made
    made.clean()


def may(client: Client, call: Call) -> bool:
    resource, _, subresource = call.resource.partition("/")
    attributes: JsonMap = {"verb": call.verb, "resource": resource, "subresource": subresource, "group": call.group}
    attributes |= {"namespace": call.namespace, "name": call.name}
    body: JsonMap = {"spec": {"resourceAttributes": attributes}}
    answer = client.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return cast("JsonMap", answer["status"])["allowed"] is True


@pytest.mark.parametrize(
    ("role", "calls"), [("nodeattest:bootstrap-signer", SIGNER_CALLS), ("nodeattest:token-cleaner", CLEANER_CALLS)]
)
async def test_a_role_allows_its_controller_s_calls_and_none_besides(
    cluster: TokenCluster, role: str, calls: tuple[Call, ...]
) -> None:
    applied = apply(cluster.admin, shipped("workload-discovery", role))
    try:
        client = cluster.plane.client(cluster.kubeconfig())
        await until(lambda: may(client, calls[0]))
        everything = {*SIGNER_CALLS, *CLEANER_CALLS, *NOBODYS_CALLS}
        assert {call for call in everything if may(client, call)} == set(calls)
    finally:
        withdraw(cluster.admin, applied)


async def test_with_the_shipped_rights_tokens_are_signed_and_cleaned(cluster: TokenCluster) -> None:
    applied = apply(cluster.admin, shipped("workload-discovery"))
    try:
        cluster.publish()
        async with working(cluster.kubeconfig()) as told:
            cluster.add("rgt001")
            cluster.add("rgt002", expiration="2020-01-01T00:00:00Z")
            await until(lambda: cluster.signed_ids() == {"rgt001"})
            await until(lambda: not cluster.has("bootstrap-token-rgt002"))
        assert not told.failures
    finally:
        withdraw(cluster.admin, applied)


def anonymous(plane: ControlPlane, path: str) -> http.client.HTTPResponse:
    """GET without credentials."""
    where = urlsplit(plane.server)
    tls = ssl.create_default_context(cafile=str(plane.ca_certificate))
    connection = http.client.HTTPSConnection(where.hostname or "", where.port, timeout=60, context=tls)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer
    finally:
        connection.close()


async def test_with_the_reader_role_anybody_reads_cluster_info_and_nothing_else(cluster: TokenCluster) -> None:
    plane = cluster.plane
    cluster.publish()
    assert anonymous(plane, PATH).status == 403
    applied = apply(cluster.admin, shipped("cluster-info-reader"))
    try:
        await until(lambda: anonymous(plane, PATH).status == 200)
        for path in (PATH.rpartition("/")[0], f"{PATH}x", "/api/v1/namespaces/kube-system/secrets"):
            assert anonymous(plane, path).status == 403
        reader = plane.client(cluster.kubeconfig())
        assert not may(reader, Call("get", "configmaps", "kube-public", "cluster-info")), "it is for the anonymous"
    finally:
        withdraw(cluster.admin, applied)
