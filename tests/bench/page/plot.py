"""docs/performance.svg: certificates a second, and where the CPU of a join goes, as bars."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from bench.page.numbers import number
from bench.page.report import PEERS
from bench.page.samples import Run

WIDTH, LEFT, RIGHT = 860, 190, 90
ROW, BAR, TOP = 30, 20, 46
SIDES = (
    ("controller_cpu", "controller", "#2f6fb0"),
    ("server_cpu", "API servers and etcds", "#8fb7dc"),
    ("node_cpu", "nodes", "#c9ccd1"),
)
FONT = "font-family='system-ui,sans-serif' font-size='13'"


def draw(run: Run) -> str:
    """Draw what this run has; a peer that was not measured has no bar."""
    rates = {peer.title: run.median(peer.case, "rate") for peer in PEERS}
    parts = {peer.title: [run.median(peer.case, key) or 0.0 for key, _, _ in SIDES] for peer in PEERS}
    second = TOP + ROW * len(PEERS) + 44
    height = second + TOP + ROW * len(PEERS) + 10
    size = f"width='{WIDTH}' height='{height}'"
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} viewBox='0 0 {WIDTH} {height}' {FONT}>",
        f"<rect {size} fill='#ffffff'/>",
        *_rates(rates, 0),
        *_costs(parts, second),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _rates(rates: dict[str, float | None], top: int) -> Iterator[str]:
    yield _text(10, top + 24, "certificates a second", weight="bold")
    most = max((rate for rate in rates.values() if rate), default=1.0)
    for row, (title, rate) in enumerate(rates.items()):
        y = top + TOP + row * ROW
        yield _text(10, y + 15, title)
        if rate:
            width = _scaled(rate, most)
            yield _bar(LEFT, y, width, SIDES[0][2])
            yield _text(LEFT + width + 6, y + 15, number(rate))


def _costs(parts: dict[str, list[float]], top: int) -> Iterator[str]:
    yield _text(10, top + 24, "CPU a certificate, milliseconds", weight="bold")
    x = LEFT + 110
    for _, title, colour in SIDES:
        yield _bar(x, top + 13, 12, colour, 12)
        yield _text(x + 18, top + 24, title)
        x += 40 + 8 * len(title)
    most = max((sum(costs) for costs in parts.values()), default=1.0) or 1.0
    for row, (title, costs) in enumerate(parts.items()):
        y, x = top + TOP + row * ROW, LEFT
        yield _text(10, y + 15, title)
        for cost, (_, _, colour) in zip(costs, SIDES, strict=True):
            if width := _scaled(cost, most):
                yield _bar(x, y, width, colour)
                x += width
        if sum(costs):
            yield _text(x + 6, y + 15, number(sum(costs)))


def _scaled(value: float, most: float) -> int:
    return round((WIDTH - LEFT - RIGHT) * value / most)


def _bar(x: int, y: int, width: int, colour: str, height: int = BAR) -> str:
    return f"<rect x='{x}' y='{y}' width='{width}' height='{height}' fill='{colour}'/>"


def _text(x: int, y: int, said: str, *, weight: str = "normal") -> str:
    return f"<text x='{x}' y='{y}' font-weight='{weight}' fill='#1f2328'>{escape(said)}</text>"
