"""The runner, on targets that are broken on purpose: each kind of finding is one, and leaves its input."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from fuzz.broken_targets import TARGETS
from fuzz.run import ROOT, Outcome, run

atheris = pytest.mark.skipif(
    find_spec("atheris") is None, reason="not possible here: atheris has no wheel for this platform"
)


def outcome(name: str, corpus: Path) -> Outcome:
    seeds = corpus / name
    seeds.mkdir()
    (seeds / "a").write_bytes(b"a")
    return run(TARGETS[name], 1, corpus=corpus, catalogue="fuzz.broken_targets", time_limit=2)


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))))
    return tmp_path


@atheris
@pytest.mark.parametrize(
    ("name", "word"), [("crashes", "a parser's bug"), ("hangs", "timeout"), ("lies", "one spelling of a value")]
)
def test_a_finding_is_told_and_its_input_stays_among_the_seeds(corpus: Path, name: str, word: str) -> None:
    (corpus / name).mkdir()
    (corpus / name / "b").write_bytes(b"b")
    found = run(TARGETS[name], 1, corpus=corpus, catalogue="fuzz.broken_targets", time_limit=2)
    assert word in found.trouble
    assert found.reproducer is not None
    assert found.reproducer.parent == corpus / name
    assert found.reproducer.read_bytes() == b"b"


@atheris
def test_a_sound_target_is_clean_and_counted(corpus: Path) -> None:
    found = outcome("sound", corpus)
    assert found.trouble == ""
    assert found.reproducer is None
    assert found.executions > 100
    assert 0 < found.values < found.executions


@atheris
def test_a_target_that_cannot_be_run_is_not_clean(corpus: Path) -> None:
    found = run(TARGETS["sound"], 1, corpus=corpus, catalogue="no_such_module")
    assert "no_such_module" in found.trouble


def test_an_unknown_target_is_named() -> None:
    command = [sys.executable, "-m", "fuzz", "speed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "no target speed; known are envelope, pem" in done.stderr
