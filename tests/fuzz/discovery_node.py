"""Targets of discovery's node part: addresses, what a server answers, and the discovery file."""

from __future__ import annotations

import json
from typing import Final, cast

from fuzz.target import Target, refused, require
from nodeattest_discovery.node import client, discovery_file
from nodeattest_discovery.node.client import parse_endpoint, parse_server
from nodeattest_discovery.node.discovery_file import DiscoveryFile, FileReference
from nodeattest_providers.errors import Denied, Reason

_CERTIFICATE: Final = "CERTIFICATE"
_PORTS: Final = range(1, 1 << 16)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _endpoint(data: bytes) -> bool:
    try:
        address = parse_endpoint(_text(data))
    except Denied as denied:
        return refused(denied, Reason.DISCOVERY_ENDPOINT_MALFORMED)
    require(address.port in _PORTS and not address.prefix, "host and port, and no path")
    require(parse_endpoint(address.url) == address == parse_server(address.url), "one address has one spelling of ours")
    require(address.url.isascii() and address.url.isprintable() and " " not in address.url, "fit for a request line")
    return True


def _configmap(data: bytes) -> bool:
    try:
        published = client.parse_config_map(data)
    except Denied as denied:
        return refused(denied, Reason.CLUSTER_INFO_MALFORMED)
    document = cast("dict[str, dict[str, str] | None]", json.loads(data))
    told = document.get("data") or {}
    require(told.get("kubeconfig") == published.kubeconfig, "any reader of JSON reads the same")
    require((published.kubeconfig or "").encode().decode() == (published.kubeconfig or ""), "what can be signed")
    for token_id, signature in published.signatures.items():
        require(told[f"jws-kubeconfig-{token_id}"] == signature, "a signature stands under its token's id")
    return published.kubeconfig is not None


def _file(data: bytes) -> bool:
    text = _text(data)
    strict, loose = _filed(text, trusted=False), _filed(text, trusted=True)
    require(strict is None or strict == loose, "what is refused less is read alike")
    if strict is not None:
        require(strict.token is None and not strict.runs_authenticator, "no credential and no command from elsewhere")
        require(not isinstance(strict.ca, FileReference), "no file of this machine is read for a stranger")
    if loose is None:
        return False
    parse_server(loose.server)
    token = loose.token if isinstance(loose.token, str) else ""
    require(token.isascii() and token.isprintable(), "fit for a header")
    require("hunter2" not in repr(loose), "a credential does not show")
    return True


def _filed(text: str, *, trusted: bool) -> DiscoveryFile | None:
    try:
        return discovery_file.parse(text, local=trusted, allow_credentials=trusted)
    except Denied as denied:
        require("hunter2" not in str(denied), "no refusal shows a credential")
        refused(denied, Reason.CLUSTER_INFO_MALFORMED, Reason.DISCOVERY_FILE_NOT_ALLOWED)
        return None


TARGETS: Final = (
    Target("discovery-endpoint", _endpoint, 300),
    Target("discovery-configmap", _configmap, 8192),
    Target("discovery-file", _file, 8192),
)
