"""An older state of this project, unpacked from the history of the checkout: its manifests, controller and agent run.

Its packages are found before today's by PYTHONPATH, with the libraries that are installed.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Final

from needs import not_possible
from world import Agent, Controller

__all__ = ["COMMIT", "OlderRelease", "unpacked"]

COMMIT: Final = "5b7932169156e727a1dd64ea2ba92a06a535e0dc"
"""The state of 22 November 2026: before the packages of the controller and the agent were renamed, and before the
controller did without the official client."""
_PACKAGES: Final = (
    *("authenticator", "cli", "controller", "discovery", "identity"),
    *("kube", "providers", "sandbox", "serving"),
)
_MANIFESTS: Final = "manifests"
_HEALTH: Final = ("--health-bind-address", "127.0.0.1:0", "--metrics-bind-address", "127.0.0.1:0")


@dataclass(frozen=True, slots=True)
class OlderRelease:
    """The unpacked tree."""

    tree: Path

    @property
    def manifests(self) -> Path:
        """Its kustomizations."""
        return self.tree / _MANIFESTS

    def controller(self, kubeconfig: Path, log: Path, flags: Sequence[str] = ()) -> Controller:
        """Make its controller; it does not run yet."""
        return _OlderController(self._python("-m", "nodeattest_controller.main"), kubeconfig, log, flags)

    def agent(self, agent: Agent) -> Agent:
        """Let a machine run its agent."""
        return replace(agent, program=self._python(str(self.tree / "authenticator/bin/kubelet-authenticator")))

    def _python(self, *words: str) -> tuple[str, ...]:
        path = ":".join(str(self.tree / package) for package in _PACKAGES)
        return "/usr/bin/env", f"PYTHONPATH={path}", sys.executable, *words


class _OlderController(Controller):
    """It knows no ``--allowed-addresses``, and reaches any."""

    def __init__(self, program: Sequence[str], kubeconfig: Path, log: Path, flags: Sequence[str]) -> None:
        super().__init__(kubeconfig, log)
        self._command = [*program, "run", "--kubeconfig", str(kubeconfig), *_HEALTH, *flags]

    def command(self) -> list[str]:
        return self._command


def unpacked(directory: Path) -> OlderRelease:
    """Unpack it, or skip the test where the checkout has no such history."""
    root = Path(__file__).parents[2]
    words = ["git", "-C", str(root), "archive", "--format=tar", COMMIT, _MANIFESTS, *_PACKAGES]
    try:
        done = subprocess.run(words, capture_output=True, check=False)
    except FileNotFoundError:
        not_possible("git, which unpacks an older state of this project")
    if done.returncode != 0:
        not_possible(f"the history of this checkout does not reach back to {COMMIT[:7]}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return OlderRelease(directory)
