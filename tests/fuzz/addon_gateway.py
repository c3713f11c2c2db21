"""Targets of the add-on gateway: headers and paths of clients, what an API server says of front proxies, keys."""

from __future__ import annotations

import json
from typing import Final

from fuzz.target import Target, require
from nodeattest_identity.addon.gateway import keyset
from nodeattest_identity.addon.gateway.errors import StatusError, status_body
from nodeattest_identity.addon.gateway.front_proxy import FrontProxyTrust, TrustError, identify, read_trust
from nodeattest_identity.addon.gateway.target import ROOT, parse
from nodeattest_kube.jsontypes import parse_json

NAME: Final = "front-proxy-client"
_TRUST: Final = FrontProxyTrust(authorities=(b"",), allowed_names=frozenset({NAME}), has_uid=True)


def _path(data: bytes) -> bool:
    """Read a request's target as aiohttp hands it over, and compare with how kube-apiserver reads it."""
    raw = data.decode("utf-8", "surrogateescape")
    try:
        target = parse(raw)
    except StatusError as refused:
        json.loads(status_body(refused))
        return False
    path = raw.partition("?")[0]
    parts = path.strip("/").split("/")  # requestinfo.go splitPath
    read = [*ROOT.strip("/").split("/"), "namespaces", target.namespace, "services", target.name, "proxy"]
    require(parts[: len(read)] == read, "the names that were authorised")
    require(target.audience.count("/") == 1, "one service of one namespace")
    require(target.path is None or (target.path.startswith("/") and path.endswith(target.path)), "the rest as it came")
    require(not any(part.startswith("add-auth=") for part in target.query.split("&")), "ours is taken out")
    return True


def _headers(data: bytes) -> bool:
    """Read a header from ``name: value`` lines; the first line is the certificate's name."""
    name, *lines = data.decode("utf-8", "surrogateescape").split("\n")
    headers = [(key, value) for key, _, value in (line.partition(": ") for line in lines)]
    try:
        who = identify(_TRUST, name or None, headers)
    except StatusError as refused:
        require(refused.status.value == 401, "not known is 401")
        return False
    require(name == NAME, "only the front proxy is believed")
    require([value for key, value in headers if key.lower() == "x-remote-user"] == [who.user], "one user, verbatim")
    require(bool(who.user), "somebody")
    told = json.dumps([who.user, who.uid, who.groups, who.extra], ensure_ascii=False).encode()
    require(not any(byte < 0x20 for byte in told), "no control character")
    return True


def _trust(data: bytes) -> bool:
    """Read the ConfigMap."""
    try:
        trust = read_trust(parse_json(data))
    except TrustError as error:
        require("BEGIN" not in str(error), "certificates are not quoted")
        return False
    except ValueError:
        return False
    require(bool(trust.authorities), "a CA is demanded")
    require(bool(trust.allowed_names) and "" not in trust.allowed_names, "nobody without a name")
    require(trust.pem.count("BEGIN CERTIFICATE") == len(trust.authorities), "every CA counts")
    return True


def _ring(data: bytes) -> bool:
    """Read stored keys."""
    try:
        found = keyset.parse_keyset(data)
    except keyset.KeySetError as error:
        require("PRIVATE" not in str(error), "keys are not quoted")
        return False
    written = keyset.encode_keyset(found)
    require(keyset.encode_keyset(keyset.parse_keyset(written)) == written, "what was written reads the same")
    require(found.signer(0) is not None, "a key is demanded")
    require("PRIVATE" not in repr(found), "keys are not shown")
    return True


TARGETS: Final = (
    Target("gateway-path", _path),
    Target("gateway-headers", _headers),
    Target("gateway-trust", _trust),
    Target("gateway-keys", _ring),
)
