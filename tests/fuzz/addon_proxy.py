"""Targets of what both add-on proxies forward by: request targets, headers of clients and of upstreams, labels."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from fuzz.target import Target, require
from nodeattest_identity.addon.sidecar.caller import bearer, require_no_token_in_query
from nodeattest_identity.proxy.headers import RawHeaders, Sender, canonical, request_headers, response_headers
from nodeattest_identity.proxy.paths import read_target
from nodeattest_identity.proxy.refusals import Refusal, RefusalError

_SENDER: Final = Sender(peer="10.0.0.9", scheme="http")
_INJECTED: Final = ("X-Authenticated-User", "alice")
_TCHAR: Final = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
"""RFC 9110 §5.6.2; aiohttp hands no other name over."""


def _target(data: bytes) -> bool:
    """Read a request's target as aiohttp hands it over; however often it is decoded, it stays in its place."""
    raw = data.decode("utf-8", "surrogateescape")
    try:
        target = read_target(raw)
        require_no_token_in_query(target)
    except RefusalError as refused:
        require(refused.refusal in {Refusal.PATH_NOT_ALLOWED, Refusal.CREDENTIALS_AMBIGUOUS}, "refused for what it is")
        return False
    require(target.raw == raw, "what was judged is what is sent")
    slashes = target.path.count("/")
    for read in (target.path, unquote(target.path), unquote(unquote(target.path))):
        segments = read.split("/")
        require(not {".", ".."} & {segment.partition(";")[0] for segment in segments}, "no dot segment")
        require(read.count("/") == slashes and "\\" not in read, "no further separator")
        require("\0" not in read, "no NUL")
    require("" not in target.segments[:-1], "no empty segment")
    return True


def _request(data: bytes) -> bool:
    """Clean a client's header; an upstream that folds names sees one identity, which is ours."""
    raw = _fields(data)
    try:
        made = request_headers(raw, sender=_SENDER, inject=[_INJECTED])
    except RefusalError as refused:
        require(refused.refusal is Refusal.HEADER_NOT_ALLOWED, "refused for its header")
        return False
    folded = [(canonical(name.encode()), value) for name, value in made.items()]
    require([value for name, value in folded if name == b"x-authenticated-user"] == ["alice"], "one identity, ours")
    require([value for name, value in folded if name == b"x-forwarded-for"] == [_SENDER.peer], "the peer, and no other")
    hidden = {b"authorization", b"connection", b"upgrade", b"transfer-encoding", b"content-length", b"x-remote-user"}
    require(not hidden & {name for name, _ in folded}, "no credential and nothing of one hop")
    require(not any(control in value for _, value in folded for control in "\r\n\0"), "one line a field")
    return True


def _response(data: bytes) -> bool:
    """Clean an upstream's header."""
    raw = _fields(data)
    made = response_headers(raw)
    folded = [canonical(name.encode()) for name in made]
    identities = (b"x-authenticated-", b"x-remote-", b"impersonate-")
    require(not any(f"{name.decode()}-".encode().startswith(identities) for name in folded), "no identity comes back")
    require(not {b"connection", b"transfer-encoding", b"upgrade"} & set(folded), "nothing of one hop")
    return bool(made)


def _credentials(data: bytes) -> bool:
    """Take the token out of a header."""
    raw = _fields(data)
    try:
        token = bearer(raw)
    except RefusalError as refused:
        require(refused.refusal in {Refusal.CREDENTIALS_MISSING, Refusal.CREDENTIALS_AMBIGUOUS}, "missing or ambiguous")
        return False
    carriers = [value for name, value in raw if canonical(name) == b"authorization"]
    require(len(carriers) == 1 and carriers[0].strip().endswith(token), "one header, and its end")
    require(bool(token) and b" " not in token and b"," not in token, "one token")
    return True


def _fields(data: bytes) -> RawHeaders:
    """Read ``name: value`` lines as aiohttp would let them pass."""
    fields = (line.partition(b": ") for line in data.split(b"\n"))
    return [
        (name, value.replace(b"\r", b"").replace(b"\0", b"").strip())
        for name, _, value in fields
        if name and _TCHAR.issuperset(name)
    ]


TARGETS: Final = (
    Target("addon-target", _target),
    Target("addon-request-headers", _request),
    Target("addon-response-headers", _response),
    Target("addon-credentials", _credentials),
)
