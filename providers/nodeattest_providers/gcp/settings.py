"""``platforms.gcp`` of the controller's configuration: where Compute is, by whom it is trusted, as whom it is asked.

Promises: a value, or ``Denied`` with ``PolicyInvalid`` that names the setting; only HTTPS, only hosts that whoever runs
the controller wrote down or that Google documents. The files are read here once, so that a mistake shows at the start.
Leaves to others: using them (``api.client``, ``api.tokens``).
Source: Google, "Compute Engine API" (service endpoint), "Application Default Credentials".
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, cast
from urllib.parse import urlsplit

from nodeattest_providers.config_fields import check_keys, invalid, mapping, text
from nodeattest_providers.node_interface import JsonValue

__all__ = ["CredentialsKind", "GcpPlatform", "credentials_kind", "parse_settings"]

_WHERE: Final = "platforms.gcp"
_COMPUTE: Final = "https://compute.googleapis.com"
_LIMIT: Final = 1024 * 1024
"""Bytes of a file; the bundle of all public authorities has 220 KiB."""


class CredentialsKind(Enum):
    """What a credentials file holds."""

    KEY = "service account key"
    FEDERATION = "workload identity federation by a file or URL"
    AWS = "workload identity federation of AWS"


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpPlatform:
    """How the controller reaches Google Cloud."""

    compute: str = _COMPUTE
    """Scheme, host and port, without a path."""
    authorities: str | None = field(default=None, repr=False)
    """The only authorities to trust, in PEM; None: those of the system."""
    credentials: str | None = None
    """File with a service account's key or a workload identity federation's configuration; None: Application Default
    Credentials, which on Google Cloud are the controller's own service account."""
    proxy: str | None = None


def parse_settings(settings: Mapping[str, JsonValue]) -> GcpPlatform:
    """Read the settings; unknown keys are errors that name the nearest known one."""
    check_keys(settings, _WHERE, ("endpoints", "caBundle", "credentialsFile", "proxy"))
    endpoints = mapping(settings.get("endpoints", {}), f"{_WHERE}.endpoints")
    check_keys(endpoints, f"{_WHERE}.endpoints", ("compute",))
    return GcpPlatform(
        compute=_origin(endpoints.get("compute", _COMPUTE), f"{_WHERE}.endpoints.compute", "https"),
        authorities=_authorities(settings),
        credentials=_credentials(settings),
        proxy=_origin(settings["proxy"], f"{_WHERE}.proxy", "http") if "proxy" in settings else None,
    )


def _file(settings: Mapping[str, JsonValue], key: str) -> tuple[str, bytes]:
    where = f"{_WHERE}.{key}"
    path = text(settings[key], where)
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - one bounded read
            content = file.read(_LIMIT + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no path"
        raise invalid(where, "a file that the controller may read", f"{path!r}: {why}") from None
    if len(content) > _LIMIT:
        raise invalid(where, f"a file of at most {_LIMIT} bytes", "a larger one")
    return path, content


def _authorities(settings: Mapping[str, JsonValue]) -> str | None:
    if "caBundle" not in settings:
        return None
    _, content = _file(settings, "caBundle")
    try:
        pem = content.decode("ascii")
        ssl.create_default_context(cadata=pem)
    except (ssl.SSLError, ValueError):
        raise invalid(f"{_WHERE}.caBundle", "PEM certificates", "a file that holds none") from None
    return pem


def _credentials(settings: Mapping[str, JsonValue]) -> str | None:
    if "credentialsFile" not in settings:
        return None
    path, content = _file(settings, "credentialsFile")
    credentials_kind(content)
    return path


def credentials_kind(content: bytes) -> tuple[CredentialsKind, dict[str, object]]:
    """Tell what a credentials file holds; anything else is ``Denied``, as is what would run a program."""
    try:
        value: object = json.loads(content)
    except (ValueError, RecursionError):
        value = None
    fields = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    source = fields.get("credential_source")
    sources = cast("dict[str, object]", source) if isinstance(source, dict) else {}
    match fields.get("type"):
        case "service_account":
            return CredentialsKind.KEY, fields
        case "external_account" if "executable" not in sources:
            return (CredentialsKind.AWS if "environment_id" in sources else CredentialsKind.FEDERATION), fields
        case _:
            expected = "a service account's key, or a workload identity federation's configuration without a program"
            raise invalid(f"{_WHERE}.credentialsFile", expected, "another file")


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
