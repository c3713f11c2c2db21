"""Where a service leads: to ready Pods of it, and to nothing that only the gateway can reach."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from counted_calls import calls

from nodeattest_identity.addon.gateway.endpoints import ApiEndpointResolver, ServiceEndpoint, ready_endpoints
from nodeattest_identity.addon.gateway.errors import StatusError
from nodeattest_identity.addon.gateway.target import ROOT, ServiceTarget, parse
from nodeattest_kube.client import ApiClient
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.fleet import create_namespace

PORTS: list[JsonObject] = [
    {"name": "web", "port": 80, "protocol": "TCP", "targetPort": 8080},
    {"name": "tls", "port": 443},
    {"name": "dns", "port": 53, "protocol": "UDP"},
]


def target(name: str = "dashboard:80", namespace: str = "apps") -> ServiceTarget:
    return parse(f"{ROOT}/namespaces/{namespace}/services/{name}/proxy/")


def service(ports: Sequence[JsonObject] = PORTS, kind: str = "ClusterIP") -> JsonObject:
    return {"spec": {"type": kind, "ports": [*ports]}}


def address(ip: str, *, kind: str = "Pod", namespace: str = "apps") -> JsonObject:
    return {"ip": ip, "targetRef": {"kind": kind, "name": "pod", "namespace": namespace}}


def endpoints(*addresses: JsonObject, not_ready: Sequence[JsonObject] = ()) -> JsonObject:
    ports: list[JsonObject] = [
        {"name": "web", "port": 8080, "protocol": "TCP"},
        {"name": "tls", "port": 8443},
        {"name": "dns", "port": 5353, "protocol": "UDP"},
    ]
    return {"subsets": [{"addresses": [*addresses], "notReadyAddresses": [*not_ready], "ports": [*ports]}]}


@pytest.mark.parametrize(
    ("name", "port"),
    [("dashboard:80", 8080), ("dashboard:web", 8080), ("https:dashboard:443", 8443), ("https:dashboard:tls", 8443)],
)
def test_a_port_is_found_by_number_and_by_name(name: str, port: int) -> None:
    found = ready_endpoints(service(), endpoints(address("10.0.0.1"), address("fd00::2")), target(name))
    assert found == [ServiceEndpoint("10.0.0.1", port), ServiceEndpoint("fd00::2", port)]


@pytest.mark.parametrize("name", ["dashboard:81", "dashboard:8080", "dashboard:other", "dashboard:53", "dashboard:dns"])
def test_a_port_that_the_service_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(StatusError) as refused:
        ready_endpoints(service(), endpoints(address("10.0.0.1")), target(name))
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "spoilt",
    [
        address("127.0.0.1"),
        address("::1"),
        address("::ffff:127.0.0.1"),
        address("169.254.169.254"),
        address("0.0.0.0"),
        address("fd00:ec2::254"),
        address("168.63.129.16"),
        address("2002:a9fe:a9fe::1"),
        address("64:ff9b::a9fe:a9fe"),
        address("metadata.google.internal"),
        address("10.0.0.1", namespace="kube-system"),
        address("10.0.0.1", kind="Node"),
        {"ip": "10.0.0.1"},
    ],
)
def test_an_address_that_is_no_pods_is_never_asked(spoilt: JsonObject) -> None:
    with pytest.raises(StatusError) as refused:
        ready_endpoints(service(), endpoints(spoilt), target())
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (503, "2")
    assert ready_endpoints(service(), endpoints(spoilt, address("10.0.0.7")), target()) == [
        ServiceEndpoint("10.0.0.7", 8080)
    ]


@pytest.mark.parametrize(
    "answer",
    [endpoints(not_ready=[address("10.0.0.1")]), {}, {"subsets": [1, {"addresses": 1, "ports": "x"}]}],
    ids=["not ready", "nothing", "odd"],
)
def test_what_names_no_ready_pod_leads_nowhere(answer: JsonObject) -> None:
    with pytest.raises(StatusError) as refused:
        ready_endpoints(service(), answer, target())
    assert refused.value.status == 503


@pytest.mark.parametrize(
    "ip",
    [
        "10.0.0.1",
        "192.168.0.9",
        "fd00::2",
        "2001:db8::7",
        "::ffff:10.0.0.1",
    ],
)
def test_an_address_that_pods_have_is_asked(ip: str) -> None:
    assert ready_endpoints(service(), endpoints(address(ip)), target()) == [ServiceEndpoint(ip, 8080)]


@pytest.mark.conformance
async def test_a_cluster_s_own_objects_are_read_and_kept_for_two_seconds(real_control_plane: ControlPlane) -> None:
    admin = real_control_plane.client()
    create_namespace(admin, "gateway-backends")
    root = "/api/v1/namespaces/gateway-backends"
    metadata: JsonMap = {"name": "dashboard"}
    spec: JsonMap = {"ports": [{"name": "web", "port": 80, "protocol": "TCP", "targetPort": 8080}]}
    made: JsonMap = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
    admin.create(f"{root}/services", made)
    subset: JsonMap = {
        "addresses": [{"ip": "10.1.2.3", "targetRef": {"kind": "Pod", "name": "a", "namespace": "gateway-backends"}}],
        "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}],
    }
    listed: JsonMap = {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": [subset]}
    admin.create(f"{root}/endpoints", listed)
    now = 0.0
    async with ApiClient.from_kubeconfig_file(real_control_plane.admin_kubeconfig) as client:
        reader = ApiEndpointResolver(client, clock=lambda: now)
        wanted = target("dashboard:web", "gateway-backends")
        assert await reader.resolve(wanted) == ServiceEndpoint("10.1.2.3", 8080)
        before = client.requests
        assert await reader.resolve(wanted) == ServiceEndpoint("10.1.2.3", 8080)
        assert client.requests == before
        admin.delete(f"{root}/endpoints/dashboard")
        now = 2.0
        with pytest.raises(StatusError) as refused:
            await reader.resolve(wanted)
        assert refused.value.status == 404


def subset(addresses: int, ports: int) -> JsonValue:
    listed: list[JsonValue] = [{"name": "web", "port": 8080}]
    ready: list[JsonValue] = [address("10.0.0.1")]
    return {"addresses": ready * addresses, "ports": listed * ports}


def test_no_more_addresses_and_ports_are_read_than_kubernetes_own_controller_writes() -> None:
    small: JsonObject = {"subsets": [subset(1_000, 1)]}
    large: JsonObject = {"subsets": [subset(400, 1)] * 50}
    larger: JsonObject = {"subsets": [subset(20_000, 20_000)] * 9}
    assert len(ready_endpoints(service(), large, target())) == 1_000
    assert len(ready_endpoints(service(), larger, target())) == 1_000
    bound = 2 * calls(lambda: ready_endpoints(service(), small, target())) + 50_000
    assert calls(lambda: ready_endpoints(service(), larger, target())) < bound
    with pytest.raises(StatusError):
        ready_endpoints(service([*[PORTS[1]] * 1_000, PORTS[0]]), endpoints(address("10.0.0.1")), target())
