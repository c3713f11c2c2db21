"""The measurements run and say what they aim at; how fast things are is no test's business."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_the_installed_size_counts_the_libraries_that_an_agent_needs_and_no_others() -> None:
    done = bench("wheel", "--json")
    assert done.returncode == 0, done.stderr
    (figure,) = json.loads(done.stdout)["figures"]
    assert figure["target"] == "<= 30"
    assert "cryptography" in figure["note"]
    assert "aiohttp" not in figure["note"]
    assert 5 < figure["value"] < 100


def test_an_unknown_measurement_is_named() -> None:
    done = bench("speed")
    assert done.returncode == 2
    assert (
        "no measurement speed; known are flood, clouds, costs, discovery, issuer, neighbours, sidecar, wheel"
        in done.stderr
    )
