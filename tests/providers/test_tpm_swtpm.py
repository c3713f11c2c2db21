"""Both halves against software TPMs: honest nodes join with what they booted, and what fails is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from firmware import NO_ACTION, Measurement, boot, crypto_agile_log, typical_boot
from tpm_machines import Exchange, attestor_of, by_allow_list, by_certificate, exchange, filed, filed_nothing
from tpm_tss import connected, extend_with, tss
from tpm_world import CSR, binding_of, challenge_of, facts_of, published, request_of, verify
from worlds import denied_for

from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.tpm.attestor import TpmAttestor
from nodeattest_providers.tpm.key_templates import AK_TEMPLATE
from nodeattest_providers.tpm.node.commands import authorisation, execute, uint16, uint32
from nodeattest_providers.tpm.node.device import Device
from nodeattest_providers.tpm.protocol import MAX_EVENT_LOG
from nodeattest_providers.tpm.structures import Alg, PcrSelection
from nodeattest_providers.verifier_interface import AttestedNode
from nodeattest_sandbox.swtpm import SoftwareTpm

pytestmark = pytest.mark.swtpm


# Honest nodes


@pytest.mark.parametrize("kind", ["rsa2048", "ecc-p384"])
def test_a_node_with_a_certified_tpm_joins_by_certificate_and_annotation(real_tpm: SoftwareTpm, kind: str) -> None:
    registered = real_tpm.endorsement_fingerprint("rsa2048" if kind == "rsa2048" else "ecc-p384")
    with attestor_of(real_tpm, kind) as attestor:
        assert attestor.endorsement_fingerprint() == registered
        joined = exchange(attestor, by_certificate(real_tpm, registered))
    node = verify(request_of(joined.answer), joined.facts)
    assert node.fingerprints["ek"] == registered
    assert node.boot is not None
    assert node.checks


@pytest.mark.parametrize("kind", ["ecc-p256", "ecc-p256-high", "rsa2048-high"])
def test_a_node_whose_key_has_no_certificate_joins_by_allow_list(real_tpm: SoftwareTpm, kind: str) -> None:
    with attestor_of(real_tpm, kind) as attestor:
        joined = exchange(attestor, facts_of(by_allow_list(attestor.endorsement_fingerprint())))
    assert verify(request_of(joined.answer), joined.facts).checks


def test_three_power_losses_lock_out_neither_the_attestation_key_nor_any_endorsement_key(tpm_folder: Path) -> None:
    tpm = SoftwareTpm.create(tpm_folder, name="power")
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


def test_a_node_activates_challenges_of_its_own_first_request_only(real_tpm: SoftwareTpm) -> None:
    with attestor_of(real_tpm) as attestor:
        facts = facts_of(by_allow_list(attestor.endorsement_fingerprint()))
        first = filed(attestor.attest(binding_of(filed_nothing())))
        own = published(first, challenge_of(first, facts))
        binding = binding_of(first)
        foreign = published(first, challenge_of(replace(first, uid="uid-9"), facts))
        other_key = published(first, challenge_of(replace(first, csr=replace(CSR, spki=b"another")), facts))
        for bad in (foreign, other_key, replace(own, csr_sha256=bytes(32)), replace(own, uid="uid-8")):
            with denied_for(Reason.CHALLENGE_UNKNOWN):
                attestor.attest(binding, bad)
        for text in ("", "{}", own.text + " ", own.text.replace('"v":1', '"v":2'), "\ud800", "\x00"):
            with pytest.raises(Denied):
                attestor.attest(binding, replace(own, text=text))
        assert attestor.attest(binding, own)


# What the node says when its TPM fails


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tcti": "device:/nonexistent/tpmrm0"}, "there is no TPM at"),
        ({"tcti": "swtpm:path=/nonexistent/socket"}, "no connection to the TPM"),
        ({"tcti": "no-such-tcti"}, "not known here"),
    ],
)
def test_an_absent_tpm_is_unavailable_with_a_remedy(settings: dict[str, JsonValue], words: str) -> None:
    with TpmAttestor(settings) as attestor, pytest.raises(Unavailable, match=words) as unavailable:
        attestor.attest(binding_of(filed_nothing()))
    assert unavailable.value.reason is Reason.PLATFORM_UNAVAILABLE
    assert unavailable.value.remedy


def test_an_endorsement_hierarchy_with_a_password_is_unavailable_and_says_so(tpm_folder: Path) -> None:
    with SoftwareTpm.create(tpm_folder, name="password") as tpm:
        with connected(tpm.tcti) as esys:
            esys.hierarchy_change_auth(tss.ESYS_TR.ENDORSEMENT, tss.TPM2B_AUTH(b"secret"))
        with attestor_of(tpm) as attestor, pytest.raises(Unavailable, match="has a password"):
            attestor.attest(binding_of(filed_nothing()))


def test_an_inactive_pcr_bank_is_unavailable_and_says_so(real_tpm: SoftwareTpm) -> None:
    with attestor_of(real_tpm) as attestor:
        fingerprint = attestor.endorsement_fingerprint()
        facts = facts_of({**by_allow_list(fingerprint), "pcrs": {"bank": "sha384"}})
        first = filed(attestor.attest(binding_of(filed_nothing())))
        with pytest.raises(Unavailable, match=r"no SHA384 bank.*spec\.tpm\.pcrs\.bank"):
            attestor.attest(binding_of(first), published(first, challenge_of(first, facts)))


class RacingDevice(Device):
    """A TPM whose PCR 23 is extended between reading and quoting, as often as ``races`` says."""

    races = 0

    def read_pcrs(self, selection: PcrSelection) -> tuple[bytes, ...]:
        values = super().read_pcrs(selection)
        if self.races:
            self.races -= 1
            # TPM2_PCR_Extend of one SHA-256 digest
            digests = uint32(1) + uint16(Alg.SHA256) + bytes(32)
            execute(self._tpm, 0x182, 23, parameters=digests, authorisations=(authorisation(),))
        return values


@pytest.mark.parametrize(("races", "is_answered"), [(0, True), (2, True), (3, False)])
def test_a_pcr_that_changes_while_it_is_quoted_is_read_again(
    real_tpm: SoftwareTpm, races: int, *, is_answered: bool
) -> None:
    def connect(tcti: str) -> Device:
        device = RacingDevice(tcti)
        device.races = races
        return device

    with TpmAttestor({"tcti": real_tpm.tcti}, connect=connect) as attestor:
        pcrs: JsonValue = {"selection": [0, 23]}
        facts = facts_of({**by_allow_list(attestor.endorsement_fingerprint()), "pcrs": pcrs})
        if is_answered:
            joined = exchange(attestor, facts)
            assert verify(request_of(joined.answer), joined.facts).checks
        else:
            with pytest.raises(Unavailable, match="keep changing"):
                exchange(attestor, facts)


def test_a_tpm_in_lockout_is_unavailable_and_says_so(tpm_folder: Path) -> None:
    """A key without noDA, which we never make, brings a TPM there by losing power three times."""
    without_no_da = AK_TEMPLATE[:4] + (0x00050072).to_bytes(4, "big") + AK_TEMPLATE[8:]
    selection = PcrSelection(Alg.SHA256, (0,))

    def quotes_until_the_power_goes(tpm: SoftwareTpm) -> None:
        with tpm.start(), Device(tpm.tcti) as device:
            device.quote(device.create(without_no_da, "a key"), selection, b"")
            tpm.kill()

    tpm = SoftwareTpm.create(tpm_folder, name="lockout")
    for _ in range(3):
        quotes_until_the_power_goes(tpm)
    with pytest.raises(Unavailable, match="in lockout") as unavailable:
        quotes_until_the_power_goes(tpm)
    assert "tpm2_dictionarylockout" in unavailable.value.remedy


BOOT = typical_boot()
PCRS: JsonValue = {"selection": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 14]}


@pytest.fixture
def booted(tpm_folder: Path) -> SoftwareTpm:
    """A TPM that was just powered on and measured a boot; the test stops it."""
    tpm = SoftwareTpm.create(tpm_folder, name="measured").start()
    boot(tpm.tcti, BOOT)
    return tpm


def join(tpm: SoftwareTpm, log: Path, **settings: JsonValue) -> Exchange:
    with TpmAttestor({"tcti": tpm.tcti, "eventLog": str(log)}) as attestor:
        trusted = by_allow_list(attestor.endorsement_fingerprint())
        return exchange(attestor, facts_of({**trusted, "pcrs": PCRS, "eventLog": "Require", **settings}))


def verify_joined(joined: Exchange) -> AttestedNode:
    return verify(request_of(joined.answer), joined.facts)


def test_a_node_joins_with_the_log_of_its_boot_and_is_refused_once_its_boot_is_another(
    booted: SoftwareTpm, tmp_path: Path
) -> None:
    log = tmp_path / "binary_bios_measurements"
    log.write_bytes(crypto_agile_log((Measurement(0, NO_ACTION, b"StartupLocality\0\0"), *BOOT)))
    with booted as tpm:
        joined = join(tpm, log)
        node = verify_joined(joined)
        assert node.boot is not None
        assert node.boot.bank == "sha256"
        assert set(node.boot.pcrs) == {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 14}
        with connected(tpm.tcti) as esys:
            extend_with(esys, 4)
        with pytest.raises(Denied) as denied:
            verify_joined(join(tpm, log))
    assert denied.value.reason is Reason.EVENT_LOG_MISMATCH
    assert denied.value.got.startswith("PCR 4 ")


def test_a_log_that_is_asked_for_and_cannot_be_had_is_unavailable_and_says_so(
    real_tpm: SoftwareTpm, tmp_path: Path
) -> None:
    empty, large = tmp_path / "empty", tmp_path / "large"
    empty.touch()
    large.write_bytes(bytes(MAX_EVENT_LOG + 1))
    for path, words in (
        (tmp_path / "absent", "No such file"),
        (tmp_path, "Is a directory"),
        (empty, "is empty"),
        (large, "more than 131072 bytes"),
    ):
        with pytest.raises(Unavailable, match=words) as unavailable:
            join(real_tpm, path)
        assert unavailable.value.reason is Reason.PLATFORM_UNAVAILABLE
        assert "securityfs" in unavailable.value.remedy


def test_the_policys_change_between_the_rounds_starts_a_new_first_request(booted: SoftwareTpm, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(crypto_agile_log(BOOT))
    with booted as tpm:
        asked, unasked = join(tpm, log), join(tpm, log, eventLog="Ignore")
    settings = {True: asked.facts.settings, False: unasked.facts.settings}
    for joined, now, reason in (
        (asked, False, Reason.EVIDENCE_MALFORMED),
        (unasked, True, Reason.EVENT_LOG_MISSING),
    ):
        with denied_for(reason) as denied:
            verify_joined(replace(joined, facts=replace(joined.facts, settings=settings[now])))
        assert "new first request" in denied.value.remedy


@pytest.fixture(scope="module")
def recorded(real_tpm: SoftwareTpm) -> Exchange:
    with attestor_of(real_tpm) as attestor:
        return exchange(attestor, by_certificate(real_tpm, attestor.endorsement_fingerprint()))


# Attacks


def spoilt(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_no_bit_of_a_genuine_answer_can_be_changed(recorded: Exchange) -> None:
    answer = recorded.answer
    for field in ("quote", "signature", "mac"):
        data = getattr(answer, field)
        for at in range(len(data)):
            with pytest.raises(Denied):
                verify(request_of(replace(answer, **{field: spoilt(data, at)})), recorded.facts)
