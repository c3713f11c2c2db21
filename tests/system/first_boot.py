"""A machine's first boot, as cloud-init and systemd would run it, in a mount namespace of its own.

Started as a program by ``start``: everything that a node writes in fixed places (``/etc/kubernetes``, ``/var/lib``,
systemd's units, ``/run``) is in memory here and ends with it. What runs is real: the shell, the agent, kubeadm, and the
kubelet that ``systemctl start kubelet`` starts by the units' own command line. Only systemctl is a stand-in.

Source: cluster-api bootstrap/kubeadm/internal/cloudinit and ignition/clc (where the files are, and which shell runs
the commands), cloud-init cc_runcmd (one sh script);
kubernetes/release kubepkg 10-kubeadm.conf; systemd.unit(5), systemd.exec(5) for drop-ins and their order.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

from runtime_stub import RuntimeStub

RUNTIME: Final = Path("/run/containerd/containerd.sock")
"""Where the machine has its container runtime; kubeadm finds it there."""
UNITS: Final = Path("/etc/systemd/system")
HIDE: Final = (
    "mount -t tmpfs none /run; cp -a /etc /run/etc; mount --bind /run/etc /etc; "
    'for i in /etc/kubernetes /etc/systemd /etc/default /var/lib /var/log /usr/libexec /opt; do mkdir -p "$i"; '
    'mount -t tmpfs none "$i"; done; mkdir -p /etc/systemd/system /run/lock; exec "$@"'
)
KUBEADMS_DROP_IN: Final = """\
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf \
--kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart={kubelet} $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""


def start(
    folder: Path, files: list[dict[str, Any]], script: str, *, path: str, kubelet: Path, done: str
) -> subprocess.Popen[bytes]:
    """Start a machine that writes these files, then runs the script, after which the file ``done`` says that it worked.

    What came of it is in ``result.json``. The machine has a container runtime, and runs until its standard input ends.
    """
    folder.mkdir(parents=True)
    plan = {"files": files, "script": script, "done": done, "kubelet": str(kubelet)}
    folder.joinpath("boot.json").write_text(json.dumps(plan))
    folder.joinpath("bin").mkdir()
    systemctl = folder / "bin" / "systemctl"
    systemctl.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} systemctl "$@"\n')
    systemctl.chmod(0o755)
    program = ["sh", "-c", HIDE, "sh", sys.executable, __file__, "boot"]
    return subprocess.Popen(
        ["/usr/bin/unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", *program],
        env={**os.environ, "PATH": f"{folder / 'bin'}:{path}", "FIRST_BOOT": str(folder)},
        stdin=subprocess.PIPE,
    )


def run_on(machine: subprocess.Popen[bytes], *command: str, path: str) -> subprocess.CompletedProcess[str]:
    """Run a command on a machine that stays, as root who logged in."""
    children = Path(f"/proc/{machine.pid}/task/{machine.pid}/children").read_text().split()
    return subprocess.run(
        ["/usr/bin/nsenter", "--target", children[0], "--mount", "--pid", "--uts", *command],
        env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def image(folder: Path, scripts: dict[str, str]) -> str:
    """Write the programs of a machine's image, unless they are there; returns the folder for its PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, script in scripts.items():
        if not folder.joinpath(name).exists():
            put(str(folder / name), f"#!/bin/sh\n{script}\n", 0o755)
    return str(folder)


def boot(folder: Path) -> None:
    """Write the files, run the commands, keep what came of it."""
    plan = json.loads(folder.joinpath("boot.json").read_text())
    put("/etc/systemd/system/kubelet.service.d/10-kubeadm.conf", KUBEADMS_DROP_IN.format(kubelet=plan["kubelet"]))
    for file in plan["files"]:
        put(file["path"], file["content"], int(str(file.get("permissions", "0644")), 8))
    script = folder / "runcmd.sh"
    script.write_text(plan["script"] + "\n")
    script.chmod(0o700)
    RUNTIME.parent.mkdir(parents=True)
    with RuntimeStub(RUNTIME):
        threading.Thread(target=end_with_input, daemon=True).start()
        with folder.joinpath("output.log").open("wb") as output:
            done = subprocess.run(
                [script], stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False, timeout=480
            )
        write_result(folder, done.returncode, worked=Path(plan["done"]).exists())
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the first process of a namespace is the parent of orphans
        while True:
            signal.pause()


def end_with_input() -> None:
    """Switch off when who started the machine closes its input, or dies: with the first process all others end."""
    while os.read(0, 1):
        pass
    os._exit(0)


def write_result(folder: Path, code: int, *, worked: bool) -> None:
    """Keep what the test gets to see; the result is the last."""
    output = folder.joinpath("output.log").read_text()
    result = {"exit": code, "output": output, "kubeadm": worked, "kubelet": running(folder)}
    part = folder / "result.part"
    part.write_text(json.dumps(result))
    part.rename(folder / "result.json")


def put(path: str, content: str, mode: int = 0o644) -> None:
    """Write a file as cloud-init does."""
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(content)
    place.chmod(mode)


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def running(folder: Path) -> bool:
    """Whether kubelet runs."""
    pid = text(folder / "kubelet.pid")
    return bool(pid) and "kubelet" in text(Path(f"/proc/{pid}/cmdline"))


def systemctl(folder: Path, words: list[str]) -> None:
    """Stand in for systemd, as far as kubeadm and what is rendered ask it."""
    if words[:1] in (["start"], ["restart"]) and words[1].startswith("kubelet"):
        stop(folder)
        with folder.joinpath("kubelet.log").open("ab") as output:
            started = subprocess.Popen(
                command_line(), stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
            )
        folder.joinpath("kubelet.pid").write_text(str(started.pid))

    elif words[:2] == ["enable", "--now"]:
        unit = (UNITS / words[-1]).read_text()
        command = next(line for line in unit.splitlines() if line.startswith("ExecStart=")).partition("=")[2]
        with folder.joinpath("units.log").open("ab") as output:
            subprocess.Popen(
                ["/bin/sh", "-c", f"until {command}; do sleep 1; done"],  # Restart=on-failure
                stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip


def stop(folder: Path) -> None:
    """End the kubelet that this stand-in started, in the namespace of the boot."""
    if running(folder):
        os.kill(int(text(folder / "kubelet.pid")), 9)


def command_line() -> list[str]:
    """Compose what kubelet.service starts: drop-ins by name, later settings win, files of variables win over both."""
    environment: dict[str, str] = {}
    files: list[str] = []
    start: list[str] = []
    for unit in sorted(UNITS.joinpath("kubelet.service.d").glob("*.conf"), key=lambda found: found.name):
        for line in unit.read_text().splitlines():
            name, _, value = line.partition("=")
            if name == "Environment":
                key, _, content = value.strip('"').partition("=")
                environment[key] = content
            elif name == "EnvironmentFile":
                files.append(value.removeprefix("-"))
            elif name == "ExecStart":
                start = [*start, value] if value else []
    for path in files:
        for line in text(Path(path)).splitlines():
            key, _, content = line.partition("=")
            environment[key] = content.strip('"')
    assert len(start) == 1, start
    words = start[0].split()
    return [
        part for word in words for part in (environment.get(word[1:], "").split() if word.startswith("$") else [word])
    ]


if __name__ == "__main__":
    if sys.argv[1] == "boot":
        boot(Path(os.environ["FIRST_BOOT"]))
    else:
        systemctl(Path(os.environ["FIRST_BOOT"]), sys.argv[2:])
