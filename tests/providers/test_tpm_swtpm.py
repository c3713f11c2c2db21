"""Both halves against software TPMs: honest nodes join, and every attack meets the rule that stops it."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import pytest
from tpm_tss import P384, activate, connected, imported_key, primary, quote, sign, tss
from tpm_world import (
    CSR,
    MACHINE,
    binding_of,
    challenge_of,
    facts_of,
    ledger,
    machine,
    parsed,
    published,
    request_of,
    verify,
)

from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.interface import Evidence, Facts, FirstRequestRef, JsonValue, NodeRequest
from nodeattest_providers.tpm.attest import parse_quote
from nodeattest_providers.tpm.attestor import TpmAttestor
from nodeattest_providers.tpm.credential import make_credential
from nodeattest_providers.tpm.device import Device
from nodeattest_providers.tpm.endorsement import MACHINE_ANNOTATION
from nodeattest_providers.tpm.protocol import (
    Challenge,
    FirstEvidence,
    SecondEvidence,
    parse_evidence,
    proof,
    qualifying_data,
)
from nodeattest_providers.tpm.signature import parse_signature, signature_is_valid
from nodeattest_providers.tpm.structures import Alg, PcrSelection
from nodeattest_providers.tpm.templates import AK_TEMPLATE
from nodeattest_sandbox.swtpm import SoftwareTpm

pytestmark = pytest.mark.swtpm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tpms")


@pytest.fixture(scope="module")
def tpm(folder: Path) -> Generator[SoftwareTpm]:
    with SoftwareTpm.create(folder, name="node-7") as running:
        yield running


@pytest.fixture(scope="module")
def other_tpm(folder: Path) -> Generator[SoftwareTpm]:
    with SoftwareTpm.create(folder, name="node-8") as running:
        yield running


def attestor_of(tpm: SoftwareTpm, kind: str = "auto") -> TpmAttestor:
    return TpmAttestor({"tcti": tpm.tcti, "endorsementKey": kind})


def by_allow_list(fingerprint: str) -> dict[str, JsonValue]:
    return {"endorsementKeys": [{"providerID": MACHINE, "sha256": fingerprint}]}


def by_certificate(tpm: SoftwareTpm, fingerprint: str) -> Facts:
    bound = machine(annotations={MACHINE_ANNOTATION: fingerprint})
    return facts_of({"endorsementCAs": tpm.authority_pem}, machine=bound, verified_at=tpm_time(tpm))


def tpm_time(tpm: SoftwareTpm) -> datetime:
    """The TPM's certificate was made just now, by the real clock."""
    return tpm.endorsement_certificate().not_valid_before_utc


def filed(evidence: Evidence, **changes: object) -> NodeRequest:
    return request_of(read(evidence), **changes)


def read(evidence: Evidence) -> FirstEvidence | SecondEvidence:
    return parse_evidence(evidence.data)


@dataclass(frozen=True, slots=True)
class Exchange:
    """What crossed the wire in one honest join."""

    facts: Facts
    first: NodeRequest
    answer: SecondEvidence


def exchange(attestor: TpmAttestor, facts: Facts) -> Exchange:
    first = filed(attestor.attest(binding_of(filed_nothing())))
    challenge = challenge_of(first, facts)
    answer = read(attestor.attest(binding_of(first), published(first, challenge)))
    assert isinstance(answer, SecondEvidence)
    return Exchange(replace(facts, first_request=first), first, answer)


def filed_nothing() -> NodeRequest:
    """A request of the right signer and CSR: all that a binding needs."""
    return request_of(FirstEvidence(ek_public=b"", ak_public=b""))


@pytest.fixture(scope="module")
def recorded(tpm: SoftwareTpm) -> Exchange:
    with attestor_of(tpm) as attestor:
        return exchange(attestor, by_certificate(tpm, attestor.endorsement_fingerprint()))


# Honest nodes


@pytest.mark.parametrize("kind", ["rsa2048", "ecc-p384"])
def test_a_node_with_a_certified_tpm_joins_by_certificate_and_annotation(tpm: SoftwareTpm, kind: str) -> None:
    registered = tpm.endorsement_fingerprint("rsa2048" if kind == "rsa2048" else "ecc-p384")
    with attestor_of(tpm, kind) as attestor:
        assert attestor.endorsement_fingerprint() == registered
        joined = exchange(attestor, by_certificate(tpm, registered))
    node = verify(request_of(joined.answer), joined.facts)
    assert node.fingerprints["ek"] == registered
    assert node.boot is not None
    assert node.checks


@pytest.mark.parametrize("kind", ["ecc-p256", "ecc-p256-high", "rsa2048-high"])
def test_a_node_whose_key_has_no_certificate_joins_by_allow_list(tpm: SoftwareTpm, kind: str) -> None:
    with attestor_of(tpm, kind) as attestor:
        joined = exchange(attestor, facts_of(by_allow_list(attestor.endorsement_fingerprint())))
    assert verify(request_of(joined.answer), joined.facts).checks


def test_auto_takes_the_key_that_has_a_certificate(tpm: SoftwareTpm) -> None:
    with attestor_of(tpm) as attestor:
        assert attestor.endorsement_fingerprint() == tpm.endorsement_fingerprint("ecc-p384")


def test_a_second_quote_is_newer_by_the_tpms_clock(tpm: SoftwareTpm) -> None:
    with attestor_of(tpm) as attestor:
        facts = by_certificate(tpm, attestor.endorsement_fingerprint())
        joined = exchange(attestor, facts)
        boot = verify(request_of(joined.answer), joined.facts).boot
        assert boot is not None
        seen = ledger(clock=boot.clock, reset_count=boot.reset_count)
        again = exchange(attestor, replace(facts, ledger=seen))
    assert verify(request_of(again.answer), again.facts).boot
    with pytest.raises(Denied) as denied:
        verify(request_of(joined.answer), replace(joined.facts, ledger=seen))
    assert denied.value.reason is Reason.TPM_CLOCK_REVERSED


def extend(tpm: SoftwareTpm, pcr: int) -> bytes:
    """Extend a PCR and return its new value."""
    with connected(tpm.tcti) as esys:
        measured = tss.TPMT_HA(hashAlg=tss.TPM2_ALG.SHA256, digest=tss.TPMU_HA(sha256=bytes(32)))
        esys.pcr_extend(tss.ESYS_TR(pcr), tss.TPML_DIGEST_VALUES([measured]))
        (value,) = [bytes(item) for item in esys.pcr_read(f"sha256:{pcr}")[2]]
        return value


def test_the_policys_pcr_values_are_demanded_of_what_was_extended(tpm: SoftwareTpm) -> None:
    value = extend(tpm, 16).hex()
    selection: list[JsonValue] = [*range(8), 16, 23]  # more than one read's eight
    pcrs: JsonValue = {"selection": selection, "values": {"16": [value]}}
    with attestor_of(tpm) as attestor:
        facts = facts_of({**by_allow_list(attestor.endorsement_fingerprint()), "pcrs": pcrs})
        joined = exchange(attestor, facts)
    assert verify(request_of(joined.answer), joined.facts).checks
    extend(tpm, 16)
    with attestor_of(tpm) as attestor:
        joined = exchange(attestor, facts)
    with pytest.raises(Denied) as denied:
        verify(request_of(joined.answer), joined.facts)
    assert denied.value.reason is Reason.PCR_VALUE_NOT_ALLOWED


def test_attestors_leave_no_key_and_no_session_in_the_tpm(tpm: SoftwareTpm) -> None:
    for _ in range(5):  # a TPM without resource manager holds three keys and three sessions
        with attestor_of(tpm, "rsa2048") as attestor:
            facts = facts_of(by_allow_list(attestor.endorsement_fingerprint()))
            exchange(attestor, facts)
            exchange(attestor, facts)
            exchange(attestor, facts)
            exchange(attestor, facts)


def test_three_power_losses_lock_out_neither_the_attestation_key_nor_any_endorsement_key(folder: Path) -> None:
    tpm = SoftwareTpm.create(folder, name="power")
    names: set[str] = set()
    try:
        for kind in ("ecc-p384", "rsa2048", "ecc-p256", "ecc-p384", "rsa2048", "ecc-p256"):
            tpm.start()
            with attestor_of(tpm, kind) as attestor:
                joined = exchange(attestor, facts_of(by_allow_list(attestor.endorsement_fingerprint())))
                tpm.kill()  # with the keys loaded: nothing is shut down in order
            names.add(verify(request_of(joined.answer), joined.facts).fingerprints["ak"])
    finally:
        tpm.stop()
    assert len(names) == 1


# What the node refuses


def test_a_node_activates_challenges_of_its_own_first_request_only(tpm: SoftwareTpm) -> None:
    with attestor_of(tpm) as attestor:
        facts = facts_of(by_allow_list(attestor.endorsement_fingerprint()))
        first = filed(attestor.attest(binding_of(filed_nothing())))
        own = published(first, challenge_of(first, facts))
        binding = binding_of(first)
        foreign = published(first, challenge_of(replace(first, uid="uid-9"), facts))
        other_key = published(first, challenge_of(replace(first, csr=replace(CSR, spki=b"another")), facts))
        for bad in (foreign, other_key, replace(own, csr_sha256=bytes(32)), replace(own, uid="uid-8")):
            with pytest.raises(Denied) as denied:
                attestor.attest(binding, bad)
            assert denied.value.reason is Reason.CHALLENGE_UNKNOWN
        for text in ("", "{}", own.text + " ", own.text.replace('"v":1', '"v":2'), "\ud800", "\x00"):
            with pytest.raises(Denied):
                attestor.attest(binding, replace(own, text=text))
        assert attestor.attest(binding, own)


def test_a_challenge_for_another_tpm_is_refused_by_this_one(tpm: SoftwareTpm, other_tpm: SoftwareTpm) -> None:
    for kind in ("ecc-p384", "rsa2048", "ecc-p256"):
        with attestor_of(tpm, kind) as victim:
            facts = facts_of(by_allow_list(victim.endorsement_fingerprint()))
            first = filed(victim.attest(binding_of(filed_nothing())))
        challenge = published(first, challenge_of(first, facts))
        with attestor_of(other_tpm, kind) as attacker:
            for _ in range(4):  # and leaks no session
                with pytest.raises(Denied) as denied:
                    attacker.attest(binding_of(first), challenge)
                assert denied.value.reason is Reason.CHALLENGE_UNKNOWN


def test_a_credential_for_another_name_is_refused_by_the_tpm(tpm: SoftwareTpm) -> None:
    with connected(tpm.tcti) as esys, primary(esys, P384.creation()) as ek, primary(esys, AK_TEMPLATE) as ak:
        name = parsed(ak.public).name
        right = make_credential(parsed(ek.public), name, bytes(32), random=bytes)
        wrong = make_credential(parsed(ek.public), name[:-1] + b"\x00", bytes(32), random=bytes)
        assert activate(esys, ek, ak, right.blob, right.secret) == bytes(32)
        with pytest.raises(tss.TSS2_Exception, match="integrity"):
            activate(esys, ek, ak, wrong.blob, wrong.secret)


# Attacks


def spoilt(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_the_recorded_answer_is_sound(recorded: Exchange) -> None:
    assert verify(request_of(recorded.answer), recorded.facts).checks


def test_no_bit_of_a_genuine_answer_can_be_changed(recorded: Exchange) -> None:
    answer = recorded.answer
    for field in ("quote", "signature", "mac"):
        data = getattr(answer, field)
        for at in range(len(data)):
            with pytest.raises(Denied):
                verify(request_of(replace(answer, **{field: spoilt(data, at)})), recorded.facts)


@pytest.mark.parametrize(
    ("field", "at", "reason"),
    [
        ("quote", 0, Reason.QUOTE_MALFORMED),
        ("quote", 5, Reason.QUOTE_MALFORMED),
        ("quote", 20, Reason.ATTESTATION_KEY_NOT_ALLOWED),
        ("quote", 50, Reason.QUOTE_NOT_BOUND),
        ("quote", 80, Reason.QUOTE_SIGNATURE_INVALID),
        ("quote", -1, Reason.QUOTE_SIGNATURE_INVALID),
        ("signature", 0, Reason.QUOTE_MALFORMED),
        ("signature", 20, Reason.QUOTE_SIGNATURE_INVALID),
        ("mac", 0, Reason.PROOF_INVALID),
    ],
)
def test_a_genuine_answer_with_one_bit_changed_is_denied(
    recorded: Exchange, field: str, at: int, reason: Reason
) -> None:
    data = getattr(recorded.answer, field)
    bad = replace(recorded.answer, **{field: spoilt(data, at % len(data))})
    with pytest.raises(Denied) as denied:
        verify(request_of(bad), recorded.facts)
    assert denied.value.reason is reason


def test_an_observed_answer_does_not_serve_another_request(recorded: Exchange) -> None:
    stolen = request_of(recorded.answer, csr=replace(CSR, der=b"the thief's key", spki=b"the thief's key"))
    with pytest.raises(Denied) as denied:
        verify(stolen, recorded.facts)
    assert denied.value.reason is Reason.FIRST_REQUEST_MISMATCH
    own_first = replace(recorded.first, csr=stolen.csr, uid="uid-of-the-thief", name="csr-of-the-thief")
    ref = replace(recorded.answer.first, uid=own_first.uid, name=own_first.name)
    again = request_of(replace(recorded.answer, first=ref), csr=stolen.csr)
    with pytest.raises(Denied) as denied:
        verify(again, replace(recorded.facts, first_request=own_first))
    assert denied.value.reason is Reason.CHALLENGE_UNKNOWN


def test_another_genuine_tpm_is_denied_at_once(tpm: SoftwareTpm, other_tpm: SoftwareTpm) -> None:
    facts = by_certificate(tpm, tpm.endorsement_fingerprint())
    with attestor_of(other_tpm) as attestor, pytest.raises(Denied) as denied:
        verify(filed(attestor.attest(binding_of(filed_nothing()))), facts)
    assert denied.value.reason is Reason.ENDORSEMENT_KEY_UNTRUSTED


def test_another_tpm_that_copies_the_victims_keys_cannot_answer(recorded: Exchange, other_tpm: SoftwareTpm) -> None:
    """The thief copies the victim's first evidence into its own request, and quotes with its own TPM."""
    challenge = Challenge.parse(challenge_of(recorded.first, recorded.facts).challenge)
    extra = qualifying_data(challenge.nonce, recorded.first.uid, binding_of(recorded.first).digest)
    with connected(other_tpm.tcti) as esys, primary(esys, AK_TEMPLATE) as ak:
        attest, signature = quote(esys, ak, challenge.pcrs.marshal(), extra)
    guessed = proof(bytes(32), recorded.first.uid, CSR.sha256, binding_of(recorded.first).digest)
    for mac, reason in ((guessed, Reason.PROOF_INVALID), (recorded.answer.mac, Reason.ATTESTATION_KEY_NOT_ALLOWED)):
        forged = replace(recorded.answer, quote=attest, signature=signature, mac=mac)
        with pytest.raises(Denied) as denied:
            verify(request_of(forged), recorded.facts)
        assert denied.value.reason is reason


UNRESTRICTED = AK_TEMPLATE[:4] + (0x00040472).to_bytes(4, "big") + AK_TEMPLATE[8:]


def test_an_unrestricted_key_activates_and_forges_quotes_and_is_denied(tpm: SoftwareTpm) -> None:
    with connected(tpm.tcti) as esys, primary(esys, P384.creation()) as ek, primary(esys, UNRESTRICTED) as ak:
        credential = make_credential(parsed(ek.public), parsed(ak.public).name, bytes(range(32)), random=bytes)
        assert activate(esys, ek, ak, credential.blob, credential.secret) == bytes(range(32))
        forged = b"\xffTCG\x80\x18 and whatever the attacker likes"
        assert signature_is_valid(parsed(ak.public), parse_signature(sign(esys, ak, forged)), forged)
        evidence = FirstEvidence(ek_public=ek.public, ak_public=ak.public)
    with pytest.raises(Denied) as denied:
        verify(request_of(evidence), facts_of(by_allow_list(parsed(evidence.ek_public).fingerprint)))
    assert denied.value.reason is Reason.ATTESTATION_KEY_NOT_ALLOWED
    assert denied.value.got == "0x00040472"


def test_a_restricted_key_signs_no_forged_quote(tpm: SoftwareTpm) -> None:
    with connected(tpm.tcti) as esys, primary(esys, AK_TEMPLATE) as ak, pytest.raises(tss.TSS2_Exception) as refused:
        sign(esys, ak, b"\xffTCG\x80\x18 and whatever the attacker likes")
    assert refused.value.error & 0xFF == 0xA0  # TPM_RC_TICKET


def test_an_imported_key_activates_and_is_denied(tpm: SoftwareTpm) -> None:
    with connected(tpm.tcti) as esys, imported_key(esys) as (ak, _), primary(esys, P384.creation()) as ek:
        credential = make_credential(parsed(ek.public), parsed(ak.public).name, bytes(range(32)), random=bytes)
        assert activate(esys, ek, ak, credential.blob, credential.secret) == bytes(range(32))
        evidence = FirstEvidence(ek_public=ek.public, ak_public=ak.public)
    with pytest.raises(Denied) as denied:
        verify(request_of(evidence), facts_of(by_allow_list(parsed(evidence.ek_public).fingerprint)))
    assert denied.value.reason is Reason.ATTESTATION_KEY_NOT_ALLOWED


def test_an_attestation_key_of_the_owner_hierarchy_is_denied_by_its_qualified_name(tpm: SoftwareTpm) -> None:
    owner = tss.ESYS_TR.OWNER
    with connected(tpm.tcti) as esys, primary(esys, P384.creation()) as ek, primary(esys, AK_TEMPLATE, owner) as ak:
        facts = facts_of(by_allow_list(parsed(ek.public).fingerprint))
        first = request_of(FirstEvidence(ek_public=ek.public, ak_public=ak.public))
        challenge = Challenge.parse(challenge_of(first, facts).challenge)
        secret = activate(esys, ek, ak, challenge.blob, challenge.secret)
        binding = binding_of(first).digest
        extra = qualifying_data(challenge.nonce, first.uid, binding)
        attest, signature = quote(esys, ak, challenge.pcrs.marshal(), extra)
    answer = SecondEvidence(
        first=FirstRequestRef(name=first.name, uid=first.uid),
        mac=proof(secret, first.uid, CSR.sha256, binding),
        quote=attest,
        signature=signature,
        pcrs=(bytes(32), bytes(32)),
    )
    with pytest.raises(Denied) as denied:
        verify(request_of(answer), replace(facts, first_request=first))
    assert denied.value.reason is Reason.ATTESTATION_KEY_NOT_ALLOWED
    assert denied.value.checks[-1].name == "qualified signer"


# What the node says when its TPM fails


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tcti": "device:/nonexistent/tpmrm0"}, "there is no TPM at"),
        ({"tcti": "swtpm:path=/nonexistent/socket"}, "TPM error"),
        ({"tcti": "no-such-tcti"}, "TPM error"),
    ],
)
def test_an_absent_tpm_is_unavailable_with_a_remedy(settings: dict[str, JsonValue], words: str) -> None:
    with TpmAttestor(settings) as attestor, pytest.raises(Unavailable, match=words) as unavailable:
        attestor.attest(binding_of(filed_nothing()))
    assert unavailable.value.reason is Reason.PLATFORM_UNAVAILABLE
    assert unavailable.value.remedy


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tctii": "x"}, "did you mean 'tcti'"),
        ({"tcti": ""}, "a string"),
        ({"tcti": 7}, "a string"),
        ({"endorsementKey": "rsa1024"}, "one of auto, ecc-p256"),
    ],
)
def test_wrong_settings_are_refused_in_words_that_help(settings: dict[str, JsonValue], words: str) -> None:
    with pytest.raises(Denied) as denied:
        TpmAttestor(settings)
    assert denied.value.reason is Reason.POLICY_INVALID
    assert words in str(denied.value)


def test_an_endorsement_hierarchy_with_a_password_is_unavailable_and_says_so(folder: Path) -> None:
    with SoftwareTpm.create(folder, name="password") as tpm:
        with connected(tpm.tcti) as esys:
            esys.hierarchy_change_auth(tss.ESYS_TR.ENDORSEMENT, tss.TPM2B_AUTH(b"secret"))
        with attestor_of(tpm) as attestor, pytest.raises(Unavailable, match="has a password"):
            attestor.attest(binding_of(filed_nothing()))


def test_a_disabled_endorsement_hierarchy_is_unavailable_and_says_so(folder: Path) -> None:
    with SoftwareTpm.create(folder, name="disabled") as tpm:
        with connected(tpm.tcti) as esys:
            esys.hierarchy_control(tss.ESYS_TR.PLATFORM, tss.ESYS_TR.ENDORSEMENT, False)  # noqa: FBT003 - the stack's signature
        with attestor_of(tpm) as attestor, pytest.raises(Unavailable, match="is disabled"):
            attestor.attest(binding_of(filed_nothing()))


def test_an_inactive_pcr_bank_is_unavailable_and_says_so(tpm: SoftwareTpm) -> None:
    with attestor_of(tpm) as attestor:
        fingerprint = attestor.endorsement_fingerprint()
        facts = facts_of({**by_allow_list(fingerprint), "pcrs": {"bank": "sha384"}})
        first = filed(attestor.attest(binding_of(filed_nothing())))
        with pytest.raises(Unavailable, match="no SHA384 bank"):
            attestor.attest(binding_of(first), published(first, challenge_of(first, facts)))


def test_a_tpm_that_dies_between_the_rounds_is_unavailable(folder: Path) -> None:
    tpm = SoftwareTpm.create(folder, name="dying").start()
    with attestor_of(tpm) as attestor:
        facts = facts_of(by_allow_list(attestor.endorsement_fingerprint()))
        first = filed(attestor.attest(binding_of(filed_nothing())))
        tpm.kill()
        with pytest.raises(Unavailable):
            attestor.attest(binding_of(first), published(first, challenge_of(first, facts)))


def test_a_tpm_in_lockout_is_unavailable_and_says_so(folder: Path) -> None:
    """A key without noDA, which we never make, brings a TPM there by losing power three times."""
    without_no_da = AK_TEMPLATE[:4] + (0x00050072).to_bytes(4, "big") + AK_TEMPLATE[8:]
    selection = PcrSelection(Alg.SHA256, (0,))

    def quotes_until_the_power_goes(tpm: SoftwareTpm) -> None:
        with tpm.start(), Device(tpm.tcti) as device:
            device.quote(device.create(without_no_da, "a key"), selection, b"")
            tpm.kill()

    tpm = SoftwareTpm.create(folder, name="lockout")
    for _ in range(3):
        quotes_until_the_power_goes(tpm)
    with pytest.raises(Unavailable, match="in lockout") as unavailable:
        quotes_until_the_power_goes(tpm)
    assert "tpm2_dictionarylockout" in unavailable.value.remedy


def test_the_quote_of_a_device_is_what_our_parser_reads(tpm: SoftwareTpm) -> None:
    with Device(tpm.tcti) as device:
        ak = device.create(AK_TEMPLATE, "the attestation key")
        selection = PcrSelection(parsed(ak.public).name_alg, (0, 7))
        attest, signature = device.quote(ak, selection, b"extra")
        values = device.read_pcrs(selection)
    read_back = parse_quote(attest)
    assert read_back.extra_data == b"extra"
    assert read_back.selections == (selection,)
    assert read_back.pcr_digest == hashlib.sha256(b"".join(values)).digest()
    assert signature_is_valid(parsed(ak.public), parse_signature(signature), attest)
