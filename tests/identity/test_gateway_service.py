"""What the gateway answers, over real TLS on loopback, to a front proxy and to everybody else."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast
from urllib.parse import quote

import pytest
from aiohttp import ClientError, ClientSession, TCPConnector
from front_kit import LOOPBACK, Authority
from gateway_kit import AddOn
from polling import succeeds
from yarl import URL

from nodeattest_identity.addon.gateway.backends import EndpointResolver, ServiceEndpoint, SubjectAccessAuthorizer
from nodeattest_identity.addon.gateway.front_proxy import FrontProxyTrust, GatewayTls, UserInfo
from nodeattest_identity.addon.gateway.keyset import KeyStore, generate_key
from nodeattest_identity.addon.gateway.service import Gateway, GatewaySettings, Metrics
from nodeattest_identity.addon.gateway.target import GROUP, GROUP_ROOT, ROOT, ServiceTarget, StatusError, parse
from nodeattest_identity.issuer.keys import VerifyingKey
from nodeattest_identity.proxy.forward import Forwarder
from nodeattest_identity.proxy.server import ProxyLimits, ProxyServer
from nodeattest_identity.tokens.jwt import SigningKey, signing_key
from nodeattest_kube.client import ApiClient
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, value_at
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.fleet import create_namespace
from nodeattest_serving.bounded_server import BindAddress

ISSUER: Final = "https://gateway.example/addons"
NAME: Final = "front-proxy-client"
DASHBOARD: Final = f"{ROOT}/namespaces/apps/services/dashboard/proxy"
JANE: Final = {"X-Remote-User": "jane", "X-Remote-Group": "devs"}


@dataclass
class Site:
    """A gateway with one service, whose decisions a test may bend; it is its own authorizer, resolver and keys."""

    directory: Path
    front: Authority = field(default_factory=lambda: Authority("front-proxy-ca"))
    serving: Authority = field(default_factory=lambda: Authority("gateway-ca"))
    add_on: AddOn = field(default_factory=AddOn)
    key: SigningKey | None = field(default_factory=lambda: signing_key(generate_key("ES256")))
    limits: dict[str, float] = field(default_factory=dict[str, float])
    """Of users, in the settings."""
    proxy: ProxyLimits = field(default_factory=ProxyLimits)
    metrics: Metrics = field(default_factory=Metrics)
    asked: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    """User, audience and method of each request that was authorized."""
    clock: float = 0.0
    port: int = 0
    add_on_tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        self.files = self.serving.certify(self.directory, "gateway")
        self.tls = GatewayTls(*self.files)
        self.trust(self.front)
        self.ca_file = self.directory / "ca.crt"
        self.ca_file.write_bytes(self.serving.pem)

    def trust(self, *authorities: Authority) -> None:
        """Let the front proxies of these CAs in."""
        ders = tuple(ssl.PEM_cert_to_DER_cert(each.pem.decode()) for each in authorities)
        self.tls.set_trust(FrontProxyTrust(authorities=ders, allowed_names=frozenset({NAME}), has_uid=False))

    def signer(self, _now: float) -> SigningKey | None:
        return self.key

    @property
    def published(self) -> tuple[VerifyingKey, ...]:
        return (self.key.verifying,) if self.key else ()

    async def authorize(self, user: UserInfo, target: ServiceTarget, method: str) -> None:
        """Allow, and take note."""
        self.asked.append((user.user, target.audience, method))

    async def resolve(self, _target: ServiceTarget) -> ServiceEndpoint:
        """Lead to the add-on."""
        return ServiceEndpoint(LOOPBACK, self.add_on.port)

    def client(self, authority: Authority | None = None) -> ClientSession:
        """Connect as a front proxy."""
        context = ssl.create_default_context(cadata=self.serving.pem.decode())
        if authority is not None:
            folder = self.directory / authority.name.rfc4514_string()
            context.load_cert_chain(*authority.certify(folder, NAME, client=True))
        return ClientSession(connector=TCPConnector(ssl=context))

    def url(self, path: str) -> URL:
        return URL(f"https://localhost:{self.port}{path}", encoded=True)


@asynccontextmanager
async def running(site: Site) -> AsyncGenerator[Site]:
    async with Forwarder(site.proxy) as forwarder:
        await site.add_on.start(site.add_on_tls)
        gateway = Gateway(
            GatewaySettings(
                address=BindAddress(LOOPBACK, 0),
                certificate=site.files[0],
                key=site.files[1],
                issuer=ISSUER,
                namespace="any",
                backend_ca=site.ca_file,
                **site.limits,  # type: ignore[arg-type]
                proxy=site.proxy,
            ),
            tls=site.tls,
            authorizer=cast("SubjectAccessAuthorizer", site),
            resolver=cast("EndpointResolver", site),
            keys=cast("KeyStore", site),
            forwarder=forwarder,
            metrics=site.metrics,
            now=lambda: 1_800_000_000.0,
            clock=lambda: site.clock,
        )
        server = ProxyServer(
            gateway.handle,
            BindAddress(LOOPBACK, 0),
            site.tls.context,
            site.proxy,
            is_unauthenticated=site.tls.is_unauthenticated,
        )
        await server.start()
        site.port = server.port
        try:
            yield site
        finally:
            site.add_on.go_on.set()
            await server.stop()
            await site.add_on.stop()


async def get(
    client: ClientSession, site: Site, path: str, headers: Mapping[str, str] = JANE, method: str = "GET"
) -> tuple[int, Mapping[str, str], bytes]:
    async with client.request(method, site.url(path), headers=headers, allow_redirects=False) as answer:
        return answer.status, answer.headers, await answer.read()


async def test_a_new_key_is_published_at_once_and_without_one_nothing_is_forwarded(tmp_path: Path) -> None:
    async with running(Site(tmp_path)) as site, site.client(site.front) as client:
        for key in (site.key, signing_key(generate_key("ES256")), None):
            site.key = key
            status, _, body = await get(client, site, "/addons/openid/v1/jwks")
            forwarded, _, _ = await get(client, site, f"{DASHBOARD}/")
            assert (status, forwarded) == ((503, 503) if key is None else (200, 200))
            assert key is None or json.loads(body)["keys"][0]["kid"] == key.verifying.kid
        assert len(site.add_on.seen) == 2


async def test_a_user_over_his_limit_is_told_when_to_come_again_and_others_are_not_kept_out(tmp_path: Path) -> None:
    site = Site(tmp_path, limits={"user_burst": 2, "user_rate": 0.2})
    async with running(site), site.client(site.front) as client:
        answers = [await get(client, site, f"{DASHBOARD}/") for _ in range(3)]
        assert [status for status, _, _ in answers] == [200, 200, 429]
        _, headers, body = answers[-1]
        assert headers["Retry-After"] == "5"
        assert json.loads(body)["reason"] == "TooManyRequests"
        assert (await get(client, site, f"{DASHBOARD}/", {"X-Remote-User": "jim"}))[0] == 200
        site.clock += 5
        assert (await get(client, site, f"{DASHBOARD}/"))[0] == 200
        assert len(site.asked) == 4


async def test_a_user_may_have_so_many_requests_at_once(tmp_path: Path) -> None:
    site = Site(tmp_path, limits={"user_requests": 1})
    async with running(site), site.client(site.front) as client:
        async with client.get(site.url(f"{DASHBOARD}/stream"), headers=JANE) as open_answer:
            assert await open_answer.content.readline() == b"first\n"
            status, _, body = await get(client, site, f"{DASHBOARD}/")
            assert status == 429
            assert json.loads(body)["reason"] == "UserBusy"
            assert (await get(client, site, f"{DASHBOARD}/", {"X-Remote-User": "jim"}))[0] == 200
            site.add_on.go_on.set()
            assert await open_answer.content.read() == b"second\n"
        assert (await get(client, site, f"{DASHBOARD}/"))[0] == 200


async def test_a_path_that_could_leave_its_place_is_forwarded_to_nobody(tmp_path: Path) -> None:
    """Each such path is in ``test_proxy_request``."""
    async with running(Site(tmp_path)) as site, site.client(site.front) as client:
        status, _, body = await get(client, site, f"{DASHBOARD}/%2e%2e/admin")
        assert (status, json.loads(body)["reason"], len(site.add_on.seen)) == (400, "PathNotAllowed", 0)


async def test_unauthenticated_clients_do_not_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with running(Site(tmp_path)) as site, site.client() as client:
            assert {(await get(client, site, f"{DASHBOARD}/"))[0] for _ in range(50)} == {401}
    assert caplog.text.count("refused proxy: 401") == 20


async def test_an_answer_ends_at_the_longest_duration(tmp_path: Path) -> None:
    site = Site(tmp_path, proxy=ProxyLimits(request_seconds=3))
    async with (
        running(site),
        site.client(site.front) as client,
        client.get(site.url(f"{DASHBOARD}/stream"), headers=JANE) as answer,
    ):
        assert await answer.content.readline() == b"first\n"
        with pytest.raises(ClientError):
            await answer.read()


async def test_no_redirect_of_an_add_on_leaves_the_gateway(tmp_path: Path) -> None:
    """Each kind of redirect is in ``test_gateway_redirects``."""
    async with running(Site(tmp_path)) as site, site.client(site.front) as client:
        for location, wanted in (("/login?x=1", 406), ("https://other.example/", 404)):
            got, headers, body = await get(client, site, f"{DASHBOARD}/moved/302?to={quote(location)}")
            assert (got, headers["Set-Cookie"], "Location" in headers) == (wanted, "session=1", False)
            assert (f"..{DASHBOARD}/login?x=1".encode() in body) is (wanted == 406)
            assert b"other.example" not in body
        assert (await get(client, site, f"{DASHBOARD}/"))[0] == 200, "the connection is usable"


async def test_discovery_is_for_the_front_proxy(tmp_path: Path) -> None:
    async with running(Site(tmp_path)) as site:
        async with site.client(site.front) as client:
            for path in ("/apis", GROUP_ROOT, ROOT, f"{ROOT}/", "/openapi/v2", "/version"):
                status, headers, body = await get(client, site, path)
                assert (status, headers["Content-Type"]) == (200, "application/json")
                assert json.loads(body)
            _, _, body = await get(client, site, ROOT)
            listed = json.loads(body)
            assert listed["groupVersion"] == f"{GROUP}/v1alpha1"
            assert {each["name"] for each in listed["resources"]} == {"services", "services/proxy"}
            assert (await get(client, site, ROOT, method="POST"))[0] == 405
        async with site.client() as client:
            assert (await get(client, site, ROOT))[0] == 401


async def test_the_log_names_user_and_service_and_neither_token_nor_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with running(Site(tmp_path)) as site, site.client(site.front) as client:
            _, _, body = await get(client, site, f"{DASHBOARD}/?password=hunter2")
            await get(client, site, f"{DASHBOARD}/?add-auth=hunter2")
    told = dict(json.loads(body)["headers"])
    assert "'jane' to apps/dashboard" in caplog.text
    assert "hunter2" not in caplog.text
    assert told["Authorization"].removeprefix("Bearer ") not in caplog.text
    assert b'nodeattest_addon_gateway_requests_total{code="200",what="proxy"} 1.0' in site.metrics.render()


@pytest.mark.parametrize(("host", "status"), [("dashboard.apps.svc", 200), ("other.apps.svc", 502)])
async def test_an_https_service_must_show_a_certificate_for_its_name(tmp_path: Path, host: str, status: int) -> None:
    site = Site(tmp_path)
    site.add_on_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    site.add_on_tls.load_cert_chain(*site.serving.certify(tmp_path, "add-on", host=host))
    async with running(site), site.client(site.front) as client:
        found = await get(client, site, f"{ROOT}/namespaces/apps/services/https:dashboard:443/proxy/")
        assert (found[0], len(site.add_on.seen)) == (status, 1 if status == 200 else 0)


async def test_a_front_proxy_s_ca_that_went_lets_nobody_in_any_more_not_even_on_old_connections(tmp_path: Path) -> None:
    second = Authority("next-front-proxy-ca")
    async with running(Site(tmp_path)) as site, site.client(site.front) as client:
        assert (await get(client, site, f"{DASHBOARD}/"))[0] == 200
        site.trust(site.front, second)
        async with site.client(second) as renewed:
            assert (await get(client, site, f"{DASHBOARD}/"))[0] == 200
            assert (await get(renewed, site, f"{DASHBOARD}/"))[0] == 200
            site.trust(second)
            assert (await get(client, site, f"{DASHBOARD}/"))[0] == 401
            async with site.client(second) as fresh:
                assert (await get(fresh, site, f"{DASHBOARD}/"))[0] == 200
            site.tls.set_trust(None)
            assert (await get(renewed, site, f"{DASHBOARD}/"))[0] == 503
        assert len(site.asked) == 4


async def test_a_client_who_is_not_the_front_proxy_has_few_connections_for_a_short_time(tmp_path: Path) -> None:
    limits = ProxyLimits(unauthenticated_connections=4, unauthenticated_seconds=2)
    strangers: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    async with running(Site(tmp_path, proxy=limits)) as site, site.client(site.front) as client:
        assert (await get(client, site, f"{DASHBOARD}/"))[0] == 200
        context = ssl.create_default_context(cadata=site.serving.pem.decode())
        for _ in range(20):
            with suppress(OSError):
                strangers.append(await asyncio.open_connection("localhost", site.port, ssl=context))
        async with site.client(site.front) as another:
            assert (await get(another, site, f"{DASHBOARD}/"))[0] == 200
        assert sum([await has_answer(each) for each in strangers]) <= 4
        while any([await has_answer(each) for each in strangers]):  # however busy
            pass
        assert (await get(client, site, f"{DASHBOARD}/"))[0] == 200
        for _, writer in strangers:
            writer.transport.abort()


async def has_answer(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bool:
    """Ask for the keys on a connection; False where it has ended."""
    reader, writer = connection
    try:
        writer.write(b"HEAD /addons/openid/v1/jwks HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    except (OSError, asyncio.IncompleteReadError):
        return False


RBAC = "rbac.authorization.k8s.io"
DEVELOPER = ("devs", "system:authenticated")
"""Groups as they reach the gateway: kube-apiserver adds the second to whoever it knows."""
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def target(name: str, namespace: str) -> ServiceTarget:
    return parse(f"{ROOT}/namespaces/{namespace}/services/{name}/proxy/")


def allow(plane: ControlPlane, namespace: str, name: str) -> None:
    admin = plane.client()
    create_namespace(admin, namespace)
    rule: JsonMap = {
        "apiGroups": [GROUP], "resources": ["services/proxy"], "verbs": ["get"], "resourceNames": [name],
    }  # fmt: skip
    root, metadata = f"/apis/{RBAC}/v1/namespaces/{namespace}", JsonMap(name="user")
    admin.create(f"{root}/roles", {"metadata": metadata, "rules": [rule]})
    role: JsonMap = {"apiGroup": RBAC, "kind": "Role", "name": "user"}
    subject: JsonMap = {"apiGroup": RBAC, "kind": "Group", "name": "devs"}
    admin.create(f"{root}/rolebindings", {"metadata": metadata, "roleRef": role, "subjects": [subject]})
    asked: JsonMap = {
        "verb": "get", "group": GROUP, "resource": "services", "subresource": "proxy", "namespace": namespace,
        "name": name,
    }  # fmt: skip
    review: JsonMap = {"spec": {"resourceAttributes": asked, "user": "tests", "groups": [*DEVELOPER]}}

    def allowed() -> None:
        """Ask RBAC: a real API server learns of bindings by a watch."""
        assert value_at(admin.create(REVIEWS, review), "status", "allowed") is True

    succeeds(allowed)


async def refused(reviews: SubjectAccessAuthorizer, who: UserInfo, wanted: ServiceTarget, method: str) -> int | None:
    try:
        await reviews.authorize(who, wanted, method)
    except StatusError as error:
        return error.status.value
    return None


async def test_a_right_is_one_of_verb_service_and_namespace(control_plane: ControlPlane) -> None:
    allow(control_plane, "gateway-review", "dashboard:80")
    dev = UserInfo(user="jane", uid="7", groups=DEVELOPER, extra=(("scopes", ("a",)),))
    async with ApiClient.from_kubeconfig_file(control_plane.admin_kubeconfig) as client:
        reviews = SubjectAccessAuthorizer(client, clock=lambda: 0.0)
        wanted = target("dashboard:80", "gateway-review")
        assert await refused(reviews, dev, wanted, "GET") is None
        assert await refused(reviews, dev, wanted, "HEAD") is None
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"):
            assert await refused(reviews, dev, wanted, method) == 403
        assert await refused(reviews, dev, target("dashboard", "gateway-review"), "GET") == 403
        assert await refused(reviews, dev, target("dashboard:80", "kube-system"), "GET") == 403
        assert await refused(reviews, UserInfo(user="jane", groups=("others",)), wanted, "GET") == 403
        assert await refused(reviews, UserInfo(user="devs"), wanted, "GET") == 403


async def test_a_review_is_of_the_whole_user() -> None:
    """An authorizer may decide by UID and extra, such as the scopes of a token."""

    class Reviewer:
        async def create(self, _path: str, review: JsonObject) -> JsonObject:
            asked.append(review["spec"])
            return {"status": {"allowed": True}}

    asked: list[JsonValue] = []
    who = UserInfo(user="jane", uid="7", groups=("devs",), extra=(("scopes", ("a", "b")),))
    reviews = SubjectAccessAuthorizer(cast("ApiClient", Reviewer()), clock=lambda: 0.0)
    await reviews.authorize(who, target("dashboard", "apps"), "GET")
    [spec] = asked
    assert isinstance(spec, dict)
    assert {name: spec[name] for name in spec if name != "resourceAttributes"} == {
        "user": "jane", "uid": "7", "groups": ["devs"], "extra": {"scopes": ["a", "b"]},
    }  # fmt: skip


async def test_many_at_once_ask_once_and_a_yes_is_good_for_ten_seconds(control_plane: ControlPlane) -> None:
    allow(control_plane, "gateway-review-cache", "dashboard")
    dev, now = UserInfo(user="jane", groups=DEVELOPER), 0.0
    async with ApiClient.from_kubeconfig_file(control_plane.admin_kubeconfig) as client:
        reviews = SubjectAccessAuthorizer(client, clock=lambda: now)
        wanted = target("dashboard", "gateway-review-cache")
        await asyncio.gather(*(reviews.authorize(dev, wanted, "GET") for _ in range(20)))
        assert client.requests == 1
        control_plane.client().delete(f"/apis/{RBAC}/v1/namespaces/gateway-review-cache/rolebindings/user")
        now = 9.9
        await reviews.authorize(dev, wanted, "GET")
        now = 10.0
        while await refused(reviews, dev, wanted, "GET") is None:  # a real API server learns of it by a watch
            now += 10.0
        assert await refused(reviews, dev, wanted, "GET") == 403


async def test_without_an_answer_nobody_may(control_plane: ControlPlane) -> None:
    async with ApiClient.from_kubeconfig_file(control_plane.client_kubeconfig("nobody-in-particular")) as client:
        reviews = SubjectAccessAuthorizer(client, clock=lambda: 0.0)
        assert await refused(reviews, UserInfo(user="jane"), target("dashboard", "default"), "GET") == 503
