from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import generate_eventlog
import pytest

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.tpm.event_log import parse_event_log, replay
from nodeattest_providers.tpm.protocol import Challenge
from nodeattest_providers.tpm.structures import Alg

FILE = Path(__file__).parent / "eventlog.json"
VECTORS: Any = json.loads(FILE.read_text())


def test_generating_again_makes_no_difference() -> None:
    assert generate_eventlog.content() == FILE.read_bytes(), "run tests/vectors/generate_eventlog.py"


@pytest.mark.parametrize("vector", VECTORS["logs"], ids=lambda vector: vector["name"])
def test_a_log_replays_as_published(vector: dict[str, Any]) -> None:
    log = parse_event_log(bytes.fromhex(vector["log"]))
    assert log.locality == vector["locality"]
    assert set(log.sizes) == {Alg[name.upper()] for name in vector["replay"]}
    for name, values in vector["replay"].items():
        assert {str(pcr): value.hex() for pcr, value in replay(log, Alg[name.upper()]).items()} == values


@pytest.mark.parametrize("vector", VECTORS["malformed"], ids=lambda vector: vector["name"])
def test_a_malformed_log_is_denied_as_published(vector: dict[str, Any]) -> None:
    with pytest.raises(Denied) as denied:
        parse_event_log(bytes.fromhex(vector["log"]))
    assert denied.value.reason is Reason.EVENT_LOG_MALFORMED


def test_the_challenge_asks_for_a_log_as_published() -> None:
    without, wished = (Challenge.parse(VECTORS["challenge"][name]) for name in ("without", "with"))
    assert wished == replace(without, log=True)
    assert [one.to_text() for one in (without, wished)] == list(VECTORS["challenge"].values())
