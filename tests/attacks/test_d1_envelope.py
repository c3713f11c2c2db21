"""D1: bytes that two readers of an envelope could take for different requests, or that cost a reader too much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from apiserver_kit import encoded
from cases import attacks, evaluated
from catalogue import ROWS, Row
from counted_calls import calls
from spoilt_envelopes import ENVELOPES, GOOD

from nodeattest_providers import envelope
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap

CALLS: Final = 20_000
"""More than any of these costs, of functions and for 256 KiB."""


def test_the_envelope_that_the_attacks_spoil_is_a_good_one() -> None:
    csr, evidence = envelope.decode(GOOD)
    assert (csr.node_name, evidence.provider, evidence.version) == ("node-0", "tpm", 1)


@pytest.mark.parametrize(("row", "request_bytes"), attacks(ENVELOPES))
def test_a_spoilt_envelope_is_denied_in_few_calls(row: Row, request_bytes: bytes) -> None:
    assert evaluated(lambda: envelope.decode(request_bytes)) == row.expected
    assert calls(lambda: evaluated(lambda: envelope.decode(request_bytes))) < CALLS


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("row", "request_bytes"), attacks({row: raw for row, raw in ENVELOPES.items() if ROWS[row].api})
)
def test_the_api_server_does_with_it_what_is_known(
    answer_to: Callable[[JsonMap], str], row: Row, request_bytes: bytes
) -> None:
    assert answer_to({"request": encoded(request_bytes)}) == row.api
