"""Settings of a sidecar: one frozen value that the command builds."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

from nodeattest_identity.proxy.limits import ProxyLimits
from nodeattest_identity.proxy.paths import PathRule
from nodeattest_kube.addresses import IPNetwork
from nodeattest_serving.settings import BindAddress, SettingsError

__all__ = ["SidecarSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSettings:
    """Addresses, allowed users and limits."""

    address: BindAddress
    upstream: BindAddress
    """The add-on, on a loopback address."""
    certificate: Path | None = None
    key: Path | None = None
    """Both, or plain HTTP."""
    health: BindAddress | None = None
    open_paths: tuple[PathRule, ...] = ()
    """Paths without authentication; forwarded without credentials and without an identity."""
    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    """Who is allowed; both empty: every authenticated user."""
    send_groups: bool = False
    """Whether the add-on gets the groups, one ``X-Authenticated-Groups`` header each."""
    deny_status: HTTPStatus = HTTPStatus.UNAUTHORIZED
    """Status of a request without valid credentials: 401, or 403 as in the first design."""
    max_user_requests: int = 64
    """In flight, WebSockets included."""
    trusted: tuple[IPNetwork, ...] = ()
    """Proxies whose X-Forwarded-For, -Proto and -Host are forwarded."""
    limits: ProxyLimits = field(default_factory=ProxyLimits)

    def __post_init__(self) -> None:
        """Refuse settings that open the add-on or forward elsewhere."""
        if not self.upstream.is_loopback:
            raise SettingsError(f"--upstream: expected 127.0.0.1:port or [::1]:port, got {self.upstream}")
        if (self.certificate is None) != (self.key is None):
            raise SettingsError("--tls-cert-file: expected --tls-private-key-file beside it, got one of the two")
        if self.deny_status not in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            raise SettingsError(f"--deny-status: expected 401 or 403, got {self.deny_status.value}")
