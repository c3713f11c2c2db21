"""Targets of the operator's tool: documents that people hand to it, tokens and cluster-info that others wrote."""

from __future__ import annotations

from typing import Final

from fuzz.keys import NOW
from fuzz.target import Target, as_file, require
from nodeattest_cli.cluster_info import view_of
from nodeattest_cli.documents import read_objects
from nodeattest_cli.endorsement_keys.key_file import parse_key_file
from nodeattest_cli.errors import UserError
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.jsontypes import parse_json
from nodeattest_parsing.times import parse_duration
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.keys import ENDORSEMENT_FINGERPRINT

_SIGNER: Final = BootstrapToken("abcdef", "0123456789abcdef")


def _documents(data: bytes) -> bool:
    with as_file(data) as path:
        try:
            found = read_objects(str(path))
        except UserError:
            return False
    require(bool(found), "at least one object")
    return True


def _cluster_info(data: bytes) -> bool:
    """Show a ConfigMap, as ``cluster-info show`` does."""
    found = _object(data)
    if found is None:
        return False
    seen = view_of(found, [_SIGNER])
    require(all(map(str.isprintable, seen.lines(NOW))), "printable lines")
    require(bool(seen.problem) == (seen.info is None), "a problem where there is nothing to believe")
    return seen.is_sound


def _duration(data: bytes) -> bool:
    try:
        nanoseconds = parse_duration(data.decode("utf-8", "surrogateescape"))
    except ValueError as error:
        require(str(error).isprintable(), "a refusal of one line")
        return False
    require(parse_duration(f"{nanoseconds}ns") == nanoseconds, "what is written is read")
    return True


def _endorsement_key_file(data: bytes) -> bool:
    """Read a file of keys, as ``endorsement-keys import`` does."""
    try:
        rows = parse_key_file(data.decode())
    except (UserError, UnicodeDecodeError):
        return False
    require(all(ENDORSEMENT_FINGERPRINT.fullmatch(row.fingerprint) for row in rows), "a fingerprint a row")
    require(len({row.machine for row in rows}) == len(rows), "no machine twice")
    require(len({row.fingerprint for row in rows}) == len(rows), "no key twice")
    return True


def _object(data: bytes) -> JsonObject | None:
    try:
        return parse_json(data)
    except ValueError:
        return None


TARGETS: Final = (
    Target("documents", _documents),
    Target("cli-cluster-info", _cluster_info),
    Target("cli-endorsement-keys", _endorsement_key_file, max_len=1 << 14),
    Target("cli-duration", _duration, max_len=64),
)
