"""Values that the ``platforms.<provider>`` sections of several clouds have: paths of files, and origins of endpoints.

For the controller only: the node does not need ``pathlib`` and ``urllib.parse``, which cost a starting process 5 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from nodeattest_parsing.endpoint import port_of
from nodeattest_providers.config_fields import invalid, text
from nodeattest_providers.node_interface import JsonValue


def absolute_path(values: Mapping[str, JsonValue], key: str, where: str) -> Path | None:
    """Read an absolute path; None where the key is not set."""
    if key not in values:
        return None
    path = Path(text(values[key], f"{where}.{key}"))
    if not path.is_absolute():
        raise invalid(f"{where}.{key}", "an absolute path", repr(str(path)[:80]))
    return path


def origin(values: Mapping[str, JsonValue], key: str, where: str, schemes: tuple[str, ...]) -> str | None:
    """Read scheme, host and port of a URL (RFC 6454 §4); None where the key is not set.

    Anything more in the URL would change what is asked, and a proxy's may hold a password, so no message shows it.
    """
    if key not in values:
        return None
    url = text(values[key], f"{where}.{key}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, port_of(parts)
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    rest = (parts.path.strip("/"), parts.query, parts.fragment)
    if parts.scheme not in schemes or not host or "@" in parts.netloc or any(rest) or not url.isascii():
        expected = " or ".join(f"{scheme}://host, {scheme}://host:port" for scheme in schemes)
        raise invalid(f"{where}.{key}", expected, "another URL")
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}" + ("" if port is None else f":{port}")
