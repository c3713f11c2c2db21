"""``platforms.gcp`` of the controller's configuration: where Compute is, by whom it is trusted, as whom it is asked.

Promises: a value, or ``Denied`` with ``PolicyInvalid`` that names the setting; only HTTPS, only hosts that whoever runs
the controller wrote down or that Google documents.
Leaves to others: reading the files (``api``, ``credentials``).
Source: Google, "Compute Engine API" (service endpoint), "Application Default Credentials".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from nodeattest_providers.exchange import JsonValue
from nodeattest_providers.settings import closed, invalid, mapping, text

__all__ = ["GcpPlatform", "parse_settings"]

_WHERE: Final = "platforms.gcp"
_COMPUTE: Final = "https://compute.googleapis.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpPlatform:
    """How the controller reaches Google Cloud."""

    compute: str = _COMPUTE
    """Scheme, host and port, without a path."""
    ca_bundle: str | None = None
    """File with the only authorities to trust; None: those of the system."""
    credentials: str | None = None
    """File with a service account's key or a workload identity federation's configuration; None: Application Default
    Credentials, which on Google Cloud are the controller's own service account."""
    proxy: str | None = None


def parse_settings(settings: Mapping[str, JsonValue]) -> GcpPlatform:
    """Read the settings; unknown keys are errors that name the nearest known one."""
    closed(settings, _WHERE, ("endpoints", "caBundle", "credentialsFile", "proxy"))
    endpoints = mapping(settings.get("endpoints", {}), f"{_WHERE}.endpoints")
    closed(endpoints, f"{_WHERE}.endpoints", ("compute",))
    return GcpPlatform(
        compute=_origin(endpoints.get("compute", _COMPUTE), f"{_WHERE}.endpoints.compute", "https"),
        ca_bundle=_file(settings, "caBundle"),
        credentials=_file(settings, "credentialsFile"),
        proxy=_origin(settings["proxy"], f"{_WHERE}.proxy", "http") if "proxy" in settings else None,
    )


def _file(settings: Mapping[str, JsonValue], key: str) -> str | None:
    return text(settings[key], f"{_WHERE}.{key}") if key in settings else None


def _origin(value: JsonValue, where: str, scheme: str) -> str:
    """Read scheme, host and port; nothing else may stand there."""
    url = text(value, where)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    rest = (parts.path.strip("/"), parts.query, parts.fragment)
    if parts.scheme != scheme or not host or "@" in parts.netloc or any(rest) or not url.isascii():
        raise invalid(where, f"{scheme}://host or {scheme}://host:port", repr(url[:80]))
    name = f"[{host}]" if ":" in host else host
    return f"{scheme}://{name}" + ("" if port is None else f":{port}")
