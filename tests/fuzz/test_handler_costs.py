"""The table of costs: every worst input known is one, holds no more memory than declared, and is told in the page.

CPU is measured by ``make bench ARGS=costs`` and searched by ``make fuzz``: here nothing is timed.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID
from work import lines_run

from bench.figures import Figure
from fuzz.costs import measure, worst
from fuzz.costs.handler import Handler, runner
from fuzz.costs.run import FINDINGS, search
from fuzz.costs.search import Search
from fuzz.costs.table import HANDLERS
from fuzz.keys import NOW, authority
from fuzz.run import ROOT
from nodeattest_controller.model import policy
from nodeattest_identity.issuer.keys import KeysError, read_jwks, read_pem
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_providers.certificate_chain import ChainError, ChainVerifier
from nodeattest_providers.errors import Denied

pytestmark = pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
PAGE = ROOT / "docs" / "costs.md"
MANY = 1_000_000


LOOPS = {name: handler for name, handler in HANDLERS.items() if handler.runs == "loop"}


@pytest.mark.parametrize("handler", LOOPS.values(), ids=LOOPS)
def test_the_worst_inputs_of_an_event_loop_hold_no_more_memory_than_is_declared(handler: Handler) -> None:
    assert handler.worst
    for name, make in handler.worst.items():
        data = make()
        assert 0 < len(data) <= handler.largest, name
        assert measure.peak(lambda data=data: handler.run(data)) <= handler.mebibytes, name


@pytest.mark.parametrize("name", ["evidence", "agent-answer", "cluster-info", "strict-json", "compute-instances"])
def test_a_document_of_far_too_many_values_is_refused_before_it_is_read(name: str) -> None:
    handler = HANDLERS[name]
    for unit in (b"[],", b'{"":1},', b"1,", b'"",', b"[" * 300 + b"]" * 300 + b","):
        bomb = worst.filled(b'{"x":[', unit, b"0]}", handler.largest)
        assert measure.peak(lambda bomb=bomb: handler.run(bomb)) <= handler.mebibytes, unit
        assert lines_run(lambda bomb=bomb: handler.run(bomb)) < 200, unit


def test_separators_in_texts_are_no_values() -> None:
    text = worst.to_json({"x": ",[{" * 20_000, "y": '\\",\\"' * 1000})
    assert HANDLERS["strict-json"].run(text) == json.loads(text)


def test_an_issuer_with_a_long_exponent_is_refused_without_checking_a_signature() -> None:
    leaf, *between = worst.slow_exponents()
    verifier = ChainVerifier([authority()], NOW, ExtendedKeyUsageOID.CLIENT_AUTH)
    certificate = worst.x509.load_der_x509_certificate(leaf)
    with pytest.raises(ChainError, match="exponent of more than 31 bits"):
        verifier.verify(certificate, between)
    assert verifier.checked == 0


def test_more_keys_than_an_issuer_has_are_refused_before_they_are_read() -> None:
    assert len(read_jwks(worst.jwks("P-521", 128, MANY))) == 128
    with pytest.raises(KeysError, match="1 to 128 keys"):
        read_jwks(worst.jwks("P-521", 129, MANY))


def test_pem_blocks_that_never_end_are_refused_before_they_are_looked_for() -> None:
    bomb = worst.pem_without_end(MANY)
    with pytest.raises(KeysError, match="at most 128 PEM blocks"):
        read_pem(bomb)
    with pytest.raises(KeysError, match="too many dashes"):
        read_pem(b"-----BEGIN PUBLIC KEY-----\n" + b"a-" * (MANY // 2) + b"\n-----END PUBLIC KEY-----\n")


def test_a_policy_of_more_values_than_a_loop_should_read_is_invalid() -> None:
    entries: list[JsonValue] = [
        {"providerID": f"a://{number}", "sha256": "x", "nodeName": "n"} for number in range(10_000)
    ]
    document: JsonObject = {"metadata": {"name": "p"}, "spec": {"tpm": {"endorsementKeys": entries}}}
    assert policy.parse_attestation_policy(document).name == "p"
    assert lines_run(lambda: policy.parse_attestation_policy(document)) < 3 * 40_000, "no call for each value"
    document["spec"] = {"tpm": {"endorsementKeys": entries * 2}}
    with pytest.raises(Denied, match="at most 60000 values"):
        policy.parse_attestation_policy(document)


def test_a_denial_of_a_policy_does_not_grow_with_the_name_that_it_refuses() -> None:
    for spec in ({"=" * MANY: 0}, {"enforcement": "=" * MANY}, {"certificateLifetime": "=" * MANY}):
        with pytest.raises(Denied) as denied:
            policy.parse_attestation_policy({"metadata": {"name": "p"}, "spec": {**spec}})
        assert len(str(denied.value)) < 1024


def test_each_row_is_in_the_page_with_its_bounds() -> None:
    rows = re.findall(
        r"^\| `([a-z0-9-]+)` \| (.+?) \| (\w+) \| (\S+) \| (\S+) ms \| (\S+) MiB \|$", PAGE.read_text(), re.MULTILINE
    )
    assert rows == [
        (one.name, one.reads, one.runs, size_of(one), f"{one.milliseconds:g}", f"{one.mebibytes:g}")
        for one in HANDLERS.values()
    ]


def size_of(handler: Handler) -> str:
    return f"{-(-handler.largest // 1024):,}"


def test_every_handler_that_strangers_reach_is_searched_longer() -> None:
    assert {name for name, handler in HANDLERS.items() if handler.strangers} >= {
        *("request", "admission-review", "discovery-front", "token-review", "gateway-head", "sidecar-head", "token"),
        *("issuer-conditions", "agent-answer", "cluster-info"),
    }


def test_no_input_over_its_bound_waits_to_be_mended() -> None:
    assert not FINDINGS.exists(), "mend the handler, make the input a row of fuzz/costs, and delete it here"


QUADRATIC = Handler(
    name="quadratic",
    reads="",
    runs="loop",
    run=runner(lambda data: [data[at:].count(b"a") for at, each in enumerate(data) for _ in range(each == ord("a"))]),
    largest=400,
    milliseconds=300.0,
    mebibytes=1.0,
    worst={"honest": lambda: b"abcdef"},
)


def test_the_search_finds_what_costs_more_than_its_bound() -> None:
    finder = Search(QUADRATIC, Random(7), price=lambda action, _runs: float(lines_run(action)))
    for data in finder.start():
        finder.measure(data)
    while finder.found is None and finder.executions < 5_000:
        finder.measure(finder.next())
    assert finder.found is not None
    assert len(finder.found) <= QUADRATIC.largest
    assert "of 300" in finder.why


def test_a_cheap_handler_is_searched_and_clean() -> None:
    finder = Search(replace(QUADRATIC, run=len), Random(7), price=lambda _action, _runs: 1.0)
    for data in finder.start():
        finder.measure(data)
    for _ in range(500):
        finder.measure(finder.next())
    assert finder.found is None


def test_a_search_that_does_not_end_by_itself_is_not_clean(tmp_path: Path) -> None:
    found = search(replace(QUADRATIC, name="no-such-handler"), 1, findings=tmp_path)
    assert "no-such-handler" in found.trouble


def test_costs_are_named_among_the_targets() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fuzz", "--list"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert {f"costs/{name}" for name in HANDLERS} <= set(done.stdout.split())


def test_a_figure_above_its_bound_fails_the_bench() -> None:
    assert Figure("a", 2.0, "ms", "<= 1", most=1.0).is_over
    assert not Figure("a", 2.0, "ms", "<= 1").is_over
