"""Seeds of the TPM's structures."""

from __future__ import annotations

import hashlib
import json
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from fuzz.catalogue import CORPUS
from fuzz.keys import TPM_KEY, USAGES, authority, certificate, pem_of
from fuzz.mutators.der_tree import Node, write
from fuzz.seeds.wire import HASH, UID
from fuzz.tpm import AK_PREFIX, public_area
from nodeattest_providers import canonical_json
from nodeattest_providers.node_interface import FirstRequestRef
from nodeattest_providers.tpm.key_templates import AK_POLICY, EK_TEMPLATES
from nodeattest_providers.tpm.protocol import Challenge, FirstEvidence, SecondEvidence
from nodeattest_providers.tpm.structures import Alg, PcrSelection, sized

__all__ = ["seeds"]

_EK_USAGE: Final = x509.ExtendedKeyUsage([x509.ObjectIdentifier("2.23.133.8.1")])
_MODEL: Final = x509.SubjectAlternativeName(
    [x509.DirectoryName(x509.Name([x509.NameAttribute(x509.ObjectIdentifier("2.23.133.2.1"), "id:00001014")]))]
)
_SELECTION: Final = PcrSelection(Alg.SHA256, (0, 7))
_MAC: Final = bytes(32)
_UNMARKED_PREFIX: Final = AK_PREFIX.replace(sized(AK_POLICY), sized(b""))
_LONGEST_LOG: Final = 4096


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    certificates = _certificates()
    ek, ak, unmarked = map(public_area, (EK_TEMPLATES[0].prefix, AK_PREFIX, _UNMARKED_PREFIX))
    first = FirstEvidence(ek_public=ek, ak_public=ak)
    chained = FirstEvidence(
        ek_public=_rsa_area(), ak_public=ak, ek_certificate=certificates[0], ek_chain=(certificates[0],)
    )
    reference = FirstRequestRef(name="node-csr-0", uid=UID)
    second = SecondEvidence(first=reference, mac=_MAC, quote=_quote(), signature=_signature(), pcrs=(_MAC, _MAC))
    challenge = Challenge(uid=UID, spki_sha256=HASH, nonce=_MAC, blob=bytes(84), secret=bytes(68), pcrs=_SELECTION)
    return {
        "tpm-evidence": [canonical_json.dumps(one.to_json()) for one in (first, chained, second)],
        "tpm-challenge": [challenge.to_text().encode(), challenge.to_text().replace("[0,7]", "[7,0]").encode()],
        "tpm-public": [
            ak,
            unmarked,
            ek,
            _rsa_area(),
            *(public_area(one.prefix) for one in EK_TEMPLATES),
        ],
        "tpm-endorsement-key": [ek, _rsa_area(), b"\x00\x01" + ek[2:]],
        "tpm-quote": [_quote(), _quote()[:40], _quote()[:4] + b"\x80\x14" + _quote()[6:]],
        "tpm-signature": [
            _signature(),
            bytes.fromhex("0014000b") + sized(bytes(256)),
            bytes.fromhex("0018000b00000000"),
        ],
        "tpm-event-log": _event_logs(),
        "tpm-certificate": certificates,
        "tpm-nv": [certificates[0] * 2 + b"\xff" * 8, b"\x30\x80\0\0", b"\x30\x84\0\0\0\0", b"\x30\0\x30\0"],
        "tpm-policy": [json.dumps(one).encode() for one in _policies()],
    }


def _rsa_area() -> bytes:
    """Write an RSA-2048 endorsement key whose modulus nobody can factor and nobody chose."""
    prefix = next(one.prefix for one in EK_TEMPLATES if one.prefix.startswith(b"\x00\x01"))
    modulus = b"".join(hashlib.sha256(bytes([number])).digest() for number in range(8))
    return prefix + sized(bytes([modulus[0] | 0x80]) + modulus[1:-1] + bytes([modulus[-1] | 1]))


def _quote() -> bytes:
    clock = (1_000_000).to_bytes(8, "big") + (1).to_bytes(4, "big") + bytes(4) + b"\x01"
    parts = (b"\xffTCG\x80\x18", sized(bytes(34)), sized(_MAC), clock, bytes(8), _SELECTION.marshal(), sized(_MAC))
    return b"".join(parts)


def _signature() -> bytes:
    return bytes.fromhex("0018000b") + sized(b"\x01" * 32) + sized(b"\x02" * 32)


def _certificates() -> list[bytes]:
    """Write endorsement certificates: a sound one, one without a name, one with a kind of name that nobody reads."""
    key = TPM_KEY.public_key()
    usages = {name: name == "key_agreement" for name in USAGES}
    common = (
        (_EK_USAGE, False),
        (x509.KeyUsage(**usages), True),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority().public_key()), False),  # pyright: ignore[reportArgumentType] - an EC key
    )
    strange = x509.UnrecognizedExtension(
        x509.ObjectIdentifier("2.5.29.17"), write(Node(0x30, b"", [Node(0xA3, b"\x30\0")]))
    )
    made = (
        certificate([], key, *common, (_MODEL, True)),
        certificate([(NameOID.COMMON_NAME, "tpm")], key, *common),
        certificate([(NameOID.COMMON_NAME, "tpm")], key, *common, (strange, False)),
    )
    return [one.public_bytes(Encoding.DER) for one in made]


def _event_logs() -> list[bytes]:
    """Take the published vectors, sound and malformed."""
    document = json.loads((CORPUS.parent / "eventlog.json").read_text())
    found = [bytes.fromhex(str(row["log"])) for row in (*document["logs"], *document["malformed"])]
    return [log for log in found if len(log) <= _LONGEST_LOG]


def _policies() -> list[dict[str, object]]:
    entry = {"providerID": "metal://rack-1/7", "sha256": HASH, "description": "the seventh"}
    strange = x509.load_der_x509_certificate(_certificates()[2])
    values = {"selection": [0, 7], "bank": "sha384", "values": {"7": ["ab" * 48]}}
    return [
        {},
        {"endorsementKeys": [entry], "trustOnFirstUse": True, "pcrs": values},
        {"endorsementCAs": pem_of(authority()).decode()},
        {"endorsementCAs": pem_of(strange).decode()},
        {"pcrs": {"values": {"0": ["ab" * 32]}}},
    ]
