"""Looks for the input of a handler that costs the most: ``python -m fuzz.costs.search NAME SECONDS SHARED``.

Mutates the worst inputs known and the fuzz target's seeds, and keeps what takes more CPU, at all and for each byte.
Coverage does not matter. What seems to be over a bound is measured again, beside a new calibration, before it counts:
so a busy machine makes no finding. SHARED is a file into which each input is written before it runs: an input that
never ends is found there by the parent (``fuzz.costs.run``), since the kernel ends the process, whatever it does.
"""

from __future__ import annotations

import json
import mmap
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from fuzz.catalogue import seeds_of
from fuzz.costs import measure
from fuzz.costs.handler import Handler
from fuzz.costs.table import HANDLERS

__all__ = ["HEADER", "Search", "main"]

HEADER: Final = 16
"""Bytes before the input in the shared file: how many inputs ran, and how long the last one is."""
_KEPT: Final = 24
"""Inputs that are mutated further, by each of two measures."""
_STRUCTURED: Final = 64 << 10
"""Bytes of the largest input that is given to a structured mutator: beyond, mutating takes longer than running."""
_OVERHEAD: Final = 256
"""Bytes added to each length, so that tiny inputs do not count as dense."""
_ENDLESS: Final = 20.0
"""Seconds of CPU at most for one input, and as many runs at the handler's bound: it runs some eight times."""
_TOKENS: Final = (
    *(b"[", b"]", b"{}", b"[],", b'"":', b'"",', b",", b"\\u00e9", b"-9223372036854775808", b"1e5", b"\n", b"\n  "),
    *(b": ", b"- ", b"&a ", b"*a", b"'", b'"', b"#", b"-----BEGIN ", b"-----END ", b"-----\n", b"\x30\x80", b"\0"),
    *(b"%c3%a9", b"a-", b";", b"/", b"..", b"=", b"\xff\xff\xff\xff", b"\xe2\x80\xa8", b"\r", b"\t"),
)


@dataclass(frozen=True, slots=True)
class _Input:
    data: bytes
    milliseconds: float

    @property
    def density(self) -> float:
        """CPU for each byte."""
        return self.milliseconds / (len(self.data) + _OVERHEAD)


@dataclass(slots=True)
class Search:
    """One search; ``random`` makes it repeatable but for the clock."""

    handler: Handler
    random: Random
    price: Callable[[Callable[[], object], int], float] | None = None
    """Measures an action in place of CPU, from so many runs: for tests."""
    unit: float = field(default_factory=measure.calibrate)
    executions: int = 0
    milliseconds: float = 0.0
    mebibytes: float = 0.0
    found: bytes | None = None
    """An input over a bound."""
    why: str = ""
    _dense: list[_Input] = field(default_factory=list[_Input])
    _dear: list[_Input] = field(default_factory=list[_Input])

    def start(self) -> list[bytes]:
        """Return the inputs to begin with."""
        handler = self.handler
        seeds = [path.read_bytes() for path in seeds_of(handler.target)] if handler.target is not None else []
        return [make() for make in handler.worst.values()] + seeds

    def next(self) -> bytes:
        """Mutate one of the inputs that are kept."""
        parent = self.random.choice(self.random.choice((self._dense, self._dear))).data
        return self.mutate(parent)[: self.handler.largest]

    def measure(self, data: bytes) -> None:
        """Run an input, keep it if it costs much, and note it if it costs too much."""
        self.executions += 1
        cost = self._cost(data, 1)
        bar = min(self._dear[-1].milliseconds, self._dear[0].milliseconds) if len(self._dear) >= _KEPT else 0.0
        dense = self._dense[-1].density if len(self._dense) >= _KEPT else 0.0
        made = _Input(data, cost)
        if cost <= bar and made.density <= dense:
            return
        made = _Input(data, min(cost, self._cost(data, 2)))
        self._keep(made)
        if made.milliseconds <= self.milliseconds and made.milliseconds <= self.handler.milliseconds:
            return
        self._confirm(made)

    def _confirm(self, made: _Input) -> None:
        """Measure the dearest input so far again; what is over a bound then is a finding."""
        self.unit = measure.calibrate()
        cost = min(made.milliseconds, self._cost(made.data, 4))
        self.milliseconds = max(self.milliseconds, cost)
        held = measure.peak(lambda: self.handler.run(made.data))
        self.mebibytes = max(self.mebibytes, held)
        if cost > self.handler.milliseconds:
            self.found, self.why = made.data, f"{cost:.1f} ms of {self.handler.milliseconds:g}"
        elif held > self.handler.mebibytes:
            self.found, self.why = made.data, f"{held:.1f} MiB of {self.handler.mebibytes:g}"

    def _cost(self, data: bytes, runs: int) -> float:
        def action() -> object:
            return self.handler.run(data)

        return measure.milliseconds(action, self.unit, runs) if self.price is None else self.price(action, runs)

    def _keep(self, made: _Input) -> None:
        if all(made.data != each.data for each in self._dear):
            self._dear.append(made)
            self._dear.sort(key=lambda each: -each.milliseconds)
            del self._dear[_KEPT:]
        if all(made.data != each.data for each in self._dense):
            self._dense.append(made)
            self._dense.sort(key=lambda each: -each.density)
            del self._dense[_KEPT:]

    def mutate(self, data: bytes) -> bytes:
        """Change an input in one to three ways."""
        target = self.handler.target
        for _ in range(self.random.randint(1, 3)):
            structured = target is not None and target.mutator is not None and len(data) <= _STRUCTURED
            if structured and self.random.random() < 0.5:
                data = target.mutator(data, self.handler.largest, self.random, self.plain)  # pyright: ignore[reportOptionalMemberAccess, reportOptionalCall] - structured says that both are there
            else:
                data = self.plain(data, self.handler.largest)
        return data

    def plain(self, data: bytes, size: int) -> bytes:
        """Change bytes: grow, shrink, repeat, splice, insert; to at most ``size``."""
        random, length = self.random, len(data)
        at = random.randrange(length + 1)
        end = min(length, at + random.choice((1, 2, 4, 16, 64, 1024, max(length, 1))))
        part = data[at:end]
        match random.randrange(8):
            case 0:
                made = data[:at] + random.choice(_TOKENS) + data[at:]
            case 1:
                made = data[:at] + data[end:]
            case 2:
                made = data[:end] + part * random.choice((1, 7, 63, 511)) + data[end:]
            case 3:  # as often as there is room
                made = data[:end] + part * ((size - length) // max(len(part), 1)) + data[end:]
            case 4:
                token = random.choice(_TOKENS)
                made = data[:at] + token * ((size - length) // len(token)) + data[at:]
            case 5:
                other = random.choice(self._dear).data if self._dear else data
                cut = random.randrange(len(other) + 1)
                made = data[:at] + other[cut : cut + 4096] + data[at:]
            case 6:
                made = data[:at] + bytes((random.randrange(256),)) + data[at + 1 :]
            case _:
                made = data[: length // 2] if length > 1 else data + b"a"
        return made[:size]


def main() -> None:
    """Search until the time is over or something is found; the last line of output is the result, in JSON."""
    _, name, seconds, shared = sys.argv
    search = Search(HANDLERS[name], Random())
    with Path(shared).open("r+b") as file:
        memory = mmap.mmap(file.fileno(), HEADER + search.handler.largest)
    deadline = time.monotonic() + float(seconds)
    endless = _ENDLESS * (1 + search.handler.milliseconds / 1000)
    waiting = search.start()[::-1]
    while search.found is None and (waiting or time.monotonic() < deadline):
        data = waiting.pop()[: search.handler.largest] if waiting else search.next()
        memory[HEADER : HEADER + len(data)] = data
        memory[:HEADER] = search.executions.to_bytes(8, "little") + len(data).to_bytes(8, "little")
        signal.setitimer(signal.ITIMER_VIRTUAL, endless)  # its signal ends the process
        search.measure(data)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    if search.found is not None:
        memory[HEADER : HEADER + len(search.found)] = search.found
        memory[8:HEADER] = len(search.found).to_bytes(8, "little")
    result = {"executions": search.executions, "milliseconds": search.milliseconds, "mebibytes": search.mebibytes}
    sys.stdout.write(json.dumps({**result, "why": search.why}) + "\n")


if __name__ == "__main__":
    main()
