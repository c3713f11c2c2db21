"""The event log of a stored request: which quoted registers it explains."""

from __future__ import annotations

import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from firmware import NO_ACTION, Measurement, crypto_agile_log, sha1_log, typical_boot
from stored import Join, changed

from nodeattest_cli.explain.replay import CheckOutcome, Explanation, explain_request
from nodeattest_demo.forged_tpm import ForgedTpm
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Reason
from nodeattest_providers.tpm.structures import PcrSelection
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


def test_a_register_that_does_not_replay_is_named(join: Join) -> None:
    explanation = explained(join, crypto_agile_log((*BOOT, Measurement(7, 4, bytes(4)))))
    assert next(step.reason for step in explanation.steps if step.reason) == Reason.EVENT_LOG_MISMATCH
    assert dict(explanation.facts)["event log"].endswith("explains PCRs 0, not 7")


def test_a_log_in_the_sha_1_form_is_shown_and_refused(join: Join) -> None:
    explanation = explained(join, sha1_log(BOOT))
    assert next(step.reason for step in explanation.steps if step.reason) == Reason.EVENT_LOG_BANK_MISSING
    assert dict(explanation.facts)["event log"] == "the SHA-1 form, 19 events; has not the quoted bank"
