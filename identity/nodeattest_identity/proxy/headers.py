"""Filters header fields in both directions. Pure.

Promises: an upstream that folds ``-``, ``_``, ``.``, repetitions of them and case (CGI, WSGI, some routers) sees of
every identity header only what we inject, one value each; no credential for Kubernetes and no hop-by-hop field passes;
no field passes whose name says that it names a user, a group, a tenant or a sender. Fields are dropped before ours are
added: no ``Connection`` names ours away.
Source: RFC 9110 §7.6.1, RFC 7230 §6.1; RFC 3875 §4.1.18 and PEP 3333 (folding); CVE-2025-64484 and its relatives in
Traefik and oauth2-proxy (an alias passed), kube-rbac-proxy #319 (``Connection`` named the identity header); apiserver
pkg/server/httplog and authentication/request/websocket (a bearer token in ``Sec-WebSocket-Protocol``).
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from multidict import CIMultiDict

from nodeattest_identity.proxy.refusals import Refusal, RefusalError

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """The sender of a request, by its connection."""

    peer: str
    """The address of the connection."""
    scheme: str


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
    dropped = _DROPPED | without | _listed(raw) | {canonical(name.encode()) for name, _ in inject}
    made: CIMultiDict[str] = CIMultiDict()
    for name, value in raw:
        known = canonical(name)
        if known in dropped or known.startswith(_PREFIXES) or _IDENTITY.match(known) is not None:  # 1
            continue
        passed = value if known != _PROTOCOLS else b", ".join(_protocols(value))  # 2
        if passed or not value:
            made.add(name.decode(), _text(passed))
    made.update(_origin(raw, sender))  # 3
    # 4
    for name, value in inject:
        if not is_safe_value(value):
            raise RefusalError(Refusal.INTERNAL_ERROR, f"expected a value of {name} that fits into a header")
        made.add(name, value)
    return made


def response_headers(raw: RawHeaders) -> CIMultiDict[str]:
    """Make the header for the client; repeated fields, like Set-Cookie, stay separate.

    Bytes that are no UTF-8 become ``?``: nothing that reads a header byte by byte may read ours otherwise.
    """
    dropped = _HOP_BY_HOP | _BACK_BARE | _listed(raw)
    made: CIMultiDict[str] = CIMultiDict()
    for name, value in raw:
        known = canonical(name)
        if known not in dropped and not known.startswith(_BACK):
            made.add(name.decode(errors="replace"), value.decode(errors="replace").replace("\ufffd", "?"))
    return made


def _origin(raw: RawHeaders, sender: Sender) -> dict[str, str]:
    """Return Host and X-Forwarded-*."""
    host = b", ".join(value for name, value in raw if name.lower() == b"host")
    if _HOST.fullmatch(host) is None:
        raise RefusalError(Refusal.HEADER_NOT_ALLOWED, "expected a Host of name and port, got another")
    return {
        "Host": host.decode(),
        "X-Forwarded-For": sender.peer,
        "X-Forwarded-Proto": sender.scheme,
        "X-Forwarded-Host": host.decode(),
    }


def _listed(raw: RawHeaders) -> set[bytes]:
    """Return the names that ``Connection`` lists (RFC 9110 §7.6.1)."""
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
