"""Who asks the gateway, and for which service: as kube-apiserver states it, and as its authorizer read the path."""

from __future__ import annotations

import json
import ssl
from collections.abc import Sequence
from typing import Final

import pytest
from counted_calls import calls
from front_kit import Authority
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_identity.addon.gateway.backends import EndpointResolver, ready_endpoints
from nodeattest_identity.addon.gateway.front_proxy import FrontProxyTrust, TrustError, UserInfo, identify, read_trust
from nodeattest_identity.addon.gateway.target import ROOT, ServiceTarget, parse
from nodeattest_identity.proxy.refusals import RefusalError
from nodeattest_kube.client import ApiClient
from nodeattest_kube.kubeconfig import read_kubeconfig
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.fleet import create_namespace
from nodeattest_serving.bounded_server import BindAddress

# Who asks

FRONT: Final = Authority("front-proxy-ca")
USERS: Final = Authority("kubernetes")
TRUST: Final = FrontProxyTrust(authorities=(b"der",), allowed_names=frozenset({"front-proxy-client"}), has_uid=False)


def config_map(**changes: str | None) -> JsonObject:
    """Make the ConfigMap of a kubeadm cluster; ``changes`` replace entries, with ``_`` for ``-``, or leave them out."""
    data: dict[str, str | None] = {
        "client-ca-file": USERS.pem.decode(),
        "requestheader-client-ca-file": FRONT.pem.decode(),
        "requestheader-allowed-names": '["front-proxy-client"]',
        "requestheader-username-headers": '["X-Remote-User"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
    }
    data.update({name.replace("_", "-"): value for name, value in changes.items()})
    return {"data": {name: value for name, value in data.items() if value is not None}}


def of_version(number: int) -> str:
    """Write a certificate that calls itself of another version of X.509 (3 is written as 2)."""
    der = ssl.PEM_cert_to_DER_cert(FRONT.pem.decode())
    return ssl.DER_cert_to_PEM_cert(der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01" + bytes([number]), 1))


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"requestheader_client_ca_file": None}, "--requestheader-client-ca-file"),
        ({"requestheader_client_ca_file": "no certificate"}, "PEM"),
        ({"requestheader_client_ca_file": of_version(34)}, "PEM"),
        ({"requestheader_allowed_names": "front-proxy-client"}, "JSON list"),
        ({"requestheader_allowed_names": '[""]'}, "JSON list"),
        ({"requestheader_allowed_names": "[[[["}, "JSON list"),
        ({"requestheader_allowed_names": "[]"}, "could claim to be anybody"),
        ({"requestheader_allowed_names": None, "client_ca_file": None}, "could claim to be anybody"),
        ({"requestheader_username_headers": '["X-Forwarded-User"]'}, "x-remote-user"),
        ({"requestheader_username_headers": None}, "x-remote-user"),
        ({"requestheader_group_headers": "[]"}, "x-remote-group"),
        ({"requestheader_extra_headers_prefix": '["X-Other-"]'}, "x-remote-extra-"),
    ],
)
def test_a_config_map_that_names_no_front_proxy_is_refused(changes: dict[str, str | None], remedy: str) -> None:
    with pytest.raises(TrustError, match=remedy):
        read_trust(config_map(**changes))
    with pytest.raises(TrustError, match="got none"):
        read_trust(None)


def test_a_user_is_read_as_kube_apiserver_wrote_him() -> None:
    headers = [
        ("Authorization", "Bearer secret"), ("x-remote-user", "system:serviceaccount:a:b"),
        ("X-Remote-Group", "system:authenticated"), ("X-REMOTE-GROUP", "Team A"),
        ("X-Remote-Extra-Acme.com%2fScopes", "one"), ("X-Remote-Extra-acme.com%2Fscopes", "two"),
    ]  # fmt: skip
    assert identify(TRUST, "front-proxy-client", headers) == UserInfo(
        user="system:serviceaccount:a:b",
        groups=("system:authenticated", "Team A"),
        extra=(("acme.com/scopes", ("one", "two")),),
    )


def test_headers_that_this_kube_apiserver_does_not_write_are_not_read() -> None:
    """Its users' own pass: an X-Remote-Uid before 1.33, and any name that the ConfigMap lists besides."""
    claimed = [("X-Remote-User", "jane"), ("X-Remote-Uid", "7"), ("X-Forwarded-User", "root")]
    besides = {"requestheader_username_headers": '["X-Remote-User", "X-Forwarded-User"]'}
    silent = read_trust(config_map(**besides))
    writes = read_trust(config_map(**besides, requestheader_uid_headers='["X-Remote-Uid"]'))
    assert identify(silent, "front-proxy-client", claimed) == UserInfo(user="jane")
    assert identify(writes, "front-proxy-client", claimed) == UserInfo(user="jane", uid="7")
    with pytest.raises(RefusalError):
        identify(writes, "front-proxy-client", [*claimed, ("X-Remote-UID", "another")])


@pytest.mark.parametrize("odd", [("X-Remote-Group", ""), ("X-Remote-Extra-", "a"), ("X-Remote-Group", "a" * 70_000)])
def test_groups_and_extra_that_no_kube_apiserver_writes_are_refused(odd: tuple[str, str]) -> None:
    with pytest.raises(RefusalError, match="401"):
        identify(TRUST, "front-proxy-client", [("X-Remote-User", "jane"), odd])


@given(
    st.lists(st.tuples(st.sampled_from(["X-Remote-User", "X-Remote-Group", "X-Remote-Extra-a", "Cookie"]), st.text())),
    st.sampled_from([None, "front-proxy-client", "other"]),
)
def test_any_headers_give_an_identity_that_can_be_written_or_a_refusal(
    headers: list[tuple[str, str]], common_name: str | None
) -> None:
    try:
        who = identify(TRUST, common_name, headers)
    except RefusalError:
        return
    assert common_name == "front-proxy-client"
    assert [value for name, value in headers if name == "X-Remote-User"] == [who.user]
    json.dumps([who.user, *who.groups]).encode()


# Which service

SERVICES = f"{ROOT}/namespaces/kube-system/services"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("dashboard", ("http", "dashboard", "")), ("dashboard:80", ("http", "dashboard", "80")),
        ("dashboard:web", ("http", "dashboard", "web")), (":dashboard:80", ("http", "dashboard", "80")),
        ("https:dashboard:8443", ("https", "dashboard", "8443")),
    ],
)  # fmt: skip
def test_a_service_is_named_as_in_kube_apiserver_s_own_proxy(name: str, expected: tuple[str, str, str]) -> None:
    target = parse(f"{SERVICES}/{name}/proxy/a%20b/?x=1&add-auth=true&y=%2F")
    assert (target.scheme, target.service, target.port) == expected
    assert (target.name, target.namespace) == (name, "kube-system")
    assert (target.path, target.query) == ("/a%20b/", "x=1&y=%2F")
    assert target.audience == f"kube-system/{expected[1]}"


PLACES = [
    *(f"{namespace}/services/b/proxy/" for namespace in ("", "..", "a%2Fb", "a" * 64)),
    *(f"a/services/{name}/proxy/" for name in (
        "", "..", "B", "b%2e", "b:", "b:0", "b:080", "b:65536", "b:-", "b:a--b", "ftp:b:80", "http:b:80:80",
        "127.0.0.1", "b\u0131",
    )),
    *(f"a/services/b/proxy/?{query}" for query in (
        "add-auth=false", "add-auth=", "add-auth", "add-auth=true&add-auth=false", "add%2Dauth=false", "ADD-AUTH=0",
    )),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_names_that_two_readers_could_read_differently_are_refused(place: str) -> None:
    with pytest.raises(RefusalError) as refused:
        parse(f"{ROOT}/namespaces/{place}")
    assert refused.value.status == 400
    assert "127.0.0.1" not in refused.value.detail


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_any_text_gives_one_service_or_a_refusal(text: str) -> None:
    for raw in (text, f"{ROOT}/{text}", f"{SERVICES}/{text}", f"{SERVICES}/a/proxy/{text}"):
        try:
            target = parse(raw)
        except RefusalError:
            continue
        assert raw.startswith(f"{ROOT}/namespaces/{target.namespace}/services/{target.name}/proxy")


# Where it is

PORTS: list[JsonObject] = [
    {"name": "web", "port": 80, "protocol": "TCP", "targetPort": 8080},
    {"name": "tls", "port": 443},
    {"name": "dns", "port": 53, "protocol": "UDP"},
]
LISTED: list[JsonObject] = [{"name": "web", "port": 8080}, {"name": "tls", "port": 8443}, {"name": "dns", "port": 5353}]


def target(name: str = "dashboard:80", namespace: str = "apps") -> ServiceTarget:
    return parse(f"{ROOT}/namespaces/{namespace}/services/{name}/proxy/")


def service(ports: Sequence[JsonObject] = PORTS) -> JsonObject:
    return {"spec": {"type": "ClusterIP", "ports": [*ports]}}


def address(ip: str, *, kind: str = "Pod", namespace: str = "apps") -> JsonObject:
    return {"ip": ip, "targetRef": {"kind": kind, "name": "pod", "namespace": namespace}}


def endpoints(*addresses: JsonObject) -> JsonObject:
    return {"subsets": [{"addresses": [*addresses], "ports": [*LISTED]}]}


@pytest.mark.parametrize(
    ("name", "port"),
    [
        ("dashboard:80", 8080), ("dashboard:web", 8080), ("https:dashboard:443", 8443), ("https:dashboard:tls", 8443),
        ("dashboard:81", None), ("dashboard:8080", None), ("dashboard:other", None), ("dashboard:dns", None),
    ],
)  # fmt: skip
def test_a_port_is_found_by_number_and_by_name_of_the_service(name: str, port: int | None) -> None:
    found = endpoints(address("10.0.0.1"), address("fd00::2"))
    if port is not None:
        wanted = [BindAddress("10.0.0.1", port), BindAddress("fd00::2", port)]
        assert ready_endpoints(service(), found, target(name)) == wanted
        return
    with pytest.raises(RefusalError) as refused:
        ready_endpoints(service(), found, target(name))
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "spoilt",
    [
        *map(address, ("::1", "::ffff:127.0.0.1", "0.0.0.0", "fd00:ec2::254", "168.63.129.16", "2002:a9fe:a9fe::1")),
        *map(address, ("64:ff9b::a9fe:a9fe", "metadata.google.internal")),
        address("10.0.0.1", kind="Node"),
        {"ip": "10.0.0.1"},
    ],
)
def test_an_address_that_is_no_pods_is_never_asked(spoilt: JsonObject) -> None:
    with pytest.raises(RefusalError) as refused:
        ready_endpoints(service(), endpoints(spoilt), target())
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (503, "2")
    found = ready_endpoints(service(), endpoints(spoilt, address("::ffff:10.0.0.7")), target())
    assert found == [BindAddress("::ffff:10.0.0.7", 8080)]


@pytest.mark.parametrize(
    "answer",
    [
        {"subsets": [{"notReadyAddresses": [address("10.0.0.1")], "ports": [*LISTED]}]},
        {},
        {"subsets": [1, {"addresses": 1, "ports": "x"}]},
    ],
    ids=["not ready", "nothing", "odd"],
)
def test_what_names_no_ready_pod_leads_nowhere(answer: JsonObject) -> None:
    with pytest.raises(RefusalError, match="503: expected a ready endpoint"):
        ready_endpoints(service(), answer, target())


@pytest.mark.conformance
async def test_a_cluster_s_own_objects_are_read_and_kept_for_two_seconds(real_control_plane: ControlPlane) -> None:
    admin = real_control_plane.client()
    create_namespace(admin, "gateway-backends")
    root, metadata = "/api/v1/namespaces/gateway-backends", JsonMap(name="dashboard")
    port: JsonMap = {"name": "web", "port": 8080, "protocol": "TCP"}
    admin.create(f"{root}/services", {"metadata": metadata, "spec": {"ports": [{**port, "port": 80}]}})
    ready = address("10.1.2.3", namespace="gateway-backends")
    subsets = [{"addresses": [ready], "ports": [port]}]
    admin.create(f"{root}/endpoints", {"metadata": metadata, "subsets": subsets})  # type: ignore[dict-item]
    now = 0.0
    async with ApiClient(read_kubeconfig(real_control_plane.admin_kubeconfig)) as client:
        resolver = EndpointResolver(client, clock=lambda: now)
        wanted = target("dashboard:web", "gateway-backends")
        for _ in range(2):
            assert await resolver.resolve(wanted) == BindAddress("10.1.2.3", 8080)
        assert client.requests == 2
        admin.delete(f"{root}/endpoints/dashboard")
        now = 2.0
        with pytest.raises(RefusalError, match="404"):
            await resolver.resolve(wanted)


def subset(addresses: int, ports: int) -> JsonValue:
    listed: list[JsonValue] = [{"name": "web", "port": 8080}]
    ready: list[JsonValue] = [address("10.0.0.1")]
    return {"addresses": ready * addresses, "ports": listed * ports}


def test_no_more_addresses_and_ports_are_read_than_kubernetes_own_controller_writes() -> None:
    small: JsonObject = {"subsets": [subset(1_000, 1)]}
    larger: JsonObject = {"subsets": [subset(20_000, 20_000)] * 9}
    large: JsonObject = {"subsets": [subset(400, 1)] * 50}
    for many in (larger, large):
        assert len(ready_endpoints(service(), many, target())) == 1_000
    bound = 2 * calls(lambda: ready_endpoints(service(), small, target())) + 50_000
    assert calls(lambda: ready_endpoints(service(), larger, target())) < bound
    with pytest.raises(RefusalError):
        ready_endpoints(service([*[PORTS[1]] * 1_000, PORTS[0]]), endpoints(address("10.0.0.1")), target())
