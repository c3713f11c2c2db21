"""Costs of what programs that listen read of a request: discovery front, gateway, sidecar, issuer; tokens and keys."""

from __future__ import annotations

from typing import Final

from fuzz import addon_gateway, addon_proxy, discovery_front, identity_tokens
from fuzz.costs import worst
from fuzz.costs.handler import KIB, MIB, Handler, runner
from fuzz.discovery import SIGNER
from nodeattest_discovery import jwt as discovery_jwt
from nodeattest_discovery.front import tokenreview
from nodeattest_discovery.front.authenticate import authenticate, bearer_token
from nodeattest_discovery.secret import SECRET_TYPE, TokenSecret, encode, secret_name
from nodeattest_identity.addon.gateway.api_group import ROOT
from nodeattest_identity.addon.gateway.endpoints import ready_endpoints
from nodeattest_identity.addon.gateway.errors import StatusError
from nodeattest_identity.addon.gateway.front_proxy import FrontProxyTrust, identify
from nodeattest_identity.addon.gateway.target import parse as parse_target
from nodeattest_identity.addon.sidecar.credentials import bearer, require_no_token_in_query
from nodeattest_identity.issuer.documents import DocumentError, parse_configuration
from nodeattest_identity.issuer.keys import MAX_SIZE, KeysError, read_jwks, read_pem
from nodeattest_identity.proxy.headers import RawHeaders, Sender, request_headers, response_headers
from nodeattest_identity.proxy.limits import MAX_FIELD, MAX_FIELDS, MAX_HEAD
from nodeattest_identity.proxy.paths import read_target
from nodeattest_identity.proxy.refusals import RefusalError
from nodeattest_identity.publish.state import MAX_SIZE as MAX_STATE
from nodeattest_identity.publish.state import IssuerStateError
from nodeattest_identity.publish.state import parse as parse_state
from nodeattest_identity.serve.service import matches
from nodeattest_identity.tokens import jwt
from nodeattest_kube.jsontypes import JsonObject, parse_json
from nodeattest_kube.paging import OBJECT
from nodeattest_parsing.strict_base64 import encode_base64url
from nodeattest_providers.errors import Denied

__all__ = ["HANDLERS"]

_SERVING_HEAD: Final = 32 * KIB
"""Bytes of a request to a listener (``nodeattest_serving.listener``)."""
_TARGETS: Final = {
    target.name: target
    for module in (addon_gateway, addon_proxy, discovery_front, identity_tokens)
    for target in module.TARGETS
}
_TRUST: Final = FrontProxyTrust(authorities=(b"",), allowed_names=frozenset({addon_gateway.NAME}), has_uid=True)
_SENDER: Final = Sender(peer="10.0.0.9", scheme="https")
_STORED: Final = {
    "metadata": {"name": secret_name(SIGNER.id)},
    "type": SECRET_TYPE,
    "data": encode(TokenSecret(token=SIGNER)),
}
_EXPECTED: Final = jwt.Expected(
    issuer=identity_tokens.ISSUER, audiences=frozenset({identity_tokens.AUDIENCE}), longest_lifetime=3600
)


def _fields(data: bytes) -> tuple[str, RawHeaders]:
    """Take a head apart: the target in the first line, then as many ``name: value`` lines as a proxy takes."""
    first, *lines = data.split(b"\n")
    fields = [line.partition(b": ") for line in lines[:MAX_FIELDS] if len(line) <= MAX_FIELD]
    return first.decode("utf-8", "surrogateescape"), [(name, value) for name, _, value in fields if name.isascii()]


def _gateway(data: bytes) -> object:
    raw, headers = _fields(data)
    identity = identify(
        _TRUST,
        addon_gateway.NAME,
        [(name.decode(), value.decode("utf-8", "surrogateescape")) for name, value in headers],
    )
    parse_target(raw)
    return identity, request_headers(headers, sender=_SENDER, inject=[("Authorization", "Bearer x")])


def _metrics(data: bytes) -> object:
    _, headers = _fields(data)
    return bearer(headers)


def _sidecar(data: bytes) -> object:
    raw, headers = _fields(data)
    require_no_token_in_query(read_target(raw))
    made = request_headers(headers, sender=_SENDER, inject=[("X-Authenticated-User", "alice")])
    response_headers(headers)
    unverified = jwt.parse(bearer(headers))
    return made, jwt.verify(unverified, (identity_tokens.KEY,), _EXPECTED, identity_tokens.MOMENT)


def _signed(data: bytes) -> object:
    """Verify a token whose header and claims are before and behind the first line end."""
    header, _, claims = data.partition(b"\n")
    unverified = jwt.parse(identity_tokens.signed(header, claims))
    return jwt.verify(unverified, (identity_tokens.KEY,), _EXPECTED, identity_tokens.MOMENT)


def _front(data: bytes) -> object:
    unverified = discovery_jwt.parse(bearer_token(data.decode("utf-8", "surrogateescape")))
    return authenticate(
        unverified, lambda token_id: _STORED if token_id == SIGNER.id else None, now=discovery_front.MOMENT
    )


def _review(data: bytes) -> object:
    review = tokenreview.parse(data)
    return tokenreview.answer(review, SIGNER.id), authenticate(
        discovery_jwt.parse(review.token), lambda _: _STORED, now=discovery_front.MOMENT
    )


def _serve(data: bytes) -> object:
    return matches('"0123456789abcdef"', data.decode("utf-8", "surrogateescape").split("\n"))


def _head(*, target: bytes, field: bytes, size: int = MAX_HEAD) -> bytes:
    count = min(MAX_FIELDS - 3, (size - len(target) - 64) // (len(field) + 6))
    return target + b"\nHost: a\nX-Remote-User: alice\n" + b"\n".join(b"%b" % field for _ in range(count))


_SERVICE: Final = b"/apis/x/v1/namespaces/a/services/b/proxy"
_CLAIMS: Final = (
    b'{"alg":"ES256","kid":"' + identity_tokens.KEY.kid.encode() + b'","typ":"JWT"}\n'
    b'{"iss":"https://issuer.example","aud":["vault"],"exp":%d,"sub":"a","x":' % (identity_tokens.MOMENT + 60)
)


def _long_claims(unit: bytes) -> bytes:
    return worst.filled(_CLAIMS + b"[", unit, b"0]}", (jwt.MAX_SIZE - 200) * 3 // 4)


def _discovery_token(payload: bytes) -> bytes:
    header = encode_base64url(worst.to_json({"alg": "HS256", "kid": SIGNER.id, "typ": "JWT"}))
    return f"Bearer {header}.{encode_base64url(payload)}.{'A' * 43}".encode()


_POD: Final = b'{"ip":"::ffff:a00:1","targetRef":{"kind":"Pod","namespace":"a"}},'


def _endpoints(data: bytes) -> object:
    """Read Endpoints, and choose among them for one request."""
    service: JsonObject = {"spec": {"ports": [{"port": 80}]}}
    return ready_endpoints(
        service,
        parse_json(data, OBJECT.values, duplicates=True),
        parse_target(f"{ROOT}/namespaces/a/services/b/proxy/"),
    )


def _subset(before: bytes, unit: bytes) -> bytes:
    return worst.filled(b'{"subsets":[{' + before, unit, unit[:-1] + b"]}]}", 3 * MIB // 2, 24_000)


HANDLERS: Final = (
    Handler(
        name="discovery-front",
        reads="the Authorization header of a request to the discovery front",
        runs="loop",
        run=runner(_front, Denied),
        largest=MAX_FIELD,
        milliseconds=3.0,
        mebibytes=0.5,
        worst={
            "claims": lambda: _discovery_token(worst.json_lists(2900)),
            "levels": lambda: _discovery_token(worst.json_nested(2900, 100)),
            "dots": lambda: b"Bearer " + b"." * (discovery_jwt.MAX_SIZE - 7),
            "too long": lambda: b"Bearer " + b"a" * (MAX_FIELD - 7),
        },
        target=_TARGETS["discovery-authorization"],
        strangers=True,
    ),
    Handler(
        name="token-review",
        reads="a TokenReview to the discovery front's webhook",
        runs="loop",
        run=runner(_review, Denied),
        largest=tokenreview.MAX_BODY,
        milliseconds=6.0,
        mebibytes=1.0,
        worst={
            "numbers": lambda: worst.json_numbers(tokenreview.MAX_BODY, {"spec": {"x": ["@@"]}}, most=980),
            "keys": lambda: worst.json_keys(tokenreview.MAX_BODY, {"spec": {"x": ["@@"]}}, most=320),
            "escapes": lambda: worst.json_escapes(tokenreview.MAX_BODY, {"x": "@@"}),
            "text": lambda: worst.json_text(tokenreview.MAX_BODY),
        },
        target=_TARGETS["discovery-review"],
        strangers=True,
    ),
    Handler(
        name="gateway-head",
        reads="the head of a request to the add-on gateway, whatever kube-apiserver passes on",
        runs="loop",
        run=runner(_gateway, StatusError, RefusalError),
        largest=MAX_HEAD,
        milliseconds=25.0,
        mebibytes=3.0,
        worst={
            "groups": lambda: _head(target=_SERVICE, field=b"X-Remote-Group: " + b"%C3%A9" * 38),
            "extra": lambda: _head(target=_SERVICE, field=b"X-Remote-Extra-" + b"%C3%A9" * 36 + b": a"),
            "percents": lambda: _head(target=_SERVICE, field=b"X-Remote-Extra-" + b"%" * 8000 + b": a"),
            "names": lambda: _head(target=_SERVICE, field=b"a-" * 120 + b": a"),
            "long names": lambda: _head(target=_SERVICE, field=b"sso-" * 2000 + b": a"),
            "connection": lambda: _head(target=_SERVICE, field=b"Connection: " + b"a," * 4000),
            "path": lambda: _head(target=_SERVICE + b"/%61" * 2000, field=b"a: b"),
        },
        target=_TARGETS["gateway-headers"],
        strangers=True,
    ),
    Handler(
        name="metrics-head",
        reads="the head of a request for the controller's metrics over HTTPS, of whoever reaches the pod",
        runs="loop",
        run=runner(_metrics, RefusalError),
        largest=_SERVING_HEAD,
        milliseconds=3.0,
        mebibytes=0.5,
        worst={
            "names": lambda: _head(target=b"/metrics", field=b"a-" * 120 + b": a"),
            "token": lambda: b"/metrics\nAuthorization: Bearer " + b"a" * (MAX_FIELD - 7) + b"!",
            "blanks": lambda: b"/metrics\nAuthorization: Bearer" + b" " * (MAX_FIELD - 7) + b"!",
        },
        target=_TARGETS["addon-credentials"],
        strangers=True,
    ),
    Handler(
        name="service-endpoints",
        reads="Endpoints of a Service, of who may write them in a namespace, at the add-on gateway",
        runs="loop",
        run=runner(_endpoints, StatusError, ValueError),
        largest=3 * MIB // 2,
        milliseconds=120.0,
        mebibytes=32.0,
        worst={
            "addresses": lambda: _subset(b'"ports":[{"port":1}],"addresses":[', _POD),
            "ports": lambda: _subset(b'"addresses":[' + _POD * 999 + _POD[:-1] + b'],"ports":[', b'{"port":1},'),
        },
    ),
    Handler(
        name="sidecar-head",
        reads="the head of a request to an add-on's sidecar, of whoever reaches the pod",
        runs="loop",
        run=runner(_sidecar, Denied, RefusalError),
        largest=MAX_HEAD,
        milliseconds=20.0,
        mebibytes=1.0,
        worst={
            "names": lambda: _head(target=b"/", field=b"a-" * 120 + b": a"),
            "long names": lambda: _head(target=b"/", field=b"sso-" * 2000 + b": a"),
            "prefixes": lambda: _head(target=b"/", field=b"a1b-" * 2000 + b"x: a"),
            "separators": lambda: _head(target=b"/", field=b"-" * 8000 + b"x: a"),
            "connection": lambda: _head(target=b"/", field=b"Connection: " + b"a," * 4000),
            "protocols": lambda: _head(target=b"/", field=b"Sec-WebSocket-Protocol: " + b"a," * 4000),
            "path": lambda: _head(target=b"/%61" * 2000, field=b"a: b"),
            "query": lambda: _head(target=b"/?" + b"%61&" * 2000, field=b"a: b"),
            "token": lambda: (
                b"/\nHost: a\nAuthorization: Bearer " + identity_tokens.signed(*_long_claims(b"[],").split(b"\n", 1))
            ),
        },
        target=_TARGETS["addon-request-headers"],
        strangers=True,
    ),
    Handler(
        name="token",
        reads="a JWT of a service account or the gateway, of whoever sends one",
        runs="loop",
        run=runner(_signed, Denied),
        largest=jwt.MAX_SIZE * 3 // 4,
        milliseconds=12.0,
        mebibytes=1.0,
        worst={
            "lists": lambda: _long_claims(b"[],"),
            "keys": lambda: _long_claims(b'{"":{}},'),
            "levels": lambda: _long_claims(b"[" * 12 + b"]" * 12 + b","),
            "numbers": lambda: _long_claims(b"-9223372036854775808,"),
            "audiences": lambda: _long_claims(b'"aud",').replace(b'"x":', b'"aud":'),
        },
        target=_TARGETS["identity-jwt-signed"],
        strangers=True,
    ),
    Handler(
        name="issuer-conditions",
        reads="If-None-Match of a request for an issuer's documents",
        runs="loop",
        run=runner(_serve),
        largest=_SERVING_HEAD,
        milliseconds=3.0,
        mebibytes=2.0,
        worst={
            "most candidates": lambda: b"a,," * 341,
            "candidates": lambda: b"a,," * (_SERVING_HEAD // 4),
            "commas": lambda: b"," * _SERVING_HEAD,
            "lines": lambda: b"\n" * _SERVING_HEAD,
        },
        target=None,
        strangers=True,
    ),
    Handler(
        name="key-set",
        reads="the key set of an issuer, or of a workload cluster's API server",
        runs="loop",
        run=runner(lambda data: read_jwks(data, skip_unusable=True), KeysError),
        largest=MAX_SIZE,
        milliseconds=40.0,
        mebibytes=8.0,
        worst={
            "P-521": lambda: worst.jwks("P-521", 1000, MAX_SIZE),
            "most P-521": lambda: worst.jwks("P-521", 128, MAX_SIZE),
            "RSA": lambda: worst.jwks("RSA", 1000, MAX_SIZE),
            "lists": lambda: worst.json_lists(MAX_SIZE, {"keys": ["@@"]}, most=2000),
            "numbers": lambda: worst.json_numbers(MAX_SIZE, {"keys": ["@@"]}, most=15_000),
            "escapes": lambda: worst.json_escapes(MAX_SIZE, {"keys": "@@"}),
        },
        target=_TARGETS["identity-jwks"],
    ),
    Handler(
        name="key-file",
        reads="a file of keys in PEM",
        runs="loop",
        run=runner(read_pem, KeysError),
        largest=MAX_SIZE,
        milliseconds=20.0,
        mebibytes=8.0,
        worst={
            "one block": lambda: worst.filled(
                b"-----BEGIN CERTIFICATE-----\n", b"AAA\n", b"-----END CERTIFICATE-----\n", MAX_SIZE
            ),
            "blocks without end": lambda: worst.pem_without_end(MAX_SIZE),
            "dashes": lambda: worst.filled(
                b"-----BEGIN CERTIFICATE-----\n", b"a-", b"-----END CERTIFICATE-----\n", MAX_SIZE
            ),
            "most blocks without end": lambda: worst.filled(b"-----BEGIN A-----\n" * 128, b"-", b"", MAX_SIZE),
            "certificates": lambda: worst.filled(b"", worst.pem_of(worst.looping_chain()[1]), b"", MAX_SIZE),
        },
        target=_TARGETS["identity-pem"],
    ),
    Handler(
        name="issuer-configuration",
        reads="the OpenID configuration of an issuer, or of a workload cluster's API server",
        runs="loop",
        run=runner(parse_configuration, DocumentError),
        largest=64 * KIB,
        milliseconds=16.0,
        mebibytes=4.0,
        worst={
            "lists": lambda: worst.json_lists(64 * KIB),
            "keys": lambda: worst.json_keys(64 * KIB, {"x": ["@@"]}),
            "escapes": lambda: worst.json_escapes(64 * KIB, {"x": "@@"}),
        },
        target=_TARGETS["identity-configuration"],
    ),
    Handler(
        name="issuer-state",
        reads="the state object beside published documents, of who may write the store",
        runs="process",
        run=runner(parse_state, IssuerStateError),
        largest=MAX_STATE,
        milliseconds=250.0,
        mebibytes=16.0,
        worst={
            "lists": lambda: worst.json_lists(MAX_STATE, most=99_000),
            "keys": lambda: worst.json_keys(MAX_STATE, {"x": ["@@"]}, most=33_000),
        },
        target=None,
    ),
)
