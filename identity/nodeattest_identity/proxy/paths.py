"""Checks request targets on the raw bytes of the request line. Pure.

Promises: a ``RequestTarget`` means the same to us, to the upstream and to whatever stands between: origin form,
printable ASCII, no fragment, no backslash, no empty, ``.`` or ``..`` segment in any spelling, no encoded slash,
backslash or control character. Nothing is decoded or rewritten: what was checked is what is sent. Rules match segment
by segment, and never see the query.
Leaves to others: who may ask for it.
Source: RFC 9112 §3.2, RFC 3986 §3.3 and §6.2; CVE-2026-40575 and CVE-2026-41059 (oauth2-proxy), CVE-2025-54576,
CVE-2026-48710 (Starlette): each decided on another path than the upstream served.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from nodeattest_identity.proxy.refusals import Refusal, RefusalError

_MAX_TARGET: Final = 8190
"""Bytes; aiohttp's own limit of a request line."""

_ORIGIN: Final = re.compile(r"(/[!$%&'()*+,\-./0-9:;=@A-Z_a-z~|^{}\[\]\"<>`]*)(?:\?([!-\"$-~]*))?")
"""Path and query. Browsers leave some of what RFC 3986 forbids as it is, and it means nothing to a path."""

_ENCODED: Final = re.compile(r"%(?:[0-1][0-9A-Fa-f]|2[fF]|5[cC]|7[fF])|%(?![0-9A-Fa-f]{2})")
"""Controls, slash and backslash; no encoding at all."""

_ENCODED_TWICE: Final = re.compile(rb"%(?:[0-1][0-9A-Fa-f]|2[eEfF]|5[cC]|7[fF])")
"""The same and a dot, in the decoded path: for upstreams that decode twice."""

_SEGMENT: Final = re.compile(r"[A-Za-z0-9_~.\-]+")


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """A request target that is unambiguous."""

    path: str
    query: str | None
    """None: no question mark."""

    @property
    def raw(self) -> str:
        """The raw target."""
        return self.path if self.query is None else f"{self.path}?{self.query}"

    @property
    def segments(self) -> list[str]:
        """Between the slashes, undecoded; a path that ends with a slash ends with an empty one."""
        return self.path[1:].split("/")


@dataclass(frozen=True, slots=True)
class PathRule:
    """Segments that a path must have; ``*`` is any one, ``**`` at the end any rest."""

    segments: tuple[str, ...]

    def matches(self, segments: Sequence[str]) -> bool:
        """Compare the raw spelling; another spelling of the same path does not match."""
        *own, last = self.segments
        if len(segments) <= len(own) or (last != "**" and len(segments) != len(self.segments)):
            return False
        wanted = own if last == "**" else self.segments
        pairs = zip(wanted, segments, strict=False)
        return all(mine == other or (mine == "*" and other != "") for mine, other in pairs)


def read_target(raw: str) -> RequestTarget:
    """Parse a request target; raises ``RefusalError``.

    1. Origin form of bounded length: not the absolute form, not ``*``; no fragment, backslash, blank or control.
    2. No encoding of what separates. 3. No empty segment but the last. 4. No dot segment, also encoded or before a
    ``;``. 5. Nothing that a second decoding would make so. 6. UTF-8 behind the encodings.
    """
    # 1, RFC 9112 §3.2.1
    found = _ORIGIN.fullmatch(raw) if len(raw) <= _MAX_TARGET else None
    if found is None:
        raise _refused("a path in origin form, of printable ASCII without # and backslash")
    path, query = found.group(1), found.group(2)
    # 2
    if _ENCODED.search(path) is not None:
        raise _refused("no encoded slash, backslash or control character")
    segments = path[1:].split("/")
    # 3
    if "" in segments[:-1]:
        raise _refused("no empty segment")
    decoded = [unquote_to_bytes(segment) for segment in segments]
    # 4, RFC 3986 §5.2.4; Java servers cut a segment at its parameters first
    if any(segment.partition(b";")[0] in {b".", b".."} for segment in decoded):
        raise _refused("no dot segment")
    # 5: whichever of its characters are encoded, %252e as well as %25%32%65
    if any(b"%" in segment and _ENCODED_TWICE.search(segment) is not None for segment in decoded):
        raise _refused("no encoding of an encoding")
    # 6: an overlong or foreign encoding reads differently from one server to the next
    try:
        b"/".join(decoded).decode()
    except UnicodeDecodeError:
        raise _refused("UTF-8") from None
    return RequestTarget(path, query)


def parse_rule(text: str) -> PathRule:
    """Read ``/healthz``, ``/static/**`` or ``/api/*/status``; raises ``ValueError``."""
    *segments, last = text[1:].split("/")
    if (
        not text.startswith("/")
        or not all(segment == "*" or _is_literal(segment) for segment in segments)
        or not (last in {"", "*", "**"} or _is_literal(last))
    ):
        raise ValueError(f"expected a path of plain segments, * for one and ** at the end for any rest, got {text!a}")
    return PathRule((*segments, last))


def _is_literal(segment: str) -> bool:
    return _SEGMENT.fullmatch(segment) is not None and segment not in {".", ".."}


def _refused(expected: str) -> RefusalError:
    return RefusalError(Refusal.PATH_NOT_ALLOWED, f"expected {expected}, got another target")
