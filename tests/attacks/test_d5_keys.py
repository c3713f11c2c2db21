"""D5, first requests: endorsement keys that are not this Machine's, attestation keys that prove nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from catalogue import Row, attacks, evaluated
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from handmade import roca_modulus
from tpm_world import (
    MACHINE,
    NOW,
    SoftTpm,
    ak_prefix,
    endorse,
    facts_of,
    ledger,
    machine,
    parsed,
    request_of,
    rsa_ak_prefix,
    verify,
)

from clouds.authority import CA, Authority, Extension, constraint, key_usage, purposes
from nodeattest_providers.node_interface import Evidence, JsonValue
from nodeattest_providers.tpm.endorsement_key import MACHINE_ANNOTATION
from nodeattest_providers.tpm.key_templates import EK_TEMPLATES
from nodeattest_providers.tpm.protocol import VERSION
from nodeattest_providers.tpm.structures import Alg, Curve, sized
from nodeattest_providers.verifier_interface import Facts, NodeRequest

OTHER: Final = "sha256:" + "0f" * 32
DAY: Final = timedelta(days=1)
VECTORS: Final = Path(__file__).parents[1] / "vectors"


@dataclass(frozen=True, slots=True)
class Scene:
    """A sound TPM and the authority of its maker; each attack makes one request and one state of the world of them."""

    tpm: SoftTpm
    maker: Authority

    @property
    def certificate(self) -> bytes:
        return endorse(self.maker, self.tpm.ek)


Case = Callable[[Scene], tuple[NodeRequest, Facts]]


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene(SoftTpm(), Authority.root())


# Whose key it is


def listed(fingerprint: str, provider_id: str = MACHINE, **more: JsonValue) -> dict[str, JsonValue]:
    return {"endorsementKeys": [{"providerID": provider_id, "sha256": fingerprint}], **more}


def with_policy(policy: Callable[[Scene], dict[str, JsonValue]]) -> Case:
    """An honest request with its maker's certificate, under a policy that does not trust it."""
    return lambda s: (request_of(s.tpm.first(ek_certificate=s.certificate)), facts_of(policy(s)))


def by_platform(s: Scene) -> tuple[NodeRequest, Facts]:
    named = machine(endorsement_keys={"infrastructure machine": OTHER})
    return request_of(s.tpm.first()), facts_of(s.tpm.settings, machine=named)


def by_annotation(fingerprint: str = "", *, certificate: bool = True) -> Case:
    def case(s: Scene) -> tuple[NodeRequest, Facts]:
        bound = machine(annotations={MACHINE_ANNOTATION: fingerprint or s.tpm.fingerprint})
        first = s.tpm.first(ek_certificate=s.certificate if certificate else None)
        return request_of(first), facts_of({"endorsementCAs": s.maker.pem}, machine=bound)

    return case


def relayed(s: Scene) -> tuple[NodeRequest, Facts]:
    genuine = SoftTpm()
    first = genuine.first(ek_certificate=endorse(s.maker, genuine.ek))
    return request_of(first), facts_of({"endorsementCAs": s.maker.pem, **listed(s.tpm.fingerprint)})


# Endorsement certificates


def certified(make: Callable[[Scene], bytes], chain: Callable[[Scene], tuple[bytes, ...]] = lambda _: ()) -> Case:
    """The Machine names the key, so that only the certificate can be wrong."""

    def case(s: Scene) -> tuple[NodeRequest, Facts]:
        bound = machine(annotations={MACHINE_ANNOTATION: s.tpm.fingerprint})
        first = s.tpm.first(ek_certificate=make(s), ek_chain=chain(s))
        return request_of(first), facts_of({"endorsementCAs": s.maker.pem}, machine=bound)

    return case


def extended(name: str, extension: Extension | None) -> Case:
    return certified(lambda s: endorse(s.maker, s.tpm.ek, {name: extension}))


def through(issuer_of: Callable[[Scene], Authority]) -> Case:
    def case(s: Scene) -> tuple[NodeRequest, Facts]:
        issuer = issuer_of(s)
        return certified(lambda s: endorse(issuer, s.tpm.ek), lambda _: (issuer.der,))(s)

    return case


def another_tpm(s: Scene) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    return Authority(x509.load_der_x509_certificate(endorse(s.maker, key)), key)


def with_a_bit_changed(s: Scene) -> bytes:
    good = s.certificate  # each one is signed anew
    return good[:-1] + bytes([good[-1] ^ 1])


def signed_with_sha1(_: Scene) -> tuple[NodeRequest, Facts]:
    """Made with openssl beforehand, since cryptography signs no SHA-1."""
    root, sha1, _sha256 = x509.load_pem_x509_certificates((VECTORS / "ek-sha1.pem").read_bytes())
    point = sha1.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    prefix = next(item.prefix for item in EK_TEMPLATES if item.name == "ecc-p256")
    public = prefix + sized(point[1:33]) + sized(point[33:])
    bound = machine(annotations={MACHINE_ANNOTATION: parsed(public).fingerprint})
    settings: dict[str, JsonValue] = {"endorsementCAs": root.public_bytes(Encoding.PEM).decode()}
    first = SoftTpm().first(ek_public=public, ek_certificate=sha1.public_bytes(Encoding.DER))
    return request_of(first), facts_of(settings, machine=bound, verified_at=datetime(2030, 1, 1, tzinfo=UTC))


# Public areas


def ek_of(change: Callable[[bytes], bytes]) -> Case:
    return lambda s: (request_of(s.tpm.first(ek_public=change(s.tpm.ek_public))), facts_of(s.tpm.settings))


def replaced(at: int, new: str) -> Callable[[bytes], bytes]:
    octets = bytes.fromhex(new)
    return lambda public: public[:at] + octets + public[at + len(octets) :]


def last_bit(public: bytes) -> bytes:
    return public[:-1] + bytes([public[-1] ^ 1])


def rsa_ek(bits: int, modulus: int) -> Callable[[bytes], bytes]:
    template = next(item.prefix for item in EK_TEMPLATES if item.name == "rsa2048")
    prefix = template[:-6] + bits.to_bytes(2, "big") + template[-4:]
    return lambda _: prefix + sized(modulus.to_bytes(bits // 8, "big"))


def ak_of(prefix: bytes) -> Case:
    """A key that is sound but for what its public area says of it, trusted in all other things."""
    evil = SoftTpm(ak_prefix=prefix)
    return lambda _: (request_of(evil.first()), facts_of(evil.settings))


def ak_area(change: Callable[[bytes], bytes]) -> Case:
    return lambda s: (request_of(s.tpm.first(ak_public=change(s.tpm.ak_public))), facts_of(s.tpm.settings))


def pinned(**pins: str) -> Case:
    return lambda s: (request_of(s.tpm.first()), facts_of(s.tpm.settings, ledger=ledger(fingerprints=pins)))


def of_another_kind(_: Scene) -> tuple[NodeRequest, Facts]:
    evil = SoftTpm(ak=ec.generate_private_key(ec.SECP384R1()), ak_prefix=ak_prefix(curve=f"{Curve.P384:04x}"))
    return request_of(evil.first()), facts_of(evil.settings)


def of_weak_rsa(_: Scene) -> tuple[NodeRequest, Facts]:
    weak = rsa.generate_private_key(65537, 1024)  # noqa: S505 - the attack
    evil = SoftTpm(ak=weak, ak_prefix=rsa_ak_prefix(1024))
    return request_of(evil.first()), facts_of(evil.settings)


def both_roles(_: Scene) -> tuple[NodeRequest, Facts]:
    key = ec.generate_private_key(ec.SECP256R1())
    evil = SoftTpm(ek=key, ak=key)
    return request_of(evil.first()), facts_of(evil.settings)


def chosen_suffix(s: Scene) -> tuple[NodeRequest, Facts]:
    policy = listed(OTHER, "metal://rack-1/node", endorsementCAs=s.maker.pem, trustOnFirstUse=True)
    chosen = replace(machine(), provider_id_prefix="metal://rack-1/")
    return request_of(s.tpm.first(ek_certificate=s.certificate)), facts_of(policy, machine=chosen)


def data_of(version: int = VERSION, **changes: JsonValue) -> Case:
    def case(s: Scene) -> tuple[NodeRequest, Facts]:
        request = request_of(s.tpm.first())
        data: dict[str, JsonValue] = {**request.evidence.data, **changes}
        return replace(request, evidence=Evidence(request.evidence.provider, version, data)), facts_of(s.tpm.settings)

    return case


def of_policy(policy: bytes) -> Case:
    """An attestation key with another authPolicy than our mark."""
    tpm = SoftTpm(ak_prefix=ak_prefix(policy=sized(policy).hex()))
    return lambda _: (request_of(tpm.first()), facts_of(tpm.settings))


def eku(usage: x509.ObjectIdentifier) -> Case:
    return extended("eku", purposes(usage))


def looping(s: Scene) -> tuple[NodeRequest, Facts]:
    loop = Authority.root("loop", constraint(), key_usage("key_cert_sign"), key=ec.generate_private_key(ec.SECP521R1()))
    chain = tuple(loop.issue("loop", loop.key.public_key(), *CA).public_bytes(Encoding.DER) for _ in range(4))
    return certified(lambda s: endorse(loop, s.tpm.ek), lambda _: chain)(s)


def first_use_of_a_node(s: Scene) -> tuple[NodeRequest, Facts]:
    request, facts = with_policy(lambda s: {"endorsementCAs": s.maker.pem, "trustOnFirstUse": True})(s)
    return replace(request, username="system:node:node-7", groups=frozenset({"system:nodes"})), facts


CASES: Final[Mapping[str, Case]] = {
    "D4-85": with_policy(lambda _: listed(OTHER)),
    "D5-001": with_policy(lambda _: {}),
    "D5-002": by_platform,
    "D5-003": with_policy(lambda s: listed(OTHER, endorsementCAs=s.maker.pem, trustOnFirstUse=True)),
    "D5-004": with_policy(
        lambda s: listed(s.tpm.fingerprint, "metal://rack-1/8", endorsementCAs=s.maker.pem, trustOnFirstUse=True)
    ),
    "D5-005": relayed,
    "D5-006": by_annotation(OTHER),
    "D5-007": by_annotation(certificate=False),
    "D5-008": with_policy(lambda _: {"trustOnFirstUse": True}),
    "D5-009": certified(lambda s: endorse(Authority.root("unknown", key=s.tpm.ek), s.tpm.ek)),
    "D5-010": certified(lambda s: endorse(s.maker, s.tpm.ek, end=NOW - DAY)),
    "D5-011": certified(lambda s: endorse(s.maker, s.tpm.ek, begin=NOW + DAY)),
    "D5-012": extended("bc", constraint()),
    "D5-013": through(lambda s: s.maker.below("issuer", constraint(ca=False), CA[1])),
    "D5-014": through(another_tpm),
    "D5-015": certified(lambda s: endorse(Authority.root(), s.tpm.ek)),
    "D5-016": through(lambda s: s.maker.below("issuer", end=NOW - DAY)),
    "D5-017": eku(ExtendedKeyUsageOID.CLIENT_AUTH),
    "D5-018": eku(ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE),
    "D5-019": extended("ku", None),
    "D5-020": extended("odd", (x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00"), True)),
    "D5-021": certified(lambda s: endorse(s.maker, SoftTpm().ek)),
    "D5-022": certified(with_a_bit_changed),
    "D5-023": certified(lambda s: s.certificate + b"\0"),
    "D5-024": signed_with_sha1,
    "D5-025": certified(lambda _: b"\x30\x03\x02\x01\x01"),
    "D5-026": certified(lambda s: s.certificate),
    "D5-027": certified(lambda s: s.certificate, lambda s: (s.maker.der,) * 5),
    "D5-028": ek_of(replaced(4, "000300f2")),
    "D5-029": ek_of(replaced(4, "000300b0")),
    "D5-030": ek_of(replaced(4, "000500b2")),
    "D5-031": ek_of(replaced(10, "00" * 32)),
    "D5-197": looping,
    "D5-032": ek_of(rsa_ek(1024, (1 << 1023) + 1)),
    "D5-033": ek_of(rsa_ek(2048, roca_modulus())),
    "D5-034": ek_of(last_bit),
    "D5-035": ek_of(lambda public: public + b"\0"),
    "D5-036": pinned(ek=OTHER),
    "D5-037": pinned(ak="000b" + "0" * 64),
    "D5-038": ak_of(ak_prefix(attributes=0x00040472)),
    "D5-039": ak_of(ak_prefix(attributes=0x00050440)),
    "D5-040": ak_of(ak_prefix(attributes=0x00050470)),
    "D5-041": ak_of(ak_prefix(attributes=0x00050462)),
    "D5-042": ak_of(ak_prefix(attributes=0x00050452)),
    "D5-043": ak_of(ak_prefix(attributes=0x00070472)),
    "D5-044": ak_of(ak_prefix(attributes=0x00030472)),
    "D5-045": ak_of(ak_prefix(attributes=0x00050072)),
    "D5-046": ak_of(ak_prefix(attributes=0x000504F2)),
    "D5-047": ak_of(ak_prefix(attributes=0x00050473)),
    "D5-048": ak_of(ak_prefix(policy="0020" + "00" * 32)),
    "D5-049": ak_of(ak_prefix(scheme=f"{Alg.NULL:04x}")),
    "D5-050": ak_of(ak_prefix(scheme=f"{Alg.ECDSA:04x}{Alg.SHA1:04x}")),
    "D5-051": ak_of(ak_prefix(scheme="001a000b")),
    "D5-052": ak_of(ak_prefix(name_alg=f"{Alg.SHA1:04x}")),
    "D5-053": ak_of(ak_prefix(name_alg=f"{Alg.SHA384:04x}")),
    "D5-054": ak_of(ak_prefix(curve="0001")),
    "D5-055": of_another_kind,
    "D5-056": of_weak_rsa,
    "D5-057": ak_area(last_bit),
    "D5-058": ak_area(lambda public: public[:-34] + sized(public[-31:])),
    "D5-059": ak_area(lambda public: public + b"\0"),
    "D5-060": ak_area(lambda public: public[:-34] + b"\xff\xff" + public[-32:]),
    "D5-061": both_roles,
    "D5-062": data_of(verified=True),
    "D5-063": data_of(secret="c2VjcmV0"),
    "D5-064": data_of(phase=True),
    "D5-065": ak_area(lambda public: public + bytes(2_000)),
    "D5-204": of_policy(bytes(32)),
    "D5-205": of_policy(b""),
    "D5-230": chosen_suffix,
    "D5-066": data_of(version=3),
    "D5-231": first_use_of_a_node,
    "D5-232": ak_of(ak_prefix(symmetric="000600800043")),
}


def test_the_request_that_the_attacks_spoil_is_challenged(scene: Scene) -> None:
    assert evaluated(lambda: verify(request_of(scene.tpm.first()), facts_of(scene.tpm.settings))).verdict == "accept"


@pytest.mark.parametrize(("row", "case"), attacks(CASES))
def test_keys_that_prove_nothing_get_no_challenge(scene: Scene, row: Row, case: Case) -> None:
    request, facts = case(scene)
    assert evaluated(lambda: verify(request, facts), row) == row.expected
