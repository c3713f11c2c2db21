"""docs/scale.md: from what one machine measured to fleets that it cannot hold.

A model on paper: what a join costs is taken as constant (the goals of growth hold it to that), memory as a straight
line, and each part's cores as busy with nothing else. Its tables are written from the last runs of the page and of
growth.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from bench.growth import report
from bench.page.goals import TPM
from bench.page.numbers import counted, number, replaced
from bench.page.samples import Run
from tools.markdown_tables import table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "scale.md"
PAGE_RUN = ROOT / "bench" / "page" / "last.json"
GROWTH_RUN = ROOT / "bench" / "growth" / "last.json"
RENEWED = 0.6
"""Share of a certificate's lifetime after which it is renewed, on average: 50 to 70 % (enrollment/renewal_time.py)."""
DAY = 86_400
LIFETIMES = ((14 * DAY, "14 days (the default)"), (DAY, "1 day"), (3_600, "1 hour"))
KIB_A_MIB = 1024


@dataclass(frozen=True)
class Costs:
    """Of one machine; CPU in milliseconds a join, memory in MiB."""

    controller: float
    management: float
    workload: float
    base: float
    """Memory of a controller that watches one cluster of hardly any nodes."""
    node: float
    """Memory of one that has joined."""
    cluster: float
    """Memory of a cluster, its Machines that have not joined with it."""
    foreign: float
    """Memory of a Machine of another replica's cluster: all know who has which key, and whose a Machine is."""

    @classmethod
    def of(cls, page: Run, growth: Run) -> Costs | None:
        """Read them; None where a run lacks one."""
        controller, server, management = (
            page.median(TPM, key) for key in ("controller_cpu", "server_cpu", "management_cpu")
        )
        single, many = report.singles(growth), report.shared(growth)
        if controller is None or server is None or management is None or len(single) < 2 or not many:
            return None
        few, lots = single[0], single[report.MANY]
        grown, begun = lots.median("resident") or 0.0, few.median("resident") or 0.0
        node = max(0.0, (grown - begun) / (lots.median("joins") or 1.0))
        clusters = max(1, int(growth.cases["setting"].median("clusters") or 0))
        base = begun - node * (few.median("joins") or 0.0)
        joined = node * (many[0].median("joins") or 0.0)
        cluster = max(0.0, ((many[0].median("resident") or base) - base - joined) / clusters)
        owned = many[1].median("owned") if len(many) > 1 else None
        machines = (growth.cases["setting"].median("machines") or 0.0) * (clusters - (owned or clusters))
        own = base + (cluster + joined / clusters) * (owned or 0.0)
        foreign = max(0.0, ((many[1].median("resident") or own) - own) / machines) if machines else 0.0
        return cls(controller, management, server - management, base, node, cluster, foreign)

    @property
    def controller_rate(self) -> float:
        """Joins a second of one controller, which works on one core."""
        return 1000 / self.controller

    def management_rate(self, cores: int) -> float:
        return 1000 * cores / self.management

    def workload_rate(self, cores: int) -> float:
        return 1000 * cores / self.workload

    def memory(self, clusters: int, nodes: int, foreign: int = 0) -> float:
        """MiB of one controller that has so many clusters and nodes; ``foreign`` ones have other replicas."""
        return self.base + self.cluster * clusters + self.node * nodes + self.foreign * foreign

    def memory_of_each(self, fleet: Fleet, replicas: int) -> float:
        """MiB of each of so many replicas that share a fleet."""
        nodes = ceil(fleet.nodes / replicas)
        return self.memory(ceil(fleet.clusters / replicas), nodes, fleet.nodes - nodes)


@dataclass(frozen=True)
class Fleet:
    clusters: int
    nodes: int
    replicas: int
    management_cores: int

    @property
    def title(self) -> str:
        return f"{counted(self.clusters, 'cluster')}, {self.nodes:,} nodes"

    def rates(self, costs: Costs, cores: int = 2) -> dict[str, float]:
        """Return the joins a second that each part can take; ``cores`` are those of each workload control plane."""
        return {
            counted(self.replicas, "controller"): costs.controller_rate * min(self.replicas, self.clusters),
            f"management cluster, {self.management_cores} cores": costs.management_rate(self.management_cores),
            "all workload clusters": costs.workload_rate(cores) * self.clusters,
        }

    def first(self, costs: Costs) -> tuple[str, float]:
        """Return what saturates first, and at which rate."""
        rates = self.rates(costs)
        return min(rates.items(), key=lambda one: one[1])


FLEETS = (
    Fleet(1, 5_000, 1, 2),
    Fleet(200, 10_000, 3, 4),
    Fleet(1_000, 100_000, 3, 8),
    Fleet(1_000, 100_000, 10, 8),
    Fleet(1_000, 100_000, 10, 16),
)


SIZES = (Fleet(10, 500, 1, 2), FLEETS[1], FLEETS[3])
STEP = 64
"""MiB; a memory limit is a multiple of it."""
CACHES = 2
"""Times what is expected, since caches take at most half of a limit (docs/limits.md)."""


def renewals(nodes: int, lifetime: int) -> float:
    """Return the renewals a second of a fleet whose agents draw their moments as they do."""
    return nodes / (RENEWED * lifetime)


def write_costs(costs: Costs) -> str:
    rows = [
        ("*c*, CPU of the controller a join or renewal", f"{number(costs.controller)} ms"),
        ("*m*, CPU of the management cluster's API server and etcd", f"{number(costs.management)} ms"),
        ("*w*, CPU of the workload cluster's API server and etcd", f"{number(costs.workload)} ms"),
        ("*b*, memory of a controller with one small cluster", f"{number(costs.base)} MiB"),
        ("*n*, memory a node that has joined", f"{number(costs.node * KIB_A_MIB)} KiB"),
        ("*k*, memory a cluster, with Machines that have yet to join", f"{number(costs.cluster)} MiB"),
        ("*f*, memory a Machine of another replica's cluster", f"{number(costs.foreign * KIB_A_MIB)} KiB"),
    ]
    return table(["", "measured"], rows)


def write_joins(costs: Costs) -> str:
    """Write what saturates first, if all nodes of a fleet join at once."""
    rows: list[tuple[str, ...]] = []
    for fleet in FLEETS:
        part, rate = fleet.first(costs)
        rows.append(
            (
                fleet.title,
                f"{fleet.replicas}",
                f"{fleet.management_cores}",
                f"{part}, at {number(rate)}/s",
                f"{number(fleet.nodes / rate / 60)} min",
                f"{number(costs.memory(fleet.clusters, fleet.nodes))} MiB",
                f"{number(costs.memory_of_each(fleet, fleet.replicas))} MiB",
            )
        )
    columns = ["fleet", "replicas", "management cores", "saturates first", "all have joined after"]
    return table([*columns, "memory, one for all", "memory, each of the replicas"], rows)


def write_sizes(costs: Costs) -> str:
    """Write what to give each replica of a fleet."""
    rows: list[tuple[str, ...]] = []
    for fleet in SIZES:
        memory = costs.memory_of_each(fleet, fleet.replicas)
        left = costs.memory_of_each(fleet, max(1, fleet.replicas - 1))
        limit = ceil(CACHES * left / STEP) * STEP
        title = (fleet.title, f"{fleet.replicas}", "1")
        rows.append((*title, f"{number(memory)} MiB", f"{number(left)} MiB", f"{limit} MiB"))
    columns = ["fleet", "replicas", "cores of each", "memory of each", "when one is lost"]
    return table([*columns, "memory limit of each, at least"], rows)


def write_renewals(costs: Costs) -> str:
    """Write what a fleet of 100,000 nodes asks for while nothing happens."""
    nodes = FLEETS[-1].nodes
    rows = [
        (
            title,
            f"{number(rate)}/s",
            number(rate * costs.controller / 1000),
            number(rate * costs.management / 1000),
            f"{number(rate * costs.workload / FLEETS[-1].clusters)} ms a second",
        )
        for lifetime, title in LIFETIMES
        if (rate := renewals(nodes, lifetime))
    ]
    columns = [f"lifetime of certificates, {nodes:,} nodes", "renewals", "cores of controllers"]
    return table([*columns, "cores of the management cluster", "CPU of each workload cluster"], rows)


def parts(page: Run, growth: Run) -> dict[str, str]:
    """Return the generated parts of docs/scale.md; empty where a run lacks a figure."""
    costs = Costs.of(page, growth)
    if costs is None:
        return {}
    return {
        "costs": write_costs(costs),
        "joins": write_joins(costs),
        "sizes": write_sizes(costs),
        "renewals": write_renewals(costs),
    }


def written(text: str, page: Run, growth: Run) -> str:
    """Write the parts into docs/scale.md."""
    for name, generated in parts(page, growth).items():
        text = replaced(text, name, generated)
    return text


def write_page() -> None:
    """Write docs/scale.md from the last runs, where there are both."""
    if PAGE_RUN.exists() and GROWTH_RUN.exists():
        made = written(PAGE.read_text(encoding="utf-8"), Run.read(PAGE_RUN), Run.read(GROWTH_RUN))
        PAGE.write_text(made, encoding="utf-8")
