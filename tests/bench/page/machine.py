"""The machine that was measured on, as the page names it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

from bench.processes import first_line
from nodeattest_sandbox.control_plane import version


def describe(assets: Path | None) -> dict[str, str]:
    cores = os.sched_getaffinity(0)
    memory = int(first_line(Path("/proc/meminfo"), "MemTotal").split()[0]) / (1 << 20)
    told = {
        "CPU": f"{first_line(Path('/proc/cpuinfo'), 'model name') or platform.machine()}, {len(cores)} cores",
        "memory": f"{memory:.0f} GiB",
        "kernel": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "Python": platform.python_version(),
    }
    if assets is None:
        return {**told, "API servers": "the sandbox's own"}
    stated = subprocess.run([assets / "etcd", "--version"], capture_output=True, text=True, check=True).stdout
    etcd = re.search(r"\d+\.\d+\.\d+", stated)
    return {**told, "Kubernetes": version(assets / "kube-apiserver"), "etcd": etcd[0] if etcd else "unknown"}
