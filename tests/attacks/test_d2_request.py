"""D2: certificate requests that ask for more than a node's certificate, or whose readers would disagree."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from apiserver_kit import encoded
from cases import attacks, evaluated
from catalogue import ROWS, Row
from handmade import Made
from spoilt_requests import REQUESTS

from nodeattest_providers import pem
from nodeattest_providers.envelope import LABEL_CSR
from nodeattest_providers.pkcs10 import parse_csr
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap


def test_the_request_that_the_attacks_spoil_is_a_good_one() -> None:
    assert parse_csr(Made().der()).node_name == "n-0"


@pytest.mark.parametrize(("row", "der"), attacks(REQUESTS))
def test_a_spoilt_request_is_denied(row: Row, der: bytes) -> None:
    assert evaluated(lambda: parse_csr(der)) == row.expected


@pytest.mark.conformance
@pytest.mark.parametrize(("row", "der"), attacks({row: der for row, der in REQUESTS.items() if ROWS[row].api}))
def test_the_api_server_does_with_the_request_what_is_known(
    answer_to: Callable[[JsonMap], str], row: Row, der: bytes
) -> None:
    assert answer_to({"request": encoded(pem.encode([(LABEL_CSR, der)]))}) == row.api
