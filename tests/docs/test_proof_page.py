"""docs/proof/runs.yaml declares the runs of the models; no model checker runs here."""

from __future__ import annotations

import re

from tools.prove import LEDGER_RUNS, MODELS, MUTANTS, SCENARIOS, edited, queries_of

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
