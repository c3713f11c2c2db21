"""What a sidecar is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

from nodeattest_identity.proxy.headers import Network
from nodeattest_identity.proxy.limits import ProxyLimits
from nodeattest_identity.proxy.paths import PathRule
from nodeattest_serving.settings import Address, SettingsError

__all__ = ["SidecarSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSettings:
    """Where to listen, where to forward, whom to let through."""

    address: Address
    upstream: Address
    """The add-on; only this machine's own."""
    certificate: Path | None = None
    key: Path | None = None
    """Both, or plain HTTP."""
    health: Address | None = None
    open_paths: tuple[PathRule, ...] = ()
    """What anybody may ask for; forwarded without credentials and without an identity."""
    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    """Who is let through; nobody named: whoever is authenticated."""
    tell_groups: bool = False
    """Whether the add-on is told groups, one ``X-Authenticated-Groups`` each."""
    deny_status: HTTPStatus = HTTPStatus.UNAUTHORIZED
    """Of a request without credentials that hold: 401, or 403 as the first design had it."""
    requests_of_user: int = 64
    """At once, WebSockets among them."""
    trusted: tuple[Network, ...] = ()
    """Proxies whose X-Forwarded-For, -Proto and -Host are passed on."""
    limits: ProxyLimits = field(default_factory=ProxyLimits)

    def __post_init__(self) -> None:
        """Refuse what would open the add-on, or forward elsewhere."""
        if not self.upstream.is_loopback:
            raise SettingsError(f"--upstream: expected 127.0.0.1:port or [::1]:port, got {self.upstream}")
        if (self.certificate is None) != (self.key is None):
            raise SettingsError("--tls-cert-file: expected --tls-private-key-file beside it, got one of the two")
        if self.deny_status not in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            raise SettingsError(f"--deny-status: expected 401 or 403, got {self.deny_status.value}")
