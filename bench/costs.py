"""What the worst inputs known cost each handler of foreign input, beside the bound that is declared for it."""

from __future__ import annotations

import warnings

from bench.figures import Figure
from fuzz.costs import measure as costs
from fuzz.costs.handler import Handler
from fuzz.costs.table import HANDLERS


def measure() -> list[Figure]:
    warnings.simplefilter("ignore")  # cryptography's, of serial numbers that are not positive
    return [figure for handler in HANDLERS.values() for figure in _of(handler)]


def _of(handler: Handler) -> list[Figure]:
    unit = costs.calibrate()
    cpu = memory = 0.0
    dearest = largest = ""
    for name, make in handler.worst.items():
        data = make()
        took = costs.milliseconds(lambda data=data: handler.run(data), unit)
        held = costs.peak(lambda data=data: handler.run(data))
        cpu, dearest = max((cpu, dearest), (took, name))
        memory, largest = max((memory, largest), (held, name))
    return [
        Figure(
            f"{handler.name}: CPU",
            cpu,
            "ms",
            f"<= {handler.milliseconds:g}",
            f"{cpu / handler.milliseconds:.2f} of the bound, by {dearest}; {handler.runs}",
            handler.milliseconds,
        ),
        Figure(
            f"{handler.name}: memory",
            memory,
            "MiB",
            f"<= {handler.mebibytes:g}",
            f"{memory / handler.mebibytes:.2f} of the bound, by {largest}",
            handler.mebibytes,
        ),
    ]
