"""A machine's operating system: what it can know of itself, and what its bootstrap data make it do before kubeadm.

Mounts, processes and host name are its own (first_boot.py). cloud-init's part is imitated: files, commands, and the
variables that it fills in. kubeadm and kubelet do not run.
Source: cloud-init "Instance-data" (templates, /run/cloud-init/instance-data.json), cc_write_files, cc_runcmd.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from first_boot import image, run_on, start
from polling import eventually
from world import BIN

_INSTANCE_DATA: Final = "/run/cloud-init/instance-data.json"
_DMI: Final = "/sys/class/dmi/id"
_DONE: Final = "/run/cluster-api/joined"
_VARIABLE: Final = re.compile(r"\{\{\s*([^{}]+?)\s*\}\}")
_FIRST_LABEL: Final = '.split(".")[0]'
_STEP: Final = re.compile(r"""\w+|(?<=\[)["'][^"']+["'](?=\])""")


def fill_in(text: str, instance_data: Mapping[str, Any]) -> str:
    """Fill in the variables of a text as cloud-init does."""
    return _VARIABLE.sub(lambda found: _value(found[1], instance_data), text)


def _value(variable: str, instance_data: Mapping[str, Any]) -> str:
    value: Any = instance_data
    for step in _STEP.findall(variable.removesuffix(_FIRST_LABEL)):
        value = value[step.strip("\"'")]
    return str(value).partition(".")[0] if variable.endswith(_FIRST_LABEL) else str(value)


@dataclass(slots=True)
class Guest:
    """One machine; ``boot`` it once, and ``stop`` it."""

    folder: Path
    hostname: str
    agent_flags: tuple[str, ...]
    """What the image's agent is told besides: where the TPM, the secret or the metadata are."""
    dmi: Mapping[str, str] = field(default_factory=dict[str, str])
    instance_data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _commands: list[str] = field(default_factory=list[str], init=False)

    def boot(self, spec: Mapping[str, Any], join_configuration: str) -> None:
        """Boot it with a rendered KubeadmConfig and with what the bootstrap provider makes of its joinConfiguration."""
        files = [{**file, "content": self._filled(file["content"])} for file in spec.get("files", [])]
        files += [
            {"path": "/run/kubeadm/kubeadm-join-config.yaml", "content": self._filled(join_configuration)},
            {"path": _INSTANCE_DATA, "content": json.dumps(self.instance_data)},
        ]
        self._commands = [self._filled(command) for command in spec["preKubeadmCommands"]]
        script = ["#!/bin/sh", *self._hardware(), *self._commands, f"mkdir -p {Path(_DONE).parent}", f"touch {_DONE}"]
        self._process = start(
            self.folder,
            files,
            "\n".join(script),
            path=self._path(),
            kubelet=Path("/bin/false"),
            done=_DONE,
        )

    def joins(self) -> None:
        """Wait until its commands before kubeadm ended well."""
        result = eventually(self._result, f"the end of the commands of {self.hostname}", state=self.output)
        assert result["kubeadm"], result["output"]

    def renews(self) -> None:
        """Attest anew by the node's own certificate."""
        command = self._commands[-1].partition(" || ")[0]
        done = self.run("/bin/sh", "-c", f"{command} --renew")
        assert done.returncode == 0, done.stderr

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the machine, as root who logged in."""
        assert self._process is not None
        return run_on(self._process, *command, path=self._path())

    def output(self) -> str:
        """Return what its commands wrote so far."""
        path = self.folder / "output.log"
        return path.read_text() if path.exists() else ""

    def stop(self) -> None:
        """Switch it off for ever."""
        if self._process is not None:
            self._process.communicate(timeout=30)  # closes its standard input, with which it ends

    def _filled(self, text: str) -> str:
        return fill_in(text, self.instance_data)

    def _hardware(self) -> list[str]:
        lines = [f"hostname {shlex.quote(self.hostname)}", "mount -t tmpfs none /sys/class", f"mkdir -p {_DMI}"]
        return [*lines, *(f"echo {shlex.quote(value)} > {_DMI}/{name}" for name, value in self.dmi.items())]

    def _result(self) -> dict[str, Any] | None:
        found = self.folder / "result.json"
        return cast("dict[str, Any]", json.loads(found.read_text())) if found.exists() else None

    def _path(self) -> str:
        """Return PATH; the image's agent is a script that adds its flags to a join."""
        program = f"{BIN}/kubelet-authenticator"
        agent = f'[ "$1" = join ] || exec {program} "$@"\nexec {program} "$@" {shlex.join(self.agent_flags)}'
        tools = image(self.folder.with_name(f"{self.folder.name}-image"), {"kubelet-authenticator": agent})
        return f"{tools}:{BIN}:{os.environ['PATH']}"
