"""What grows is written as the bench measured it."""

from __future__ import annotations

import pytest

from bench import growth
from bench.page.command import PAGE
from bench.page.numbers import marks
from bench.page.samples import Case, Run


def run_of(commit: str, *cases: Case) -> Run:
    return Run("2026-01-01", commit, {"CPU": "two cores"}, {case.name: case for case in cases})


def part(name: str) -> str:
    begin, end = marks(name)
    return PAGE.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0].strip()


def test_growth_on_the_page_is_what_the_bench_writes_from_its_last_run() -> None:
    assert part("growth") == (growth.write(Run.read(growth.LAST)) if growth.LAST.exists() else "")


@pytest.mark.parametrize(("cpu", "said"), [(11.0, "met"), (13.0, "**not met**")])
def test_the_cost_of_a_join_is_compared_between_few_nodes_and_many(cpu: float, said: str) -> None:
    few = Case("one cluster, 500 nodes", {"controller_cpu": [10.0]})
    many = Case("one cluster, 5000 nodes", {"controller_cpu": [cpu]})
    (row,) = [line for line in growth.write(run_of("aaa", few, many)).splitlines() if "controller a join, many" in line]
    assert row.endswith(f"| {cpu / 10:.3g} \u00d7 | {said} |")


def grown_with_control() -> Run:
    few, many, more = (
        Case(f"one cluster, {name}", {"joins": [joins], "controller_cpu": [cpu], "resident": [memory]})
        for name, joins, cpu, memory in (
            ("500 nodes", 500.0, 10.0, 80.0),
            ("5000 nodes", 5_000.0, 14.3, 140.0),
            ("500 nodes again", 500.0, 12.0, 160.0),
        )
    )
    return run_of("aaa", few, many, more)


def test_many_nodes_are_compared_with_the_median_of_the_few_before_and_after_them() -> None:
    text = growth.write(grown_with_control())
    assert "|  | 500 nodes | 5000 nodes | 500 nodes again |" in text
    assert "| CPU of the controller, a join | 10 ms | 14.3 ms | 12 ms |" in text
    assert "| CPU of the controller a join, many nodes / few | \u2264 1.2 \u00d7 | 1.3 \u00d7 | **not met** |" in text
    assert "The 500 nodes again join a cluster of their own after the large one:" in text


def test_memory_of_one_large_cluster_is_that_after_the_many_and_not_after_the_control() -> None:
    text = growth.write(grown_with_control())
    assert "| memory of the controller of one large cluster | \u2264 150 MiB | 140 MiB | met |" in text


def test_a_run_without_the_control_says_nothing_of_it() -> None:
    few = Case("one cluster, 500 nodes", {"joins": [500.0]})
    assert "join a cluster of their own" not in growth.write(run_of("aaa", few))


def test_the_bursts_into_one_cluster_are_few_and_many_with_numbers_of_their_own() -> None:
    bursts = growth.bursts(5_000)
    assert [(name, len(numbers)) for name, numbers in bursts] == [
        ("500 nodes", 500),
        ("5000 nodes", 5_000),
    ]
    taken = [number for _, numbers in bursts for number in numbers]
    assert len(set(taken)) == len(taken)
    assert min(taken) >= growth.FIRST_OF_BURSTS
