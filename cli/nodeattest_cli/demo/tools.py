"""The programs that the demo runs: found before anything is started, or named with what to install.

Promises: ``UserError`` names every missing program at once. Leaves starting them to others.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from nodeattest_cli.errors import UserError

__all__ = ["Tools", "find_tools"]

_AGENT: Final = "kubelet-authenticator"
_CONTROLLER: Final = "node-attestation-controller"
_CONTROL_PLANE: Final = ("etcd", "kube-apiserver")
_TPM: Final = ("swtpm", "swtpm_setup", "swtpm_localca")
_PROGRAM_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What the demo runs."""

    agent: Path
    controller: Path
    assets: Path | None
    """The folder with etcd and kube-apiserver; None: the sandbox's own API server."""


def find_tools(own: Path, *, provider: str, assets: Path | None) -> Tools:
    """Find every program; ``own`` is the folder where this package's commands were installed."""
    missing = [*_missing_tpm()] if provider == "tpm" else []
    if assets is not None:
        absent = [name for name in _CONTROL_PLANE if not (assets / name).exists()]
        if absent:
            missing.append(f"{' and '.join(absent)} in {assets} (KUBEBUILDER_ASSETS)")
    commands = {name: _own(own, name) for name in (_AGENT, _CONTROLLER)}
    missing += [
        f"{name}, a command of this package (pip install it again)" for name, path in commands.items() if not path
    ]
    agent, controller = commands[_AGENT], commands[_CONTROLLER]
    if missing or agent is None or controller is None:
        raise UserError(f"missing on this machine: {'; '.join(missing)}")
    return Tools(agent=agent, controller=controller, assets=assets)


def _own(folder: Path, name: str) -> Path | None:
    beside = folder / name
    found = str(beside) if beside.exists() else shutil.which(name)
    return Path(found) if found else None


def _missing_tpm() -> Iterable[str]:
    absent = [name for name in _TPM if shutil.which(name, path=_PROGRAM_PATH) is None]
    if absent:
        yield f"{', '.join(absent)} (apt-get install swtpm swtpm-tools), or choose another --provider"
    if find_spec("tpm2_pytss") is None:
        yield "tpm2-pytss (pip install 'nodeattest[tpm]'), or choose another --provider"
