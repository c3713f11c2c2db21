"""The first round: what is checked before a challenge is published, each rule broken alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from tpm_world import (
    AK_PREFIX,
    CSR,
    EkKey,
    SoftTpm,
    ak_prefix,
    challenge_of,
    facts_of,
    ledger,
    request_of,
    rsa_ak_prefix,
    verify,
)

from nodeattest_providers.errors import ChallengeRequired, Denied, Reason, Unavailable
from nodeattest_providers.names import (
    ANNOTATION_TPM_ENDORSEMENT_KEY,
    ProviderName,
)
from nodeattest_providers.node_interface import Evidence
from nodeattest_providers.tpm.protocol import Challenge
from nodeattest_providers.tpm.structures import Alg, PcrSelection


@pytest.fixture(scope="module")
def tpm() -> SoftTpm:
    return SoftTpm()


def test_a_sound_first_request_is_challenged_and_names_the_endorsement_key(tpm: SoftTpm) -> None:
    required = challenge_of(request_of(tpm.first()), facts_of(tpm.settings))
    challenge = Challenge.parse(required.challenge)
    assert challenge.uid == "uid-1"
    assert challenge.spki_sha256 == CSR.spki_sha256
    assert challenge.pcrs == PcrSelection(Alg.SHA256, (0, 7))
    assert required.annotations == {ANNOTATION_TPM_ENDORSEMENT_KEY: tpm.fingerprint}
    assert all(check.passed for check in required.checks)
    assert {"evidence schema", "endorsement key template", "pinned ak", "endorsement key: on the allow-list"} <= {
        check.name for check in required.checks
    }


def test_two_replicas_ask_for_the_same_secret_under_fresh_seeds(tpm: SoftTpm) -> None:
    request, facts = request_of(tpm.first()), facts_of(tpm.settings)
    one, other = (Challenge.parse(challenge_of(request, facts).challenge) for _ in range(2))
    assert one.nonce == other.nonce
    assert one.blob != other.blob
    assert one.secret != other.secret


def test_a_phase_1_verification_never_attests(tpm: SoftTpm) -> None:
    with pytest.raises(ChallengeRequired):
        verify(request_of(tpm.first()), facts_of(tpm.settings))


def test_without_a_master_key_a_first_request_waits(tpm: SoftTpm) -> None:
    with pytest.raises(Unavailable):
        verify(request_of(tpm.first()), facts_of(tpm.settings, challenge_keys=()))


def test_the_rows_below_start_from_the_real_template() -> None:
    assert ak_prefix() == AK_PREFIX


@pytest.mark.parametrize(
    ("what", "prefix", "got"),
    [
        ("unrestricted", ak_prefix(attributes=0x00040472), "0x00040472"),
        ("imported: no fixedTPM, fixedParent, sensitiveDataOrigin", ak_prefix(attributes=0x00050440), "0x00050440"),
        ("subject to dictionary-attack lockout", ak_prefix(attributes=0x00050072), "0x00050072"),
        ("decrypts besides", ak_prefix(attributes=0x00070472), "0x00070472"),
        ("decrypts instead", ak_prefix(attributes=0x00030472), "0x00030472"),
        ("a reserved bit", ak_prefix(attributes=0x00050473), "0x00050473"),
        ("adminWithPolicy besides", ak_prefix(attributes=0x000504F2), "0x000504f2"),
        ("no attribute", ak_prefix(attributes=0), "0x00000000"),
        ("nameAlg SHA-1", ak_prefix(name_alg="0004"), "0x0004"),
        ("nameAlg SHA-384", ak_prefix(name_alg="000c"), "SHA384"),
        ("null scheme", ak_prefix(scheme="0010"), "none"),
        ("ECDSA with SHA-1", ak_prefix(scheme="00180004"), "0x0004"),
        ("ECDSA with SHA-384", ak_prefix(scheme="0018000c"), "ECDSA with SHA384"),
        ("ECDAA", ak_prefix(scheme="001a000b"), "0x001a"),
        ("P-192", ak_prefix(curve="0001"), "0x0001"),
        ("P-384, whose coordinates are longer", ak_prefix(curve="0004"), "32 bytes"),
        ("a KDF", ak_prefix(kdf="0020000b"), "0x0020"),
        ("no policy", ak_prefix(policy="0000"), "none"),
        ("another policy", ak_prefix(policy="0020" + "00" * 32), "00" * 32),
        ("a symmetric algorithm", ak_prefix(symmetric="000600800043"), "one"),
        ("another key type", b"\x00\x25" + ak_prefix()[2:], "0x0025"),
    ],
)
def test_an_attestation_key_of_another_kind_is_denied(what: str, prefix: bytes, got: str) -> None:
    evil = SoftTpm(ak_prefix=prefix)
    with pytest.raises(Denied) as denied:
        verify(request_of(evil.first()), facts_of(evil.settings))
    assert denied.value.reason is Reason.ATTESTATION_KEY_NOT_ALLOWED, what
    assert denied.value.got == got
    assert denied.value.checks[-1].passed is False


@pytest.mark.parametrize(
    ("ak", "prefix", "got"),
    [
        (ec.generate_private_key(ec.SECP384R1()), ak_prefix(curve="0004"), "384 bits"),
        (rsa.generate_private_key(65537, 3072), rsa_ak_prefix(3072), "3072 bits"),
    ],
    ids=["ECDSA P-384", "RSASSA-3072"],
)
def test_an_attestation_key_of_another_size_is_denied(ak: EkKey, prefix: bytes, got: str) -> None:
    """Sound keys, but no agent of ours makes them: the set is closed."""
    evil = SoftTpm(ak=ak, ak_prefix=prefix)
    with pytest.raises(Denied) as denied:
        verify(request_of(evil.first()), facts_of(evil.settings))
    assert denied.value.reason is Reason.ATTESTATION_KEY_NOT_ALLOWED
    assert denied.value.got == got


@pytest.mark.parametrize("tail", [b"\x00", b"\x00" * 600])
def test_trailing_bytes_after_a_public_area_are_denied(tpm: SoftTpm, tail: bytes) -> None:
    for field, reason in (
        ("ak_public", Reason.ATTESTATION_KEY_NOT_ALLOWED),
        ("ek_public", Reason.ENDORSEMENT_KEY_MALFORMED),
    ):
        with pytest.raises(Denied) as denied:
            verify(request_of(tpm.first(**{field: getattr(tpm, field) + tail})), facts_of(tpm.settings))
        assert denied.value.reason is reason


def test_an_attestation_key_off_its_curve_is_denied(tpm: SoftTpm) -> None:
    spoilt = tpm.ak_public[:-1] + bytes([tpm.ak_public[-1] ^ 1])
    with pytest.raises(Denied) as denied:
        verify(request_of(tpm.first(ak_public=spoilt)), facts_of(tpm.settings))
    assert denied.value.reason is Reason.ATTESTATION_KEY_NOT_ALLOWED


def test_the_endorsement_key_as_attestation_key_is_denied() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    evil = SoftTpm(ek=key, ak=key)
    with pytest.raises(Denied) as denied:
        verify(request_of(evil.first()), facts_of(evil.settings))
    assert denied.value.reason is Reason.ATTESTATION_KEY_NOT_ALLOWED


@pytest.mark.parametrize("at", [0, 2, 5, 12, 45, 47, 49, 51])
def test_an_endorsement_key_of_no_tcg_template_is_denied(tpm: SoftTpm, at: int) -> None:
    public = bytearray(tpm.ek_public)
    public[at] ^= 1
    with pytest.raises(Denied) as denied:
        verify(request_of(tpm.first(ek_public=bytes(public))), facts_of(tpm.settings))
    assert denied.value.reason is Reason.ENDORSEMENT_KEY_MALFORMED


@pytest.mark.parametrize(
    ("pins", "reason"),
    [
        ({"ek": "sha256:" + "0" * 64}, Reason.ENDORSEMENT_KEY_CHANGED),
        ({"ak": "000b" + "0" * 64}, Reason.ATTESTATION_KEY_CHANGED),
    ],
)
def test_keys_other_than_the_ledgers_are_denied(tpm: SoftTpm, pins: dict[str, str], reason: Reason) -> None:
    with pytest.raises(Denied) as denied:
        verify(request_of(tpm.first()), facts_of(tpm.settings, ledger=ledger(fingerprints=pins)))
    assert denied.value.reason is reason


def test_another_provider_or_version_is_denied(tpm: SoftTpm) -> None:
    request = request_of(tpm.first())
    for evidence, reason in (
        (Evidence(ProviderName("challenge"), 1, request.evidence.data), Reason.PROVIDER_MISMATCH),
        (Evidence(ProviderName("tpm"), 3, request.evidence.data), Reason.EVIDENCE_VERSION_UNSUPPORTED),
    ):
        with pytest.raises(Denied) as denied:
            verify(replace(request, evidence=evidence), facts_of(tpm.settings))
        assert denied.value.reason is reason
