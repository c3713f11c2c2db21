"""docs/proof/checks.md is what the rows say, and nothing of the product can leave a check out."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from checks_page import ALL_ROWS, PAGE, TABLES, renewed

from nodeattest_controller.controllers.csr.evaluator import Evaluator
from nodeattest_controller.controllers.kubelet_serving.evaluator import KubeletServingEvaluator
from nodeattest_providers.names import ProviderName
from nodeattest_providers.platform import OFFLINE, make_signer
from nodeattest_providers.registry import BUILT_IN
from tools.prove.ledger_runs import LEDGER_RUNS

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = ("providers", "controller", "discovery", "authenticator", "identity", "kube", "serving", "cli")


_WORD: Final = re.compile(r"\w+")


@cache
def product() -> list[tuple[Path, ast.Call | ast.ClassDef]]:
    """Read every call and every class of the product's modules that name one of both."""
    return [
        (path, node)
        for folder in PRODUCT
        for path in (ROOT / folder / f"nodeattest_{folder}").rglob("*.py")
        if {"Checks", "Pipeline"} & set(_WORD.findall(source := path.read_text(encoding="utf-8")))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call | ast.ClassDef)
    ]


def test_the_page_has_the_rows_and_no_others() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"<!-- table: {name} -->" in page for name in TABLES)
    assert page == renewed(page), "make reference renews it"


def test_every_check_that_a_ledgers_model_leaves_out_is_left_out_of_the_code_too() -> None:
    named_by_rows = {mutant for row in ALL_ROWS for mutant in row.mutants}
    left_out = {run.name for run in LEDGER_RUNS if run.fails}
    assert named_by_rows | NO_CHECKS == left_out
    assert not named_by_rows & NO_CHECKS


NO_CHECKS: Final = frozenset(
    {
        "without compare-and-swap",
        "without the same bytes for the same key",
        "publish before the record",
        "two Machines: what is searched",
        "without confirmation",
        "confirmation before the record",
        "without the term in the confirmation",
        "without a list by the new owner",
        "without reservation",
        "without the second look at a recorded certificate",
    }
)
"""What models leave out that no check is: in which order and how the issuer writes."""


def named(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def test_every_verification_of_the_product_makes_its_own_checks() -> None:
    made = 0
    for path, node in product():
        if isinstance(node, ast.Call) and named(node.func) == "Checks":
            made += 1
            assert not node.args, path
            assert not node.keywords, path
        if isinstance(node, ast.ClassDef):
            assert "Checks" not in {named(base) for base in node.bases}, path
    assert made


def test_a_pipeline_of_the_product_has_a_declared_list_and_is_made_once_for_each() -> None:
    made = [
        (path.parent.name, ast.unparse(node))
        for path, node in product()
        if isinstance(node, ast.Call) and named(node.func) == "Pipeline"
    ]
    assert sorted(made) == LISTS


LISTS: Final = [("csr", "Pipeline(CHECKS)"), ("kubelet_serving", "Pipeline(CHECKS)")]


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_no_public_function_of_a_verifier_takes_checks(name: str) -> None:
    signer = make_signer(ProviderName(name), OFFLINE)
    for attribute, value in inspect.getmembers(type(signer), callable):
        if not attribute.startswith("_"):
            assert "checks" not in inspect.signature(value).parameters, attribute
    assert "checks" not in inspect.signature(type(signer)).parameters


@pytest.mark.parametrize("evaluator", [Evaluator, KubeletServingEvaluator])
def test_no_evaluator_takes_a_list(evaluator: type) -> None:
    assert not {"checks", "pipeline"} & set(inspect.signature(evaluator).parameters)
