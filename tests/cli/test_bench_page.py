"""The page of the bench is what the bench writes."""

from __future__ import annotations

from bench import growth
from bench.page import LAST
from bench.report import PAGE, Run, marks, write


def test_the_generated_parts_of_the_page_are_what_the_bench_writes_from_its_last_run() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert write(page, Run.read(LAST)) == page
    begin, end = marks("growth")
    part = page.partition(begin)[2].partition(end)[0].strip()
    assert part == (growth.write(Run.read(growth.LAST)) if growth.LAST.exists() else "")
