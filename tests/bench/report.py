"""What a run measured, how it is kept, and the generated parts of docs/performance.md."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.burst import first_line
from nodeattest_sandbox.control_plane import version
from tools.markdown_tables import table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "performance.md"

DASH = "\u2013"
"""An en dash: between two ends, and where nothing was measured."""
TIMES = "\u00d7"


def number(value: float) -> str:
    """Write three digits, or all before the point."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(samples: Sequence[float] | None, unit: str = "") -> str:
    """Write the median, and the least and the greatest of several samples."""
    if not samples:
        return DASH
    ends = f" ({number(min(samples))}{DASH}{number(max(samples))})" if len(samples) > 1 else ""
    return f"{number(median(samples))}{f' {unit}' if unit else ''}{ends}"


def replaced(page: str, name: str, generated: str) -> str:
    """Put a generated part between its two marks."""
    begin, end = f"<!-- begin {name}: written by make bench -->", f"<!-- end {name} -->"
    before, found, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no part {name!r}: it needs the lines {begin!r} and {end!r}")
    return f"{before}{begin}\n\n{generated.strip()}\n\n{end}{after}"


def wrapped(text: str) -> str:
    """Break a line of a page."""
    return "\n".join(textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False))


@dataclass
class Case:
    """One case: samples by key, each in the unit that the page writes beside it."""

    name: str
    samples: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def add(self, **values: float) -> None:
        for key, value in values.items():
            self.samples.setdefault(key, []).append(value)


@dataclass
class Run:
    """One run of all cases on one machine."""

    date: str
    commit: str
    machine: dict[str, str]
    cases: dict[str, Case]

    def samples(self, case: str, key: str) -> list[float]:
        """Return the samples; none where the case was not possible, or not asked for."""
        found = self.cases.get(case)
        return found.samples.get(key, []) if found else []

    def ratios(self, over: tuple[str, str], under: tuple[str, str]) -> list[float]:
        """Divide round by round; where the cases have not as many samples, one median by the other."""
        above, below = self.samples(*over), self.samples(*under)
        if len(above) != len(below):
            above, below = ([median(each)] if each else [] for each in (above, below))
        return [one / other for one, other in zip(above, below, strict=False) if other]


LIFTED, LIMITED, TPM, ONE_STEP = "in-tree lifted", "in-tree default", "tpm", "one-step"


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


PEERS = {
    LIMITED: "in-tree, default limits",
    LIFTED: "in-tree, limits lifted",
    ONE_STEP: "nodeattest, one step",
    TPM: "nodeattest, TPM",
}
JOIN_ROWS = (
    ("certificates a second", "rate", ""),
    ("a join takes, median", "latency", "ms"),
    ("CPU of the controller, a join", "controller_cpu", "ms"),
    ("CPU of API servers and etcds, a join", "server_cpu", "ms"),
    ("of this, the management cluster's", "management_cpu", "ms"),
    ("CPU of the nodes, a join", "node_cpu", "ms"),
    ("requests of the node, a join", "node_requests", ""),
    ("requests of the controller, a join", "controller_requests", ""),
    ("of these, writes", "controller_writes", ""),
    ("reads of its Lease besides, a join", "lease_reads", ""),
    ("memory of the controller (RSS)", "resident", "MiB"),
    ("joins that failed", "failed", ""),
)
ALONE = (
    ("idle", "`python3 -I -c pass`"),
    ("warm", "warm `credential`"),
    ("cold", "cold TPM join"),
)


def where(run: Run) -> str:
    """Name the machine, the day and the commit."""
    machine = "; ".join(f"{what} {said}" for what, said in run.machine.items())
    return f"Measured on {run.date} at commit {run.commit}. {machine}."


def peers(run: Run) -> str:
    rows: list[list[str]] = []
    for title, key, unit in JOIN_ROWS:
        cells = [spread(run.samples(peer, key), unit) for peer in PEERS]
        if any(cell != DASH for cell in cells):
            rows.append([title, *cells])
    shares = [spread(run.ratios((peer, "rate"), (LIFTED, "rate")), TIMES) for peer in PEERS]
    rows.insert(1, ["… beside in-tree, limits lifted", *shares])
    return table(["", *PEERS.values()], rows)


def alone(run: Run) -> str:
    rows: list[list[str]] = []
    for case, title in ALONE:
        cells = [spread(run.samples(case, key), "ms") for key in ("wall", "cpu")]
        found = [run.ratios((case, key), ("idle", key)) for key in ("wall", "cpu")]
        shares = [f"{number(median(each))} {TIMES}" if each else DASH for each in found]
        rows.append([title, cells[0], shares[0], cells[1], shares[1]])
    return table(["", "wall", f"{TIMES} the interpreter", "CPU", f"{TIMES} the interpreter"], rows)


def write(page: str, run: Run) -> str:
    """Write the parts that this run measured."""
    parts = {
        "machine": wrapped(where(run)),
        "joins": peers(run),
        "one node": alone(run),
    }
    for name, generated in parts.items():
        page = replaced(page, name, generated)
    return page
