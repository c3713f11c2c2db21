"""The part of docs/performance.md on growth, from a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from bench.page.goals import Goal
from bench.page.numbers import DASH, TIMES, number, spread, wrapped
from bench.page.report import goals, where
from bench.page.samples import Case, Run
from tools.markdown_tables import table

MANY = 1
"""Which burst into one cluster is the large one."""
ROWS = (
    ("joins", "joins", ""),
    ("joins that failed", "failed", ""),
    ("joins a second", "rate", ""),
    ("a join takes, median", "latency", "ms"),
    ("CPU of the controllers, a join", "controller_cpu", "ms"),
    ("CPU of API servers and etcds, a join", "server_cpu", "ms"),
    ("of this, the management cluster's", "management_cpu", "ms"),
    ("CPU of the nodes, a join", "node_cpu", "ms"),
    ("requests of the controllers, a join", "controller_requests", ""),
    ("requests of the node, a join", "node_requests", ""),
    ("memory of a controller before (RSS)", "resident_idle", "MiB"),
    ("memory of a controller after (RSS)", "resident", "MiB"),
    ("the most that it had", "peak", "MiB"),
    ("all clusters connected after", "connected", "s"),
    ("clusters of a replica", "owned", ""),
)
RESTARTS = (
    ("restarts", "after_restart_serves", "a killed controller serves the cluster again after"),
    ("restarts", "after_restart_join", "… and a node that waits has its certificate after"),
    ("restarts", "after_server_restart_join", "first join after the workload cluster's API server answers again"),
    ("restarts", "ledgers_alone_serves", "a controller that starts with all ledgers serves the cluster after"),
    ("restarts", "ledgers_alone_join", "… and a node that waits has its certificate after"),
    ("restarts", "cold_start_serves", "the same where all nodes' Machines, tokens and CSRs are there, too"),
    ("restarts", "cold_start_join", "… and a node that waits has its certificate after"),
    ("lost shard", "first_join", "a replica is killed: the first node of its clusters has its certificate after"),
    ("lost shard", "last_join", "… and a node of each of its clusters after"),
)


def cases_of(run: Run, begin: str) -> list[Case]:
    return [case for name, case in run.cases.items() if begin in name]


def singles(run: Run) -> list[Case]:
    """Return the bursts into one cluster: few nodes, many, and few again in another, which older runs have not."""
    return cases_of(run, "one cluster, ")


def shared(run: Run) -> list[Case]:
    """Return the bursts into many clusters: one controller, then replicas that share."""
    return [case for case in run.cases.values() if " clusters, " in case.name]


def _grown(key: str) -> Callable[[Run], float | None]:
    def ratio(run: Run) -> float | None:
        found = singles(run)
        many = found[MANY].median(key) if len(found) > MANY else None
        few = [value for case in found[::2] if (value := case.median(key))]
        return many / median(few) if many is not None and few else None

    return ratio


def _of(cases: Callable[[Run], Sequence[Case]], position: int, key: str) -> Callable[[Run], float | None]:
    def value(run: Run) -> float | None:
        found = cases(run)
        return found[position].median(key) if len(found) > position else None

    return value


def _restart(key: str) -> Callable[[Run], float | None]:
    return lambda run: run.median("restarts", key)


GOALS: Sequence[Goal] = (
    Goal("CPU of the controller a join, many nodes / few", TIMES, 1.2, _grown("controller_cpu")),
    Goal("CPU of API servers and etcds a join, many nodes / few", TIMES, 1.2, _grown("server_cpu")),
    Goal("memory of the controller of one large cluster", "MiB", 150, _of(singles, MANY, "resident")),
    Goal("memory of one controller of many clusters", "MiB", 300, _of(shared, 0, "resident")),
    Goal("cold start with all ledgers, until it serves", "s", 10, _restart("ledgers_alone_serves")),
    Goal("… with all Machines, tokens and CSRs, too", "s", 10, _restart("cold_start_serves")),
)


def control(run: Run) -> str:
    """Say what the last burst into one cluster is for; nothing of a run without it."""
    if len(singles(run)) <= MANY + 1:
        return ""
    title = singles(run)[-1].name.removeprefix("one cluster, ")
    return (
        f"The {title} join a cluster of their own after the large one: the machine's speed drifts during the run, so "
        "the goals divide the cost of many by the median of both small bursts."
    )


def write(run: Run) -> str:
    """Write the part."""
    bursts = [*singles(run), *shared(run)]
    rows = [
        (title, *(spread(case.samples.get(key), unit) for case in bursts))
        for title, key, unit in ROWS
        if any(key in case.samples for case in bursts)
    ]
    moments = [(title, f"{number(value)} s") for case, key, title in RESTARTS if (value := run.median(case, key))]
    ledgers = run.median("restarts", "ledgers")
    said = f"All ledgers: {ledgers:.0f} MachineAttestations." if ledgers else ""
    setting = run.cases["setting"].notes.get("said", "") if "setting" in run.cases else ""
    parts = [
        "\n".join(wrapped(f"{where(run)} {setting}")),
        table(["", *(case.name.removeprefix("one cluster, ") for case in bursts)], rows),
        "\n".join(wrapped(control(run))),
        table(["", "seconds" if moments else DASH], [(title, value) for title, value in moments]),
        "\n".join(wrapped(said)),
        goals(run, GOALS),
    ]
    return "\n\n".join(part for part in parts if part)
