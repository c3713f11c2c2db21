"""Filters header fields in both directions. Pure.

Promises: an upstream that folds ``-``, ``_``, ``.``, repetitions of them and case (CGI, WSGI, some routers) sees of
every identity header only what we inject, one value each; no credential for Kubernetes and no hop-by-hop field passes;
no field passes whose name says that it names a user, a group, a tenant or a sender. Fields are dropped before ours are
added: no ``Connection`` names ours away.
Source: RFC 9110 §7.6.1, RFC 7230 §6.1; RFC 3875 §4.1.18 and PEP 3333 (folding); CVE-2025-64484 and its relatives in
Traefik and oauth2-proxy (an alias passed), kube-rbac-proxy #319 (``Connection`` named the identity header); apiserver
pkg/server/httplog and authentication/request/websocket (a bearer token in ``Sec-WebSocket-Protocol``).

Checks request targets on the raw bytes of the request line. Pure.

Promises: a ``RequestTarget`` means the same to us, to the upstream and to whatever stands between: origin form,
printable ASCII, no fragment, no backslash, no empty, ``.`` or ``..`` segment in any spelling, no encoded slash,
backslash or control character. Nothing is decoded or rewritten: what was checked is what is sent. Rules match segment
by segment, and never see the query.
Source: RFC 9112 §3.2, RFC 3986 §3.3 and §6.2; CVE-2026-40575 and CVE-2026-41059 (oauth2-proxy), CVE-2025-54576,
CVE-2026-48710 (Starlette): each decided on another path than the upstream served.
"""

from __future__ import annotations

import ipaddress
import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from multidict import CIMultiDict

from nodeattest_identity.proxy.refusals import Refusal, RefusalError
from nodeattest_kube.addresses import IPNetwork

RawHeaders = Sequence[tuple[bytes, bytes]]
"""Raw names and values."""

_ALPHANUMERIC: Final = string.ascii_lowercase + string.digits
_FOLD: Final = bytes(
    ord(lower) if (lower := chr(code).lower()) in _ALPHANUMERIC else ord("-") for code in range(256)
)  # fmt: skip
"""Maps each byte of a name: lower case, and ``-`` for everything but letters and digits."""

COOKIE: Final = b"cookie"
CREDENTIALS: Final = frozenset({b"authorization", COOKIE})
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """The sender of a request, by its connection."""

    peer: str
    """The address of the connection."""
    scheme: str
    trusted: Sequence[IPNetwork] = ()
    """Proxies whose own X-Forwarded-For, -Proto and -Host are forwarded."""

    @property
    def is_trusted(self) -> bool:
        """Whether the peer is one of these proxies."""
        if not self.trusted:
            return False
        try:
            address = ipaddress.ip_address(self.peer.partition("%")[0])
        except ValueError:
            return False
        return any(address in network for network in self.trusted)


def canonical(name: bytes) -> bytes:
    """Return the name as the most lenient upstream folds it: ``X__Remote.User`` is ``x-remote-user``."""
    return b"-".join(filter(None, name.translate(_FOLD).split(b"-")))


def is_safe_value(text: str) -> bool:
    """Whether a text survives as a field's value: printable ASCII, no space at its ends."""
    return _SAFE.fullmatch(text) is not None


def request_headers(
    raw: RawHeaders,
    *,
    sender: Sender,
    inject: Sequence[tuple[str, str]],
    without: frozenset[bytes] = frozenset(),
) -> CIMultiDict[str]:
    """Make the header for the upstream; raises ``RefusalError``.

    1. Drop by canonical name: hop-by-hop, what ``Connection`` lists, identities, credentials, ``without``, and every
       alias of what is injected. 2. Take bearer tokens out of the WebSocket protocols. 3. Write Host and X-Forwarded-*.
    4. Inject.
    """
    names = [canonical(name) for name, _ in raw]
    dropped = _DROPPED | without | _listed(raw, names) | {canonical(name.encode()) for name, _ in inject}
    made: CIMultiDict[str] = CIMultiDict()
    for (name, value), known in zip(raw, names, strict=True):
        if known in dropped or known.startswith(_PREFIXES) or _IDENTITY.match(known) is not None:  # 1
            continue
        if known == _PROTOCOLS:  # 2
            kept = b", ".join(_protocols(value))
            if kept:
                made.add("Sec-WebSocket-Protocol", _text(kept))
        else:
            made.add(name.decode(), _text(value))
    made.update(_origin(raw, sender))  # 3
    # 4
    for name, value in inject:
        if not is_safe_value(value):
            raise RefusalError(
                Refusal.INTERNAL_ERROR, f"expected a value of {name} that a header can carry, got another"
            )
        made.add(name, value)
    return made


def response_headers(raw: RawHeaders) -> CIMultiDict[str]:
    """Make the header for the client; repeated fields, like Set-Cookie, stay separate.

    Bytes that are no UTF-8 become ``?``: nothing that reads a header byte by byte may read ours otherwise.
    """
    names = [canonical(name) for name, _ in raw]
    listed = _listed(raw, names)
    made: CIMultiDict[str] = CIMultiDict()
    for (name, value), known in zip(raw, names, strict=True):
        if known in _HOP_BY_HOP or known in listed or known in _BACK_BARE or known.startswith(_BACK):
            continue
        made.add(name.decode(errors="replace"), value.decode(errors="replace").replace("\ufffd", "?"))
    return made


def _origin(raw: RawHeaders, sender: Sender) -> dict[str, str]:
    """Return Host and X-Forwarded-*."""
    given: dict[bytes, bytes] = {}
    for name, value in raw:
        known = name.lower()
        if known == b"host" or sender.is_trusted:
            given[known] = _joined(given.get(known), value)
    host = given.get(b"host", b"")
    if _HOST.fullmatch(host) is None:
        raise RefusalError(Refusal.HEADER_NOT_ALLOWED, "expected a Host of name and port, got another")
    before = given.get(b"x-forwarded-for")
    return {
        "Host": host.decode(),
        "X-Forwarded-For": sender.peer if before is None else f"{_text(before)}, {sender.peer}",
        "X-Forwarded-Proto": _text(given.get(b"x-forwarded-proto", sender.scheme.encode())),
        "X-Forwarded-Host": _text(given.get(b"x-forwarded-host", host)),
    }


def _listed(raw: RawHeaders, names: Iterable[bytes]) -> frozenset[bytes]:
    """Return the names that ``Connection`` lists (RFC 9110 §7.6.1)."""
    values = [value for (_, value), known in zip(raw, names, strict=True) if known == b"connection"]
    if not values:
        return frozenset()
    listed = {canonical(option.strip()) for value in values for option in value.split(b",")}
    return frozenset(listed)


def _joined(before: bytes | None, value: bytes) -> bytes:
    return value if before is None else before + b", " + value


def _protocols(value: bytes) -> list[bytes]:
    """Return the WebSocket protocols without bearer tokens, which kube-apiserver accepts there."""
    offered = (protocol.strip() for protocol in value.split(b","))
    return [protocol for protocol in offered if protocol and not protocol.lower().startswith(_BEARER_PROTOCOL)]


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise RefusalError(Refusal.HEADER_NOT_ALLOWED, "expected a header in UTF-8, got other bytes") from None


_MAX_TARGET: Final = 8190
"""Bytes; aiohttp's own limit of a request line."""
_ORIGIN: Final = re.compile(r"(/[!$%&'()*+,\-./0-9:;=@A-Z_a-z~|^{}\[\]\"<>`]*)(?:\?([!-\"$-~]*))?")
"""Path and query. Browsers leave some of what RFC 3986 forbids as it is, and it means nothing to a path."""
_PLAIN: Final = re.compile(r"(?:/[A-Za-z0-9_~\-][A-Za-z0-9_~.\-]*)*/?")
"""Plain paths, which need no further check."""
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
        """The raw target."""
        return self.path if self.query is None else f"{self.path}?{self.query}"

    @property
    def segments(self) -> list[str]:
        """Between the slashes, undecoded; a path that ends with a slash ends with an empty one."""
        return self.path[1:].split("/")


@dataclass(frozen=True, slots=True)
class PathRule:
    """Segments that a path must have; ``*`` is any one, ``**`` at the end any rest."""

    segments: tuple[str, ...]

    def matches(self, segments: Sequence[str]) -> bool:
        """Compare the raw spelling; another spelling of the same path does not match."""
        own = self.segments
        if own[-1] == "**":
            own = own[:-1]
            if len(segments) <= len(own):
                return False
            segments = segments[: len(own)]
        return len(own) == len(segments) and all(
            mine == other or (mine == "*" and other != "") for mine, other in zip(own, segments, strict=True)
        )


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
    if _PLAIN.fullmatch(path) is not None:
        return RequestTarget(path, query)
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
    """Read ``/healthz``, ``/static/**`` or ``/api/*/status``; raises ``ValueError``."""
    segments = tuple(text[1:].split("/"))
    last = len(segments) - 1
    for index, segment in enumerate(segments):
        literal = _SEGMENT.fullmatch(segment) is not None and segment not in {".", ".."}
        wild = segment == "*" or (segment == "**" and index == last)
        if not literal and not wild and not (segment == "" and index == last):
            break
    else:
        if text.startswith("/"):
            return PathRule(segments)
    raise ValueError(f"expected a path of plain segments, * for one and ** at the end for any rest, got {text!a}")


def _refused(expected: str) -> RefusalError:
    return RefusalError(Refusal.PATH_NOT_ALLOWED, f"expected {expected}, got another target")
