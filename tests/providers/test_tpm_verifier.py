"""Both rounds of the TPM protocol with a TPM in software, and what a verification costs; the attacks are D5."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from tpm_world import (
    CSR,
    MACHINE,
    MASTER,
    OTHER_PIN,
    PCR_VALUES,
    PIN,
    Round,
    SoftTpm,
    challenge_of,
    cluster,
    facts_of,
    ledger,
    machine,
    request_of,
    sound_round,
    verify,
)
from worlds import denied_for

from nodeattest_providers.errors import ChallengeRequired, Denied, Reason
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY, ClusterPin
from nodeattest_providers.node_interface import JsonValue, SecretBytes
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
    with denied_for(Reason.TPM_CLOCK_REVERSED):
        verify(honest, replace(sound.facts, ledger=seen))


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
