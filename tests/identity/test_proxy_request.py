"""What is read of a request before it is forwarded, header fields in both directions, and request targets."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from nodeattest_identity.proxy.refusals import Refusal, RefusalError
from nodeattest_identity.proxy.request import (
    RawHeaders,
    canonical,
    parse_rule,
    read_target,
    request_headers,
    response_headers,
)

HOST = (b"Host", b"addon.example")
ALIASES = [
    b"X-Authenticated-User", b"x-authenticated-user", b"X_Authenticated_User", b"X.Authenticated.User",
    b"x-authenticated_user", b"X-Authenticated-Group", b"X-Authenticated-Extra-Scopes", b"X-Authorized-User",
    b"X-Remote-User", b"X_Remote_Group", b"X-Remote-Extra-a", b"X-Forwarded-User", b"X.Forwarded.Email",
    b"X-Forwarded-Groups", b"X-Forwarded-Uri", b"X-Forwarded-Prefix", b"Forwarded", b"Impersonate-User",
    b"impersonate_group", b"Authorization", b"authorization", b"Proxy-Authorization", b"Proxy_Authorization",
    b"X-Original-URL", b"X-Rewrite-URL", b"X-Auth-Request-User", b"Remote-User", b"REMOTE_USER", b"X-Real-IP",
    b"X-HTTP-Method-Override", b"Proxy", b"X-Request-Id", b"X-Authentik-Username", b"x_authentik_groups",
    b"X-Consumer-Username", b"X-Credential-Identifier", b"X-Anonymous-Consumer", b"X-Vouch-User", b"X-Userinfo",
    b"X-User", b"X-User-Id", b"HTTP-Remote-User", b"HTTP_X_REMOTE_USER", b"X-Access-Token", b"X-Auth-Token", b"X_Auth",
    b"X-Auth-Subject", b"X-JWT-Assertion", b"OIDC_CLAIM_sub", b"Tailscale-User-Login", b"Teleport-Jwt-Assertion",
    b"X-Envoy-Original-Path", b"X-Amzn-Mtls-Clientcert-Subject", b"X-MS-Token-AAD-Id-Token",
    b"X--Authenticated-User", b"X-Authenticated--User", b"X_-_Authenticated..User-", b"-X-Authenticated-User",
    b"SM_USER", b"SM_USERDN", b"SM_UNIVERSALID", b"SMUSER", b"iv-user", b"iv_groups", b"iv-creds", b"X-Uid", b"X_UID",
    b"Uid", b"X-Groups", b"X-Group", b"Groups", b"X-Role", b"X-Roles", b"X-Mail", b"X-Email", b"X-E-Mail", b"X-Login",
    b"X-Log-In", b"X-Username", b"UserName", b"X-Kubeflow-Userid", b"kubeflow-userid", b"X-WebAuth-User", b"AUTH_USER",
    b"LOGON_USER", b"X-Proxy-User", b"X-Token-Subject", b"X-Claims", b"X-Saml-Nameid", b"Eppn", b"Shib-Session-Id",
    b"X-SSO-Id", b"X-Actor", b"X-On-Behalf-Of", b"Sudo", b"X-Client-Cert", b"X-ARR-ClientCert", b"X-Caller-Identity",
    b"X-Ms-Client-Principal-Name", b"X-Goog-Authenticated-User-Email", b"X-Amzn-Oidc-Identity", b"X-Remote-Uid",
    b"Client-IP", b"Client_IP", b"X-ClientIP", b"X-Client-IP", b"X-Cluster-Client-IP", b"True-Client-IP",
    b"Fastly-Client-IP", b"WL-Proxy-Client-IP", b"X-Azure-ClientIP", b"X-Azure-SocketIP", b"X-Source-Ip", b"X-Sender",
    b"X-Client-Dn", b"X-Ssl-Cn", b"X-Spiffe-Id", b"X-Http-Host-Override", b"X-Scope-OrgID", b"X-Tenant-Id",
    b"Cf-Access-Authenticated-User-Email", b"X-Vouch-Idp-IdToken", b"X-Pomerium-Jwt-Assertion", b"X-Upn", b"X-Sub",
]  # fmt: skip
PASSING = [
    b"User-Agent", b"Accept", b"Accept-Language", b"Cache-Control", b"Content-Type", b"Content-Encoding", b"Cookie",
    b"DNT", b"ETag", b"If-None-Match", b"If-Modified-Since", b"Last-Event-ID", b"Origin", b"Pragma", b"Priority",
    b"Range", b"Referer", b"Sec-CH-UA", b"Sec-CH-UA-Platform", b"Sec-Fetch-Mode", b"Sec-Fetch-Site",
    b"Sec-WebSocket-Extensions", b"Upgrade-Insecure-Requests", b"Access-Control-Request-Method", b"X-Requested-With",
    b"X-CSRF-Token", b"X-XSRF-TOKEN", b"X-Api-Key", b"X-B3-TraceId", b"traceparent", b"tracestate", b"baggage",
    b"X-Correlation-ID", b"X-Grafana-Org-Id", b"X-Dashboard-Uid", b"X-Query-Group-Id",
    b"X-Plugin-Id", b"X-Session-Id", b"X-Lesson", b"X-Processor", b"X-Request-UUID", b"X-Amz-Date", b"X-Other",
    b"X-Subtitle", b"X-Controller", b"X-Upnp", b"Depth", b"Destination",
]  # fmt: skip


def forwarded(raw: RawHeaders, inject: Sequence[tuple[str, str]] = ()) -> CIMultiDict[str]:
    return request_headers(raw, peer="10.0.0.9", scheme="http", inject=inject)


@pytest.mark.parametrize("name", ALIASES)
def test_identity_headers_and_their_aliases_never_pass(name: bytes) -> None:
    made = forwarded([HOST, (name, b"mallory")], [("X-Authenticated-User", "alice")])
    assert "mallory" not in made.values()
    assert made.getall("X-Authenticated-User") == ["alice"]


@pytest.mark.parametrize("name", PASSING)
def test_headers_that_name_nobody_pass_as_they_are(name: bytes) -> None:
    made = forwarded([HOST, (name, b"value")], [("X-Authenticated-User", "alice")])
    assert (name.decode(), "value") in list(made.items())


@given(
    st.lists(st.sampled_from([*ALIASES, b"Accept", b"Connection", b"X-Other"]), max_size=8),
    st.text("abcX-_.", min_size=1, max_size=12),
)
def test_whatever_is_sent_an_upstream_that_folds_names_sees_one_identity_and_it_is_ours(
    names: list[bytes], listed: str
) -> None:
    raw = [HOST, *((name, b"mallory") for name in names), (b"Connection", listed.encode() + b", X-Authenticated-User")]
    made = forwarded(raw, [("X-Authenticated-User", "alice")])
    folded = [value for name, value in made.items() if canonical(name.encode()) == b"x-authenticated-user"]
    assert folded == ["alice"]
    assert "authorization" not in {canonical(name.encode()).decode() for name in made}


def test_hop_by_hop_fields_and_what_connection_lists_end_here() -> None:
    raw = [
        HOST, (b"Connection", b"keep-alive, X-Once"), (b"connection", b"x_twice"), (b"X-Once", b"1"),
        (b"X-Twice", b"2"), (b"Keep-Alive", b"5"),
        (b"TE", b"trailers"), (b"Trailer", b"X"), (b"Transfer-Encoding", b"chunked"),
        (b"Upgrade", b"h2c"), (b"Accept", b"*/*"),
    ]  # fmt: skip
    made = forwarded(raw)
    assert dict(made) == {
        "Accept": "*/*",
        "Host": "addon.example",
        "X-Forwarded-For": "10.0.0.9",
        "X-Forwarded-Proto": "http",
        "X-Forwarded-Host": "addon.example",
    }


TOKEN = b"base64url.bearer.authorization.k8s.io.c2VjcmV0"


def test_a_bearer_token_alone_among_websocket_protocols_leaves_none() -> None:
    """Beside D10-29 of the attack catalogue."""
    assert "Sec-WebSocket-Protocol" not in forwarded([HOST, (b"Sec-WebSocket-Protocol", TOKEN)])


def test_bytes_that_are_no_utf_8_are_refused_and_never_half_sent() -> None:
    with pytest.raises(RefusalError):
        forwarded([HOST, (b"X-Other", b"caf\xe9")])
    assert forwarded([HOST, (b"X-Other", "café".encode())])["X-Other"] == "café"


def test_answers_keep_set_cookie_apart_and_tell_no_identity() -> None:
    raw = [
        (b"Set-Cookie", b"a=1"), (b"Set-Cookie", b"b=2"), (b"X-Authenticated-User", b"root"), (b"X_Remote_User", b"r"),
        (b"Connection", b"X-Hop"), (b"X-Hop", b"1"), (b"Transfer-Encoding", b"chunked"), (b"Keep-Alive", b"1"),
        (b"Location", b"https://elsewhere/"), (b"X-Odd", b"caf\xe9"),
    ]  # fmt: skip
    made = response_headers(raw)
    assert made.getall("Set-Cookie") == ["a=1", "b=2"]
    assert {name: value for name, value in made.items() if name != "Set-Cookie"} == {
        "Location": "https://elsewhere/",
        "X-Odd": "caf?",
    }


@pytest.mark.parametrize("host", [b"", b"a/b", b"a#b", b"u@h", b"a b", b"a\\b", b"a:b", b"[::1", b"a,b"])
def test_a_host_that_bends_a_url_is_refused(host: bytes) -> None:
    with pytest.raises(RefusalError) as refused:
        forwarded([(b"Host", host)])
    assert refused.value.refusal is Refusal.HEADER_NOT_ALLOWED


@pytest.mark.parametrize(
    "raw",
    [
        "/", "/a", "/a/", "/a/b.js", "/.well-known/x", "/a%20b", "/a..b/...", "/caf%C3%A9", "/a;v=1", "/x?next=/../y",
        "/x?q=%2F%5c//", "/x?", "/@me/(1)", "/a%25", "/a|b", "/50%25face", "/a%2525",
    ],
)  # fmt: skip
def test_targets_of_one_meaning_pass_byte_for_byte(raw: str) -> None:
    assert read_target(raw).raw == raw


ENCODED = ("/", "%25", "%32", "2", "%65", "e", "%66", "%35", "5", "%63", "c", "%30", "0", ".")


@given(
    st.text("/.%2eEfF5cC0;a?#\\", max_size=24)
    | st.lists(st.sampled_from(ENCODED)).map(lambda parts: "/" + "".join(parts))
)
def test_no_path_that_passes_leaves_its_place_however_it_is_read(raw: str) -> None:
    try:
        target = read_target(raw)
    except RefusalError:
        return
    for read in (target.path, unquote(target.path), unquote(unquote(target.path))):
        assert "\x00" not in read
        assert not {".", ".."} & {segment.partition(";")[0] for segment in read.split("/")}
        assert "//" not in read
        assert "\\" not in read
        assert read.count("/") == target.path.count("/")


@pytest.mark.parametrize(
    ("rule", "path", "matches"),
    [
        ("/healthz", "/healthz", True), ("/healthz", "/healthz/", False), ("/healthz", "/healthzz", False),
        ("/healthz", "/Healthz", False), ("/healthz", "/%68ealthz", False), ("/static/**", "/static/a/b", True),
        ("/static/**", "/static/", True), ("/static/**", "/static", False), ("/static/**", "/statics/a", False),
        ("/api/*/status", "/api/x/status", True), ("/api/*/status", "/api/x/y/status", False),
        ("/api/*/status", "/api//status", False), ("/", "/", True), ("/", "/a", False), ("/**", "/a", True),
    ],
)  # fmt: skip
def test_rules_match_segment_by_segment(rule: str, path: str, matches: bool) -> None:
    assert (parse_rule(rule).fullmatch(path) is not None) is matches


@pytest.mark.parametrize("rule", ["", "healthz", "/a/**/b", "/a//b", "/a/../b", "/a%2f", "/a*", "/.*", "/a?b"])
def test_rules_that_could_match_more_than_they_say_are_refused(rule: str) -> None:
    with pytest.raises(ValueError, match="plain segments"):
        parse_rule(rule)


@pytest.mark.parametrize(
    "raw",
    [
        "", "*", "a", "/a//b", "/./a", "/a/.", "/%2E", "/a%2Fb", "/a%5cb", "/a%0d%0a", "/a%7f", "/a?x#y", "/a b", "/é",
        "/a%", "/a%2", "/a%zz", "/a%252f", "/%c0%ae%c0%ae/a", "/a%ff", "/static/%252%65%252%65/admin", "/%25%30%30",
        "/%250d%250a", "/a\r\nX: y", "/a\x00", "/a\n", "/" + "a" * 9000,
    ],
)  # fmt: skip
def test_targets_that_mean_different_things_to_different_servers_are_refused(raw: str) -> None:
    with pytest.raises(RefusalError) as refused:
        read_target(raw)
    assert refused.value.refusal is Refusal.PATH_NOT_ALLOWED
