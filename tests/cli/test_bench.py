"""The measurements run and say what they aim at; how fast things are is no test's business."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.figures import Figure

ROOT = Path(__file__).parents[2]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_an_unknown_measurement_is_named() -> None:
    done = bench("speed")
    assert done.returncode == 2
    assert "invalid choice: 'speed'" in done.stderr


def test_a_figure_above_its_bound_fails_the_bench() -> None:
    assert Figure("a", 2.0, "ms", "<= 1", most=1.0).is_over
    assert not Figure("a", 2.0, "ms", "<= 1").is_over
