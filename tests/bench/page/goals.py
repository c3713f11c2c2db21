"""What the project aims at, as functions of one run, and whether a run met it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import ge, le

from bench.page.numbers import NOTHING, TIMES, number
from bench.page.samples import Run

LIFTED, LIMITED, TPM, ONE_STEP = "in-tree lifted", "in-tree default", "tpm", "one-step"


@dataclass(frozen=True)
class Goal:
    """``value`` gives None where the run did not measure what it needs."""

    name: str
    unit: str
    bound: float
    value: Callable[[Run], float | None]
    at_least: bool = False

    @property
    def aim(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {with_unit(self.bound, self.unit)}"

    def is_met(self, value: float) -> bool:
        counted = value if self.unit else round(value, 1)  # a count a join has a run's few periodic requests in it
        return (ge if self.at_least else le)(counted, self.bound)

    def row(self, run: Run) -> tuple[str, str, str, str]:
        value = self.value(run)
        if value is None:
            return self.name, self.aim, NOTHING, "not measured"
        return self.name, self.aim, with_unit(value, self.unit), "met" if self.is_met(value) else "**not met**"


def with_unit(value: float, unit: str) -> str:
    return f"{number(value)} {unit}".strip()


def of(case: str, key: str) -> Callable[[Run], float | None]:
    return lambda run: run.median(case, key)


def ratio(over: tuple[str, str], under: tuple[str, str]) -> Callable[[Run], float | None]:
    return lambda run: run.ratio(over, under)


JOIN_GOALS: Sequence[Goal] = (
    Goal(
        "TPM joins a second / in-tree, limits lifted",
        TIMES,
        0.27,
        ratio((TPM, "rate"), (LIFTED, "rate")),
        at_least=True,
    ),
    Goal(
        "TPM joins a second / in-tree, limits lifted: stretch goal",
        TIMES,
        0.35,
        ratio((TPM, "rate"), (LIFTED, "rate")),
        at_least=True,
    ),
    Goal(
        "TPM joins a second / in-tree, default limits", TIMES, 3, ratio((TPM, "rate"), (LIMITED, "rate")), at_least=True
    ),
    Goal("one-step / in-tree, limits lifted", TIMES, 0.5, ratio((ONE_STEP, "rate"), (LIFTED, "rate")), at_least=True),
    Goal("controller CPU a TPM join / in-tree", TIMES, 4, ratio((TPM, "controller_cpu"), (LIFTED, "controller_cpu"))),
    Goal("API servers' and etcds' CPU a TPM join", "ms", 35, of(TPM, "server_cpu")),
    Goal("nodes' CPU a TPM join", "ms", 14, of(TPM, "node_cpu")),
    Goal("requests of the controller a TPM join, reads of its Lease besides", "", 8, of(TPM, "controller_requests")),
    Goal("of these, writes", "", 6, of(TPM, "controller_writes")),
    Goal("requests of the node a TPM join", "", 4, of(TPM, "node_requests")),
    Goal("cold join / `python3 -I -c pass`, wall", TIMES, 11, ratio(("cold", "wall"), ("idle", "wall"))),
    Goal("cold join / `python3 -I -c pass`, CPU", TIMES, 11, ratio(("cold", "cpu"), ("idle", "cpu"))),
    Goal("the same where the TPM keeps its EK, wall", TIMES, 8, ratio(("cold persistent", "wall"), ("idle", "wall"))),
    Goal("the same where the TPM keeps its EK, CPU", TIMES, 8, ratio(("cold persistent", "cpu"), ("idle", "cpu"))),
    Goal("warm credential / `python3 -I -c pass`, wall", TIMES, 1.2, ratio(("warm", "wall"), ("idle", "wall"))),
    Goal("admission webhook, a call", "ms", 10, of("webhook", "wall")),
)
