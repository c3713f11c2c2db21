"""The user of a request, as kube-apiserver states it under the certificate of its front proxy.

``X-Remote-*`` headers are read only under a certificate of the front proxy's CA with an allowed name, and only those
that this kube-apiserver writes: it removes no others from its users' requests. A client certificate is requested and
not required, because key sets are public. While the API server is unreachable the last ConfigMap counts.
Source: apiserver pkg/authentication/request/headerrequest and x509 (CAs of a bundle are roots, intermediate or not);
client-go transport/round_trippers.go (SetAuthProxyHeaders); OpenSSL SSL_set_SSL_CTX.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final, cast
from urllib.parse import unquote

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from nodeattest_identity.proxy.refusals import RefusalError
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing import strict_json
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject, ParseError
from nodeattest_serving.tls import ServingCertificate, common_name

NAMESPACE: Final = "kube-system"
CONFIG_MAP: Final = "extension-apiserver-authentication"

_USER: Final = "x-remote-user"
_UID: Final = "x-remote-uid"
_GROUP: Final = "x-remote-group"
_EXTRA: Final = "x-remote-extra-"
_MOST_CAS: Final = 64
_MOST_TEXT: Final = 4096
"""Characters of one name, group or value: header fields have 8190."""
_UNWRITABLE: Final = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\udfff]")
"""C0, DEL and C1 control characters; surrogates."""
_WHERE: Final = f"ConfigMap {NAMESPACE}/{CONFIG_MAP}"
_MAX_BYTES: Final = 4 << 20

log = logging.getLogger(__name__)


class TrustError(ValueError):
    """The ConfigMap names no front proxy that can be trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontProxyTrust:
    """Which certificates are a front proxy's, and what this kube-apiserver writes."""

    authorities: tuple[bytes, ...]
    """The CAs of front proxies, DER."""
    allowed_names: frozenset[str]
    """Common names; at least one."""
    has_uid: bool
    """Whether it writes ``X-Remote-Uid``."""

    @property
    def pem(self) -> str:
        return "".join(map(ssl.DER_cert_to_PEM_cert, self.authorities))


@dataclass(frozen=True, slots=True, kw_only=True)
class UserInfo:
    """A user that kube-apiserver authenticated (apiserver user.Info)."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = field(default=(), repr=False)
    """By key; may be confidential."""


def read_trust(config_map: JsonObject | None) -> FrontProxyTrust:
    """Read the ConfigMap; raises ``TrustError``."""
    if config_map is None:
        raise TrustError(f"expected {_WHERE}, got none: kube-apiserver writes it when it has a front proxy's CA")
    authorities = _certificates(text(config_map, "data", "requestheader-client-ca-file"))
    allowed = frozenset(_names(config_map, "requestheader-allowed-names"))
    if not allowed:
        raise TrustError(
            f"{_WHERE}: expected requestheader-allowed-names, got none: any holder of a certificate of the CA of front "
            "proxies could claim to be anybody; start kube-apiserver with --requestheader-allowed-names"
        )
    for wanted, key in ((_USER, "username-headers"), (_GROUP, "group-headers"), (_EXTRA, "extra-headers-prefix")):
        if wanted not in {name.lower() for name in _names(config_map, f"requestheader-{key}")}:
            raise TrustError(
                f"{_WHERE}: expected {wanted} in requestheader-{key}, got others; kube-apiserver writes no other name"
            )
    return FrontProxyTrust(
        authorities=tuple(each.public_bytes(Encoding.DER) for each in authorities),
        allowed_names=allowed,
        has_uid=_UID in {name.lower() for name in _names(config_map, "requestheader-uid-headers")},
    )


def identify(trust: FrontProxyTrust, common_name: str | None, headers: Iterable[tuple[str, str]]) -> UserInfo:
    """Return the user of a request; raises ``RefusalError`` with 401.

    1. There is a certificate. 2. Its name is allowed. 3. One user, not empty. 4. UID, groups and extra are text that
    can be written into a token; no group and no key is empty.
    """
    # 1
    if common_name is None:
        raise _unauthorized("expected kube-apiserver's front-proxy certificate, got none: ask through kube-apiserver")
    # 2
    if common_name not in trust.allowed_names:
        raise _unauthorized("expected a front-proxy certificate with an allowed name, got another")
    found: dict[str, list[str]] = {}
    for name, value in headers:
        found.setdefault(name.lower(), []).append(value)
    users, groups = found.get(_USER, []), found.get(_GROUP, [])
    uids = found.get(_UID, []) if trust.has_uid else []
    extra: dict[str, list[str]] = {}
    for name, values in found.items():
        if name.startswith(_EXTRA):
            extra.setdefault(unquote(name.removeprefix(_EXTRA), errors="surrogateescape"), []).extend(values)
    # 3
    if len(users) != 1 or not users[0] or len(uids) > 1:
        raise _unauthorized("expected one user of kube-apiserver, got none or several")
    # 4
    texts = [*users, *uids, *groups, *extra, *(value for values in extra.values() for value in values)]
    if any(len(each) > _MOST_TEXT or _UNWRITABLE.search(each) for each in texts):
        raise _unauthorized("expected names in UTF-8 without control characters, got others")
    if "" in extra or "" in groups:
        raise _unauthorized("expected groups and extra with names, got one without")
    return UserInfo(
        user=users[0],
        uid="".join(uids),
        groups=tuple(groups),
        extra=tuple(sorted((key, tuple(values)) for key, values in extra.items())),
    )


def _certificates(pem: str) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(pem.encode()) if pem.strip() else []
    except (ValueError, x509.InvalidVersion):
        raise TrustError(f"{_WHERE}: expected certificates in PEM, got something else") from None
    if not 0 < len(found) <= _MOST_CAS:
        raise TrustError(
            f"{_WHERE}: expected 1 to {_MOST_CAS} certificates in requestheader-client-ca-file, got {len(found)}; "
            "start kube-apiserver with --requestheader-client-ca-file"
        )
    return found


def _names(config_map: JsonObject, key: str) -> list[str]:
    try:
        found = strict_json.parse(text(config_map, "data", key) or "[]", max_size=None)
    except ParseError:
        found = None
    names = [name for name in found if isinstance(name, str) and name] if isinstance(found, list) else []
    if not isinstance(found, list) or len(names) != len(found):
        raise TrustError(f"{_WHERE}: expected a JSON list of texts in {key}, got something else")
    return names


def _unauthorized(message: str) -> RefusalError:
    return RefusalError(HTTPStatus.UNAUTHORIZED, message)


class FrontProxyWatcher:
    """The front proxy that is trusted now."""

    def __init__(self, client: ApiClient, tls: GatewayTls, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tls = tls
        self._last_message = ""
        self._reflector = Reflector(
            client,
            paths.core_path("configmaps", namespace=NAMESPACE),
            on_change=self._changed,
            query={"fieldSelector": f"metadata.name={CONFIG_MAP}"},
            max_bytes=_MAX_BYTES,
            clock=clock,
        )

    async def run(self) -> None:
        await self._reflector.run()

    def unready_reason(self) -> str | None:
        """Why no caller can be authenticated; None if callers can."""
        if self._tls.trust is not None:
            return None
        error = self._reflector.last_error
        if error is not None:
            return f"cannot read ConfigMap {NAMESPACE}/{CONFIG_MAP}: {error}"
        return self._last_message or f"ConfigMap {NAMESPACE}/{CONFIG_MAP} was not read yet"

    def _changed(self, _key: str, item: JsonObject | None) -> None:
        trust, message = None, ""
        try:
            trust = read_trust(item)
            log.info("trusting front proxies of %d CAs", len(trust.authorities))
        except TrustError as error:
            message = str(error)
        if message and message != self._last_message:
            log.error("no front proxy is trusted: %s", message)
        self._last_message = message
        self._tls.set_trust(trust)


class _Context(ssl.SSLContext):
    """A context that knows by which CAs it verifies clients."""

    authorities: frozenset[bytes]


class GatewayTls(ServingCertificate):
    """The serving certificate together with the front proxy's CAs."""

    def __init__(self, certificate: Path, key: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the files; raises ``SettingsError``."""
        self.trust: FrontProxyTrust | None = None
        super().__init__(certificate, key, clock=clock)

    def set_trust(self, trust: FrontProxyTrust | None) -> None:
        """Verify clients by these CAs from now on; None: by none."""
        before, self.trust = self.trust, trust
        if (before.authorities if before else ()) != (trust.authorities if trust else ()):
            self._rebuild()

    def common_name(self, transport: asyncio.BaseTransport | None) -> str | None:
        """Return the common name of the client's certificate; None without one, or if its CA is no longer trusted."""
        connection = None if transport is None else cast("ssl.SSLObject | None", transport.get_extra_info("ssl_object"))
        if connection is None or not isinstance(connection.context, _Context):
            return None
        trusted = self.trust.authorities if self.trust is not None else ()
        return common_name(transport) if connection.context.authorities <= set(trusted) else None

    def is_unauthenticated(self, transport: asyncio.BaseTransport) -> bool:
        """Whether a connection is not of a front proxy that is trusted."""
        return self.trust is None or self.common_name(transport) not in self.trust.allowed_names

    def _make(self) -> _Context:
        context = self._with_certificate(_Context(ssl.PROTOCOL_TLS_SERVER))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.authorities = frozenset(self.trust.authorities if self.trust else ())
        if self.trust is not None:
            context.load_verify_locations(cadata=self.trust.pem)
        return context
