"""Settings of a gateway: one frozen value that the command builds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeattest_identity.addon.gateway.keyset import Algorithm, RotationSchedule
from nodeattest_identity.issuer.documents import MAX_AGE, UrlError, issuer_url
from nodeattest_identity.proxy.limits import ProxyLimits
from nodeattest_serving.settings import BindAddress, SettingsError

__all__ = ["DEFAULT_CONNECTIONS", "DEFAULT_PROXY", "GatewaySettings", "UserLimits"]

DEFAULT_CONNECTIONS: Final = 400
"""From kube-apiserver, one for each request in flight; and as many to services."""
DEFAULT_PROXY: Final = ProxyLimits(connections=DEFAULT_CONNECTIONS, upstream_connections=DEFAULT_CONNECTIONS)

_MIN_PERIOD = 6 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """Limits of one user: pages load many things at once, and then few."""

    user_burst: int = 100
    user_rate: float = 20.0
    """Requests a second."""
    user_requests: int = 64
    """At once, websockets among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """All settings."""

    address: BindAddress
    certificate: Path
    """The serving certificate and its chain; read again when the file changes."""
    key: Path
    issuer: str
    """``iss`` of the tokens, and the URL of their keys: sidecars compare it byte for byte."""
    namespace: str
    """Namespace of the Secret with the signing keys."""
    backend_ca: Path | None = None
    """CAs of services with HTTPS; None: the system's roots."""
    health: BindAddress | None = None
    algorithm: Algorithm = "ES256"
    schedule: RotationSchedule = field(default_factory=RotationSchedule)
    limits: UserLimits = field(default_factory=UserLimits)
    proxy: ProxyLimits = DEFAULT_PROXY

    def __post_init__(self) -> None:
        try:
            issuer_url(self.issuer)
        except UrlError as error:
            raise SettingsError(f"--issuer: {error}") from None
        if self.schedule.period < _MIN_PERIOD:
            raise SettingsError(
                f"--key-period: expected at least {_MIN_PERIOD:.0f} s, got {self.schedule.period:g}: a new key is "
                f"published for more than {MAX_AGE} s before it signs"
            )
