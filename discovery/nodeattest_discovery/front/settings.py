"""Settings of a discovery front: one frozen value that the command builds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeattest_serving.settings import BindAddress, ConnectionLimits, SettingsError

__all__ = ["FrontLimits", "FrontSettings", "WebhookSettings"]

_MIN_STALE: Final = 120.0
"""Seconds; a quiet API server is heard of once a minute (watch bookmarks)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontLimits(ConnectionLimits):
    """Limits of a client, of a token and of all together."""

    client_burst: int = 100
    client_rate: float = 10.0
    """Requests a second of one client address (of an IPv6 /64); many nodes may stand behind one."""
    token_burst: int = 500
    token_rate: float = 50.0
    """Answers a second for one token: a pool of machines shares one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """The TokenReview webhook."""

    address: BindAddress
    client_ca: Path | None = None
    """Whose certificates a kube-apiserver may show; without it the address must be a loopback one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontSettings:
    """All settings."""

    address: BindAddress
    certificate: Path
    """The serving certificate and its chain; read again when the file changes."""
    key: Path
    audience: str | None = None
    """The cluster's identifier, where it has one: a JWT that names another is refused."""
    max_stale: float = 300.0
    """Seconds that what was read last is answered with while the API server is away."""
    health: BindAddress | None = None
    webhook: WebhookSettings | None = None
    limits: FrontLimits = field(default_factory=FrontLimits)

    def __post_init__(self) -> None:
        if self.max_stale < _MIN_STALE:
            raise SettingsError(f"max-stale: expected at least {_MIN_STALE:.0f} s, got {self.max_stale:g}")
        if self.webhook is not None and self.webhook.client_ca is None and not self.webhook.address.is_loopback:
            raise SettingsError(
                f"the webhook: expected a client CA, or an address that only this machine reaches, got "
                f"{self.webhook.address} without one: say --webhook-client-ca-file"
            )
