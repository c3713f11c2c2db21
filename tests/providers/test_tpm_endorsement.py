"""Which endorsement keys are trusted for which Machine, and which certificates and chains of makers count."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tpm_world import (
    EK_USAGE,
    MACHINE,
    NOW,
    SoftTpm,
    endorse,
    facts_of,
    ledger,
    machine,
    new_key,
    parsed,
    request_of,
    sound_round,
    verify,
)
from worlds import denied_for

from clouds.authority import Authority, Extension, constraint, key_usage, purposes, rsa_key
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import ChallengeRequired, Check, Denied, Reason, Unavailable
from nodeattest_providers.identifiers import ProviderID, ProviderName
from nodeattest_providers.keys import PublicKey, endorsement_fingerprint
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import OFFLINE, Platform, make_signer
from nodeattest_providers.tpm.config import parse_policy
from nodeattest_providers.tpm.endorsement_key import MACHINE_ANNOTATION, check_certificate
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import ClusterAPISigner, Facts, NamedEndorsementKey

INSTANCE = ProviderID("aws:///us-east-1a/i-0123456789abcdef0")
OURS = "111111111111"
FROM_EC2: dict[str, JsonValue] = {"endorsementKeysFrom": {"ec2": {"accounts": [OURS]}}}
UNTRUSTED = Reason.ENDORSEMENT_KEY_UNTRUSTED
INVALID = Reason.ENDORSEMENT_CERTIFICATE_INVALID


@pytest.fixture(scope="module")
def tpm() -> SoftTpm:
    return SoftTpm()


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.root()


def outcome(tpm: SoftTpm, facts: Facts, **evidence: object) -> Reason | None:
    """Tell why a first request is refused; None when it is challenged."""
    try:
        verify(request_of(tpm.first(**evidence)), facts)
    except ChallengeRequired:
        return None
    except Denied as denied:
        return denied.reason
    raise AssertionError("a first request never attests a node")


def allow(fingerprint: str, provider_id: str = MACHINE) -> dict[str, JsonValue]:
    return {"endorsementKeys": [{"providerID": provider_id, "sha256": fingerprint}]}


OTHER = "sha256:" + "0f" * 32


def test_the_platforms_objects_decide_and_agree_with_each_other_and_with_the_allow_list(tpm: SoftTpm) -> None:
    own = machine(endorsement_keys={"infrastructure machine": tpm.fingerprint})
    other = machine(endorsement_keys={"infrastructure machine": OTHER})
    assert outcome(tpm, facts_of({}, machine=own)) is None
    assert outcome(tpm, facts_of(allow(tpm.fingerprint), machine=own)) is None
    assert outcome(tpm, facts_of(allow(OTHER), machine=own)) is UNTRUSTED
    assert outcome(tpm, facts_of(allow(tpm.fingerprint), machine=other)) is UNTRUSTED
    assert outcome(tpm, facts_of(allow(tpm.fingerprint, "sandbox://another"), machine=own)) is UNTRUSTED
    both = {"BareMetalHost": tpm.fingerprint, "Metal3Machine": tpm.fingerprint}
    assert outcome(tpm, facts_of({}, machine=machine(endorsement_keys=both))) is None
    for source in both:
        disagreeing = machine(endorsement_keys={**both, source: OTHER})
        assert outcome(tpm, facts_of({"trustOnFirstUse": True}, machine=disagreeing)) is UNTRUSTED


def test_an_annotation_on_the_machine_needs_the_chain_besides(tpm: SoftTpm, authority: Authority) -> None:
    certificate = endorse(authority, tpm.ek)
    bound = machine(annotations={MACHINE_ANNOTATION: tpm.fingerprint})
    other = machine(annotations={MACHINE_ANNOTATION: OTHER})
    settings: dict[str, JsonValue] = {"endorsementCAs": authority.pem, "trustOnFirstUse": True}
    assert outcome(tpm, facts_of(settings, machine=bound), ek_certificate=certificate) is None
    assert outcome(tpm, facts_of(settings, machine=other), ek_certificate=certificate) is UNTRUSTED
    assert outcome(tpm, facts_of(settings, machine=bound)) is UNTRUSTED
    assert outcome(tpm, facts_of({}, machine=bound), ek_certificate=certificate) is UNTRUSTED
    assert (
        outcome(
            tpm,
            facts_of(settings, machine=bound),
            ek_certificate=endorse(Authority.root("unknown", key=tpm.ek), tpm.ek),
        )
        is INVALID
    )


def test_first_use_needs_the_policy_and_the_chain_or_the_ledgers_pin(tpm: SoftTpm, authority: Authority) -> None:
    certificate = endorse(authority, tpm.ek)
    first_use: dict[str, JsonValue] = {"trustOnFirstUse": True}
    with_authority: dict[str, JsonValue] = {**first_use, "endorsementCAs": authority.pem}
    pinned = ledger(fingerprints={"ek": tpm.fingerprint})
    assert outcome(tpm, facts_of(with_authority), ek_certificate=certificate) is None
    assert outcome(tpm, facts_of(with_authority)) is UNTRUSTED
    assert (
        outcome(tpm, facts_of(with_authority), ek_certificate=endorse(Authority.root("unknown", key=tpm.ek), tpm.ek))
        is INVALID
    )
    assert outcome(tpm, facts_of(first_use), ek_certificate=certificate) is UNTRUSTED
    assert outcome(tpm, facts_of(first_use, ledger=pinned)) is None
    assert outcome(tpm, facts_of({}, ledger=pinned)) is UNTRUSTED


def test_a_nodes_certificate_pins_no_first_key_unless_an_operator_opened_the_machine(
    tpm: SoftTpm, authority: Authority
) -> None:
    settings: dict[str, JsonValue] = {"trustOnFirstUse": True, "endorsementCAs": authority.pem}
    asked = request_of(tpm.first(ek_certificate=endorse(authority, tpm.ek)), username="system:node:node-7")
    for held in (ledger(), ledger(bound_spkis=frozenset({"sha256:x"}), provider="insecure")):
        with pytest.raises(Denied, match="machines adopt NODE --open") as denied:
            verify(asked, facts_of(settings, ledger=held))
        assert denied.value.reason is UNTRUSTED
    for held in (ledger(was_reset=True), ledger(fingerprints={"ek": tpm.fingerprint})):
        with pytest.raises(ChallengeRequired):
            verify(asked, facts_of(settings, ledger=held))
    with pytest.raises(ChallengeRequired):
        verify(asked, facts_of({**settings, **allow(tpm.fingerprint)}))


# Certificates


TPM = SoftTpm("ecc-p384", new_key("ecc-p384"))


@dataclass(slots=True)
class Ec2:
    """The ``aws`` provider's signer, as far as it is asked here; implements ``endorsement_key`` of a signer."""

    key: str = TPM.fingerprint
    fails: bool = False
    asked: list[tuple[str, frozenset[str], str]] = field(default_factory=list[tuple[str, frozenset[str], str]])

    async def endorsement_key(
        self, machine: ProviderID, *, accounts: frozenset[str], shown: PublicKey
    ) -> NamedEndorsementKey:
        self.asked.append((machine, accounts, endorsement_fingerprint(shown)))
        if self.fails:
            raise Unavailable(Reason.PLATFORM_UNAVAILABLE, "AWS EC2 is down", remedy="wait")
        return NamedEndorsementKey(fingerprint=self.key, checks=(Check("asked", "EC2", "it", "it", passed=True),))

    def find(self, name: ProviderName) -> ClusterAPISigner:
        assert name == "aws"
        return cast("ClusterAPISigner", self)

    @property
    def signer(self) -> TpmSigner:
        return TpmSigner(platform=Platform(find_signer=self.find))


def instance(settings: dict[str, JsonValue] | None = None, **changes: object) -> Facts:
    of_ec2 = replace(machine(), provider_id=INSTANCE, **changes)
    return facts_of(FROM_EC2 if settings is None else settings, machine=of_ec2)


@pytest.mark.parametrize("make", [lambda: TpmSigner(platform=OFFLINE), lambda: TpmSigner(platform=Platform())])
def test_where_ec2_cannot_be_asked_nobody_is_trusted(make: Callable[[], TpmSigner]) -> None:
    with pytest.raises(Unavailable, match="EC2 is not asked here") as unavailable:
        verify(request_of(TPM.first()), instance({**FROM_EC2, "trustOnFirstUse": True}), make())
    assert unavailable.value.checks


def test_the_second_request_is_held_to_what_ec2_names_by_then() -> None:
    made = sound_round(TPM)
    facts = replace(made.facts, settings=FROM_EC2, machine=replace(made.facts.machine, provider_id=INSTANCE))
    ec2 = Ec2()
    for first, reason in (
        (None, Reason.FIRST_REQUEST_MISSING),
        (made.request(), Reason.FIRST_REQUEST_MISMATCH),
    ):
        with denied_for(reason):
            verify(made.request(), replace(facts, first_request=first), ec2.signer)
    assert not ec2.asked
    attested = verify(made.request(), facts, ec2.signer)
    assert attested.fingerprints["ek"] == TPM.fingerprint
    assert attested.checks[0].name == "EC2: asked"
    assert ec2.asked == [(INSTANCE, {OURS}, TPM.fingerprint)]
    with denied_for(Reason.ENDORSEMENT_KEY_UNTRUSTED):
        verify(made.request(), facts, Ec2(key=OTHER).signer)


def test_machines_of_other_platforms_are_trusted_by_the_other_sources_and_ec2_is_not_asked() -> None:
    ec2, request = Ec2(), request_of(TPM.first())
    with pytest.raises(ChallengeRequired):
        verify(request, facts_of({**FROM_EC2, **allow(TPM.fingerprint)}), ec2.signer)
    with denied_for(UNTRUSTED):
        verify(request, facts_of(FROM_EC2), ec2.signer)
    assert not ec2.asked


def test_malformed_evidence_is_denied_before_ec2_is_asked() -> None:
    ec2 = Ec2()
    request = request_of(TPM.first(ek_public=TPM.ek_public[:-1]))
    with denied_for(Reason.ENDORSEMENT_KEY_MALFORMED):
        verify(request, instance(), ec2.signer)
    assert not ec2.asked


def test_a_record_of_an_instance_says_that_ec2_was_not_asked() -> None:
    facts = replace(instance(), ledger=ledger(fingerprints={"ek": TPM.fingerprint}))
    assert any("EC2 is not asked" in one for one in TpmSigner().check_recorded(facts, None))


def test_the_platform_of_tpm_has_no_settings_of_its_own() -> None:
    with pytest.raises(Denied, match=r"platforms\.aws"):
        make_signer(ProviderName("tpm"), Platform(settings={"endpoints": {}}))


POLICY: Final = x509.CertificatePolicies([x509.PolicyInformation(x509.ObjectIdentifier("1.2.276.0.68.1.20.1"), None)])
SIGNS: Final = key_usage("key_cert_sign")
SIGNS_ALL: Final = key_usage("key_cert_sign", "crl_sign")
ENDORSES: Final = purposes(EK_USAGE)[0]
LISTS: Final[Extension] = (
    x509.CRLDistributionPoints(
        [x509.DistributionPoint([x509.UniformResourceIdentifier("http://pki.example/ca.crl")], None, None, None)]
    ),
    False,
)


MAKERS: Final[dict[str, tuple[str, list[Extension], list[Extension]]]] = {
    "Infineon OPTIGA, RSA": (
        "rsa",
        [SIGNS_ALL, constraint(None)],
        [SIGNS_ALL, constraint(0), LISTS, (POLICY, False), (ENDORSES, False)],
    ),
    "Infineon, earlier": ("rsa", [SIGNS, constraint(1), (POLICY, True)], [SIGNS, constraint(0), (POLICY, True)]),
    "ST, elliptic curve": ("p384", [SIGNS, constraint(1), (POLICY, False)], [(POLICY, True), SIGNS, constraint(0)]),
    "Intel PTT": (
        "p256",
        [constraint(1), SIGNS_ALL],
        [constraint(0), SIGNS_ALL, (ENDORSES, True), (POLICY, True), LISTS],
    ),
}
"""Keys, the root's extensions and the intermediate's. RSA is of 2,048 bits here, where some roots have 4,096."""


def root_of(kind: str, *extensions: Extension) -> Authority:
    curves: dict[str, type[ec.EllipticCurve]] = {"p256": ec.SECP256R1, "p384": ec.SECP384R1}
    key = rsa_key() if kind == "rsa" else ec.generate_private_key(curves[kind]())
    return Authority.root("root", *extensions, key=key)


def problem(tpm: SoftTpm, certificate: bytes, chain: tuple[bytes, ...], *anchors: Authority) -> str | None:
    """Tell why a certificate does not count; None when it does."""
    bundle = "".join(each.pem for each in anchors)
    trusted = parse_policy({"endorsementCAs": bundle}).anchors
    assert trusted is not None
    ek = parsed(tpm.ek_public)
    try:
        check_certificate(Checks(), ek, certificate, chain, anchors=trusted, now=NOW)
    except Denied as denied:
        return denied.got
    return None


@pytest.mark.parametrize("maker", MAKERS)
def test_a_makers_chain_counts_with_its_root_or_its_intermediate_as_the_authority(tpm: SoftTpm, maker: str) -> None:
    kind, of_root, of_intermediate = MAKERS[maker]
    root = root_of(kind, *of_root)
    intermediate = root.below("intermediate", *of_intermediate)
    certificate = endorse(intermediate, tpm.ek)
    assert problem(tpm, certificate, (intermediate.der,), root) is None
    assert problem(tpm, certificate, (), intermediate) is None
    assert problem(tpm, certificate, (root.der, intermediate.der, intermediate.der), root) is None
    assert problem(tpm, certificate, (), root) is not None


def test_policies_may_be_critical_and_without_an_extended_usage_the_leaf_names_a_tpm(tpm: SoftTpm) -> None:
    root = root_of("p256", SIGNS, constraint(None))
    assert problem(tpm, endorse(root, tpm.ek, {"policies": (POLICY, True)}), (), root) is None
    assert problem(tpm, endorse(root, tpm.ek, {"eku": None}), (), root) == "another or none"
    attributes = [x509.NameAttribute(x509.ObjectIdentifier(f"2.23.133.2.{each}"), "id:1") for each in (1, 2, 3)]
    named = x509.SubjectAlternativeName([x509.DirectoryName(x509.Name(attributes))])
    assert problem(tpm, endorse(root, tpm.ek, {"eku": None, "san": (named, True)}), (), root) is None


NO_AUTHORITY: Final[dict[str, tuple[list[Extension], str]]] = {
    "no CA": ([SIGNS, constraint(None, ca=False)], "no CA"),
    "no basic constraints": ([SIGNS], "no CA"),
    "basic constraints that are not critical": ([SIGNS, constraint(0, critical=False)], "not critical"),
    "no key usage": ([constraint(0)], "keyCertSign"),
    "lists only": ([constraint(0), key_usage("crl_sign")], "keyCertSign"),
    "for servers": (
        [SIGNS, constraint(0), purposes(x509.oid.ExtendedKeyUsageOID.SERVER_AUTH)],
        "2.23.133.8.1",
    ),
    "critical name constraints": (
        [SIGNS, constraint(0), (x509.NameConstraints(None, [x509.DNSName("a")]), True)],
        "extension 2.5.29.30",
    ),
    "name constraints": (
        [SIGNS, constraint(0), (x509.NameConstraints([x509.DNSName("a")], None), False)],
        "extension 2.5.29.30",
    ),
}


@pytest.mark.parametrize("name", NO_AUTHORITY)
def test_an_intermediate_that_is_wrong_in_one_thing_issues_nothing(tpm: SoftTpm, name: str) -> None:
    extensions, said = NO_AUTHORITY[name]
    root = root_of("p256", SIGNS, constraint(None))
    intermediate = root.below("intermediate", *extensions)
    assert said in (problem(tpm, endorse(intermediate, tpm.ek), (intermediate.der,), root) or "")


def test_a_path_length_holds_for_anchors_too(tpm: SoftTpm) -> None:
    root = root_of("p256", SIGNS, constraint(0))
    intermediate = root.below("intermediate", SIGNS, constraint(0))
    assert "path length" in (problem(tpm, endorse(intermediate, tpm.ek), (intermediate.der,), root) or "")
    assert problem(tpm, endorse(root, tpm.ek), (), root) is None
    new_key = root.below("root", SIGNS, constraint(0))  # self-issued, which does not count (RFC 5280 §6.1)
    assert problem(tpm, endorse(new_key, tpm.ek), (new_key.der,), root) is None


def test_what_cannot_be_read_is_named_with_the_way_out() -> None:
    root = root_of("p256", SIGNS, constraint(None))
    good = root.pem
    odd = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"
    with pytest.raises(Denied, match=r"certificate 2: .*ValueError"):
        parse_policy({"endorsementCAs": good + odd})
    with pytest.raises(Denied, match="PEM certificates"):
        parse_policy({"endorsementCAs": good + "-----BEGIN CERTIFICATE-----\nMAA="})


def test_the_fingerprint_is_what_openssl_and_sha256sum_print() -> None:
    key = new_key("ecc-p384").public_key()
    pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    command = ["/usr/bin/openssl", "pkey", "-pubin", "-outform", "DER"]
    der = subprocess.run(command, input=pem, capture_output=True, check=True).stdout
    assert endorsement_fingerprint(key) == f"sha256:{hashlib.sha256(der).hexdigest()}"
