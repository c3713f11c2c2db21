"""Certificates as requests and ledgers hold them, and those that break the law of one key and one node. Pure."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeattest_controller.model import attestation
from nodeattest_parsing.values import JsonObject


@dataclass(frozen=True)
class Signed:
    """One certificate as somebody holds it."""

    where: str
    node: str
    spki: str
    serial: str


def keys_with_several_serials(certificates: Iterable[Signed]) -> list[str]:
    """Name keys that were certified twice, and serial numbers that were given twice."""
    serials, keys = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for one in certificates:
        serials[one.spki].add(one.serial)
        keys[one.serial].add(one.spki)
    return [*_several(serials, "serial numbers"), *_several(keys, "keys")]


def keys_of_several_nodes(certificates: Iterable[Signed]) -> list[str]:
    """Name keys that were certified for two names."""
    nodes = defaultdict[str, set[str]](set)
    for one in certificates:
        nodes[one.spki] |= {one.node} - {""}
    return _several(nodes, "nodes")


def _several(found: Mapping[str, set[str]], what: str) -> list[str]:
    return [f"{name} has the {what} {', '.join(sorted(each))}" for name, each in found.items() if len(each) > 1]


def written_certificates(obj: JsonObject) -> list[Signed]:
    """Return the certificates of a MachineAttestation, and the keys that it remembers."""
    read = attestation.parse_attestation(obj)
    found = [signed_certificate(read.name, entry.certificate.encode()) for entry in read.issued]
    for entry, one in zip(read.issued, found, strict=True):
        assert (entry.spki, int(entry.serial, 16)) == (one.spki, int(one.serial, 16)), "the ledger's own words differ"
    return found + [Signed(read.name, "", key.spki, key.serial) for key in read.retired]


def signed_certificate(where: str, pem: bytes) -> Signed:
    """Read a certificate in PEM."""
    certificate = x509.load_pem_x509_certificate(pem)
    spki = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    node = str(certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)
    return Signed(where, node, "sha256:" + hashlib.sha256(spki).hexdigest(), f"{certificate.serial_number:x}")
