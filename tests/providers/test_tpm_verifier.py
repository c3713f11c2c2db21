"""The second round: each rule broken alone; the evidence is otherwise sound, signatures included."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from tpm_world import (
    CSR,
    MACHINE,
    MASTER,
    NOW,
    OTHER_PIN,
    PCR_VALUES,
    PIN,
    EkKind,
    Round,
    SoftTpm,
    cluster,
    digest_of,
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
from nodeattest_providers.names import (
    ClusterPin,
    NodeName,
    ProviderName,
    Purpose,
    signer_for,
)
from nodeattest_providers.node_interface import FirstRequestRef, JsonValue, SecretBytes
from nodeattest_providers.tpm.protocol import SecondEvidence, proof, qualifying_data
from nodeattest_providers.tpm.structures import Alg, PcrSelection
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import ChallengeSigner, Facts, NodeRequest


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


def test_a_sound_answer_over_an_rsa_attestation_key_attests_the_node() -> None:
    prefix = rsa_ak_prefix(2048)
    rsa_ak = SoftTpm(ak=rsa.generate_private_key(65537, 2048), ak_prefix=prefix)
    assert sound_round(rsa_ak).verify().checks


def test_the_same_answer_verifies_again_with_the_same_record(sound: Round) -> None:
    request = request_of(sound.second())
    assert verify(request, sound.facts) == verify(request, sound.facts)


def quoted(**changes: object) -> Callable[[Round], SecondEvidence]:
    return lambda sound: sound.second(parts=replace(sound.parts, **changes))


def extra_over(pin: ClusterPin = PIN, nonce: bytes = b"", uid: str = "uid-1") -> Callable[[Round], SecondEvidence]:
    def spoil(sound: Round) -> SecondEvidence:
        extra = qualifying_data(nonce or sound.challenge.nonce, uid, digest_of(sound.first, pin))
        return quoted(extra=extra)(sound)

    return spoil


def over_another_csr(sound: Round) -> SecondEvidence:
    other = replace(sound.first, csr=replace(CSR, der=b"PKCS#10 with another key"))
    return quoted(extra=qualifying_data(sound.challenge.nonce, "uid-1", digest_of(other)))(sound)


def mac_under(secret: bytes) -> Callable[[Round], SecondEvidence]:
    def spoil(sound: Round) -> SecondEvidence:
        binding = digest_of(sound.first)
        return sound.second(mac=proof(secret, "uid-1", CSR.sha256, binding))

    return spoil


def signed_by_another(sound: Round) -> SecondEvidence:
    return sound.second(signature=SoftTpm().sign(sound.parts.marshal()))


def signature_of_scheme(scheme: str) -> Callable[[Round], SecondEvidence]:
    def spoil(sound: Round) -> SecondEvidence:
        return sound.second(signature=bytes.fromhex(scheme) + sound.tpm.sign(sound.parts.marshal())[4:])

    return spoil


SHA1_SELECTION = bytes.fromhex("00000001" + "0004" + "03" + "810000")
TWO_BANKS = bytes.fromhex("00000002" + "000b" + "03" + "810000" + "0004" + "03" + "810000")

CUT_OTHERWISE = (PCR_VALUES[0] + PCR_VALUES[1][:1], PCR_VALUES[1][1:])

TAMPERING: list[tuple[str, Callable[[Round], SecondEvidence], Reason]] = [
    ("magic of another", quoted(magic=0xFF544348), Reason.QUOTE_MALFORMED),
    ("type certify", quoted(kind=0x8017), Reason.QUOTE_MALFORMED),
    ("trailing byte", quoted(tail=b"\x00"), Reason.QUOTE_MALFORMED),
    ("safe is neither 0 nor 1", quoted(safe=2), Reason.QUOTE_MALFORMED),
    ("oversized extraData", quoted(extra=bytes(65)), Reason.QUOTE_MALFORMED),
    ("truncated quote", lambda sound: sound.second(quote=sound.parts.marshal()[:-1]), Reason.QUOTE_MALFORMED),
    ("empty extraData", quoted(extra=b""), Reason.QUOTE_NOT_BOUND),
    ("extraData of tpm2_certify", quoted(extra=bytes.fromhex("00ff55aa")), Reason.QUOTE_NOT_BOUND),
    ("quote over another CSR", over_another_csr, Reason.QUOTE_NOT_BOUND),
    ("quote for another cluster", extra_over(OTHER_PIN), Reason.QUOTE_NOT_BOUND),
    ("quote of another nonce", extra_over(nonce=bytes(32)), Reason.QUOTE_NOT_BOUND),
    ("quote for another first request", extra_over(uid="uid-9"), Reason.QUOTE_NOT_BOUND),
    ("MAC under another secret", mac_under(bytes(32)), Reason.PROOF_INVALID),
    ("no MAC at all", lambda sound: sound.second(mac=bytes(32)), Reason.PROOF_INVALID),
    (
        "MAC and quote of another challenge",
        lambda sound: replace(quoted(extra=bytes(32))(sound), mac=bytes(32)),
        Reason.CHALLENGE_UNKNOWN,
    ),
    ("owner hierarchy's qualified signer", quoted(signer=bytes(34)), Reason.ATTESTATION_KEY_NOT_ALLOWED),
    ("signed by another key", signed_by_another, Reason.QUOTE_SIGNATURE_INVALID),
    ("signature scheme of another", signature_of_scheme("0014000b"), Reason.QUOTE_MALFORMED),
    ("signature with another hash", signature_of_scheme("0018000c"), Reason.QUOTE_SIGNATURE_INVALID),
    ("signature with SHA-1", signature_of_scheme("00180004"), Reason.QUOTE_MALFORMED),
    (
        "quote changed after signing",
        lambda sound: sound.second(quote=replace(sound.parts, clock=5_001).marshal()),
        Reason.QUOTE_SIGNATURE_INVALID,
    ),
    ("fewer PCRs", quoted(selection=PcrSelection(Alg.SHA256, (0,)).marshal()), Reason.PCR_SELECTION_MISMATCH),
    ("more PCRs", quoted(selection=PcrSelection(Alg.SHA256, (0, 1, 7)).marshal()), Reason.PCR_SELECTION_MISMATCH),
    ("SHA-1 bank", quoted(selection=SHA1_SELECTION), Reason.PCR_SELECTION_MISMATCH),
    ("another bank besides", quoted(selection=TWO_BANKS), Reason.PCR_SELECTION_MISMATCH),
    ("no bank", quoted(selection=bytes(4)), Reason.PCR_SELECTION_MISMATCH),
    ("a value missing", lambda sound: sound.second(pcrs=PCR_VALUES[:1]), Reason.PCR_SELECTION_MISMATCH),
    ("a value too many", lambda sound: sound.second(pcrs=(*PCR_VALUES, bytes(32))), Reason.PCR_SELECTION_MISMATCH),
    ("values cut otherwise", lambda sound: sound.second(pcrs=CUT_OTHERWISE), Reason.PCR_SELECTION_MISMATCH),
    ("values swapped", lambda sound: sound.second(pcrs=PCR_VALUES[::-1]), Reason.PCR_DIGEST_MISMATCH),
    ("digest of others", quoted(pcr_digest=bytes(32)), Reason.PCR_DIGEST_MISMATCH),
]


@pytest.mark.parametrize(("spoil", "reason"), [row[1:] for row in TAMPERING], ids=[row[0] for row in TAMPERING])
def test_an_answer_spoilt_in_one_thing_is_denied(
    sound: Round, spoil: Callable[[Round], SecondEvidence], reason: Reason
) -> None:
    with pytest.raises(Denied) as denied:
        sound.verify(spoil(sound))
    assert denied.value.reason is reason
    assert denied.value.checks[-1].passed is False


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"challenge_keys": (SecretBytes(b"rotated twice since then, forever"),)}, Reason.CHALLENGE_UNKNOWN),
        ({"cluster": cluster(OTHER_PIN)}, Reason.CHALLENGE_UNKNOWN),
        ({"first_request": None}, Reason.FIRST_REQUEST_MISSING),
        ({"ledger": ledger(fingerprints={"ek": "sha256:" + "0" * 64})}, Reason.ENDORSEMENT_KEY_CHANGED),
        ({"settings": {}}, Reason.ENDORSEMENT_KEY_UNTRUSTED),
        ({"ledger": ledger(clock=5_000, reset_count=3)}, Reason.TPM_CLOCK_REVERSED),
        ({"ledger": ledger(clock=1, reset_count=4)}, Reason.TPM_CLOCK_REVERSED),
    ],
)
def test_facts_that_changed_since_the_first_request_deny_the_answer(
    sound: Round, changes: dict[str, object], reason: Reason
) -> None:
    with pytest.raises(Denied) as denied:
        sound.verify(**changes)
    assert denied.value.reason is reason


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


@pytest.mark.parametrize(("clock", "reset_count"), [(5_001, 3), (5_000, 4), (0, 4)])
def test_an_answer_in_the_ledger_excuses_no_older_quote_than_the_ledger_s(
    sound: Round, clock: int, reset_count: int
) -> None:
    with pytest.raises(Denied) as denied:
        sound.verify(ledger=ledger(clock=clock, reset_count=reset_count, answered=True))
    assert denied.value.reason is Reason.TPM_CLOCK_REVERSED


def test_a_previous_master_key_and_a_previous_ca_still_count(sound: Round) -> None:
    keys = (SecretBytes(b"the newest master key, unused yet"), MASTER)
    assert sound.verify(challenge_keys=keys, cluster=cluster(OTHER_PIN, PIN)).checks


def test_the_secret_of_one_ca_and_the_quote_of_another_do_not_add_up(sound: Round) -> None:
    mac = proof(sound.secret, "uid-1", CSR.sha256, digest_of(sound.first, OTHER_PIN))
    with pytest.raises(Denied) as denied:
        sound.verify(sound.second(mac=mac), cluster=cluster(OTHER_PIN, PIN))
    assert denied.value.reason is Reason.QUOTE_NOT_BOUND


def test_pcr_values_outside_the_allowed_lists_are_denied(tpm: SoftTpm) -> None:
    assert sound_round(tpm, {**tpm.settings, "pcrs": {"values": {"7": ["00" * 32, PCR_VALUES[1].hex()]}}}).verify()
    with pytest.raises(Denied) as denied:
        sound_round(tpm, {**tpm.settings, "pcrs": {"values": {"0": ["00" * 32]}}}).verify()
    assert denied.value.reason is Reason.PCR_VALUE_NOT_ALLOWED


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"username": "system:bootstrap:other1"}, Reason.FIRST_REQUEST_MISMATCH),
        ({"groups": frozenset({"system:nodes"})}, Reason.FIRST_REQUEST_MISMATCH),
        ({"csr": replace(CSR, der=b"PKCS#10 with another key")}, Reason.FIRST_REQUEST_MISMATCH),
        ({"csr": replace(CSR, node_name=NodeName("node-8"), der=b"another subject")}, Reason.FIRST_REQUEST_MISMATCH),
        ({"signer_name": signer_for(ProviderName("tpm"), Purpose.SERVING)}, Reason.FIRST_REQUEST_MISMATCH),
        ({"created": NOW + timedelta(seconds=301)}, Reason.CHALLENGE_EXPIRED),
        ({"created": NOW - timedelta(seconds=31)}, Reason.CHALLENGE_EXPIRED),
    ],
)
def test_an_answer_by_another_request_is_denied(sound: Round, changes: dict[str, object], reason: Reason) -> None:
    with pytest.raises(Denied) as denied:
        verify(replace(request_of(sound.second()), **changes), sound.facts)
    assert denied.value.reason is reason


def test_a_first_request_created_again_under_the_same_name_is_denied(sound: Round) -> None:
    with pytest.raises(Denied) as denied:
        sound.verify(first_request=replace(sound.first, uid="uid-1-again"))
    assert denied.value.reason is Reason.FIRST_REQUEST_MISMATCH


@pytest.mark.parametrize("changes", [{"request": b"another envelope"}, {"created": NOW + timedelta(seconds=1)}])
def test_a_secret_is_of_one_first_request_only(sound: Round, changes: dict[str, object]) -> None:
    with pytest.raises(Denied) as denied:
        sound.verify(first_request=replace(sound.first, **changes))
    assert denied.value.reason is Reason.CHALLENGE_UNKNOWN


def test_an_answer_to_an_answer_is_denied(sound: Round) -> None:
    with pytest.raises(Denied) as denied:
        sound.verify(first_request=request_of(sound.second(), uid="uid-1", name="csr-1", created=NOW))
    assert denied.value.reason is Reason.FIRST_REQUEST_MISMATCH


def test_an_answer_with_keys_swapped_in_the_first_request_is_denied(sound: Round) -> None:
    other = SoftTpm(ek=sound.tpm.ek)  # the victim's endorsement key, the attacker's attestation key
    first = replace(sound.first, evidence=request_of(other.first()).evidence)
    with pytest.raises(Denied) as denied:
        sound.verify(first_request=first)
    assert denied.value.reason is Reason.CHALLENGE_UNKNOWN


def test_a_client_answer_does_not_pass_for_a_serving_one(sound: Round) -> None:
    serving = signer_for(ProviderName("tpm"), Purpose.SERVING)
    request = request_of(sound.second(), signer_name=serving, purpose=Purpose.SERVING)
    facts = replace(sound.facts, first_request=replace(sound.first, signer_name=serving, purpose=Purpose.SERVING))
    with pytest.raises(Denied) as denied:
        asyncio.run(TpmSigner().verify_serving_attestation_data(request, facts))
    assert denied.value.reason is Reason.CHALLENGE_UNKNOWN


def test_the_lost_challenge_says_to_file_anew(sound: Round) -> None:
    with pytest.raises(Denied, match="file a new first request"):
        sound.verify(challenge_keys=(SecretBytes(bytes(32)),))


# The signer


def test_the_signer_is_a_challenge_signer_and_tells_the_first_request(sound: Round, tpm: SoftTpm) -> None:
    signer = TpmSigner()
    assert isinstance(signer, ChallengeSigner)
    assert signer.first_request(request_of(tpm.first())) is None
    assert signer.first_request(request_of(sound.second())) == FirstRequestRef(name="csr-1", uid="uid-1")


def test_no_message_and_no_record_holds_evidence_or_secrets(sound: Round) -> None:
    node = sound.verify()
    text = repr(node) + repr(sound.challenge) + repr(sound.second())
    for spoil, _ in [row[1:] for row in TAMPERING]:
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


async def test_an_answer_is_verified_while_others_keep_all_of_the_loops_own_threads(
    sound: Round,
) -> None:
    """Look-ups of names that hang are in these threads, among others."""
    end, loop, signer = threading.Event(), asyncio.get_running_loop(), TpmSigner()
    hung = [loop.run_in_executor(None, end.wait) for _ in range(100)]
    try:
        attested = await asyncio.wait_for(signer.verify_client_attestation_data(*long_to_check(sound)), 60)
    finally:
        end.set()
    await asyncio.gather(*hung)
    await signer.aclose()
    assert attested.fingerprints["ek"]


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
