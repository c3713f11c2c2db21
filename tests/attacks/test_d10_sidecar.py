"""D10: what callers bring to a sidecar, over a socket, and to the gateway, as its pure parts decide."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import pytest
from catalogue import Expected, Row, Verdict, attacks
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from polling import until
from proxy_kit import AUDIENCE, ISSUER, LOOPBACK, Seen, exchange, request, sidecar, silent, upstream, users_token
from test_d10_proxy import verdict
from token_kit import NOW, claims, elliptic, header, token

from nodeattest_identity.addon.gateway.backends import ready_endpoints
from nodeattest_identity.addon.gateway.front_proxy import FrontProxyTrust, identify
from nodeattest_identity.addon.gateway.target import ROOT, parse
from nodeattest_identity.addon.sidecar.service import SidecarSettings
from nodeattest_identity.proxy.refusals import RefusalError
from nodeattest_identity.proxy.request import parse_rule
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_serving.bounded_server import BindAddress

OURS, THEIRS = AUDIENCE, "apps/other"
KEY, STRANGER = elliptic(), elliptic(1)
OPEN = "/healthz"


def minted(**changed: object) -> str:
    """Mint what the gateway mints, with some claims changed or left out."""
    return users_token(**({"groups": ["staff"]} | changed)).decode()  # type: ignore[arg-type]


def forged(name: str) -> str:
    """Mint a token whose claims are right and whose proof is not."""
    public = KEY.verifying.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    told = claims(NOW, ISSUER, aud=OURS, sub="alice", exp=NOW + 60)
    made = {
        "unknown key": token(STRANGER, None, told),
        "known kid": token(STRANGER, header(STRANGER, kid=KEY.verifying.kid), told),
        "HMAC": token(KEY, header(KEY, alg="HS256"), told, secret=public),
        "none": token(KEY, header(KEY, alg="none"), told, unsigned=True),
        "stripped": token(KEY, None, told, unsigned=True),
    }
    return made[name].decode()


@asynccontextmanager
async def guarded(seen: Seen, *, requests: int = 64) -> AsyncGenerator[int]:
    settings = SidecarSettings(
        address=BindAddress(LOOPBACK, 0),
        upstream=BindAddress(LOOPBACK, 1),
        open_paths=(parse_rule(OPEN),),
        send_groups=True,
        max_user_requests=requests,
    )
    async with sidecar(seen, settings) as running:
        yield running.port


def bearer(text: str) -> str:
    return f"Authorization: Bearer {text}"


REFUSED: Mapping[str, tuple[bytes, ...]] = {
    "D10-80": (request("/", bearer(minted()), bearer(minted())), request("/", bearer("x"), bearer(minted()))),
    "D10-81": (request(f"/?access_token={minted()}", bearer(minted())), request(f"/?access%5Ftoken={minted()}")),
    "D10-82": (request("/", "Authorization: Basic YWxpY2U6c2VjcmV0"),),
    "D10-83": (request("/", "User-Agent: GoogleHC/1.0"), request("/", "User-Agent: kube-probe/1.36")),
    "D10-84": (request(f"/secret?next={OPEN}"), request(f"/secret?{OPEN}")),
    "D10-85": (request("/secret", f"X-Forwarded-Uri: {OPEN}", f"X-Original-URL: {OPEN}"),),
    "D10-86": (request("/%68ealthz"), request("/healthz/"), request("/healthzz"), request("/HEALTHZ")),
    "D10-90": (request("/", bearer(minted(aud=THEIRS))),),
    "D10-91": (request("/", bearer(minted(aud=[OURS, THEIRS]))),),
    "D10-92": (request("/", bearer(minted(aud=None))), request("/", bearer(minted(aud="")))),
    "D10-93": (request("/", bearer(minted(exp=NOW + 365 * 86400))), request("/", bearer(minted(exp=None)))),
    "D10-94": (request("/", bearer(minted(exp=NOW))), request("/", bearer(minted(exp=NOW - 1)))),
    "D10-95": (request("/", bearer(minted(iss=ISSUER + "/"))),),
    "D10-96": (request("/", bearer(forged("unknown key"))), request("/", bearer(forged("known kid")))),
    "D10-97": (request("/", bearer(forged("HMAC"))),),
    "D10-98": (request("/", bearer(forged("none"))), request("/", bearer(forged("stripped")))),
    "D10-110": tuple(request("/", bearer(minted(sub=f"alice{each}X: y"))) for each in ("\r\n", "\n", "\0")),
    "D10-111": (request("/", bearer(minted(sub="josé"))), request("/", bearer(minted(sub="\u0430lice")))),
    "D10-112": (request("/", bearer(minted(sub="alice "))), request("/", bearer(minted(sub="\talice")))),
    "D10-113": (request("/", bearer(minted(groups=["staff,system:masters"]))),),
}  # fmt: skip


@pytest.mark.parametrize(("row", "sent"), attacks(REFUSED))
async def test_it_is_refused_and_the_add_on_hears_nothing(row: Row, sent: tuple[bytes, ...]) -> None:
    async with upstream() as seen, guarded(seen) as port:
        for each in sent:
            answer = await exchange(port, each)
            assert verdict(answer) == row.expected
            assert b"eyJ" not in answer.body
        assert seen.requests == 0


@pytest.mark.parametrize(("row", "lines"), attacks({"D10-87": ("X-Authenticated-User: mallory", "Cookie: a=b")}))
async def test_an_open_path_is_forwarded_for_nobody(row: Row, lines: tuple[str, ...]) -> None:
    async with upstream() as seen, guarded(seen) as port:
        assert verdict(await exchange(port, request(OPEN, bearer(minted()), *lines))) == row.expected
        assert seen.requests == 1
        assert seen.values("x-authenticated-user") == seen.values("authorization") == seen.values("cookie") == []


async def came(seen: Seen, requests: int) -> None:
    """Wait until so many requests reached the add-on."""
    await until(lambda: seen.requests >= requests, state=lambda: seen.requests)


@pytest.mark.parametrize(("row", "places"), attacks({"D10-131": 1}))
async def test_a_user_who_has_every_place_gets_no_further_one_and_others_do(row: Row, places: int) -> None:
    async with upstream(silent) as seen, guarded(seen, requests=places) as port:
        _, first = await asyncio.open_connection(LOOPBACK, port)
        _, second = await asyncio.open_connection(LOOPBACK, port)
        _, others = await asyncio.open_connection(LOOPBACK, port)
        try:
            first.write(request("/", bearer(minted())))
            await came(seen, 1)
            second.write(request("/", bearer(minted())))  # waits for the place of the first
            assert verdict(await exchange(port, request("/", bearer(minted())))) == row.expected
            others.write(request("/", bearer(minted(sub="bob"))))
            await came(seen, 2)
        finally:
            first.close()
            second.close()
            others.close()


@pytest.mark.parametrize(("row", "seconds"), attacks({"D10-130": 2}))
async def test_a_stream_ends_with_the_token(row: Row, seconds: float) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
        await reader.read()

    async with upstream(script) as seen, guarded(seen) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(request("/", bearer(minted(exp=NOW + seconds))))
        async with asyncio.timeout(60):
            heard = await reader.read()
        writer.close()
        assert b" 200 " in heard
        assert not heard.endswith(b"0\r\n\r\n"), "an answer that ended in order would pass for a whole one"
        assert row.expected.verdict is Verdict.ACCEPT


# The gateway, as its pure parts decide; tests/identity does the same over sockets


NAME: Final = "front-proxy-client"
TRUST: Final = FrontProxyTrust(authorities=(b"",), allowed_names=frozenset({NAME}), has_uid=False)
JANE: Final = ("X-Remote-User", "jane")
PLACE: Final = f"{ROOT}/namespaces/apps/services/dashboard/proxy/"


def gateway_verdict(action: Callable[[], object]) -> Expected:
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
    assert gateway_verdict(lambda: identify(TRUST, *said)) == row.expected
    assert gateway_verdict(lambda: identify(TRUST, NAME, [JANE])).verdict is Verdict.ACCEPT


PATHS: Final = {
    "D10-160": f"{ROOT}/namespaces/apps%2Fservices/services/dashboard/proxy/",
    "D10-161": f"{PLACE}?add-auth=false",
}


@pytest.mark.parametrize(("row", "path"), attacks(PATHS))
def test_a_path_means_one_service_with_its_caller(row: Row, path: str) -> None:
    assert gateway_verdict(lambda: parse(path)) == row.expected
    assert gateway_verdict(lambda: parse(PLACE)).verdict is Verdict.ACCEPT


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
    assert gateway_verdict(lambda: ready_endpoints(*objects, parse(PLACE))) == row.expected
    assert gateway_verdict(lambda: ready_endpoints(*led_to("10.0.0.1"), parse(PLACE))).verdict is Verdict.ACCEPT


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
    assert gateway_verdict(lambda: ready_endpoints(*objects, parse(PLACE))) == row.expected
    assert len(ready_endpoints(*objects, parse(PLACE))) == 1_000
