"""The formulas of the proof's model are those of the code: same labels, same fields, same order.

A small interpreter computes each ``letfun`` of docs/proof/wire_format.pvl with real bytes (``h`` is SHA-256, a tuple is
``length_prefix``), and the result is compared with that of the Python function. So is which checks have a mutant.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from worlds import FACTS, filed

from nodeattest_controller.controllers.csr.checks import CHECKS
from nodeattest_providers.challenge import protocol as challenge
from nodeattest_providers.challenge_response import LABEL_NONCE, LABEL_SECRET, challenge_context, derive
from nodeattest_providers.identifiers import ClusterPin, EvidenceBlock, ProviderName, SignerName
from nodeattest_providers.node_interface import Binding, Evidence, SecretBytes, length_prefix
from nodeattest_providers.tpm import protocol as tpm
from tools.prove import MODELS, MUTANTS, NOT_MODELLED

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


def _hmac(key: bytes, value: bytes) -> bytes:
    return hmac.digest(key, value, "sha256")


def _words(*words: bytes) -> bytes:
    return b"/".join(words)


FUNCTIONS: Mapping[str, Callable[..., bytes]] = {
    "h": _sha256,
    "hmac": _hmac,
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

    def agrees(self, change: Callable[[str], str] = str) -> bool:
        """Whether model and code give the same bytes; ``change`` is made to the model."""
        formula = FORMULAS[self.formula]
        changed = dataclasses.replace(formula, body=change(formula.body))
        return changed.compute(*self.values) == self.computed


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
CASES = [pytest.param(comparison, id=comparison.formula) for comparison in COMPARISONS]


@pytest.mark.parametrize("comparison", CASES)
def test_formulas_of_the_model_are_those_of_the_code(comparison: Comparison) -> None:
    assert comparison.agrees()


def test_every_formula_of_the_model_is_compared() -> None:
    assert FORMULAS.keys() - {"cluster_pin"} == {comparison.formula for comparison in COMPARISONS}  # a pin is a text
    assert len(re.findall(r"^letfun", MODEL, re.MULTILINE)) == len(FORMULAS)


def test_every_check_of_a_request_has_a_mutant_or_a_reason_why_none() -> None:
    names = {check.name for check in CHECKS}
    modelled = {mutant.check for mutant in MUTANTS} & names
    assert modelled | NOT_MODELLED.keys() == names
    assert not modelled & NOT_MODELLED.keys()
