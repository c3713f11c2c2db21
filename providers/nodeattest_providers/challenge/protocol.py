"""What attestor and verifier of ``challenge`` exchange: evidence, challenge, and the proof's formula.

Source: docs/wire-format.md, "challenge/v1", §5.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final

from nodeattest_providers import canonical_json
from nodeattest_providers.canonical_json import Fields, encoded
from nodeattest_providers.challenge_response import (
    MAX_UID,
    parse_challenge,
    parse_first_request_ref,
    phase_fields,
    ref_to_json,
)
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import FirstRequestRef, JsonObject, SecretBytes, length_prefix

PROVIDER: Final = ProviderName("challenge")
VERSION: Final = 1

MIN_SECRET: Final = 32
"""Bytes. The MAC is world-readable, so a secret that can be guessed offline is none."""
MAX_SECRET: Final = 4096

_LABEL_PROOF: Final = b"nodeattest/v1/challenge"
_LABEL_FINGERPRINT: Final = b"nodeattest/v1/challenge-secret"
_DIGEST: Final = 32
_SPKI: Final = len("sha256:") + 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ChallengeEvidence:
    """Phase 1 asks for a challenge and claims nothing; phase 2 answers that of the first request."""

    first: FirstRequestRef | None = None
    mac: bytes = field(default=b"", repr=False)

    def to_json(self) -> JsonObject:
        return {"phase": 1} if self.first is None else encoded(phase=2, first=ref_to_json(self.first), mac=self.mac)


def parse_evidence(data: JsonObject) -> ChallengeEvidence:
    phase, fields = phase_fields(data, "challenge/v1", {1: (), 2: ("first", "mac")}, {})
    if phase == 1:
        return ChallengeEvidence()
    return ChallengeEvidence(first=parse_first_request_ref(fields), mac=fields.octets("mac", _DIGEST, _DIGEST))


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """The challenge annotation that the controller publishes on the first request."""

    uid: str
    spki_sha256: str
    nonce: bytes

    def to_text(self) -> str:
        data = encoded(v=VERSION, uid=self.uid, spki=self.spki_sha256, n=self.nonce)
        return canonical_json.dumps(data).decode()

    @classmethod
    def parse(cls, text: str) -> Challenge:
        fields = Fields.of(parse_challenge(text), "challenge/v1 challenge", ("v", "uid", "spki", "n"))
        fields.integer("v", VERSION, VERSION)
        return cls(
            uid=fields.text("uid", 1, MAX_UID),
            spki_sha256=fields.text("spki", _SPKI, _SPKI),
            nonce=fields.octets("n", _DIGEST, _DIGEST),
        )


def normalised(secret: bytes) -> SecretBytes:
    """Drop line ends after the secret, which editors and templates add to files; attestor and verifier do so."""
    return SecretBytes(secret.rstrip(b"\r\n"))


def proof(secret: SecretBytes, nonce: bytes, first_uid: str, binding: bytes) -> bytes:
    return hmac.digest(secret.reveal(), length_prefix(_LABEL_PROOF, nonce, first_uid.encode(), binding), "sha256")


def fingerprint(secret: SecretBytes) -> str:
    """Name a secret in the ledger, by a hash that serves for nothing else."""
    return "sha256:" + hashlib.sha256(length_prefix(_LABEL_FINGERPRINT, secret.reveal())).hexdigest()
