"""``make prove``: a verdict is what the model checker said, and a run without one is an error."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from needs import skip_if

from tools.prove import Query, RunError, Scenario, SpinRun, run_proverif, run_spin

COUNTER = """byte n;
active proctype Counter() {
  do
  :: n < 3 -> n++; assert(n < LIMIT);   /* claim: below the limit */
  od }
"""
SCENARIO = Scenario(
    file="two.pv",
    queries=(Query(name="first", sentence=""), Query(name="second", sentence="")),
    libraries=("common.pvl",),
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
    (tmp_path / "work").mkdir()
    run = SpinRun(name="counter", sentence="", file="counter.pml", defines=(f"LIMIT={limit}",))
    assert run_spin(run, tmp_path, tmp_path / "work") == fails


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "common.pvl").write_text("event A().")
    (tmp_path / "two.pv").write_text(TWO)
    (tmp_path / "work").mkdir()
    return tmp_path


def proverif_says(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "proverif"
    program.write_text(f"#!/bin/sh\ncat <<'END'\nVerification summary:\n{text}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PROVERIF", str(program))


@pytest.mark.parametrize("prefix", ["", " - "])
def test_the_verdicts_are_those_of_proverifs_summary(
    models: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    summary = f"{prefix}Query not event(A) is true.\n{prefix}Query not event(B) is false."
    proverif_says(summary, models, monkeypatch)
    assert run_proverif(SCENARIO, models, models / "work") == ["true", "false"]


def test_a_verdict_that_is_missing_fails_the_run(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proverif_says("Query not event(A) is true.", models, monkeypatch)
    with pytest.raises(RunError, match="expected 2 verdicts"):
        run_proverif(SCENARIO, models, models / "work")
