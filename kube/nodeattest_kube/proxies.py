"""Which HTTP proxy the environment names for a server, read as Go programs (kubectl, kubelet) read it.

Source: golang.org/x/net/http/httpproxy; unlike urllib it knows networks in NO_PROXY, which clusters need.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

__all__ = ["environment_proxy"]


def environment_proxy(server: str, environment: Mapping[str, str]) -> str | None:
    """Return the proxy's URL for an ``https`` server; None to connect directly."""
    proxy = environment.get("HTTPS_PROXY") or environment.get("https_proxy")
    if not proxy:
        return None
    parts = urlsplit(server)
    host, port = (parts.hostname or "").rstrip("."), parts.port or 443
    exempt = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    if host == "localhost" or _is_loopback(host):
        return None
    if any(_covers(entry.strip().lower(), host, port) for entry in exempt.split(",")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _covers(entry: str, host: str, port: int) -> bool:
    """Whether one NO_PROXY entry covers a host: ``*``, a network, or an address or domain with or without port."""
    if entry in {"", "*"}:
        return entry == "*"
    if "/" in entry:
        return _in_network(host, entry)
    name, wanted_port = _split_port(entry)
    if wanted_port not in {"", str(port)}:
        return False
    if _in_network(host, name.strip("[]")):
        return True
    name = name.removeprefix("*")
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith("." + name)


def _split_port(entry: str) -> tuple[str, str]:
    """Split ``host:port``; an IPv6 address needs its brackets for a port."""
    if entry.startswith("["):
        name, _, port = entry.partition("]")
        return name, port.removeprefix(":")
    if entry.count(":") == 1:
        name, _, port = entry.partition(":")
        return name, port
    return entry, ""


def _in_network(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
