"""Both rounds of the TPM protocol with a TPM in software, and what a verification costs; the attacks are D5."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import FrameType

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from handmade import Made
from tpm_world import (
    CSR,
    MACHINE,
    MASTER,
    OTHER_PIN,
    PCR_VALUES,
    PIN,
    EkKey,
    EkKind,
    Round,
    SoftTpm,
    ak_prefix,
    challenge_of,
    cluster,
    facts_of,
    ledger,
    machine,
    new_key,
    parsed,
    request_of,
    rsa_ak_prefix,
    sound_round,
    verify,
)

from nodeattest_providers.errors import ChallengeRequired, Denied, Reason
from nodeattest_providers.identifiers import (
    ANNOTATION_TPM_ENDORSEMENT_KEY,
    ClusterPin,
)
from nodeattest_providers.node_interface import FirstRequestRef, JsonValue, SecretBytes
from nodeattest_providers.pkcs10 import parse_csr
from nodeattest_providers.tpm.protocol import Challenge, SecondEvidence
from nodeattest_providers.tpm.structures import Alg, PcrSelection
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import Facts, NodeRequest


@pytest.fixture(scope="module")
def tpm() -> SoftTpm:
    return SoftTpm()


@pytest.fixture(scope="module")
def sound(tpm: SoftTpm) -> Round:
    return sound_round(tpm)


def test_a_sound_answer_attests_the_node(sound: Round, tpm: SoftTpm) -> None:
    node = sound.verify()
    assert node.provider_id == MACHINE
    assert node.fingerprints == {"ek": tpm.fingerprint, "ak": parsed(tpm.ak_public).name.hex()}
    assert node.boot is not None
    assert (node.boot.clock, node.boot.reset_count, node.boot.safe) == (5_000, 3, True)
    assert node.first_request == FirstRequestRef(name="csr-1", uid="uid-1")
    assert all(check.passed for check in node.checks)


def test_a_registered_key_proves_the_node_name_of_its_entry_and_nothing_else_does(tpm: SoftTpm) -> None:
    entry: dict[str, JsonValue] = {"providerID": MACHINE, "sha256": tpm.fingerprint, "nodeName": "node-7"}
    assert sound_round(tpm, {"endorsementKeys": [entry]}).verify().proven_node_name == "node-7"
    assert sound_round(tpm).verify().proven_node_name is None
    by_platform = machine(endorsement_keys={"infrastructure machine": tpm.fingerprint})
    stated = sound_round(tpm, machine=by_platform)
    assert stated.verify().proven_node_name is None


def quoted(**changes: object) -> Callable[[Round], SecondEvidence]:
    return lambda sound: sound.second(parts=replace(sound.parts, **changes))


REFUSED: list[Callable[[Round], SecondEvidence]] = [
    quoted(tail=b"\x00"),
    quoted(extra=b""),
    quoted(pcr_digest=bytes(32)),
    lambda sound: sound.second(mac=bytes(32)),
    lambda sound: sound.second(signature=SoftTpm().sign(sound.parts.marshal())),
    lambda sound: sound.second(pcrs=PCR_VALUES[::-1]),
]


@pytest.mark.parametrize(
    "seen",
    [
        ledger(clock=4_999, reset_count=3),
        ledger(clock=9_999_999, reset_count=2),
        ledger(clock=5_000, reset_count=3, answered=True),
    ],
)
def test_a_newer_clock_a_reset_or_an_answer_already_in_the_ledger_pass(sound: Round, seen: object) -> None:
    assert sound.verify(ledger=seen).boot is not None


def test_a_previous_master_key_and_a_previous_ca_still_count(sound: Round) -> None:
    keys = (SecretBytes(b"the newest master key, unused yet"), MASTER)
    assert sound.verify(challenge_keys=keys, cluster=cluster(OTHER_PIN, PIN)).checks


def test_a_copy_that_was_handled_first_does_not_get_the_honest_answer_denied(sound: Round) -> None:
    """Every holder of the token can read the second request and file its bytes again; the clock is the quote's own."""
    honest = request_of(sound.second())
    copy = verify(replace(honest, name="copy", uid="uid-of-the-copy"), sound.facts)
    assert copy.boot is not None
    seen = ledger(
        fingerprints=copy.fingerprints,
        clock=copy.boot.clock,
        reset_count=copy.boot.reset_count,
        bound_spkis=frozenset({honest.csr.spki_sha256}),
    )
    assert verify(honest, replace(sound.facts, ledger=replace(seen, answered=True))).boot == copy.boot
    with pytest.raises(Denied) as denied:
        verify(honest, replace(sound.facts, ledger=seen))
    assert denied.value.reason is Reason.TPM_CLOCK_REVERSED


# The signer


def test_no_message_and_no_record_holds_evidence_or_secrets(sound: Round) -> None:
    node = sound.verify()
    text = repr(node) + repr(sound.challenge) + repr(sound.second())
    for spoil in REFUSED:
        with pytest.raises(Denied) as denied:
            sound.verify(spoil(sound))
        text += str(denied.value) + repr(denied.value.checks)
    for secret in (sound.secret, sound.second().mac, sound.parts.extra, MASTER.reveal()):
        assert secret.hex() not in text
        assert repr(secret)[2:-1] not in text


@pytest.mark.parametrize("kind", ["rsa2048", "ecc-p384"])
def test_every_kind_of_endorsement_key_is_challenged(kind: EkKind) -> None:
    soft = SoftTpm(kind=kind, ek=new_key(kind))
    assert sound_round(soft).verify().fingerprints["ek"] == soft.fingerprint


def long_to_check(sound: Round) -> tuple[NodeRequest, Facts]:
    """Return an answer that is compared under many CAs."""
    others = [ClusterPin(f"sha256:{number:064x}") for number in range(20)]
    return request_of(sound.second()), replace(sound.facts, cluster=cluster(PIN, *others))


async def threads_for(request: NodeRequest, facts: Facts) -> int:
    """Verify, whatever comes of it, and count the threads that were begun for it."""
    before, signer = set(threading.enumerate()), TpmSigner()
    with suppress(Denied, ChallengeRequired):
        await signer.verify_client_attestation_data(request, facts)
    begun = set(threading.enumerate()) - before
    await signer.aclose()
    return len(begun)


async def test_keys_and_an_answer_are_verified_without_a_thread(sound: Round, tpm: SoftTpm) -> None:
    assert await threads_for(request_of(tpm.first()), replace(sound.facts, first_request=None)) == 0
    assert await threads_for(request_of(sound.second()), sound.facts) == 0


async def test_what_may_take_milliseconds_is_verified_in_a_thread(sound: Round, tpm: SoftTpm) -> None:
    certificate = request_of(tpm.first(ek_certificate=b"no certificate"))
    assert await threads_for(certificate, replace(sound.facts, first_request=None)) == 1
    assert await threads_for(request_of(sound.second()), replace(sound.facts, first_request=certificate)) == 1
    assert await threads_for(request_of(replace(sound.second(), event_log=b"no log")), sound.facts) == 1
    assert await threads_for(*long_to_check(sound)) == 1


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


@pytest.mark.parametrize(
    ("what", "prefix", "got"),
    [
        ("unrestricted", ak_prefix(attributes=0x00040472), "0x00040472"),
        ("ECDSA with SHA-384", ak_prefix(scheme="0018000c"), "ECDSA with SHA384"),
        ("a KDF", ak_prefix(kdf="0020000b"), "0x0020"),
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


CALLS = 750
"""Of functions of ours; this answer takes 500."""


def calls_of(action: Callable[[], object]) -> Counter[str]:
    """Count calls of our functions by name, also those of the thread in which a verification runs."""
    called: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and "nodeattest_" in frame.f_code.co_filename:
            called[frame.f_code.co_name] += 1

    sys.setprofile(note)
    threading.setprofile(note)
    try:
        action()
    finally:
        threading.setprofile(None)
        sys.setprofile(None)
    return called


def test_one_verification_checks_one_signature_and_calls_few_functions() -> None:
    answered = sound_round(SoftTpm())
    answered.verify()
    called = calls_of(answered.verify)
    assert called["signature_is_valid"] == 1
    assert called.total() <= CALLS, called


def test_the_signature_of_a_request_is_checked_once_however_often_its_bytes_are_read() -> None:
    request = Made().der()

    def three_times() -> None:
        for _ in range(3):  # as the first request, as the first one that the second names, and as the second
            parse_csr(request)

    assert calls_of(three_times)["_verify_signature"] == 1
