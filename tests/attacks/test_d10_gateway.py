"""D10: what is brought to the gateway, as its pure parts decide; ``tests/identity`` does the same over sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import pytest
from catalogue import Expected, Row, Verdict, attacks

from nodeattest_identity.addon.gateway.backends import ready_endpoints
from nodeattest_identity.addon.gateway.front_proxy import FrontProxyTrust, identify
from nodeattest_identity.addon.gateway.target import ROOT, parse
from nodeattest_identity.proxy.refusals import RefusalError
from nodeattest_parsing.values import JsonObject, JsonValue

NAME: Final = "front-proxy-client"
TRUST: Final = FrontProxyTrust(authorities=(b"",), allowed_names=frozenset({NAME}), has_uid=False)
JANE: Final = ("X-Remote-User", "jane")
PLACE: Final = f"{ROOT}/namespaces/apps/services/dashboard/proxy/"


def verdict(action: Callable[[], object]) -> Expected:
    try:
        action()
    except RefusalError as refused:
        return Expected(Verdict.DENY, refused.reason)
    return Expected(Verdict.ACCEPT, "")


CALLERS: Final[Mapping[str, tuple[str | None, list[tuple[str, str]]]]] = {
    "D10-150": (None, [JANE]),
    "D10-151": ("admin", [JANE]),
    "D10-152": (NAME, [("X-Remote-User", "")]),
    "D10-153": (NAME, [JANE, ("x-remote-user", "root")]),
    "D10-154": (NAME, [("X_Remote_User", "root")]),
    "D10-155": (NAME, [("X.Remote.User", "root")]),
    "D10-156": (NAME, [("X-Remote-Group", "system:masters")]),
    "D10-157": (NAME, [("X-Remote-User", "jane\r\nX-Remote-Group: system:masters")]),
}


@pytest.mark.parametrize(("row", "said"), attacks(CALLERS))
def test_nobody_is_somebody_else(row: Row, said: tuple[str | None, list[tuple[str, str]]]) -> None:
    assert verdict(lambda: identify(TRUST, *said)) == row.expected
    assert verdict(lambda: identify(TRUST, NAME, [JANE])).verdict is Verdict.ACCEPT


PATHS: Final = {
    "D10-160": f"{ROOT}/namespaces/apps%2Fservices/services/dashboard/proxy/",
    "D10-161": f"{PLACE}?add-auth=false",
}


@pytest.mark.parametrize(("row", "path"), attacks(PATHS))
def test_a_path_means_one_service_with_its_caller(row: Row, path: str) -> None:
    assert verdict(lambda: parse(path)) == row.expected
    assert verdict(lambda: parse(PLACE)).verdict is Verdict.ACCEPT


def led_to(ip: str, namespace: str = "apps", kind: str = "ClusterIP") -> tuple[JsonObject, JsonObject]:
    address: JsonObject = {"ip": ip, "targetRef": {"kind": "Pod", "name": "pod", "namespace": namespace}}
    service: JsonObject = {"spec": {"type": kind, "ports": [{"port": 80}]}}
    return service, {"subsets": [{"addresses": [address], "ports": [{"port": 8080}]}]}


PLACES: Final = {
    "D10-162": led_to("10.0.0.1", kind="ExternalName"),
    "D10-163": led_to("169.254.169.254"),
    "D10-164": led_to("127.0.0.1"),
    "D10-165": led_to("10.0.0.1", namespace="kube-system"),
}


@pytest.mark.parametrize(("row", "objects"), attacks(PLACES))
def test_a_service_leads_to_its_own_pods(row: Row, objects: tuple[JsonObject, JsonObject]) -> None:
    assert verdict(lambda: ready_endpoints(*objects, parse(PLACE))) == row.expected
    assert verdict(lambda: ready_endpoints(*led_to("10.0.0.1"), parse(PLACE))).verdict is Verdict.ACCEPT


def led_to_each(addresses: int, ports: int) -> tuple[JsonObject, JsonObject]:
    service, _ = led_to("10.0.0.1")
    ready: list[JsonValue] = [{"ip": "10.0.0.1", "targetRef": {"kind": "Pod", "name": "pod", "namespace": "apps"}}]
    listed: list[JsonValue] = [{"port": 8080}]
    return service, {"subsets": [{"addresses": ready * addresses, "ports": listed * ports}]}


FLOODS: Final = {"D10-166": led_to_each(1_000, 10_000)}


@pytest.mark.parametrize(("row", "objects"), attacks(FLOODS))
def test_an_endpoint_is_an_address_however_many_ports_have_one_name(
    row: Row, objects: tuple[JsonObject, JsonObject]
) -> None:
    assert verdict(lambda: ready_endpoints(*objects, parse(PLACE))) == row.expected
    assert len(ready_endpoints(*objects, parse(PLACE))) == 1_000
