"""After the soak: API server and ledger must hold one certificate for one key. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeattest_controller.model import attestation
from nodeattest_controller.model.objects import text
from nodeattest_kube.jsontypes import JsonObject


@dataclass(frozen=True)
class Signed:
    """One certificate as somebody holds it."""

    where: str
    node: str
    spki: str
    serial: str


@dataclass(frozen=True)
class Audit:
    keys: int
    """That were certified."""
    published: int
    """Requests that hold a certificate."""
    violations: tuple[str, ...]


def audit(csrs: Iterable[JsonObject], ledgers: Iterable[JsonObject]) -> Audit:
    """Compare the certificates of all requests with those that the ledger still holds or remembers.

    1. A key has one serial number, wherever it stands.
    2. A serial number has one key.
    3. A key is one node's.
    4. What the ledger signed was published.
    """
    published = [found for csr in csrs if (found := _published(csr)) is not None]
    written = [found for obj in ledgers for found in written_certificates(obj)]
    every = (*published, *written)
    violations = [*keys_with_several_serials(every), *keys_of_several_nodes(every)]  # 1, 2, 3
    missing = {one.spki for one in written} - {one.spki for one in published}
    violations += [f"{spki} was signed and never published" for spki in sorted(missing)]  # 4
    return Audit(len({one.spki for one in every}), len(published), tuple(violations))


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


def _published(csr: JsonObject) -> Signed | None:
    encoded = text(csr, "status", "certificate")
    if not encoded:
        return None
    return signed_certificate(text(csr, "metadata", "name"), base64.b64decode(encoded))


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
