"""Listen addresses and connection limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["BindAddress", "ConnectionLimits", "SettingsError", "parse_address"]

_MAX_PORT: Final = 65_535


class SettingsError(ValueError):
    """A setting cannot be used; the message names the expected and the given value."""


@dataclass(frozen=True, slots=True)
class BindAddress:
    """A listen address."""

    host: str
    """Empty: every interface."""
    port: int
    """0: any free one."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in {"127.0.0.1", "::1"}

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of a listener, per client and in total."""

    connections: int = 256
    """In total; each costs some 300 KiB, most of it TLS buffers, before any authentication."""
    connections_of_client: int = 64
    replaces_oldest: bool = False
    """A connection over a limit replaces the oldest one, of its own client, too; else it may be refused."""
    connection_seconds: float = 15.0
    """For the whole life of a connection after its handshake, which has five: one request takes milliseconds.

    Where connections are kept, the answer after this is the last one.
    """
    idle_seconds: float | None = None
    """Connections are kept for further requests, and each must be here so long after the answer before it.

    None: a connection ends after one answer.
    """


def parse_address(text: str, flag: str) -> BindAddress:
    """Read ``host:port``, ``[IPv6]:port`` or ``:port``; raises ``SettingsError``, which names the flag."""
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not port.isascii() or not port.isdigit() or int(port) > _MAX_PORT or (":" in bare and bare == host):
        raise SettingsError(f"{flag}: expected host:port, got {text!a}")
    return BindAddress(bare, int(port))
