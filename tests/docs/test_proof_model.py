"""The formulas of the proof's model are those of the code: same labels, same fields, same order.

A small interpreter computes each ``letfun`` of docs/proof/wire_format.pvl with real bytes (``h`` is SHA-256, a tuple is
``length_prefix``), and the result is compared with that of the Python function. So is which checks have a mutant.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from needs import skip_if
from worlds import FACTS, filed

from nodeattest_controller.controllers.csr.checks import CHECKS
from nodeattest_providers.challenge import protocol as challenge
from nodeattest_providers.challenge_response import LABEL_NONCE, LABEL_SECRET, challenge_context, derive
from nodeattest_providers.identifiers import ClusterPin, EvidenceBlock, ProviderName, SignerName
from nodeattest_providers.node_interface import Binding, Evidence, SecretBytes, length_prefix
from nodeattest_providers.tpm import protocol as tpm
from tools.prove import (
    LEDGER_RUNS,
    MODELS,
    MUTANTS,
    NOT_MODELLED,
    SCENARIOS,
    SpinRun,
    edited,
    queries_of,
    run_spin,
)

MODEL = (MODELS / "wire_format.pvl").read_text(encoding="utf-8")
FORMULA = re.compile(r"^letfun (\w+)\(([^)]*)\) =\n?(.*?)\.$", re.MULTILINE | re.DOTALL)
TOKEN = re.compile(r"\w+|[(),]")
FIRST = filed(Evidence(ProviderName("tpm"), 1, {"phase": 1}))


@dataclass(frozen=True)
class Formula:
    """One ``letfun``."""

    parameters: tuple[str, ...]
    body: str

    def compute(self, *values: bytes) -> bytes:
        """Compute it with real bytes."""
        assert len(values) == len(self.parameters)
        tokens = iter([*TOKEN.findall(self.body), ""])
        return Interpreter(dict(zip(self.parameters, values, strict=True)), tokens).term()


class Interpreter:
    """Computes a term as it reads it."""

    def __init__(self, values: Mapping[str, bytes], tokens: Iterator[str]) -> None:
        self._values = values
        self._tokens = tokens
        self._next = next(tokens)

    def term(self) -> bytes:
        word = self._take()
        if word == "(":
            return length_prefix(*self._arguments())
        assert re.fullmatch(r"\w+", word)
        if self._next != "(":
            return self._values.get(word, word.removeprefix("for_").replace("_", "-").encode())
        self._take()
        return FUNCTIONS[word](*self._arguments())

    def _arguments(self) -> list[bytes]:
        values = [self.term()]
        while self._take() == ",":
            values.append(self.term())
        return values

    def _take(self) -> str:
        taken, self._next = self._next, next(self._tokens, "")
        return taken


def _hkdf(key: bytes, label: bytes, context: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=length_prefix(label) + context).derive(key)


def _sha256(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()


def _words(*words: bytes) -> bytes:
    return b"/".join(words)


FUNCTIONS: Mapping[str, Callable[..., bytes]] = {
    "h": _sha256,
    "hmac": partial(hmac.digest, digest="sha256"),
    "hkdf": _hkdf,
    "label": _words,
    "block": _words,
}
FORMULAS = {
    name: Formula(tuple(re.findall(r"(\w+): bitstring", parameters)), body)
    for name, parameters, body in FORMULA.findall(MODEL)
}


FACTS_OF_CONTEXT = (FACTS.cluster.uid.encode(), FIRST.uid.encode(), FIRST.request, FIRST.username.encode())
LAST_FACTS_OF_CONTEXT = (FACTS.machine.uid.encode(), str(int(FIRST.created.timestamp())).encode())
BINDING = Binding(EvidenceBlock("tpm/v1"), ClusterPin("sha256:pin"), SignerName("signer"), b"hash of the request")


VERSION = b"v1"


@dataclass(frozen=True)
class Comparison:
    """One formula's arguments in the model, and what the code computes of the same."""

    formula: str
    values: tuple[bytes, ...]
    computed: bytes


def _derived(label: bytes) -> bytes:
    return derive(label, SecretBytes(b"master key"), b"context")


COMPARISONS = (
    Comparison("binding", (b"tpm", VERSION, b"sha256:pin", b"signer", b"hash of the request"), BINDING.digest),
    Comparison(
        "challenge_context",
        (*FACTS_OF_CONTEXT, b"AK Name", b"hash of the EK", *LAST_FACTS_OF_CONTEXT),
        challenge_context(FACTS, FIRST, b"AK Name", b"hash of the EK"),
    ),
    Comparison("plain_challenge_context", (*FACTS_OF_CONTEXT, *LAST_FACTS_OF_CONTEXT), challenge_context(FACTS, FIRST)),
    Comparison("derive_nonce", (b"master key", b"context"), _derived(LABEL_NONCE)),
    Comparison("derive_secret", (b"master key", b"context"), _derived(LABEL_SECRET)),
    Comparison("tpm_proof", (b"S", b"U1", b"request", b"binding"), tpm.proof(b"S", "U1", b"request", b"binding")),
    Comparison("qualifying_data", (b"N", b"U1", b"binding"), tpm.qualifying_data(b"N", "U1", b"binding")),
    Comparison(
        "challenge_proof",
        (b"secret", b"N", b"U1", b"binding"),
        challenge.proof(SecretBytes(b"secret"), b"N", "U1", b"binding"),
    ),
)


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda comparison: comparison.formula)
def test_formulas_of_the_model_are_those_of_the_code(comparison: Comparison) -> None:
    assert FORMULAS[comparison.formula].compute(*comparison.values) == comparison.computed


def test_every_formula_of_the_model_is_compared() -> None:
    assert FORMULAS.keys() - {"cluster_pin"} == {comparison.formula for comparison in COMPARISONS}  # a pin is a text
    assert len(re.findall(r"^letfun", MODEL, re.MULTILINE)) == len(FORMULAS)


def test_every_check_of_a_request_has_a_mutant_or_a_reason_why_none() -> None:
    names = {check.name for check in CHECKS}
    modelled = {mutant.check for mutant in MUTANTS} & names
    assert modelled | NOT_MODELLED.keys() == names
    assert not modelled & NOT_MODELLED.keys()


LEDGER_MODELS = sorted({run.file for run in LEDGER_RUNS})


def test_a_model_has_the_declared_claims_and_no_others() -> None:
    for model in LEDGER_MODELS:
        claims = set(re.findall(r"assert\(.*?\);.*/\* claim: (.+?) \*/", (MODELS / model).read_text()))
        assert {run.fails for run in LEDGER_RUNS if run.file == model} - {""} <= claims
    for scenario in SCENARIOS:
        text = (MODELS / scenario.file).read_text(encoding="utf-8")
        assert queries_of(text) == [query.name for query in scenario.queries]
        assert len(re.findall(r"^\s*query\b", text, re.MULTILINE)) == len(scenario.queries)


def test_every_macro_of_a_mutant_is_in_the_model_and_every_one_of_the_model_is_run() -> None:
    for model in LEDGER_MODELS:
        in_model = set(re.findall(r"\bM_\w+", (MODELS / model).read_text().partition("*/")[2]))
        runs = [run for run in LEDGER_RUNS if run.file == model]
        assert in_model == {macro for run in runs for macro in run.defines if macro.startswith("M_")}


def test_every_mutant_changes_the_model_where_it_says() -> None:
    libraries = {scenario.file: scenario for scenario in SCENARIOS}
    for mutant in MUTANTS:
        scenario = libraries[mutant.scenario]
        texts = [(MODELS / name).read_text(encoding="utf-8") for name in (*scenario.libraries, scenario.file)]
        assert edited(texts, mutant.edits) != texts, mutant.name
        assert not mutant.query or mutant.query in [query.name for query in scenario.queries], mutant.name


COUNTER = """byte n;
active proctype Counter() {
  do
  :: n < 3 -> n++; assert(n < LIMIT);   /* claim: below the limit */
  od }
"""


@skip_if(shutil.which("spin") is None, "spin is not installed: tools/system-packages proof")
@pytest.mark.parametrize(("limit", "fails"), [(9, ""), (3, "below the limit")])
def test_spin_names_the_claim_that_fails(tmp_path: Path, limit: int, fails: str) -> None:
    (tmp_path / "counter.pml").write_text(COUNTER)
    (tmp_path / "work").mkdir()
    run = SpinRun(name="counter", sentence="", file="counter.pml", defines=(f"LIMIT={limit}",))
    assert run_spin(run, tmp_path, tmp_path / "work") == fails


TREE = Path(__file__).parents[2]
PAGE = (TREE / "docs" / "threat-model.md").read_text(encoding="utf-8")


def test_every_named_test_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    written = {
        name
        for file in (TREE / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert named
    assert named - written == set()


def test_every_named_module_exists() -> None:
    named = set(
        re.findall(r"`((?:providers|controller|kube|authenticator|discovery|serving|identity|cli)/[a-z0-9_/]+)`", PAGE)
    )
    assert named
    for module in named:
        room, _, rest = module.partition("/")
        path = TREE / room / f"nodeattest_{room}" / rest
        assert path.is_dir() or path.with_suffix(".py").is_file(), module


def test_every_row_names_what_is_proved_of_it_or_says_that_nothing_is() -> None:
    rows = PAGE.partition("| attack | by | stopped by | in | test | proof |\n")[2].partition("\n\n")[0].splitlines()[1:]
    assert rows
    named: set[tuple[str, str]] = set()
    for row in rows:
        cell = row.rstrip(" |").rpartition(" | ")[2]
        links = re.findall(r"\[(\w+\.(?:pv|pml))\]\(proof/README\.md\): ([^.\[]+)", cell)
        assert bool(links) is (cell != "none"), row
        named |= {(file, name) for file, names in links for name in names.split("; ")}
    queries = {(one.file, query.name, query.expected) for one in SCENARIOS for query in one.queries}
    hold = {(file, name) for file, name, expected in queries if expected == "true"}
    hold |= {(run.file, run.name) for run in LEDGER_RUNS if not run.fails}
    assert named == hold
