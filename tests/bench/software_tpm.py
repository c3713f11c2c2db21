"""A TPM in software that can answer challenges: it holds the private half of a registered endorsement key.

For throughput only: dozens of swtpm processes on two cores would measure themselves.
"""

from __future__ import annotations

import hashlib

from cryptography.hazmat.decrepit.ciphers.modes import CFB
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES

from nodeattest_demo.forged_tpm import ForgedTpm
from nodeattest_providers.errors import Reason
from nodeattest_providers.node_interface import Binding, Evidence, FirstRequestRef, PublishedChallenge
from nodeattest_providers.tpm.make_credential import kdfa, kdfe
from nodeattest_providers.tpm.protocol import PROVIDER, VERSION, Challenge, SecondEvidence, proof, qualifying_data
from nodeattest_providers.tpm.structures import Alg, parse_public

BITS = 128
"""Of the template's AES."""


class SoftwareAttestor:
    """Implements ``Attestor``."""

    provider = PROVIDER
    versions: tuple[int, ...] = (VERSION,)
    two_step = True

    def __init__(self, number: int | None = None) -> None:
        """``number``: its keys are the same in every process; None: new ones."""
        self.endorsement_key = fixed_key("endorsement", number)
        self.attestation_key = fixed_key("attestation", number)

    @property
    def tpm(self) -> ForgedTpm:
        return ForgedTpm(self.endorsement_key.public_key(), self.attestation_key)

    @property
    def fingerprint(self) -> str:
        public = parse_public(self.tpm.first().ek_public, what="key", reason=Reason.ENDORSEMENT_KEY_MALFORMED)
        return public.fingerprint

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        if challenge is None:
            return Evidence(self.provider, VERSION, self.tpm.first().to_json())
        published = Challenge.parse(challenge.text)
        extra = qualifying_data(published.nonce, challenge.uid, binding.digest)
        quote, signature, pcrs = self.tpm.quote(published, extra)
        answer = SecondEvidence(
            first=FirstRequestRef(name=challenge.name, uid=challenge.uid),
            mac=proof(self._activate(published), challenge.uid, challenge.csr_sha256, binding.digest),
            quote=quote,
            signature=signature,
            pcrs=pcrs,
        )
        return Evidence(self.provider, VERSION, answer.to_json())

    def _activate(self, challenge: Challenge) -> bytes:
        """TPM2_ActivateCredential (Part 1 §24), without the integrity check that a real one makes."""
        x, y = (int.from_bytes(part, "big") for part in _sized_parts(challenge.secret))
        ephemeral = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
        own = self.endorsement_key.public_key().public_numbers().x.to_bytes(32, "big")
        z = self.endorsement_key.exchange(ec.ECDH(), ephemeral)
        seed = kdfe(Alg.SHA256, z, b"IDENTITY\x00" + x.to_bytes(32, "big") + own, 256)
        name = b"\x00\x0b" + hashlib.sha256(self.tpm.ak_public).digest()
        _, encrypted = challenge.blob[:34], challenge.blob[34:]
        decryptor = Cipher(AES(kdfa(Alg.SHA256, seed, b"STORAGE", name, BITS)), CFB(bytes(16))).decryptor()
        return (decryptor.update(encrypted) + decryptor.finalize())[2:]


def _sized_parts(data: bytes) -> list[bytes]:
    parts: list[bytes] = []
    while data:
        size = int.from_bytes(data[:2], "big")
        parts.append(data[2 : 2 + size])
        data = data[2 + size :]
    return parts


def fixed_key(what: str, number: int | None) -> ec.EllipticCurvePrivateKey:
    """Make the key of a number; None: a new one."""
    if number is None:
        return ec.generate_private_key(ec.SECP256R1())
    drawn = hashlib.sha256(f"{what} {number}".encode()).digest()[:31]  # 31 bytes: below the order of the curve
    return ec.derive_private_key(int.from_bytes(drawn, "big") + 1, ec.SECP256R1())
