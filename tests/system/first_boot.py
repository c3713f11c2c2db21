"""A machine's first boot, as cloud-init and systemd would run it, in a mount namespace of its own.

Started as a program by ``booted``: everything that a node writes in fixed places (``/etc/kubernetes``, ``/var/lib``,
systemd's units, ``/run``) is in memory here and ends with it. What runs is real: the shell, the agent, kubeadm, and the
kubelet that ``systemctl start kubelet`` starts by the units' own command line. Only systemctl is a stand-in.

Source: cluster-api bootstrap/kubeadm/internal/cloudinit and ignition/clc (where the files are, and which shell runs
the commands), cloud-init cc_runcmd (one sh script);
kubernetes/release kubepkg 10-kubeadm.conf; systemd.unit(5), systemd.exec(5) for drop-ins and their order.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

__all__ = ["booted"]

JOIN_CONFIG: Final = {"cloud-config": "/run/kubeadm/kubeadm-join-config.yaml", "ignition": "/etc/kubeadm.yml"}
SCRIPT: Final = {"cloud-config": "#!/bin/sh\n", "ignition": "#!/bin/bash\nset -e\n"}
KEPT: Final = ("/etc/kubernetes", "/var/lib/kubelet", "/etc/systemd/system", "/var/lib/kubelet-authenticator")
"""What the test gets to see afterwards."""
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


def booted(folder: Path, spec: dict[str, Any], join_config: str, *, path: str, kubelet: Path) -> dict[str, Any]:
    """Boot a machine with a KubeadmConfigSpec; returns exit code, output, and whether kubelet ran to the end."""
    folder.mkdir(parents=True)
    plan = {"spec": spec, "joinConfig": join_config, "folder": str(folder), "kubelet": str(kubelet)}
    folder.joinpath("boot.json").write_text(json.dumps(plan))
    folder.joinpath("bin").mkdir()
    systemctl = folder / "bin" / "systemctl"
    systemctl.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} systemctl "$@"\n')
    systemctl.chmod(0o755)
    subprocess.run(
        [
            "/usr/bin/unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            HIDE,
            "sh",
            sys.executable,
            __file__,
            "boot",
        ],
        env={**os.environ, "PATH": f"{folder / 'bin'}:{path}", "FIRST_BOOT": str(folder)},
        check=True,
        timeout=500,
    )
    return json.loads(folder.joinpath("result.json").read_text())


def boot(folder: Path) -> None:
    """Write the files, run the commands, keep what came of it."""
    plan = json.loads(folder.joinpath("boot.json").read_text())
    spec = plan["spec"]
    put("/etc/systemd/system/kubelet.service.d/10-kubeadm.conf", KUBEADMS_DROP_IN.format(kubelet=plan["kubelet"]))
    for file in spec.get("files", []):
        put(file["path"], file["content"], int(file.get("permissions", "0644"), 8))
    way = spec.get("format", "cloud-config")
    put(JOIN_CONFIG[way], plan["joinConfig"], 0o640)
    kubeadm = (
        f"kubeadm join --config {JOIN_CONFIG[way]} -v 1 && mkdir -p /run/cluster-api && touch /run/cluster-api/done"
    )
    commands = [*spec.get("preKubeadmCommands", []), kubeadm, *spec.get("postKubeadmCommands", [])]
    script = folder / "runcmd.sh"
    script.write_text(SCRIPT[way] + "\n".join(commands) + "\n")
    script.chmod(0o700)
    with folder.joinpath("output.log").open("wb") as output:
        done = subprocess.run([script], stdout=output, stderr=output, check=False, timeout=480)
    result = {
        "exit": done.returncode,
        "output": folder.joinpath("output.log").read_text(),
        "kubeadm": Path("/run/cluster-api/done").exists(),
        "kubelet": running(folder),
        "kubeletLog": text(folder / "kubelet.log"),
        "started": text(folder / "kubelet.args"),
        "systemctl": text(folder / "systemctl.log").splitlines(),
    }
    for place in KEPT:
        if Path(place).is_dir():
            shutil.copytree(
                place, folder / "root" / place[1:], symlinks=True, ignore=shutil.ignore_patterns("*.sock", "pods")
            )
    folder.joinpath("result.json").write_text(json.dumps(result))


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
    with folder.joinpath("systemctl.log").open("a") as log:
        log.write(" ".join(words) + "\n")
    if words[:1] in (["start"], ["restart"]) and words[1].startswith("kubelet"):
        stop(folder)
        command = command_line()
        folder.joinpath("kubelet.args").write_text(" ".join(command))
        with folder.joinpath("kubelet.log").open("ab") as output:
            started = subprocess.Popen(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
            )
        folder.joinpath("kubelet.pid").write_text(str(started.pid))


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
