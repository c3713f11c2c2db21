"""Where an API server is, taken apart from its https URL.

Source: RFC 3986 §3.2.2 (brackets around IPv6).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

_HTTPS_PORT: Final = 443


def port_of(url: SplitResult) -> int | None:
    """Return the port of a URL, None if it has none; raises ValueError for port 0, an empty port and other text.

    ``urlsplit`` takes an empty port (``https://host:``) for none, so a port that a template lost would become 443.
    """
    port = url.port
    if port == 0 or url.netloc.endswith(":"):
        raise ValueError("its port must be a number from 1 to 65535")
    return port


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An https URL taken apart."""

    host: str
    """Lower case, IPv6 without brackets."""
    port: int
    prefix: str = ""
    """The path before ``/api``, without a slash at its end; mostly empty."""

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        parts = urlsplit(url)
        if parts.scheme != "https":
            raise ValueError("it must begin with https://")
        if not parts.hostname or parts.username is not None or parts.password is not None:
            raise ValueError("it must name a host and no user")
        if parts.query or parts.fragment or any(character.isspace() for character in url):
            raise ValueError("it must have no query, fragment or space")
        return cls(parts.hostname, port_of(parts) or _HTTPS_PORT, parts.path.rstrip("/"))

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}:{self.port}{self.prefix}"
