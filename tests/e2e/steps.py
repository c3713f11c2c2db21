"""Steps of day one: each is printed with its time, and a failure with what the program wrote."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

DIST: Final = Path("/srv/dist")
CLI: Final = Path("/root/nodeattest")
NODEATTEST: Final = str(CLI / "bin" / "nodeattest")
ARCHITECTURE: Final = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
AGENT: Final = "kubelet-authenticator"
_LONGEST: Final = 300.0
"""Seconds that a program may take: a guard against one that hangs."""
_SHOWN: Final = 4000
"""Last characters of what a program wrote."""


class StepFailed(Exception):
    """Something is not as the documentation says."""


@contextmanager
def step(text: str) -> Generator[None]:
    """Print a step when it is done; a failure ends the program."""
    began = time.monotonic()
    done = False
    try:
        yield
        done = True
    except (StepFailed, AssertionError) as error:
        sys.exit(f"{error}")
    finally:
        _say(f"{time.monotonic() - began:6.1f} s  {text}" if done else f"FAILED    {text}")


def run(
    *words: str | Path, code: int = 0, given: str = "", folder: Path | None = None, env: Mapping[str, str] | None = None
) -> str:
    """Run a program; returns what it wrote, and raises where its exit code is another one."""
    done = subprocess.run(
        words, input=given, capture_output=True, text=True, check=False, cwd=folder, env=env, timeout=_LONGEST
    )
    written = (done.stdout + done.stderr)[-_SHOWN:]
    expect(
        done.returncode == code, f"{' '.join(map(str, words))}\n{written}\nexit code {done.returncode}, expected {code}"
    )
    return done.stdout if code == 0 else written


def expect(found: bool, otherwise: str) -> None:
    """Fail with a message unless this is so."""
    if not found:
        raise StepFailed(otherwise)


def agent_package(release: Path) -> Path:
    """Return the agent's package for Debian and this machine."""
    [package] = release.glob(f"nodeattest-agent_*_{ARCHITECTURE}.deb")
    return package


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
