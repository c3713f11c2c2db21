"""A made-up cluster, its requests, and a TPM in software whose every byte a test can choose.

``SoftTpm`` makes evidence that is right in all but one thing: nothing binds its endorsement key to a machine, unless
the test's policy does. So each rule can be broken alone, quotes signed again included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding
from worlds import attested, challenge_by

from clouds.authority import BEGIN, END, Authority, Extension, PublicKey, constraint, key_usage, purposes
from nodeattest_providers.challenge_response import LABEL_SECRET, challenge_context, derive
from nodeattest_providers.errors import ChallengeRequired, Reason
from nodeattest_providers.identifiers import ClusterPin, NodeName, ProviderID, ProviderName, Purpose, signer_for
from nodeattest_providers.node_interface import (
    Binding,
    Evidence,
    FirstRequestRef,
    JsonValue,
    NodeCsr,
    PublishedChallenge,
    SecretBytes,
)
from nodeattest_providers.tpm.key_templates import AK_POLICY, AK_TEMPLATE, EK_TEMPLATES, qualified_name
from nodeattest_providers.tpm.protocol import (
    PROVIDER,
    VERSION,
    Challenge,
    FirstEvidence,
    SecondEvidence,
    proof,
    qualifying_data,
)
from nodeattest_providers.tpm.structures import PcrSelection, PublicArea, parse_public, sized
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import (
    AttestedNode,
    ClusterFacts,
    Facts,
    LedgerFacts,
    MachineFacts,
    NodeRequest,
)

EkKind = Literal["rsa2048", "ecc-p256", "ecc-p384"]
EkKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
MACHINE = ProviderID("metal://rack-1/7")
PIN = ClusterPin("sha256:" + "ab" * 32)
OTHER_PIN = ClusterPin("sha256:" + "cd" * 32)
MASTER = SecretBytes(b"the master key of this test only")
CSR = NodeCsr(der=b"PKCS#10 of node-7", node_name=NodeName("node-7"), provider_id=MACHINE, spki=b"SPKI of node-7")
AK_PREFIX = AK_TEMPLATE[: -2 * (2 + 32)]
MARK = sized(AK_POLICY).hex()
UNMARKED_PREFIX = AK_PREFIX.replace(sized(AK_POLICY), sized(b""))
"""Of a key of the same shape as ours, without the mark."""
PCR_VALUES = (hashlib.sha256(b"firmware").digest(), hashlib.sha256(b"secure boot").digest())


def public_of(kind: EkKind, key: EkKey) -> bytes:
    """Write the endorsement key's public area by its template."""
    prefix = next(template.prefix for template in EK_TEMPLATES if template.name == kind)
    return prefix + unique_of(key)


def unique_of(key: EkKey) -> bytes:
    numbers = key.public_key().public_numbers()
    octets = (key.key_size + 7) // 8
    if isinstance(numbers, rsa.RSAPublicNumbers):
        return sized(numbers.n.to_bytes(octets, "big"))
    return sized(numbers.x.to_bytes(octets, "big")) + sized(numbers.y.to_bytes(octets, "big"))


def new_key(kind: EkKind) -> EkKey:
    if kind == "rsa2048":
        return rsa.generate_private_key(65537, 2048)
    return ec.generate_private_key(ec.SECP256R1() if kind == "ecc-p256" else ec.SECP384R1())


def ak_prefix(
    *,
    name_alg: str = "000b",
    attributes: int = 0x00050472,
    policy: str = MARK,
    symmetric: str = "0010",
    scheme: str = "0018000b",
    curve: str = "0003",
) -> bytes:
    """Write an ECC attestation key's public area up to its point."""
    return bytes.fromhex(f"0023{name_alg}{attributes:08x}{policy}{symmetric}{scheme}{curve}0010")


def rsa_ak_prefix(bits: int) -> bytes:
    """Write an RSA attestation key's public area up to its modulus."""
    return bytes.fromhex("0001000b00050472" + MARK + "0010" + "0014000b" + f"{bits:04x}" + "00000000")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteParts:
    """Every field of TPMS_ATTEST, to be spoilt one by one."""

    magic: int = 0xFF544347
    kind: int = 0x8018
    signer: bytes
    extra: bytes
    clock: int = 5_000
    resets: int = 3
    restarts: int = 0
    safe: int = 1
    selection: bytes
    pcr_digest: bytes
    tail: bytes = b""

    def marshal(self) -> bytes:
        return b"".join(
            (
                self.magic.to_bytes(4, "big"),
                self.kind.to_bytes(2, "big"),
                sized(self.signer),
                sized(self.extra),
                self.clock.to_bytes(8, "big"),
                self.resets.to_bytes(4, "big"),
                self.restarts.to_bytes(4, "big"),
                self.safe.to_bytes(1, "big"),
                bytes(8),
                self.selection,
                sized(self.pcr_digest),
                self.tail,
            )
        )


@dataclass(frozen=True, slots=True)
class SoftTpm:
    """Keys in software, used as a TPM would."""

    kind: EkKind = "ecc-p256"
    ek: EkKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    ak: EkKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    ak_prefix: bytes = AK_PREFIX

    @property
    def ek_public(self) -> bytes:
        return public_of(self.kind, self.ek)

    @property
    def ak_public(self) -> bytes:
        return self.ak_prefix + unique_of(self.ak)

    @property
    def fingerprint(self) -> str:
        return "sha256:" + hashlib.sha256(parsed(self.ek_public).spki).hexdigest()

    @property
    def settings(self) -> dict[str, JsonValue]:
        """The strictest policy that trusts this TPM for the test's machine."""
        return {"endorsementKeys": [{"providerID": MACHINE, "sha256": self.fingerprint}]}

    def first(self, **changes: object) -> FirstEvidence:
        return replace(FirstEvidence(ek_public=self.ek_public, ak_public=self.ak_public), **changes)

    def sign(self, message: bytes) -> bytes:
        if isinstance(self.ak, rsa.RSAPrivateKey):
            return bytes.fromhex("0014000b") + sized(self.ak.sign(message, padding.PKCS1v15(), hashes.SHA256()))
        r, s = decode_dss_signature(self.ak.sign(message, ec.ECDSA(hashes.SHA256())))
        return bytes.fromhex("0018000b") + sized(r.to_bytes(32, "big")) + sized(s.to_bytes(32, "big"))

    def quote_parts(self, extra: bytes, selection: PcrSelection, values: tuple[bytes, ...]) -> QuoteParts:
        return QuoteParts(
            signer=qualified_name(parsed(self.ak_public)),
            extra=extra,
            selection=selection.marshal(),
            pcr_digest=hashlib.sha256(b"".join(values)).digest(),
        )


def parsed(public: bytes) -> PublicArea:
    return parse_public(public, what="key", reason=Reason.ENDORSEMENT_KEY_MALFORMED)


def cluster(*pins: ClusterPin) -> ClusterFacts:
    return ClusterFacts(uid="cluster-uid", pins=frozenset(pins or (PIN,)))


def machine(
    *, annotations: Mapping[str, str] | None = None, endorsement_keys: Mapping[str, str] | None = None
) -> MachineFacts:
    return MachineFacts(
        uid="machine-uid",
        provider_id=MACHINE,
        annotations=annotations or {},
        endorsement_keys=endorsement_keys or {},
    )


def facts_of(settings: Mapping[str, JsonValue], **changes: object) -> Facts:
    facts = Facts(cluster=cluster(), machine=machine(), settings=settings, challenge_keys=(MASTER,), verified_at=NOW)
    return replace(facts, **changes)


def request_of(evidence: FirstEvidence | SecondEvidence, **changes: object) -> NodeRequest:
    number = 1 if isinstance(evidence, FirstEvidence) else 2
    request = NodeRequest(
        name=f"csr-{number}",
        uid=f"uid-{number}",
        created=NOW if number == 1 else NOW + timedelta(seconds=2),
        signer_name=signer_for(ProviderName("tpm"), Purpose.CLIENT),
        purpose=Purpose.CLIENT,
        username="system:bootstrap:abcdef",
        groups=frozenset({"system:bootstrappers", "system:authenticated"}),
        expiration_seconds=None,
        request=b"envelope of the request",
        csr=CSR,
        evidence=Evidence(PROVIDER, VERSION, evidence.to_json()),
    )
    return replace(request, **changes)


def binding_of(request: NodeRequest, pin: ClusterPin = PIN) -> Binding:
    return request.binding(pin)


def digest_of(request: NodeRequest, pin: ClusterPin = PIN) -> bytes:
    """The binding of this request's evidence."""
    return binding_of(request, pin).digest


def verify(request: NodeRequest, facts: Facts, signer: TpmSigner | None = None) -> AttestedNode:
    return attested(signer or TpmSigner(), request, facts)


def challenge_of(request: NodeRequest, facts: Facts) -> ChallengeRequired:
    return challenge_by(lambda: verify(request, facts))


def published(request: NodeRequest, challenge: ChallengeRequired) -> PublishedChallenge:
    return PublishedChallenge(
        name=request.name,
        uid=request.uid,
        csr_sha256=request.csr.sha256,
        text=challenge.challenge,
        spki_sha256=request.csr.spki_sha256,
    )


def secret_of(first: NodeRequest, facts: Facts, tpm: SoftTpm) -> bytes:
    ak, ek = parsed(tpm.ak_public), parsed(tpm.ek_public)
    return derive(LABEL_SECRET, MASTER, challenge_context(facts, first, ak.name, ek.spki_sha256))


def answer_to(
    first: NodeRequest,
    facts: Facts,
    challenge: Challenge,
    tpm: SoftTpm,
    *,
    values: tuple[bytes, ...] = PCR_VALUES,
    binding: bytes | None = None,
    quoting: SoftTpm | None = None,
) -> SecondEvidence:
    """Answer by the test's own master key, not by a decryption; over another binding, or with another TPM's quote."""
    secret = secret_of(first, facts, tpm)
    over, by = binding or digest_of(first), quoting or tpm
    quote = by.quote_parts(qualifying_data(challenge.nonce, first.uid, over), challenge.pcrs, values).marshal()
    return SecondEvidence(
        first=FirstRequestRef(name=first.name, uid=first.uid),
        mac=proof(secret, first.uid, first.csr.sha256, over),
        quote=quote,
        signature=by.sign(quote),
        pcrs=values,
    )


@dataclass(frozen=True, slots=True)
class Round:
    """A whole sound exchange of a SoftTpm, and the answer's parts."""

    tpm: SoftTpm
    facts: Facts
    first: NodeRequest
    challenge: Challenge
    parts: QuoteParts

    @property
    def secret(self) -> bytes:
        return secret_of(self.first, self.facts, self.tpm)

    def second(self, **changes: object) -> SecondEvidence:
        """Answer; ``changes`` name fields of the evidence, or ``parts`` to quote otherwise."""
        evidence = answer_to(self.first, self.facts, self.challenge, self.tpm)
        parts = changes.pop("parts", None)
        if isinstance(parts, QuoteParts):
            quote = parts.marshal()
            evidence = replace(evidence, quote=quote, signature=self.tpm.sign(quote))
        return replace(evidence, **changes)

    def request(self, evidence: SecondEvidence | None = None) -> NodeRequest:
        """The second request, with this evidence or the sound one."""
        return request_of(evidence or self.second())

    def verify(self, evidence: SecondEvidence | None = None, /, **changes: object) -> AttestedNode:
        """Verify the answer; ``changes`` name fields of the facts."""
        return verify(self.request(evidence), replace(self.facts, **changes))


def sound_round(
    tpm: SoftTpm | None = None, settings: Mapping[str, JsonValue] | None = None, **changes: object
) -> Round:
    """Go through phase 1 with a SoftTpm."""
    tpm = tpm or SoftTpm()
    facts = facts_of(settings or tpm.settings, **changes)
    first = request_of(tpm.first())
    challenge = Challenge.parse(challenge_of(first, facts).challenge)
    extra = qualifying_data(challenge.nonce, first.uid, digest_of(first))
    parts = tpm.quote_parts(extra, challenge.pcrs, PCR_VALUES)
    return Round(tpm, replace(facts, first_request=first), first, challenge, parts)


def ledger(**changes: object) -> LedgerFacts:
    return replace(LedgerFacts(), **changes)


EK_USAGE = x509.ObjectIdentifier("2.23.133.8.1")
_MODEL = x509.Name([x509.NameAttribute(x509.ObjectIdentifier("2.23.133.2.1"), "id:00001014")])


def leaf_extensions(key: PublicKey) -> dict[str, Extension]:
    """List what swtpm's endorsement certificates have, by a short name, so that a row can drop or change one."""
    return {
        "eku": purposes(EK_USAGE),
        "san": (x509.SubjectAlternativeName([x509.DirectoryName(_MODEL)]), True),
        "bc": constraint(ca=False),
        "ku": key_usage("key_encipherment" if isinstance(key, rsa.RSAPublicKey) else "key_agreement"),
    }


def endorse(
    maker: Authority,
    key: EkKey,
    changes: Mapping[str, Extension | None] | None = None,
    *,
    begin: datetime = BEGIN,
    end: datetime = END,
) -> bytes:
    """Issue an endorsement certificate (DER); ``changes`` replace an extension, or leave it out."""
    chosen = {**leaf_extensions(key.public_key()), **(changes or {})}
    kept = [extension for extension in chosen.values() if extension is not None]
    return maker.issue("unknown", key.public_key(), *kept, begin=begin, end=end).public_bytes(Encoding.DER)
