"""The target and the header fields that are forwarded, and the header fields of the response. Pure.

Nothing is decoded or rewritten: what was checked is what is sent. An upstream that folds ``-``, ``_``, ``.`` and case
(CGI, WSGI, some routers) sees of every identity header only what we inject, one value each.
Source: RFC 9112 §3.2, RFC 3986 §3.3 and §6.2, RFC 9110 §7.6.1; RFC 3875 §4.1.18 and PEP 3333 (folding); apiserver
authentication/request/websocket (a bearer token in ``Sec-WebSocket-Protocol``); the CVEs of the attack catalogue, D10.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from multidict import CIMultiDict

from nodeattest_identity.proxy.refusals import Refusal, RefusalError

_MAX_TARGET: Final = 8190
"""Bytes; aiohttp's own limit of a request line."""

_ORIGIN: Final = re.compile(r"(/[!$%&'()*+,\-./0-9:;=@A-Z_a-z~|^{}\[\]\"<>`]*)(?:\?([!-\"$-~]*))?")
"""Path and query. Browsers leave some of what RFC 3986 forbids as it is, and it means nothing to a path."""

_ENCODED: Final = re.compile(r"%(?:[0-1][0-9A-Fa-f]|2[fF]|5[cC]|7[fF])|%(?![0-9A-Fa-f]{2})")
"""Controls, slash and backslash; no encoding at all."""

_ENCODED_TWICE: Final = re.compile(rb"%(?:[0-1][0-9A-Fa-f]|2[eEfF]|5[cC]|7[fF])")
"""The same and a dot, in the decoded path: for upstreams that decode twice."""

_SEGMENT: Final = re.compile(r"[A-Za-z0-9_~.\-]+")


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """A request target that is unambiguous."""

    path: str
    query: str | None
    """None: no question mark."""

    @property
    def raw(self) -> str:
        return self.path if self.query is None else f"{self.path}?{self.query}"


PathRule = re.Pattern[str]
"""Matches raw paths."""


def read_target(raw: str) -> RequestTarget:
    """Parse a request target; raises ``RefusalError``.

    1. Origin form of bounded length: not the absolute form, not ``*``; no fragment, backslash, blank or control.
    2. No encoding of what separates. 3. No empty segment but the last. 4. No dot segment, also encoded or before a
    ``;``. 5. Nothing that a second decoding would make so. 6. UTF-8 behind the encodings.
    """
    # 1, RFC 9112 §3.2.1
    found = _ORIGIN.fullmatch(raw) if len(raw) <= _MAX_TARGET else None
    if found is None:
        raise _refused("a path in origin form, of printable ASCII without # and backslash")
    path, query = found.group(1), found.group(2)
    # 2
    if _ENCODED.search(path) is not None:
        raise _refused("no encoded slash, backslash or control character")
    segments = path[1:].split("/")
    # 3
    if "" in segments[:-1]:
        raise _refused("no empty segment")
    decoded = [unquote_to_bytes(segment) for segment in segments]
    # 4, RFC 3986 §5.2.4; Java servers cut a segment at its parameters first
    if any(segment.partition(b";")[0] in {b".", b".."} for segment in decoded):
        raise _refused("no dot segment")
    # 5: whichever of its characters are encoded, %252e as well as %25%32%65
    if any(b"%" in segment and _ENCODED_TWICE.search(segment) is not None for segment in decoded):
        raise _refused("no encoding of an encoding")
    # 6: an overlong or foreign encoding reads differently from one server to the next
    try:
        b"/".join(decoded).decode()
    except UnicodeDecodeError:
        raise _refused("UTF-8") from None
    return RequestTarget(path, query)


def parse_rule(text: str) -> PathRule:
    """Read ``/healthz``, ``/static/**`` or ``/api/*/status``; raises ``ValueError``.

    ``*`` is any segment, ``**`` at the end any rest. The raw spelling counts: another spelling does not match.
    """
    *segments, last = text[1:].split("/")
    if (
        not text.startswith("/")
        or not all(segment == "*" or _is_literal(segment) for segment in segments)
        or not (last in {"", "*", "**"} or _is_literal(last))
    ):
        raise ValueError(f"expected a path of plain segments, * for one and ** at the end for any rest, got {text!a}")
    patterns = {"*": "[^/]+", "**": ".*"}
    return re.compile("".join("/" + patterns.get(segment, re.escape(segment)) for segment in (*segments, last)))


def _is_literal(segment: str) -> bool:
    return _SEGMENT.fullmatch(segment) is not None and segment not in {".", ".."}


def _refused(expected: str) -> RefusalError:
    return RefusalError(Refusal.PATH_NOT_ALLOWED, f"expected {expected}, got another target")


# Header fields

RawHeaders = Sequence[tuple[bytes, bytes]]
"""Raw names and values."""

_ALPHANUMERIC: Final = string.ascii_lowercase + string.digits
_FOLD: Final = bytes(
    ord(lower) if (lower := chr(code).lower()) in _ALPHANUMERIC else ord("-") for code in range(256)
)  # fmt: skip
"""Maps each byte of a name: lower case, and ``-`` for everything but letters and digits."""

CREDENTIALS: Final = frozenset({b"authorization", b"cookie"})
"""Removed from unauthenticated requests."""
_HOP_BY_HOP: Final = frozenset({
    b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    b"http2-settings",
})  # fmt: skip
"""RFC 9110 §7.6.1; each connection has its own."""
_OURS: Final = frozenset({b"host", b"content-length", b"expect"})
"""Written by the proxy itself."""
_ORIGIN_AND_METHOD: Final = frozenset({
    b"x-real-ip", b"x-originating-ip", b"cf-connecting-ip", b"x-source-ip", b"x-azure-socketip",
    b"x-http-host-override", b"x-scheme", b"x-url-scheme", b"front-end-https", b"x-access-token", b"x-id-token",
    b"x-request-id", b"x-http-method-override", b"x-http-method", b"x-method-override", b"sudo",
})  # fmt: skip
"""Origins, tokens and methods that an upstream may accept from a proxy; Sudo is GitLab's."""
_PREFIXES: Final = (
    b"cf-access-", b"http-", b"iv-", b"proxy-", b"shib-", b"sm-", b"ssl-client-", b"teleport-", b"x-amzn-mtls-",
    b"x-envoy-", b"x-goog-iap-", b"x-ms-token-", b"x-original-", b"x-pomerium-", b"x-rewrite-", b"x-ssl-client-",
    b"x-vouch-",
)  # fmt: skip
"""Of Cloudflare, WebSEAL, Shibboleth, SiteMinder, Teleport, Envoy, Pomerium, Vouch and clouds; ``http-`` is CGI's name,
given as a field's."""
_IDENTITY: Final = re.compile(
    rb"(?!user-agent$)(?:"
    rb".*(?:user|auth|remote|forward|imperson|identit|principal|subject|credential|consumer|claim|assertion|permission"
    rb"|e-?mail|log-?in|logon|jwt|oidc|saml|eppn|client-?(?:cert|ip|dn)|on-?behalf|spiffe|tenant|scope-?org)"
    rb"|(?:.*-)?(?:sso|actor|upn|sender|ssl-cn)(?:-.*)?$"
    rb"|(?:[a-z0-9]{1,3}-)*(?:uid|gid|sub|dn|mail|groups?|roles?)$"
    rb")"
)
"""Names with a word for who asks, or for which tenant (Grafana's X-Scope-OrgID, X-Tenant-Id): anywhere (X-Webauth-User,
X-Kubeflow-Userid), as a whole word, or alone behind a short prefix (X-Uid, but X-Dashboard-Uid passes). ``User-Agent``
is none."""
_BARE: Final = frozenset(prefix.rstrip(b"-") for prefix in _PREFIXES)
_DROPPED: Final = _HOP_BY_HOP | _OURS | _ORIGIN_AND_METHOD | _BARE
_BACK: Final = (b"x-authenticated-", b"x-authorized-", b"x-remote-", b"impersonate-")
"""What an upstream does not say of identities: a proxy behind us might believe it."""
_BACK_BARE: Final = frozenset(prefix.rstrip(b"-") for prefix in _BACK)
_HOST: Final = re.compile(rb"[A-Za-z0-9._~\-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")
"""A host that cannot bend a URL it is put into (CVE-2026-48710)."""
_SAFE: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")
_PROTOCOLS: Final = b"sec-websocket-protocol"
_BEARER_PROTOCOL: Final = b"base64url.bearer.authorization.k8s.io."


def canonical(name: bytes) -> bytes:
    """Return the name as the most lenient upstream folds it: ``X__Remote.User`` is ``x-remote-user``."""
    return b"-".join(filter(None, name.translate(_FOLD).split(b"-")))


def is_safe_value(text: str) -> bool:
    """Whether a text survives as a field's value: printable ASCII, no space at its ends."""
    return _SAFE.fullmatch(text) is not None


def request_headers(
    raw: RawHeaders,
    *,
    peer: str,
    scheme: str,
    inject: Sequence[tuple[str, str]],
    without: frozenset[bytes] = frozenset(),
) -> CIMultiDict[str]:
    """Make the header for the upstream; raises ``RefusalError``. ``peer`` is the address of the client's connection.

    1. Drop by canonical name: hop-by-hop, what ``Connection`` lists, identities, credentials, ``without``, and every
       alias of what is injected. 2. Take bearer tokens out of the WebSocket protocols. 3. Write Host and X-Forwarded-*.
    4. Inject.
    """
    dropped = _DROPPED | without | _listed(raw) | {canonical(name.encode()) for name, _ in inject}
    headers: CIMultiDict[str] = CIMultiDict()
    for name, value in raw:
        known = canonical(name)
        if known in dropped or known.startswith(_PREFIXES) or _IDENTITY.match(known) is not None:  # 1
            continue
        passed = value if known != _PROTOCOLS else b", ".join(_protocols(value))  # 2
        if passed or not value:
            headers.add(name.decode(), _text(passed))
    # 3
    host = _host(raw)
    headers.update({"Host": host, "X-Forwarded-For": peer, "X-Forwarded-Proto": scheme, "X-Forwarded-Host": host})
    # 4
    for name, value in inject:
        if not is_safe_value(value):
            raise RefusalError(Refusal.INTERNAL_ERROR, f"expected a value of {name} that fits into a header")
        headers.add(name, value)
    return headers


def response_headers(raw: RawHeaders) -> CIMultiDict[str]:
    """Make the header for the client; repeated fields, like Set-Cookie, stay separate.

    Bytes that are no UTF-8 become ``?``: nothing that reads a header byte by byte may read ours otherwise.
    """
    dropped = _HOP_BY_HOP | _BACK_BARE | _listed(raw)
    headers: CIMultiDict[str] = CIMultiDict()
    for name, value in raw:
        known = canonical(name)
        if known not in dropped and not known.startswith(_BACK):
            headers.add(name.decode(errors="replace"), value.decode(errors="replace").replace("\ufffd", "?"))
    return headers


def _host(raw: RawHeaders) -> str:
    host = b", ".join(value for name, value in raw if name.lower() == b"host")
    if _HOST.fullmatch(host) is None:
        raise RefusalError(Refusal.HEADER_NOT_ALLOWED, "expected a Host of name and port, got another")
    return host.decode()


def _listed(raw: RawHeaders) -> set[bytes]:  # RFC 9110 §7.6.1
    values = [value for name, value in raw if canonical(name) == b"connection"]
    return {canonical(option.strip()) for value in values for option in value.split(b",")}


def _protocols(value: bytes) -> list[bytes]:
    """Return the WebSocket protocols without bearer tokens, which kube-apiserver accepts there."""
    offered = (protocol.strip() for protocol in value.split(b","))
    return [protocol for protocol in offered if protocol and not protocol.lower().startswith(_BEARER_PROTOCOL)]


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise RefusalError(Refusal.HEADER_NOT_ALLOWED, "expected a header in UTF-8, got other bytes") from None
