"""Both rounds of the TPM protocol with a TPM in software, and what the tpm provider reads; the attacks are D5."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
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
    new_key,
    public_of,
    request_of,
    sound_round,
    verify,
)
from worlds import denied_for

from nodeattest_providers import canonical_json
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY, ClusterPin
from nodeattest_providers.node_interface import FirstRequestRef, JsonObject, JsonValue, SecretBytes
from nodeattest_providers.tpm.attestor import split_der
from nodeattest_providers.tpm.config import PolicyCache
from nodeattest_providers.tpm.endorsement_key import parse_endorsement_key
from nodeattest_providers.tpm.key_templates import EK_TEMPLATES, parse_quote, parse_signature
from nodeattest_providers.tpm.protocol import Challenge, FirstEvidence, SecondEvidence, parse_evidence
from nodeattest_providers.tpm.structures import Alg, PcrSelection, PublicArea, parse_public, sized
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


SOFT = SoftTpm()
PARTS = SOFT.quote_parts(bytes(32), PcrSelection(Alg.SHA256, (0, 7)), PCR_VALUES)
QUOTE = PARTS.marshal()
SIGNATURE = SOFT.sign(QUOTE)
RSA_PUBLIC = public_of("rsa2048", new_key("rsa2048"))


def public(raw: bytes) -> PublicArea:
    return parse_public(raw, what="key", reason=Reason.ATTESTATION_KEY_NOT_ALLOWED)


PARSERS: list[tuple[Callable[[bytes], object], bytes, Reason]] = [
    (public, SOFT.ak_public, Reason.ATTESTATION_KEY_NOT_ALLOWED),
    (public, RSA_PUBLIC, Reason.ATTESTATION_KEY_NOT_ALLOWED),
    (parse_endorsement_key, SOFT.ek_public, Reason.ENDORSEMENT_KEY_MALFORMED),
    (parse_quote, QUOTE, Reason.QUOTE_MALFORMED),
    (parse_signature, SIGNATURE, Reason.QUOTE_MALFORMED),
    (parse_signature, bytes.fromhex("0014000b") + sized(bytes(256)), Reason.QUOTE_MALFORMED),
]
EACH = pytest.mark.parametrize(("parse", "good", "reason"), PARSERS, ids=[parse.__name__ for parse, _, _ in PARSERS])


def value_or_denied(parse: Callable[[bytes], object], data: bytes, reason: Reason) -> bool:
    try:
        parse(data)
    except Denied as denied:
        if denied.reason is not reason:
            raise
        return False
    return True


@EACH
def test_every_truncation_and_every_trailing_byte_is_denied(
    parse: Callable[[bytes], object], good: bytes, reason: Reason
) -> None:
    assert value_or_denied(parse, good, reason)
    for size in range(len(good)):
        assert not value_or_denied(parse, good[:size], reason), size
    for tail in (b"\x00", b"\xff", good):
        assert not value_or_denied(parse, good + tail, reason)


def rsa_area(modulus: int, *, bits: int = 2048, exponent: int = 0, size: int = 256) -> bytes:
    prefix = next(template.prefix for template in EK_TEMPLATES if template.name == "rsa2048")
    return prefix[:-6] + bits.to_bytes(2, "big") + exponent.to_bytes(4, "big") + sized(modulus.to_bytes(size, "big"))


GOOD_MODULUS = rsa.generate_private_key(65537, 2048).public_key().public_numbers().n


def roca_modulus() -> int:
    """A number of 2048 bits that is 1 modulo every small prime of the fingerprint, as 65537 to the power 0 is."""
    primes = (number for number in range(3, 168) if all(number % divisor for divisor in range(2, number)))
    step = 2 * math.prod(primes)
    return ((1 << 2048) - 1) // step * step + 1


@pytest.mark.parametrize(
    ("what", "raw"),
    [
        ("a modulus one bit short", rsa_area(GOOD_MODULUS >> 1 | 1)),
        ("an even modulus", rsa_area(GOOD_MODULUS - 1)),
        ("a key with CVE-2017-15361", rsa_area(roca_modulus())),
        ("exponent 3", rsa_area(GOOD_MODULUS, exponent=3)),
        ("a modulus of another size than keyBits", rsa_area(GOOD_MODULUS, bits=3072)),
        ("a modulus with a leading zero", rsa_area(GOOD_MODULUS, size=257)),
    ],
)
def test_an_unfit_rsa_key_is_denied(what: str, raw: bytes) -> None:
    assert not value_or_denied(public, raw, Reason.ATTESTATION_KEY_NOT_ALLOWED), what


# Credentials


# NV areas


@pytest.mark.parametrize("padding", [b"", b"\x00" * 9, b"\xff" * 9])
@pytest.mark.parametrize("tag", [bytes.fromhex("1002"), b""])
def test_a_certificate_stored_with_a_header_of_tpm_1_2_is_read(tag: bytes, padding: bytes) -> None:
    certificate = b"\x30\x82\x01\x00" + bytes(256)
    header = bytes.fromhex("100100") + (len(tag) + len(certificate)).to_bytes(2, "big") + tag
    assert list(split_der(header + certificate + padding)) == [certificate]
    assert list(split_der(header + certificate[:-1])) == []


@pytest.mark.parametrize(
    "data",
    [b"", b"\x30\x05abc", b"\x30\x82\x01", bytes(9), b"\xff" * 9, b"\x30\x80" + bytes(100), b"\x30\x00\x30\x01a"],
    ids=["nothing", "cut", "cut length", "zeros", "ones", "indefinite length", "empty"],
)
def test_bytes_that_are_not_a_whole_certificate_are_none(data: bytes) -> None:
    assert list(split_der(data)) == []


FIRST = FirstEvidence(ek_public=b"EK", ak_public=b"AK", ek_certificate=b"certificate", ek_chain=(b"one", b"two"))
SECOND = SecondEvidence(
    first=FirstRequestRef(name="csr-1", uid="uid-1"), mac=bytes(32), quote=b"quote", signature=b"sig", pcrs=(b"0", b"7")
)
CHALLENGE = Challenge(
    uid="uid-1",
    spki_sha256="sha256:" + "0" * 64,
    nonce=bytes(32),
    blob=b"blob",
    secret=b"secret",
    pcrs=PcrSelection(Alg.SHA256, (0, 7)),
)


JSON_TRUE: JsonValue = True  # equals 1 in Python, and in no other language of the wire


def with_value(key: str, value: JsonValue) -> Callable[[JsonObject], JsonObject]:
    return lambda data: {**data, key: value}


def without(key: str) -> Callable[[JsonObject], JsonObject]:
    return lambda data: {name: value for name, value in data.items() if name != key}


@pytest.mark.parametrize(
    ("evidence", "spoil"),
    [
        (FIRST, with_value("phase", JSON_TRUE)),
        (FIRST, with_value("ekPub", "")),
        (FIRST, with_value("ekPub", "A" * 2000)),
        (FIRST, with_value("ekCert", "A" * 8000)),
        (FIRST, with_value("ekChain", [*(["AAAA"] * 5)])),
        (FIRST, without("ekCert")),
        (SECOND, with_value("mac", "AAAA")),
        (SECOND, with_value("quote", "A" * 2000)),
        (SECOND, with_value("pcrs", [*(["AA"] * 25)])),
        (SECOND, with_value("pcrs", [""])),
    ],
)
def test_evidence_outside_its_schema_is_denied(
    evidence: FirstEvidence | SecondEvidence, spoil: Callable[[JsonObject], JsonObject]
) -> None:
    with denied_for(Reason.EVIDENCE_MALFORMED):
        parse_evidence(spoil(evidence.to_json()))


@pytest.mark.parametrize(
    "pcrs",
    [
        {"bank": "sha1", "select": [0]},
        {"bank": "sha256", "select": []},
        {"bank": "sha256", "select": [7, 0]},
        {"bank": "sha256", "select": [24]},
    ],
)
def test_a_challenge_with_another_selection_is_denied(pcrs: JsonValue) -> None:
    data = canonical_json.loads(CHALLENGE.to_text().encode())
    with pytest.raises(Denied):
        Challenge.parse(canonical_json.dumps(with_value("pcrs", pcrs)(data)).decode())


def settings_of(number: int) -> dict[str, JsonValue]:
    return {"endorsementKeys": [{"providerID": MACHINE, "sha256": f"sha256:f{number:063x}"}]}


def test_the_cache_holds_sixteen_policies_and_lets_go_of_the_one_that_was_not_asked_for_longest() -> None:
    cache, asked, idle = PolicyCache(), settings_of(0), settings_of(1)
    others = [settings_of(number) for number in range(2, 17)]
    first, forgotten = cache.get(asked), cache.get(idle)
    held = [(cache.get(settings), cache.get(asked)) for settings in others]
    assert all(again is first for _, again in held)
    assert all(cache.get(settings) is policy for settings, (policy, _) in zip(others, held, strict=True))
    assert cache.get(idle) is not forgotten
    refusals: list[Denied] = []
    wrong: dict[str, JsonValue] = {"eventlog": "Require"}
    for _ in range(2):
        with pytest.raises(Denied) as denied:
            cache.get(wrong)
        refusals.append(denied.value)
    assert refusals[0] is refusals[1]
