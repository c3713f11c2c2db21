"""Mutations that know JSON, PEM, DER and base64 inside of each other, so that the fuzzer gets past them.

What was changed is written with right lengths; a DER SEQUENCE of three parts is taken for a signed one (a certificate,
a PKCS#10 request) and signed again, mostly.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, cast

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fuzz.target import AUTHORITY_KEY, NODE_KEY, Plain
from nodeattest_providers import pem

_ODD: Final[tuple[object, ...]] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**400, 1.5, 1e308),
    *("", "x", "\ud800", "\0", "é", "0" * 300, "=", "AA", "system:nodes", "sha256:" + "0" * 64),
    *([], {}, [None], [""], {"": ""}),
)
"""JSON values of the wrong type or at a border."""
_TAGS: Final = bytes.fromhex("01020304050c06131617303180828687a0a3")
_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----\n(.*?)-----END \1-----\n", re.DOTALL)
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{8,}={0,2}")
_PLAIN_SHARE: Final = 0.1
_UNSIGNED_SHARE: Final = 0.2
_MOST_CHANGES: Final = 3
_DEEPEST: Final = 24
_LONG_FORM: Final = 0x80


def mutate(data: bytes, size: int, random: Random, plain: Plain) -> bytes:
    """Change up to three places of what the bytes are, to at most ``size`` bytes; ``plain`` changes any bytes."""
    if random.random() > _PLAIN_SHARE:
        for change in (_pem, _json, _der):
            try:
                changed = change(data, random, plain)
            except (ValueError, RecursionError):  # another format, or too deep
                continue
            if len(changed) <= size:
                return changed
    return plain(data, size)


def _pem(data: bytes, random: Random, plain: Plain) -> bytes:
    blocks = [(match[1].decode(), base64.b64decode(match[2])) for match in _BLOCK.finditer(data)]
    if not blocks:
        raise ValueError("no PEM")
    at = random.randrange(len(blocks))
    label, content = blocks[at]
    blocks[at] = label, mutate(content, 2 * len(content) + 64, random, plain)
    return pem.encode(blocks)


def _json(data: bytes, random: Random, plain: Plain) -> bytes:
    value = json.loads(data)
    is_canonical = _canonical(value) == data
    for _ in range(random.randint(1, _MOST_CHANGES)):
        places = list(_places(value))
        if not places:
            raise ValueError("nothing to change")
        holder, key = random.choice(places)
        match random.randrange(6):
            case 0:
                holder[key] = deepcopy(random.choice(_ODD))
            case 1:
                del holder[key]
            case 2:
                other, at = random.choice(places)
                holder[key] = deepcopy(other[at])
            case 3 if isinstance(holder, dict):
                holder[_spoilt(str(random.choice(places)[1]), plain)] = deepcopy(random.choice(_ODD))
            case _:
                old = holder[key]
                holder[key] = _text(old, random, plain) if isinstance(old, str) else deepcopy(random.choice(_ODD))
    return _canonical(value) if is_canonical else json.dumps(value).encode()


def _canonical(value: object) -> bytes:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode(errors="surrogatepass")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict | list):
            keys: Any = [*one] if isinstance(one, dict) else range(len(cast("list[object]", one)))
            for key in keys:
                yield one, key
                waiting.append(one[key])


def _text(old: str, random: Random, plain: Plain) -> str:
    """Change a text, or what its base64 holds."""
    if not _BASE64.fullmatch(old):
        return _spoilt(old, plain)
    is_url = ("=" not in old and len(old) % 4 != 0) or bool({"-", "_"} & {*old})
    try:
        inside = base64.urlsafe_b64decode(old + "===") if is_url else base64.b64decode(old)
    except ValueError:
        return _spoilt(old, plain)
    changed = mutate(inside, 2 * len(inside) + 64, random, plain)
    return base64.urlsafe_b64encode(changed).decode().rstrip("=") if is_url else base64.b64encode(changed).decode()


def _spoilt(text: str, plain: Plain) -> str:
    return plain(text.encode(errors="surrogatepass"), 2 * len(text) + 16).decode(errors="replace")


@dataclass
class _Node:
    """One DER element: bytes, or the elements inside."""

    tag: int
    content: bytes = b""
    inside: list[_Node] = field(default_factory=list["_Node"])

    def bytes(self) -> bytes:
        content = b"".join(one.bytes() for one in self.inside) or self.content
        size = len(content)
        if size < _LONG_FORM:
            return bytes((self.tag, size)) + content
        length = size.to_bytes((size.bit_length() + 7) // 8, "big")
        return bytes((self.tag, _LONG_FORM | len(length))) + length + content


def _der(data: bytes, random: Random, plain: Plain) -> bytes:
    nodes = _read(data)
    for _ in range(random.randint(1, _MOST_CHANGES)):
        places = list(_elements(nodes))
        if not places:
            raise ValueError("nothing to change")
        siblings, index = random.choice(places)
        node = siblings[index]
        match random.randrange(7):
            case 0:
                del siblings[index]
            case 1:
                siblings.insert(index, node)
            case 2:
                other, at = random.choice(places)
                siblings[index] = deepcopy(other[at])
            case 3:
                siblings[index] = _Node(random.choice(_TAGS), node.content, node.inside)
            case 4:
                random.shuffle(siblings)
            case _:
                content = b"".join(one.bytes() for one in node.inside) or node.content
                siblings[index] = _Node(node.tag, plain(content, 2 * len(content) + 8))
    parts = nodes[0].inside if nodes else []
    if len(parts) == len(("content", "algorithm", "signature")) and random.random() > _UNSIGNED_SHARE:
        key = random.choice((AUTHORITY_KEY, NODE_KEY))
        signature = key.sign(parts[0].bytes(), ec.ECDSA(hashes.SHA256(), deterministic_signing=True))
        parts[2] = _Node(0x03, b"\0" + signature)
    return b"".join(one.bytes() for one in nodes)


def _read(data: bytes, depth: int = 0) -> list[_Node]:
    """Take DER elements apart; ``ValueError`` where they are not."""
    nodes: list[_Node] = []
    at = 0
    while at < len(data):
        tag, start = data[at], at + 2
        if start > len(data) or tag & 0x1F == 0x1F or depth > _DEEPEST:
            raise ValueError("no element")
        length = data[at + 1]
        if length >= _LONG_FORM:
            start += length - _LONG_FORM
            length = int.from_bytes(data[at + 2 : start], "big")
        at = start + length
        if at > len(data):
            raise ValueError("cut short")
        nodes.append(_node(tag, data[start:at], depth))
    return nodes


def _node(tag: int, content: bytes, depth: int) -> _Node:
    if content and (tag & 0x20 or tag == 0x04):  # extension values are DER in an OCTET STRING
        try:
            return _Node(tag, b"", _read(content, depth + 1))
        except ValueError:
            pass
    return _Node(tag, content)


def _elements(nodes: list[_Node]) -> Iterator[tuple[list[_Node], int]]:
    for index, node in enumerate(nodes):
        yield nodes, index
        yield from _elements(node.inside)
