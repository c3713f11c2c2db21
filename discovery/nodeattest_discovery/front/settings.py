"""How a front is set up: one frozen value, made by whoever starts it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["Address", "FrontSettings", "Limits", "SettingsError", "WebhookSettings", "parse_address"]

_MAX_PORT: Final = 65_535
_SHORTEST_STALE: Final = 120.0
"""Seconds; a quiet API server is heard of once a minute (watch bookmarks)."""


class SettingsError(ValueError):
    """What was set cannot be used; says what was expected and what was given."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    """Empty: every interface."""
    port: int
    """0: any free one."""

    @property
    def is_loopback(self) -> bool:
        """Whether nobody but this machine can connect."""
        return self.host in {"127.0.0.1", "::1"}

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client, one token and all together may use."""

    client_burst: int = 100
    client_rate: float = 10.0
    """Requests a second of one client address (of an IPv6 /64); many nodes may stand behind one."""
    token_burst: int = 500
    token_rate: float = 50.0
    """Answers a second for one token: a pool of machines shares one."""
    connections: int = 256
    """Of one listener; each costs some 300 KiB, most of it TLS's buffer, before anybody proved anything."""
    connections_of_client: int = 64
    connection_seconds: float = 15.0
    """For the whole life of a connection after its handshake, which has five: one request takes milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """The TokenReview webhook."""

    address: Address
    client_ca: Path | None = None
    """Whose certificates a kube-apiserver may show; without it the address must be a loopback one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontSettings:
    """All of it."""

    address: Address
    certificate: Path
    """The serving certificate and its chain; read again when the file changes."""
    key: Path
    audience: str | None = None
    """The cluster's identifier, where it has one: a JWT that names another is refused."""
    max_stale: float = 300.0
    """Seconds that what was read last is answered with while the API server is away."""
    health: Address | None = None
    webhook: WebhookSettings | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.max_stale < _SHORTEST_STALE:
            raise SettingsError(f"max-stale: expected at least {_SHORTEST_STALE:.0f} s, got {self.max_stale:g}")
        if self.webhook is not None and self.webhook.client_ca is None and not self.webhook.address.is_loopback:
            raise SettingsError(
                f"the webhook: expected a client CA, or an address that only this machine reaches, got "
                f"{self.webhook.address} without one: say --webhook-client-ca-file"
            )


def parse_address(text: str, flag: str) -> Address:
    """Read ``host:port``, ``[IPv6]:port`` or ``:port``; raises ``SettingsError``, which names the flag."""
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not port.isascii() or not port.isdigit() or int(port) > _MAX_PORT or (":" in bare and bare == host):
        raise SettingsError(f"{flag}: expected host:port, got {text!a}")
    return Address(bare, int(port))
