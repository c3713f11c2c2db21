"""D3: request objects that say too much, come from the wrong one, or are for nobody here."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cases import attacks, evaluated
from catalogue import ROWS, Row
from spoilt_objects import OBJECTS, stored

from nodeattest_controller.model.csr_request import parse_request, summarize
from nodeattest_parsing.objects import mapping
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap


def test_the_object_that_the_attacks_spoil_is_a_good_one() -> None:
    assert parse_request(stored()).csr.node_name == "node-0"


@pytest.mark.parametrize(("row", "stored_object"), attacks(OBJECTS))
def test_a_spoilt_object_is_denied(row: Row, stored_object: JsonObject) -> None:
    assert evaluated(lambda: parse_request(stored_object)) == row.expected


def test_what_a_requester_wrote_into_metadata_is_not_even_read() -> None:
    plain = parse_request(stored())
    for row in ("D3-36", "D3-38"):
        assert parse_request(OBJECTS[row]) == plain


@pytest.mark.parametrize("row", ["D3-22", "D3-23", "D3-24"])
def test_a_signer_that_is_not_ours_is_not_even_looked_at(row: str) -> None:
    assert summarize(OBJECTS[row]) is None


ASKED = {row: value for row, value in OBJECTS.items() if ROWS[row].api}


@pytest.mark.conformance
@pytest.mark.parametrize(("row", "stored_object"), attacks(ASKED))
def test_the_api_server_does_with_the_object_what_is_known(
    answer_to: Callable[[JsonMap], str], row: Row, stored_object: JsonMap
) -> None:
    assert answer_to(dict(mapping(stored_object, "spec"))) == row.api
