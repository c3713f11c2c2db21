"""What the gateway answers, over real TLS on loopback, to a front proxy and to everybody else."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, cast

import proxy_kit
import pytest
from front_kit import Authority
from polling import succeeds
from proxy_kit import Seen, connected, exchange, fixed, read_answer, request, running, upstream

from nodeattest_identity.addon.gateway.backends import EndpointResolver, SubjectAccessAuthorizer
from nodeattest_identity.addon.gateway.front_proxy import FrontProxyTrust, GatewayTls, UserInfo
from nodeattest_identity.addon.gateway.keyset import KeyStore, generate_key
from nodeattest_identity.addon.gateway.service import Gateway, GatewaySettings, Metrics
from nodeattest_identity.addon.gateway.target import GROUP, GROUP_ROOT, ROOT, ServiceTarget, parse
from nodeattest_identity.issuer.keys import VerifyingKey
from nodeattest_identity.proxy.refusals import ProxyLimits, RefusalError
from nodeattest_identity.tokens.jwt import SigningKey, signing_key
from nodeattest_kube.client import ApiClient
from nodeattest_kube.kubeconfig import read_kubeconfig
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, value_at
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.fleet import create_namespace
from nodeattest_serving.bounded_server import BindAddress

NAME: Final = "front-proxy-client"
DASHBOARD: Final = f"{ROOT}/namespaces/apps/services/dashboard/proxy"


class Site:
    """A gateway before one add-on; it is its own authorizer, resolver and keys."""

    def __init__(self, directory: Path, seen: Seen, **settings: object) -> None:
        self.directory, self.add_on, self.metrics, self.clock = directory, seen, Metrics(), 0.0
        self.front, self.serving = Authority("front-proxy-ca"), Authority("gateway-ca")
        self.key: SigningKey | None = signing_key(generate_key("ES256"))
        self.asked: list[tuple[str, str, str]] = []
        """User, audience and method of each request that was authorized."""
        files = self.serving.certify(directory, "gateway")
        ca_file = directory / "ca.crt"
        ca_file.write_bytes(self.serving.pem)
        self.tls = GatewayTls(*files)
        self.trust(self.front)
        self.client = self.of(self.front)
        given = {"issuer": "https://gateway.example/addons", "namespace": "any", "backend_ca": ca_file} | settings
        self.gateway = Gateway(
            GatewaySettings(address=proxy_kit.ANY_PORT, certificate=files[0], key=files[1], **given),  # type: ignore[arg-type]
            tls=self.tls,
            authorizer=cast("SubjectAccessAuthorizer", self),
            resolver=cast("EndpointResolver", self),
            keys=cast("KeyStore", self),
            metrics=self.metrics,
            now=lambda: 1_800_000_000.0,
            clock=lambda: self.clock,
        )

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

    async def resolve(self, _target: ServiceTarget) -> BindAddress:
        """Lead to the add-on."""
        return BindAddress(proxy_kit.LOOPBACK, self.add_on.port)

    def of(self, authority: Authority | None) -> ssl.SSLContext:
        """Make the TLS of a front proxy; None: of a client without a certificate."""
        context = ssl.create_default_context(cadata=self.serving.pem.decode())
        if authority is not None:
            folder = self.directory / authority.name.rfc4514_string()
            context.load_cert_chain(*authority.certify(folder, NAME, client=True))
        return context

    async def get(
        self, path: str = f"{DASHBOARD}/", user: str = "jane", tls: ssl.SSLContext | None = None, method: str = "GET"
    ) -> proxy_kit.Answer:
        """Ask as the front proxy says that this user does."""
        return await exchange(self.gateway.port, of_user(path, user, method), tls or self.client)


def of_user(path: str = f"{DASHBOARD}/", user: str = "jane", method: str = "GET") -> bytes:
    return request(path, f"X-Remote-User: {user}", "X-Remote-Group: devs", method=method)


def reason(answer: proxy_kit.Answer) -> object:
    return json.loads(answer.body)["reason"]


@asynccontextmanager
async def gateway(directory: Path, seen: Seen, **settings: object) -> AsyncGenerator[Site]:
    site = Site(directory, seen, **settings)
    async with running(site.gateway):
        yield site


async def test_a_new_key_is_published_at_once_and_without_one_nothing_is_forwarded(tmp_path: Path) -> None:
    async with upstream() as seen, gateway(tmp_path, seen) as site:
        for key in (site.key, signing_key(generate_key("ES256")), None):
            site.key = key
            published, forwarded = await site.get("/addons/openid/v1/jwks"), await site.get()
            assert published.status == forwarded.status == (503 if key is None else 200)
            assert key is None or json.loads(published.body)["keys"][0]["kid"] == key.verifying.kid
        assert seen.requests == 2


async def test_a_user_over_his_limit_is_told_when_to_come_again_and_others_are_not_kept_out(tmp_path: Path) -> None:
    async with upstream() as seen, gateway(tmp_path, seen, user_burst=2, user_rate=0.2) as site:
        answers = [await site.get() for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert (answers[-1].all("Retry-After"), reason(answers[-1])) == (["5"], "TooManyRequests")
        assert (await site.get(user="jim")).status == 200
        site.clock += 5
        assert (await site.get()).status == 200
        assert len(site.asked) == 4


async def test_a_user_has_so_many_requests_at_once_and_each_ends_at_the_longest_duration(tmp_path: Path) -> None:
    limits = ProxyLimits(request_seconds=3)
    async with (
        upstream(fixed(proxy_kit.STREAM)) as seen,
        gateway(tmp_path, seen, user_requests=1, proxy=limits) as site,
        connected(site.gateway.port, of_user(), site.client) as (reader, _),
    ):
        await reader.readuntil(b"2\r\nhi\r\n")
        busy = await site.get()
        assert (busy.status, reason(busy)) == (429, "UserBusy")
        async with connected(site.gateway.port, of_user(user="jim"), site.client) as (other, _):
            await other.readuntil(b"2\r\nhi\r\n")
        with suppress(ConnectionError):
            assert await reader.read() == b"", "no last chunk"


async def test_a_path_that_could_leave_its_place_is_forwarded_to_nobody(tmp_path: Path) -> None:
    """Each such path is in ``test_proxy_request``."""
    async with upstream() as seen, gateway(tmp_path, seen) as site:
        refused = await site.get(f"{DASHBOARD}/%2e%2e/admin")
        assert (refused.status, reason(refused), seen.requests) == (400, "PathNotAllowed", 0)


@pytest.mark.parametrize(("location", "status"), [("/login?x=1", 406), ("https://other.example/", 404)])
async def test_no_redirect_of_an_add_on_leaves_the_gateway(tmp_path: Path, location: str, status: int) -> None:
    """Each kind of redirect is in ``test_gateway_redirects``."""
    moved = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nSet-Cookie: a=1\r\nContent-Length: 0\r\n\r\n".encode()
    async with (
        upstream(fixed(moved)) as seen,
        gateway(tmp_path, seen) as site,
        connected(site.gateway.port, of_user(), site.client) as (reader, writer),
    ):
        for _ in range(2):  # the connection stays usable
            answer = await read_answer(reader)
            assert (answer.status, answer.all("Set-Cookie"), answer.all("Location")) == (status, ["a=1"], [])
            assert (f"..{DASHBOARD}/login?x=1".encode() in answer.body) is (status == 406)
            assert b"other.example" not in answer.body
            writer.write(of_user())
        assert f"..{DASHBOARD}/, relative".encode() in (await site.get(DASHBOARD)).body, (
            "the slash leads into the add-on"
        )


async def test_discovery_is_for_the_front_proxy(tmp_path: Path) -> None:
    async with upstream() as seen, gateway(tmp_path, seen) as site:
        for path in ("/apis", GROUP_ROOT, ROOT, f"{ROOT}/", "/openapi/v2", "/version"):
            answer = await site.get(path)
            assert (answer.status, answer.all("Content-Type")) == (200, ["application/json"])
            assert json.loads(answer.body)
        listed = json.loads((await site.get(ROOT)).body)
        assert listed["groupVersion"] == f"{GROUP}/v1alpha1"
        assert {each["name"] for each in listed["resources"]} == {"services", "services/proxy"}
        assert (await site.get(ROOT, method="POST")).status == 405
        assert (await site.get(ROOT, tls=site.of(None))).status == 401


async def test_the_log_names_user_and_service_neither_token_nor_query_and_few_refusals(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with upstream() as seen, gateway(tmp_path, seen) as site:
        for query in ("password", "add-auth"):
            await site.get(f"{DASHBOARD}/?{query}=hunter2")
        stranger = site.of(None)
        assert {(await site.get(tls=stranger)).status for _ in range(50)} == {401}
    assert "'jane' to apps/dashboard" in caplog.text
    assert "hunter2" not in caplog.text
    assert seen.values("authorization")[0].removeprefix("Bearer ") not in caplog.text
    assert caplog.text.count("refused proxy: 401") == 20
    assert b'nodeattest_addon_gateway_requests_total{code="200",what="proxy"} 1.0' in site.metrics.render()


@pytest.mark.parametrize(("host", "status"), [("dashboard.apps.svc", 200), ("other.apps.svc", 502)])
async def test_an_https_service_must_show_a_certificate_for_its_name(tmp_path: Path, host: str, status: int) -> None:
    site = Site(tmp_path, Seen())
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*site.serving.certify(tmp_path, "add-on", host=host))
    async with upstream(tls=tls) as seen, running(site.gateway):
        site.add_on = seen  # its certificate is of the site's CA
        found = await site.get(f"{ROOT}/namespaces/apps/services/https:dashboard:443/proxy/")
        assert (found.status, len(seen.connections)) == (status, status == 200)


async def test_a_front_proxy_s_ca_that_went_lets_nobody_in_any_more_not_even_on_old_connections(tmp_path: Path) -> None:
    second = Authority("next-front-proxy-ca")

    async def ask(connection: proxy_kit.Connection) -> int:
        connection[1].write(of_user())
        return (await read_answer(connection[0])).status

    async with upstream() as seen, gateway(tmp_path, seen) as site:
        port, renewed = site.gateway.port, site.of(second)
        async with connected(port, tls=site.client) as old:
            assert await ask(old) == 200
            site.trust(site.front, second)
            async with connected(port, tls=renewed) as new:
                assert (await ask(old), await ask(new)) == (200, 200)
                site.trust(second)
                assert await ask(old) == 401
                assert (await site.get(tls=renewed)).status == 200
                site.tls.set_trust(None)
                assert await ask(new) == 503
        assert len(site.asked) == 4


async def test_a_client_who_is_not_the_front_proxy_has_few_connections_for_a_short_time(tmp_path: Path) -> None:
    limits = ProxyLimits(unauthenticated_connections=4, unauthenticated_seconds=2)
    strangers: list[proxy_kit.Connection] = []

    async def is_served(stranger: proxy_kit.Connection) -> bool:
        try:
            stranger[1].write(request("/addons/openid/v1/jwks"))
            return (await read_answer(stranger[0])).status == 200
        except (OSError, asyncio.IncompleteReadError):
            return False

    async with upstream() as seen, gateway(tmp_path, seen, proxy=limits) as site:
        async with connected(site.gateway.port, of_user(), site.client) as (reader, writer):
            assert (await read_answer(reader)).status == 200
            for _ in range(20):
                with suppress(OSError):
                    strangers.append(
                        await asyncio.open_connection(proxy_kit.LOOPBACK, site.gateway.port, ssl=site.of(None))
                    )
            assert (await site.get()).status == 200
            assert sum([await is_served(each) for each in strangers]) <= 4
            while any([await is_served(each) for each in strangers]):  # however busy
                pass
            writer.write(of_user())
            assert (await read_answer(reader)).status == 200
        for _, each in strangers:
            each.transport.abort()


RBAC: Final = "/apis/rbac.authorization.k8s.io/v1/namespaces"
DEVELOPER: Final = ("devs", "system:authenticated")
"""Groups as they reach the gateway: kube-apiserver adds the second to whoever it knows."""


def target(name: str, namespace: str) -> ServiceTarget:
    return parse(f"{ROOT}/namespaces/{namespace}/services/{name}/proxy/")


def allow(plane: ControlPlane, namespace: str, name: str) -> None:
    admin = plane.client()
    create_namespace(admin, namespace)
    rule: JsonMap = {
        "apiGroups": [GROUP], "resources": ["services/proxy"], "verbs": ["get"], "resourceNames": [name],
    }  # fmt: skip
    metadata: JsonMap = {"name": "user"}
    admin.create(f"{RBAC}/{namespace}/roles", {"metadata": metadata, "rules": [rule]})
    role: JsonMap = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "user"}
    subject: JsonMap = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "devs"}
    admin.create(f"{RBAC}/{namespace}/rolebindings", {"metadata": metadata, "roleRef": role, "subjects": [subject]})
    asked: JsonMap = {
        "verb": "get", "group": GROUP, "resource": "services", "subresource": "proxy", "namespace": namespace,
        "name": name,
    }  # fmt: skip
    review: JsonMap = {"spec": {"resourceAttributes": asked, "user": "tests", "groups": [*DEVELOPER]}}

    def allowed() -> None:
        """Ask RBAC: a real API server learns of bindings by a watch."""
        reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        assert value_at(admin.create(reviews, review), "status", "allowed") is True

    succeeds(allowed)


async def refused(reviews: SubjectAccessAuthorizer, who: UserInfo, wanted: ServiceTarget, method: str) -> int | None:
    try:
        await reviews.authorize(who, wanted, method)
    except RefusalError as error:
        return error.status.value
    return None


async def test_a_right_is_one_of_verb_service_and_namespace(control_plane: ControlPlane) -> None:
    allow(control_plane, "gateway-review", "dashboard:80")
    dev = UserInfo(user="jane", uid="7", groups=DEVELOPER, extra=(("scopes", ("a",)),))
    async with ApiClient(read_kubeconfig(control_plane.admin_kubeconfig)) as client:
        reviews = SubjectAccessAuthorizer(client, clock=lambda: 0.0)
        wanted = target("dashboard:80", "gateway-review")
        for method in ("GET", "HEAD"):
            assert await refused(reviews, dev, wanted, method) is None
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"):
            assert await refused(reviews, dev, wanted, method) == 403
        for other in (target("dashboard", "gateway-review"), target("dashboard:80", "kube-system")):
            assert await refused(reviews, dev, other, "GET") == 403
        for user in (UserInfo(user="jane", groups=("others",)), UserInfo(user="devs")):
            assert await refused(reviews, user, wanted, "GET") == 403


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
    async with ApiClient(read_kubeconfig(control_plane.admin_kubeconfig)) as client:
        reviews = SubjectAccessAuthorizer(client, clock=lambda: now)
        wanted = target("dashboard", "gateway-review-cache")
        await asyncio.gather(*(reviews.authorize(dev, wanted, "GET") for _ in range(20)))
        assert client.requests == 1
        control_plane.client().delete(f"{RBAC}/gateway-review-cache/rolebindings/user")
        now = 9.9
        await reviews.authorize(dev, wanted, "GET")
        now = 10.0
        while await refused(reviews, dev, wanted, "GET") is None:  # a real API server learns of it by a watch
            now += 10.0
        assert await refused(reviews, dev, wanted, "GET") == 403


async def test_without_an_answer_nobody_may(control_plane: ControlPlane) -> None:
    async with ApiClient(read_kubeconfig(control_plane.client_kubeconfig("nobody-in-particular"))) as client:
        reviews = SubjectAccessAuthorizer(client, clock=lambda: 0.0)
        assert await refused(reviews, UserInfo(user="jane"), target("dashboard", "default"), "GET") == 503
