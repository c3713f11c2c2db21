"""The shipped rights of the token controllers: enough for all that they do, and for nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple, cast

import pytest
from polling import eventually, until
from test_discovery_controllers import BOTH, KUBECONFIG, Told

from nodeattest_controller import manifests
from nodeattest_discovery.clusterinfo import KUBECONFIG_KEY, PATH, SIGNATURE_PREFIX
from nodeattest_discovery.controllers.token_controllers import TokenControllers
from nodeattest_discovery.secret import SECRET_TYPE, TokenSecret, encode, secret_name
from nodeattest_discovery.token import generate
from nodeattest_kube.client import ApiClient
from nodeattest_kube.kubeconfig import read_kubeconfig
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane

USER: Final = "system:serviceaccount:kube-system:node-attestation-controller"
GROUPS: Final = ("system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated")
RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
SECRETS: Final = "/api/v1/namespaces/kube-system/secrets"


@contextmanager
def existing(admin: Client, objects: list[tuple[str, JsonMap]]) -> Generator[None]:
    """Create objects in their collections, for the length of a block."""
    made: list[str] = []
    try:
        for collection, body in objects:
            admin.create(collection, body)
            made.append(f"{collection}/{text_at(body, 'metadata', 'name')}")
        yield
    finally:
        for path in made:
            with suppress(ApiRefusal):
                admin.send("DELETE", path)


def shipped(base: str, role: str = "") -> list[tuple[str, JsonMap]]:
    """Return the RBAC objects of a base, or those of one role in it, with their collections."""
    found = [
        each
        for each in cast("list[JsonMap]", manifests.objects(base))
        if role in {"", text_at(each, "metadata", "name")}
    ]
    return [
        (f"{RBAC}/namespaces/{text_at(e, 'metadata', 'namespace')}/{text_at(e, 'kind').lower()}s", e) for e in found
    ]


def cluster_info() -> tuple[str, JsonMap]:
    """Return cluster-info, to be created."""
    return PATH.rpartition("/")[0], {"metadata": {"name": "cluster-info"}, "data": {KUBECONFIG_KEY: KUBECONFIG}}


def secret(expires: datetime | None = None) -> tuple[str, JsonMap]:
    """Return the Secret of a new token, to be created."""
    token = generate()
    data: JsonMap = {**encode(TokenSecret(token=token, expires=expires))}
    return SECRETS, {"metadata": {"name": secret_name(token.id)}, "type": SECRET_TYPE, "data": data}


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
def admin(control_plane: ControlPlane) -> Client:
    return control_plane.client()


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
def test_a_role_allows_its_controller_s_calls_and_none_besides(
    control_plane: ControlPlane, admin: Client, role: str, calls: tuple[Call, ...]
) -> None:
    with existing(admin, shipped("workload-discovery", role)):
        client = control_plane.client(control_plane.client_kubeconfig(USER, GROUPS))
        eventually(lambda: may(client, calls[0]))
        assert {call for call in {*SIGNER_CALLS, *CLEANER_CALLS, *NOBODYS_CALLS} if may(client, call)} == set(calls)


async def test_with_the_shipped_rights_tokens_are_signed_and_cleaned(
    control_plane: ControlPlane, admin: Client
) -> None:
    told, good, expired = Told(), secret(), secret(datetime(2020, 1, 1, tzinfo=UTC))
    signature = SIGNATURE_PREFIX + text_at(good[1], "metadata", "name").removeprefix("bootstrap-token-")

    def state() -> tuple[bool, bool]:
        names = {text_at(each, "metadata", "name") for each in admin.list(SECRETS)}
        return signature in map_at(admin.get(PATH), "data"), text_at(expired[1], "metadata", "name") in names

    with existing(admin, [*shipped("workload-discovery"), cluster_info(), good, expired]):
        async with ApiClient(read_kubeconfig(control_plane.client_kubeconfig(USER, GROUPS))) as client:
            running = asyncio.create_task(TokenControllers(client, BOTH, observer=told).run())
            await until(lambda: state() == (True, False))
            running.cancel()
            await asyncio.wait([running])
    assert not told.failures


def test_with_the_reader_role_anybody_reads_cluster_info_and_nothing_else(
    control_plane: ControlPlane, admin: Client
) -> None:
    anonymous = control_plane.client(control_plane.token_kubeconfig())

    def code(path: str) -> int:
        try:
            return anonymous.send("GET", path)[0]
        except ApiRefusal as refused:
            return refused.code

    with existing(admin, [cluster_info()]):
        assert code(PATH) == 403
        with existing(admin, shipped("cluster-info-reader")):
            eventually(lambda: code(PATH) == 200)
            assert {code(path) for path in (PATH.rpartition("/")[0], f"{PATH}x", SECRETS)} == {403}
            reader = control_plane.client(control_plane.client_kubeconfig(USER, GROUPS))
            call = Call("get", "configmaps", "kube-public", "cluster-info")
            assert not may(reader, call), "it is for the anonymous"
