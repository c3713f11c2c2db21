"""Mutations of DER: elements changed, dropped, doubled or swapped, with the lengths around them made right again.

Where a key is given, the outer SEQUENCE is taken for a signed one (a certificate, a PKCS#10 request) and signed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fuzz.target import Plain

_CONSTRUCTED: Final = 0x20
_LONG_FORM: Final = 0x80
_MULTI_BYTE_TAG: Final = 0x1F
_OCTET_STRING: Final = 0x04
_DEEPEST: Final = 24
_TAGS: Final = (
    0x01,
    0x02,
    0x03,
    0x04,
    0x05,
    0x06,
    0x0C,
    0x13,
    0x16,
    0x17,
    0x30,
    0x31,
    0x80,
    0x82,
    0x86,
    0x87,
    0xA0,
    0xA3,
)
_SIGNED_PARTS: Final = 3
_PLAIN_SHARE: Final = 0.1
_UNSIGNED_SHARE: Final = 0.2
_MOST_CHANGES: Final = 3


@dataclass
class Node:
    """One element: bytes, or the elements inside."""

    tag: int
    content: bytes = b""
    inside: list[Node] = field(default_factory=list["Node"])


@dataclass(frozen=True)
class DerTree:
    """A mutator of one DER element."""

    key: ec.EllipticCurvePrivateKey | None = None
    """Signs what was changed."""

    def __call__(self, data: bytes, size: int, random: Random, plain: Plain) -> bytes:
        """Change up to three elements."""
        try:
            nodes = read(data)
        except ValueError:
            return plain(data, size)
        if not nodes or random.random() < _PLAIN_SHARE:
            return plain(data, size)
        for _ in range(random.randint(1, _MOST_CHANGES)):
            places = list(_places(nodes))
            if not places:
                return plain(data, size)
            _change(*random.choice(places), places, random, plain)
        if self.key is not None and random.random() > _UNSIGNED_SHARE:
            _sign(nodes, self.key)
        changed = b"".join(map(write, nodes))
        return changed if len(changed) <= size else plain(data, size)


def read(data: bytes, depth: int = 0) -> list[Node]:
    """Take DER elements apart; ``ValueError`` where they are not."""
    nodes: list[Node] = []
    at = 0
    while at < len(data):
        tag, start = data[at], at + 2
        if start > len(data) or tag & _MULTI_BYTE_TAG == _MULTI_BYTE_TAG or depth > _DEEPEST:
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


def write(node: Node) -> bytes:
    """Write an element with its shortest length."""
    content = b"".join(map(write, node.inside)) if node.inside else node.content
    size = len(content)
    if size < _LONG_FORM:
        return bytes((node.tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((node.tag, _LONG_FORM | len(length))) + length + content


def _node(tag: int, content: bytes, depth: int) -> Node:
    if content and (tag & _CONSTRUCTED or tag == _OCTET_STRING):  # extension values are DER in an OCTET STRING
        try:
            return Node(tag, b"", read(content, depth + 1))
        except ValueError:
            pass
    return Node(tag, content)


def _places(nodes: list[Node]) -> Iterator[tuple[list[Node], int]]:
    for index, node in enumerate(nodes):
        yield nodes, index
        yield from _places(node.inside)


def _change(
    siblings: list[Node], index: int, places: list[tuple[list[Node], int]], random: Random, plain: Plain
) -> None:
    node = siblings[index]
    match random.randrange(7):
        case 0:
            del siblings[index]
        case 1:
            siblings.insert(index, node)
        case 2:
            other, at = random.choice(places)
            siblings[index] = _copy(other[at])
        case 3:
            siblings[index] = Node(random.choice(_TAGS), node.content, node.inside)
        case 4:
            random.shuffle(siblings)
        case _:
            content = b"".join(map(write, node.inside)) if node.inside else node.content
            siblings[index] = Node(node.tag, plain(content, 2 * len(content) + 8))


def _copy(node: Node) -> Node:
    return Node(node.tag, node.content, [_copy(each) for each in node.inside])


def _sign(nodes: list[Node], key: ec.EllipticCurvePrivateKey) -> None:
    parts = nodes[0].inside if nodes else []
    if len(parts) == _SIGNED_PARTS:
        signature = key.sign(write(parts[0]), ec.ECDSA(hashes.SHA256(), deterministic_signing=True))
        parts[2] = Node(0x03, b"\0" + signature)
