"""Seeds of signed documents, by the fixed authority: its signatures are the same in each run."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from fuzz.keys import AUTHORITY_KEY, authority
from fuzz.wire import CMS_CONTENT
from nodeattest_sandbox.clouds import cms

__all__ = ["documents", "seeds"]


def documents(content: bytes) -> list[bytes]:
    """Sign a content, as Azure does and as AWS does."""
    plain = cms.Document(
        content=content,
        signer=cms.named(authority()),
        digest=cms.algorithm(cms.SHA256),
        signature_algorithm=cms.algorithm(cms.ECDSA_SHA256, b""),
        certificates=(authority().public_bytes(Encoding.DER),),
    )
    digest = cms.tlv(0x04, hashlib.sha256(content).digest())
    attributes = (cms.attribute(cms.CONTENT_TYPE, cms.DATA), cms.attribute(cms.MESSAGE_DIGEST, digest))
    return [_signed(plain), _signed(replace(plain, certificates=(), attributes=attributes))]


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    return {"cms": documents(CMS_CONTENT)}


def _signed(document: cms.Document) -> bytes:
    algorithm = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
    return replace(document, signature=AUTHORITY_KEY.sign(document.signed_bytes(), algorithm)).der()
