"""What attestor and verifier of ``tpm`` exchange: evidence, challenge, and the proof's formulas.

What only the controller uses of ``cryptography``, to make a credential, is imported there.
Source: docs/wire-format.md, "tpm/v1", §4.4; TCG TPM 2.0 Library, Part 1 §24, §11.4.10, Annex B.10.4, Annex C.6.3; Part
2 §12.4.3; vectors in tests/vectors/tpm.json.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from nodeattest_providers import canonical_json
from nodeattest_providers.canonical_json import Fields, encoded
from nodeattest_providers.challenge_response import (
    MAX_UID,
    parse_challenge,
    parse_first_request_ref,
    phase_fields,
    ref_to_json,
)
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import FirstRequestRef, JsonObject, length_prefix
from nodeattest_providers.tpm.structures import (
    BANK_ALGORITHMS,
    MAX_PCR,
    Alg,
    PcrSelection,
    PublicArea,
    digest_size,
    sized,
)

PROVIDER: Final = ProviderName("tpm")
VERSION: Final = 1

_LABEL_PROOF: Final = b"nodeattest/v1/proof"
_LABEL_QUOTE: Final = b"nodeattest/v1/quote"
_DIGEST: Final = 32
_MAX_PUBLIC: Final = 1024
"""Bytes of a TPMT_PUBLIC; an RSA-2048 endorsement key has 314."""
_MAX_CERTIFICATE: Final = 4096
"""Bytes of one certificate; endorsement certificates have 700 to 1700."""
MAX_CHAIN: Final = 4
"""Intermediates; manufacturers use one or two."""
_MAX_ATTEST: Final = 1024
"""Bytes of a TPMS_ATTEST; a quote of one bank has 145."""
_MAX_SIGNATURE: Final = 1024
_MAX_PCR_DIGEST: Final = 64
_MAX_SPKI: Final = len("sha256:") + 64
_MAX_BLOB: Final = 256
"""Bytes of a TPMS_ID_OBJECT; with SHA-384 it has 84."""
_MAX_SECRET: Final = 512
MAX_EVENT_LOG: Final = 128 * 1024
"""Bytes of a measured-boot event log: twice what firmware reserves by default, and with it an envelope of 256 KiB has
room for all the rest. Servers write 20 to 60 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstEvidence:
    """Phase 1: which endorsement key, which attestation key."""

    ek_public: bytes = field(repr=False)
    ak_public: bytes = field(repr=False)
    ek_certificate: bytes | None = field(default=None, repr=False)
    ek_chain: tuple[bytes, ...] = field(default=(), repr=False)
    """DER of intermediates, in any order."""

    def to_json(self) -> JsonObject:
        return encoded(
            phase=1,
            ekPub=self.ek_public,
            akPub=self.ak_public,
            ekCert=self.ek_certificate,
            ekChain=self.ek_chain or None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondEvidence:
    """Phase 2: the answer to the challenge of the first request."""

    first: FirstRequestRef
    mac: bytes = field(repr=False)
    quote: bytes = field(repr=False)
    signature: bytes = field(repr=False)
    pcrs: tuple[bytes, ...] = field(repr=False)
    event_log: bytes | None = field(default=None, repr=False)

    def to_json(self) -> JsonObject:
        return encoded(
            phase=2,
            first=ref_to_json(self.first),
            mac=self.mac,
            quote=self.quote,
            signature=self.signature,
            pcrs=self.pcrs,
            eventLog=self.event_log,
        )


def parse_evidence(data: JsonObject, *, form: str = "tpm", certificates: bool = True) -> FirstEvidence | SecondEvidence:
    """Read the evidence block's object; anything outside the two schemas is ``Denied``.

    ``form`` names the provider and version whose schemas these are; ``certificates`` says whether the endorsement
    key's may come along.
    """
    required = {1: ("ekPub", "akPub"), 2: ("first", "mac", "quote", "signature", "pcrs")}
    optional = {1: ("ekCert", "ekChain") if certificates else (), 2: ("eventLog",)}
    phase, fields = phase_fields(data, form, required, optional)
    return _first(fields, form) if phase == 1 else _second(fields)


def _first(fields: Fields, form: str) -> FirstEvidence:
    certificate = fields.octets("ekCert", 1, _MAX_CERTIFICATE) if "ekCert" in fields else None
    chain = fields.octets_list("ekChain", MAX_CHAIN, 1, _MAX_CERTIFICATE) if "ekChain" in fields else ()
    if "ekChain" in fields and (not chain or certificate is None):  # absent is the one spelling of no chain
        raise Denied(
            Reason.EVIDENCE_MALFORMED,
            expected=f"{form}: ekChain with at least one certificate, beside ekCert",
            got="an idle ekChain",
            remedy="send evidence as docs/wire-format.md says",
        )
    return FirstEvidence(
        ek_public=fields.octets("ekPub", 1, _MAX_PUBLIC),
        ak_public=fields.octets("akPub", 1, _MAX_PUBLIC),
        ek_certificate=certificate,
        ek_chain=chain,
    )


def _second(fields: Fields) -> SecondEvidence:
    return SecondEvidence(
        first=parse_first_request_ref(fields),
        mac=fields.octets("mac", _DIGEST, _DIGEST),
        quote=fields.octets("quote", 1, _MAX_ATTEST),
        signature=fields.octets("signature", 1, _MAX_SIGNATURE),
        pcrs=fields.octets_list("pcrs", MAX_PCR + 1, 1, _MAX_PCR_DIGEST),
        event_log=fields.octets("eventLog", 1, MAX_EVENT_LOG) if "eventLog" in fields else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """The challenge annotation: what the controller publishes on the first request, for the node's eyes only."""

    uid: str
    spki_sha256: str
    nonce: bytes
    blob: bytes = field(repr=False)
    secret: bytes = field(repr=False)
    pcrs: PcrSelection
    log: bool = False

    def to_text(self) -> str:
        pcrs: JsonObject = {"bank": self.pcrs.bank.name.lower(), "select": list(self.pcrs.pcrs)}
        data = encoded(
            v=VERSION,
            uid=self.uid,
            spki=self.spki_sha256,
            n=self.nonce,
            blob=self.blob,
            secret=self.secret,
            pcrs=pcrs,
            log=True if self.log else None,  # else absent: agents that know no logs still understand it
        )
        return canonical_json.dumps(data).decode()

    @classmethod
    def parse(cls, text: str) -> Challenge:
        required = ("v", "uid", "spki", "n", "blob", "secret", "pcrs")
        fields = Fields.of(parse_challenge(text), "tpm challenge", required, ("log",))
        fields.integer("v", VERSION, VERSION)
        return cls(
            uid=fields.text("uid", 1, MAX_UID),
            spki_sha256=fields.text("spki", _MAX_SPKI, _MAX_SPKI),
            nonce=fields.octets("n", _DIGEST, _DIGEST),
            blob=fields.octets("blob", 1, _MAX_BLOB),
            secret=fields.octets("secret", 1, _MAX_SECRET),
            pcrs=_selection(fields.nested("pcrs", ("bank", "select"))),
            log=fields.flag("log"),
        )


def _selection(fields: Fields) -> PcrSelection:
    bank = BANK_ALGORITHMS.get(fields.text("bank", 1, 16))
    pcrs = fields.integers("select", MAX_PCR + 1, 0, MAX_PCR)
    if bank is None or not pcrs or list(pcrs) != sorted(set(pcrs)):
        raise Denied(
            Reason.EVIDENCE_MALFORMED,
            expected="tpm challenge, pcrs: a known bank and ascending PCRs",
            got="another bank or order",
            remedy="wait for the controller to publish the challenge again",
        )
    return PcrSelection(bank, pcrs)


def proof(secret: bytes, first_uid: str, first_csr_sha256: bytes, binding: bytes) -> bytes:
    """Compute M: HMAC-SHA256 under the activated secret, which itself never travels (§1)."""
    return hmac.digest(secret, length_prefix(_LABEL_PROOF, first_uid.encode(), first_csr_sha256, binding), "sha256")


def qualifying_data(nonce: bytes, first_uid: str, binding: bytes) -> bytes:
    """Compute X, the quote's extraData: 32 bytes fit every SHA-256 TPM."""
    return hashlib.sha256(length_prefix(_LABEL_QUOTE, nonce, first_uid.encode(), binding)).digest()


_IDENTITY: Final = b"IDENTITY\x00"
_STORAGE: Final = b"STORAGE"
_INTEGRITY: Final = b"INTEGRITY"
_ZERO_IV: Final = bytes(16)
"""Part 1 §24.4: a fresh key each time, hence an initial vector of zeros."""
_EXTRA_SCALAR_OCTETS: Final = 8
"""FIPS 186-5 §A.2.1: 64 bits more than the order, so that the scalar is unbiased."""
_ORDERS: Final = {
    "secp256r1": 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
    "secp384r1": int(
        "FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973", 16
    ),
}
"""SEC 2 §2.4.2 and §2.5.1: order of the base point."""


def make_credential(
    ek: PublicArea, name: bytes, credential: bytes, *, random: Callable[[int], bytes]
) -> tuple[bytes, bytes]:
    """Encrypt ``credential`` to the endorsement key, for the key with this Name, as TPM2_MakeCredential does.

    ``credential`` is no longer than the endorsement key's nameAlg digest; ``random`` gives n unpredictable bytes.
    Returns TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET, each without its length.
    """
    if len(credential) > digest_size(ek.name_alg):
        raise ValueError("a credential is at most a digest of the nameAlg long")
    if isinstance(ek.key, rsa.RSAPublicKey):
        seed, secret = _share_rsa(ek.key, ek.name_alg, random)
    else:
        seed, secret = _share_ecc(ek.key, ek.name_alg, random)
    return _protect(ek, seed, name, credential), secret


def _protect(ek: PublicArea, seed: bytes, name: bytes, credential: bytes) -> bytes:
    """Write TPMS_ID_OBJECT under a seed that the TPM knows (Part 1 §24.4, §24.5)."""
    from cryptography.hazmat.decrepit.ciphers.modes import CFB
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES

    if ek.symmetric is None:
        raise ValueError("an endorsement key has a symmetric algorithm")
    _, bits, _ = ek.symmetric
    storage_key = kdfa(ek.name_alg, seed, _STORAGE, name, bits)
    encryptor = Cipher(AES(storage_key), CFB(_ZERO_IV)).encryptor()
    identity = encryptor.update(sized(credential)) + encryptor.finalize()
    integrity_key = kdfa(ek.name_alg, seed, _INTEGRITY, b"", digest_size(ek.name_alg) * 8)
    integrity = hmac.digest(integrity_key, identity + name, ek.name_alg.name)
    return sized(integrity) + identity


def _hash(alg: Alg) -> hashes.HashAlgorithm:
    return {Alg.SHA256: hashes.SHA256(), Alg.SHA384: hashes.SHA384(), Alg.SHA512: hashes.SHA512()}[alg]


def kdfa(alg: Alg, key: bytes, label: bytes, context: bytes, bits: int) -> bytes:
    """Derive ``bits`` by SP 800-108 in counter mode with HMAC (Part 1 §11.4.10.2).

    ``label`` comes without its final zero byte, which is added; ``context`` is contextU, then contextV.
    """
    from cryptography.hazmat.primitives.kdf.kbkdf import KBKDFHMAC, CounterLocation, Mode

    return KBKDFHMAC(
        algorithm=_hash(alg),
        mode=Mode.CounterMode,
        length=bits // 8,
        rlen=4,
        llen=4,
        location=CounterLocation.BeforeFixed,
        label=label,
        context=context,
        fixed=None,
    ).derive(key)


def kdfe(alg: Alg, z: bytes, other_info: bytes, bits: int) -> bytes:
    """Derive ``bits`` by SP 800-56A concatenation (Part 1 §11.4.10.3).

    ``other_info`` is the label with its final zero byte, PartyUInfo, then PartyVInfo.
    """
    from cryptography.hazmat.primitives.kdf.concatkdf import ConcatKDFHash

    return ConcatKDFHash(algorithm=_hash(alg), length=bits // 8, otherinfo=other_info).derive(z)


def _share_rsa(key: rsa.RSAPublicKey, alg: Alg, random: Callable[[int], bytes]) -> tuple[bytes, bytes]:
    """Choose a seed and encrypt it by OAEP with the nameAlg and the label IDENTITY (Annex B.4, B.10.4)."""
    seed = random(digest_size(alg))
    oaep = padding.OAEP(mgf=padding.MGF1(_hash(alg)), algorithm=_hash(alg), label=_IDENTITY)
    return seed, key.encrypt(seed, oaep)


def _share_ecc(key: ec.EllipticCurvePublicKey, alg: Alg, random: Callable[[int], bytes]) -> tuple[bytes, bytes]:
    """Agree on a seed by ECDH with an ephemeral key, whose point is the encrypted secret (Annex C.6.3)."""
    octets = (key.curve.key_size + 7) // 8
    scalar = int.from_bytes(random(octets + _EXTRA_SCALAR_OCTETS), "big") % (_ORDERS[key.curve.name] - 1) + 1
    ephemeral = ec.derive_private_key(scalar, key.curve)
    point = ephemeral.public_key().public_numbers()
    x, y = point.x.to_bytes(octets, "big"), point.y.to_bytes(octets, "big")
    z = ephemeral.exchange(ec.ECDH(), key)
    own_x = key.public_numbers().x.to_bytes(octets, "big")
    return kdfe(alg, z, _IDENTITY + x + own_x, digest_size(alg) * 8), sized(x) + sized(y)
