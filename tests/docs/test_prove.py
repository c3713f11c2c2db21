"""``make prove``: a model that says something else than is declared fails, and so does a run without a verdict."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from needs import skip_if

from tools.prove.declared import Edit, Query, Scenario, SpinRun, Verdict
from tools.prove.proverif import edited, proverif_program, run_proverif, with_query
from tools.prove.spin import RunError, run_spin

COUNTER = """byte n;
active proctype Counter() {
  do
  :: n < 3 -> n++; assert(n < LIMIT);   /* claim: below the limit */
  od }
"""
SCENARIO = Scenario(
    file="two.pv", title="", queries=(Query("first", ""), Query("second", "")), libraries=("common.pvl",)
)
TWO = """(* query: first *)
query event(A()).

(* query: second *)
query event(B()).

process 0
"""


@skip_if(shutil.which("spin") is None, "spin is not installed: tools/system-packages proof")
@pytest.mark.parametrize(("limit", "fails"), [(9, ""), (3, "below the limit")])
def test_spin_names_the_claim_that_fails(tmp_path: Path, limit: int, fails: str) -> None:
    (tmp_path / "counter.pml").write_text(COUNTER)
    work = tmp_path / "work"
    work.mkdir()
    run = SpinRun(name="counter", sentence="", file="counter.pml", defines=(f"LIMIT={limit}",))
    result = run_spin(run, tmp_path, work)
    assert result.fails == fails
    assert result.states


@skip_if(shutil.which("spin") is None, "spin is not installed: tools/system-packages proof")
def test_a_model_that_spin_does_not_understand_is_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "counter.pml").write_text("active proctype Counter() { nonsense }")
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(RunError):
        run_spin(SpinRun(name="counter", sentence="", file="counter.pml"), tmp_path, work)


def proverif_that_prints(text: str, folder: Path) -> str:
    program = folder / "proverif"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("prefix", ["", " - "])
def test_the_verdicts_are_those_of_proverifs_summary(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "common.pvl").write_text("event A().")
    (tmp_path / "two.pv").write_text(TWO)
    work = tmp_path / "work"
    work.mkdir()
    summary = f"Verification summary:\n{prefix}Query not event(A) is true.\n{prefix}Query not event(B) is false."
    result = run_proverif(proverif_that_prints(summary, tmp_path), SCENARIO, tmp_path, work)
    assert result.verdicts == (Verdict.TRUE, Verdict.FALSE)


def test_a_verdict_that_is_missing_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "common.pvl").write_text("event A().")
    (tmp_path / "two.pv").write_text(TWO)
    work = tmp_path / "work"
    work.mkdir()
    program = proverif_that_prints("Verification summary:\nQuery not event(A) is true.", tmp_path)
    with pytest.raises(RunError, match="expected 2 verdicts"):
        run_proverif(program, SCENARIO, tmp_path, work)


def test_a_mutant_whose_check_is_not_in_the_model_is_refused() -> None:
    with pytest.raises(RunError, match="got 0"):
        edited(["if a = b then"], [Edit("if a = c then")])


def test_one_query_is_left_of_a_scenario() -> None:
    assert "event(A())" not in with_query(TWO, "second")
    assert "event(B())" in with_query(TWO, "second")
    with pytest.raises(RunError):
        with_query(TWO, "third")


def test_the_program_is_the_one_that_the_variable_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROVERIF", str(tmp_path / "none"))
    assert proverif_program() is None
    monkeypatch.setenv("PROVERIF", proverif_that_prints("", tmp_path))
    assert proverif_program() == str(tmp_path / "proverif")
