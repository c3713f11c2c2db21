"""The programs that the demo runs: found before anything is started, or named with what to install.

Promises: ``UserError`` names every missing program at once. Leaves starting them to others.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeattest_cli.demo.platforms import platform_type
from nodeattest_cli.errors import UserError

__all__ = ["Tools", "find_tools"]

_AGENT: Final = "kubelet-authenticator"
_CONTROLLER: Final = "node-attestation-controller"
_COMMAND: Final = "nodeattest"
_CONTROL_PLANE: Final = ("etcd", "kube-apiserver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What the demo runs."""

    agent: Path
    controller: Path
    command: Path
    """``nodeattest`` itself, as a process of its own."""
    assets: Path | None
    """The folder with etcd and kube-apiserver; None: the sandbox's own API server."""


def find_tools(own: Path, *, provider: str, assets: Path | None) -> Tools:
    """Find every program; ``own`` is the folder where this package's commands were installed."""
    missing = list(platform_type(provider).missing())
    if assets is not None:
        absent = [name for name in _CONTROL_PLANE if not (assets / name).exists()]
        if absent:
            missing.append(f"{' and '.join(absent)} in {assets} (KUBEBUILDER_ASSETS)")
    commands = {name: _own(own, name) for name in (_AGENT, _CONTROLLER, _COMMAND)}
    missing += [f"{name}, a command of this package (install it again)" for name, path in commands.items() if not path]
    agent, controller, command = commands[_AGENT], commands[_CONTROLLER], commands[_COMMAND]
    if missing or agent is None or controller is None or command is None:
        raise UserError(f"missing on this machine: {'; '.join(missing)}")
    return Tools(agent=agent, controller=controller, command=command, assets=assets)


def _own(folder: Path, name: str) -> Path | None:
    beside = folder / name
    found = str(beside) if beside.exists() else shutil.which(name)
    return Path(found) if found else None
