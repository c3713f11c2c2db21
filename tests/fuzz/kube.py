"""Targets of the package kube: what API servers and kubeconfigs hand to it as bytes."""

from __future__ import annotations

import json
from typing import Final

from fuzz.target import Target, require
from nodeattest_kube.errors import KubeconfigError, TooLarge, error_from_status
from nodeattest_kube.jsontypes import parse_json, version_of
from nodeattest_kube.kubeconfig import MAX_SELF_CONTAINED, parse_kubeconfig
from nodeattest_kube.list_watch import LineBuffer
from nodeattest_parsing.objects import key_of

_LONGEST_MESSAGE: Final = 2048
_LINE: Final = 64


def _kubeconfig(data: bytes) -> bool:
    try:
        endpoint = parse_kubeconfig(data)
    except KubeconfigError as error:
        require(len(str(error)) <= _LONGEST_MESSAGE, "a refusal of a few words")
        return False
    require(len(data) <= MAX_SELF_CONTAINED, "small documents only")
    require(endpoint.server.startswith("https://"), "HTTPS only")
    require(endpoint.token_file is None, "no file of ours is read for a document of others")
    return True


def _json(data: bytes) -> bool:
    try:
        value = parse_json(data, max_values=1000)
    except ValueError:
        return False
    again = parse_json(json.dumps(value, ensure_ascii=False).encode())
    require(again == value, "what was read can be written and read again")
    key_of(value)
    version_of(value)
    error = error_from_status(500, value, fallback="an error", retry_after="1")
    require(len(str(error)) <= _LONGEST_MESSAGE and str(error).isprintable(), "a server's words stay on a line")
    return True


def _lines(data: bytes) -> bool:
    """Cut the same stream in two ways: the first byte says how large the chunks are."""
    if not data:
        return False
    size, stream = max(data[0], 1), data[1:]
    chunked = _assembled([stream[at : at + size] for at in range(0, len(stream), size)])
    require(chunked == _assembled([stream]), "chunks do not matter")
    return bool(chunked)


def _assembled(chunks: list[bytes]) -> list[bytes] | None:
    skipped: list[None] = []
    lines = LineBuffer(_LINE, lambda: skipped.append(None))
    try:
        return [line for chunk in chunks for line in lines.feed(chunk)] + [b""] * len(skipped)
    except TooLarge:
        return None


TARGETS: Final = (
    Target("kubeconfig", _kubeconfig),
    Target("json", _json),
    Target("lines", _lines, 512),
)
