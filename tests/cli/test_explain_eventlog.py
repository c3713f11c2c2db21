"""The event log of a stored request: shown beside its quote, and believed no further than digests go."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st
from stored import Join, changed

from nodeattest_cli.explain.replay import CheckOutcome, Explanation, explain_request
from nodeattest_cli.explain.tpm import describe, event_type_name
from nodeattest_cli.main import main
from nodeattest_demo.forged_tpm import ForgedTpm
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Reason
from nodeattest_providers.tpm.structures import PcrSelection
from nodeattest_sandbox.firmware import NO_ACTION, Measurement, crypto_agile_log, sha1_log, typical_boot
from nodeattest_sandbox.pki import ClusterPki

BOOT = (Measurement(0, NO_ACTION, b"StartupLocality\0\0"), *typical_boot())


class MeasuredTpm(ForgedTpm):
    """One whose registers hold the boot."""

    def registers(self, selection: PcrSelection) -> tuple[bytes, ...]:
        values = dict.fromkeys(range(24), bytes(32))
        for one in BOOT:
            if one.kind != NO_ACTION:
                values[one.pcr] = hashlib.sha256(values[one.pcr] + one.digest("sha256")).digest()
        return tuple(values[pcr] for pcr in selection.pcrs)


@pytest.fixture(scope="module")
def join(tmp_path_factory: pytest.TempPathFactory) -> Join:
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    return Join(ClusterPki.make(tmp_path_factory.mktemp("pki"), "blue"), tpm=MeasuredTpm(key))


def documents(join: Join, first: JsonObject) -> list[JsonObject]:
    required: JsonObject = {"eventLog": "Require"}
    return [*changed(join.documents(), "NodeAttestationPolicy", "spec", "tpm", value=required), first]


def explained(join: Join, log: bytes | None) -> Explanation:
    first, second = join.round(log=log)
    return explain_request(second, documents(join, first))


def test_a_log_that_explains_the_quote_is_shown_after_the_checks_that_it_passed(join: Join) -> None:
    explanation = explained(join, crypto_agile_log(BOOT))
    assert {step.outcome for step in explanation.steps} == {CheckOutcome.PASSED}
    assert {"event log replays PCR 0", "event log replays PCR 7"} <= {step.name for step in explanation.steps}
    assert dict(explanation.facts)["event log"] == "crypto-agile, 20 events, sha256; explains PCRs 0, 7"


def test_data_is_verified_only_where_its_digest_was_quoted(join: Join) -> None:
    log = explained(join, crypto_agile_log(BOOT)).log
    assert log is not None
    verified = {(event["pcr"], event["type"]): event["says"] for event in log.events if event["verified"]}
    assert verified == {
        (0, "EV_S_CRTM_VERSION"): "'1.2.3'",
        (0, "EV_SEPARATOR"): "done",
        (7, "EV_EFI_VARIABLE_DRIVER_CONFIG"): "'SecureBoot' = 01",
        (7, "EV_SEPARATOR"): "done",
    }
    assert [event["says"] for event in log.events[:2]] == ["'Spec ID Event03'", "'StartupLocality', 0"]
    unverified = {event["type"]: event["says"] for event in log.events if not event["verified"]}
    assert unverified["EV_IPL"] == "'kernel_cmdline: vmlinuz root=/dev/vda1 ro'"
    assert unverified["EV_EFI_PLATFORM_FIRMWARE_BLOB"] == "16 bytes"


def test_nothing_of_a_register_that_does_not_replay_is_verified(join: Join) -> None:
    explanation = explained(join, crypto_agile_log((*BOOT, Measurement(7, 4, bytes(4)))))
    assert next(step.reason for step in explanation.steps if step.reason) == Reason.EVENT_LOG_MISMATCH
    assert explanation.log is not None
    assert {str(event["pcr"]) for event in explanation.log.events if event["verified"]} == {"0"}
    assert dict(explanation.facts)["event log"].endswith("explains PCRs 0, not 7")


def test_a_log_in_the_sha_1_form_is_shown_and_refused(join: Join) -> None:
    explanation = explained(join, sha1_log(BOOT))
    assert next(step.reason for step in explanation.steps if step.reason) == Reason.EVENT_LOG_BANK_MISSING
    assert dict(explanation.facts)["event log"] == "the SHA-1 form, 19 events, sha1; has not the quoted bank"
    assert explanation.log is not None
    assert not any(event["verified"] for event in explanation.log.events)


def test_the_log_is_a_table_after_the_verdict_and_an_array_in_json(
    join: Join, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = join.round(log=crypto_agile_log(BOOT))
    request, others = tmp_path / "request.yaml", tmp_path / "others.yaml"
    request.write_text(yaml.safe_dump(second))
    others.write_text(yaml.safe_dump_all(documents(join, first)))
    arguments = ["explain", str(request), "--with", str(others)]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    verdict, _, table = text.partition("event log, as the node reports it")
    assert verdict.rstrip().endswith("nothing refuses it")
    rows = [line.split() for line in table.splitlines()[1:]]
    assert rows[0] == ["#", "PCR", "TYPE", "SHA256", "DATA", "SAYS"]
    assert rows[1][:5] == ["0", "0", "EV_NO_ACTION", "-", "unverified"]
    assert rows[3][1:5] == ["0", "EV_S_CRTM_VERSION", BOOT[1].digest("sha256").hex()[:16], "verified"]
    assert main([*arguments, "-o", "json"]) == 0
    log = json.loads(capsys.readouterr().out)["eventLog"]
    assert (log["form"], log["bank"]) == ("crypto-agile", "sha256")
    assert log["pcrs"]["7"]["agrees"]
    assert log["events"][2] == {
        "index": 2,
        "pcr": 0,
        "type": "EV_S_CRTM_VERSION",
        "digest": BOOT[1].digest("sha256").hex(),
        "verified": True,
        "says": "'1.2.3'",
    }


kinds = st.sampled_from((*range(20), 0x80000001, 0x80000002, 0x80000007, 0x800000E0)) | st.integers(0, 2**32 - 1)


@given(kinds, st.binary(max_size=120))
def test_any_event_is_one_line_of_visible_ascii(kind: int, data: bytes) -> None:
    said = describe(kind, data) + event_type_name(kind)
    assert said.isprintable()
    assert len(said) < 500
    assert said.replace("…", "").isascii()
