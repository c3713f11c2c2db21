"""The generated parts of docs/performance.md, from a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.page.goals import JOIN_GOALS, LIFTED, LIMITED, ONE_STEP, TPM, Goal
from bench.page.numbers import NOTHING, TIMES, replaced, spread, times, wrapped
from bench.page.samples import Run
from tools.markdown_tables import table

PLOT = "performance.svg"


@dataclass(frozen=True)
class Peer:
    case: str
    title: str


PEERS = (
    Peer(LIMITED, "in-tree, default limits"),
    Peer(LIFTED, "in-tree, limits lifted"),
    Peer(ONE_STEP, "nodeattest, one step"),
    Peer(TPM, "nodeattest, TPM"),
)
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
    ("cold persistent", "cold TPM join, the TPM keeps its EK"),
)


def where(run: Run) -> str:
    """Name the machine, the day and the commit."""
    machine = "; ".join(f"{what} {said}" for what, said in run.machine.items())
    return f"Measured on {run.date} at commit {run.commit}. {machine}."


def peers(run: Run) -> str:
    rows: list[list[str]] = []
    for title, key, unit in JOIN_ROWS:
        cells = [spread(run.samples(peer.case, key), unit) for peer in PEERS]
        if any(cell != NOTHING for cell in cells):
            rows.append([title, *cells])
    shares = [spread(run.ratios((peer.case, "rate"), (LIFTED, "rate")), TIMES) for peer in PEERS]
    rows.insert(1, ["… beside in-tree, limits lifted", *shares])
    return table(["", *(peer.title for peer in PEERS)], rows)


def alone(run: Run) -> str:
    rows: list[list[str]] = []
    for case, title in ALONE:
        cells = [spread(run.samples(case, key), "ms") for key in ("wall", "cpu")]
        shares = [times(run.ratio((case, key), ("idle", key))) for key in ("wall", "cpu")]
        rows.append([title, cells[0], shares[0], cells[1], shares[1]])
    calls = [spread(run.samples("webhook", key), "ms") for key in ("wall", "cpu")]
    rows.append(["a call of the admission webhook (CPU: the controller's)", calls[0], NOTHING, calls[1], NOTHING])
    return table(["", "wall", f"{TIMES} the interpreter", "CPU", f"{TIMES} the interpreter"], rows)


def goals(run: Run, which: Sequence[Goal] = JOIN_GOALS) -> str:
    return table(["goal", "aim", "measured", ""], [goal.row(run) for goal in which])


def excluded(run: Run) -> str:
    titles = {peer.case: peer.title for peer in PEERS} | dict(ALONE) | {"webhook": "admission webhook"}
    lines = [
        f"* {titles.get(name, name)}: {case.notes['excludes']}."
        for name, case in run.cases.items()
        if "excludes" in case.notes
    ]
    asked = run.cases[TPM].notes.get("requests") if TPM in run.cases else None
    if asked:
        lines += ["", "The controller's requests a TPM join, each with its number:", "", asked]
    return "\n".join(part for line in lines for part in (wrapped(line, "  ") if line else [""]))


def write(page: str, run: Run) -> str:
    """Write the parts that this run measured."""
    picture = f"![Certificates a second, and CPU a join, of the in-tree signer and of nodeattest]({PLOT})"
    parts = {
        "machine": "\n".join(wrapped(where(run))),
        "joins": f"{peers(run)}\n\n{picture}",
        "one node": alone(run),
        "goals": goals(run),
        "cases": excluded(run),
    }
    for name, generated in parts.items():
        page = replaced(page, name, generated)
    return page
