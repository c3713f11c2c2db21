"""Where a server listens: ``host:port`` as kubeadm takes it, or an https URL.

Promises: text gives an address or ``Denied``; two spellings of one address are equal.
Source: kubeadm app/util/endpoint.go (ParseHostPort); RFC 3986 §3.2.2 (brackets around IPv6).
"""

from __future__ import annotations

import ipaddress
import re
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from nodeattest_discovery.clusterinfo import PATH, check_server
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import printable

_HTTPS: Final = "https://"
_HTTPS_PORT: Final = 443
_PORT: Final = re.compile(r":[0-9]+\Z", re.ASCII)


def cluster_info_path(server: Endpoint) -> str:
    """Return the path of cluster-info on a server, with the seconds that the server may take."""
    return f"{server.prefix}{PATH}?timeout=10s"


def parse_endpoint(text: str) -> Endpoint:
    """Read a server that a person named, ``host:port`` or ``https://host[:port]``; raises ``Denied``.

    A path is refused: cluster-info is asked for at the root, and another path means something else.
    """
    is_url = text.startswith(_HTTPS)
    named = text.removeprefix(_HTTPS).removesuffix("/") if is_url else text
    if "/" not in named and (is_url or _PORT.search(named)):
        with suppress(Denied):
            return parse_server(_HTTPS + named)
    raise Denied(
        Reason.DISCOVERY_ENDPOINT_MALFORMED,
        expected="host:port, [IPv6]:port or https://host:port, without a path",
        got=printable(text),
        remedy="say host and port, such as 10.0.0.1:6443, as nodeattest token create --print-join-command does",
    )


def parse_server(url: str) -> Endpoint:
    """Read a server's URL as it is in a kubeconfig, path and all; raises ``Denied``."""
    parts = urlsplit(check_server(url))
    host = parts.hostname or ""
    return Endpoint(_host(host), parts.port or _HTTPS_PORT, parts.path.rstrip("/"))


def _host(text: str) -> str:
    """Spell a host in one way: IP addresses as Python does, names in lower case."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return text.lower()
