"""Comparisons are pair by pair, and what grows is told as the bench measured it."""

from __future__ import annotations

import pytest

from bench.compare import command as compare
from bench.growth import command as growth
from bench.growth import one_cluster, report, scale
from bench.page.command import PAGE
from bench.page.numbers import marks
from bench.page.samples import Case, Run


def run_of(commit: str, *cases: Case) -> Run:
    return Run("2026-01-01", commit, {"CPU": "two cores"}, {case.name: case for case in cases})


def part(name: str) -> str:
    begin, end = marks(name)
    return PAGE.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0].strip()


def test_the_comparison_on_the_page_is_what_the_bench_writes_from_its_last_run() -> None:
    assert part("compare") == (compare.write(Run.read(compare.LAST)) if compare.LAST.exists() else "")


def test_growth_on_the_page_is_what_the_bench_writes_from_its_last_run() -> None:
    assert part("growth") == (report.write(Run.read(growth.LAST)) if growth.LAST.exists() else "")


def test_a_comparison_gives_the_ratio_of_each_pair_and_not_of_medians() -> None:
    before = Case("before: tpm", {"rate": [10.0, 20.0], "failed": [0.0, 0.0]})
    now = Case("now: tpm", {"rate": [20.0, 20.0], "failed": [0.0, 0.0]})
    lines = compare.write(run_of("aaa bbb", before, now)).splitlines()
    assert lines[0].startswith("Measured on 2026-01-01, 2 pairs.")
    assert lines[2] == "|  | before (aaa) | now (bbb) | now / before |"
    assert lines[4] == "| TPM joins a second | 15 /s (10\u201320) | 20 /s (20\u201320) | 1.5 \u00d7 (1\u20132) |"
    assert len(lines) == 5


def test_a_case_that_one_side_has_not_is_left_out_of_the_comparison() -> None:
    now = Case("now: tpm", {"rate": [20.0]})
    assert "TPM joins" not in compare.write(run_of("aaa bbb", now))


@pytest.mark.parametrize(("cpu", "said"), [(11.0, "met"), (13.0, "**not met**")])
def test_the_cost_of_a_join_is_compared_between_few_nodes_and_many(cpu: float, said: str) -> None:
    few = Case("one cluster, 500 nodes", {"controller_cpu": [10.0]})
    many = Case("one cluster, 5000 nodes", {"controller_cpu": [cpu]})
    (row,) = [line for line in report.write(run_of("aaa", few, many)).splitlines() if "controller a join, many" in line]
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
    shared = Case("200 clusters, one controller", {"resident_idle": [300.0]})
    return run_of("aaa", Case("setting", {"clusters": [200.0], "machines": [50.0]}), few, many, more, shared)


def test_many_nodes_are_compared_with_the_median_of_the_few_before_and_after_them() -> None:
    text = report.write(grown_with_control())
    assert "|  | 500 nodes | 5000 nodes | 500 nodes again | 200 clusters, one controller |" in text
    assert "| CPU of the controllers, a join | 10 ms | 14.3 ms | 12 ms | \u2013 |" in text
    assert "| CPU of the controller a join, many nodes / few | \u2264 1.2 \u00d7 | 1.3 \u00d7 | **not met** |" in text
    assert "The 500 nodes again join a cluster of their own after the large one:" in text


def test_memory_of_one_large_cluster_is_that_after_the_many_and_not_after_the_control() -> None:
    run = grown_with_control()
    assert "| memory of the controller of one large cluster | \u2264 150 MiB | 140 MiB | met |" in report.write(run)
    costs = scale.Costs.of(run_of("aaa", JOIN), run)
    assert costs is not None
    assert costs.node == (140 - 80) / 5_000


def test_a_run_without_the_control_says_nothing_of_it() -> None:
    assert report.control(growth_of()) == ""


def test_the_bursts_into_one_cluster_are_few_and_many_with_numbers_of_their_own() -> None:
    bursts = one_cluster.bursts(5_000)
    assert [(name, len(numbers)) for name, numbers in bursts] == [
        ("500 nodes", 500),
        ("5000 nodes", 5_000),
    ]
    taken = [number for _, numbers in bursts for number in numbers]
    assert len(set(taken)) == len(taken)
    assert min(taken) >= one_cluster.FIRST_OF_BURSTS


def test_one_of_a_kind_is_written_in_the_singular() -> None:
    fleet = scale.Fleet(1, 5_000, 1, 2)
    assert fleet.title == "1 cluster, 5,000 nodes"
    assert "1 controller" in fleet.rates(scale.Costs(10, 20, 20, 80, 0.01, 0.25, 0.005))
    assert scale.Fleet(1_000, 100_000, 3, 8).title == "1,000 clusters, 100,000 nodes"


def test_memory_of_many_clusters_is_that_of_the_one_controller() -> None:
    one = Case("200 clusters, one controller", {"resident": [280.0]})
    three = Case("200 clusters, 3 that share", {"resident": [120.0, 110.0, 100.0]})
    text = report.write(run_of("aaa", one, three))
    assert "| memory of one controller of many clusters | \u2264 300 MiB | 280 MiB | met |" in text
    assert "| 110 MiB (100\u2013120) |" in text


def growth_of(nodes: int = 5_000) -> Run:
    setting = Case("setting", {"clusters": [200.0], "machines": [50.0]})
    few = Case("one cluster, 500 nodes", {"joins": [500.0], "resident": [80.0 + 500 / 64]})
    many = Case("one cluster, 5000 nodes", {"joins": [float(nodes)], "resident": [80.0 + (500 + nodes) / 64]})
    grown = {"joins": [1_000.0], "resident": [80.0 + 1_000 / 64 + 200 * 0.25]}
    shared = Case("200 clusters, one controller", grown)
    own = 80.0 + 60 * 0.25 + 60 * 5 / 64
    sharing = Case("200 clusters, 3 that share", {"owned": [60.0], "resident": [own + 140 * 50 / 256]})
    return run_of("aaa", setting, few, many, shared, sharing)


JOIN = Case(scale.TPM, {"controller_cpu": [10.0], "server_cpu": [40.0], "management_cpu": [20.0]})


def test_memory_a_node_and_a_cluster_follow_from_what_grew() -> None:
    costs = scale.Costs.of(run_of("aaa", JOIN), growth_of())
    assert costs is not None
    found = [round(value, 3) for value in (costs.base, costs.node * 64, costs.cluster)]
    assert found == [80, 1, 0.25]
    assert (costs.workload, costs.controller_rate) == (20, 100)
    assert round(costs.foreign * 256, 3) == 1


def test_what_has_the_least_joins_a_second_saturates_first() -> None:
    costs = scale.Costs(controller=10, management=20, workload=20, base=80, node=0.01, cluster=0.25, foreign=0.005)
    assert scale.Fleet(1_000, 100_000, 3, 8).first(costs) == ("3 controllers", 300)
    assert scale.Fleet(1_000, 100_000, 10, 8).first(costs) == ("management cluster, 8 cores", 400)
    assert scale.Fleet(1, 5_000, 10, 8).first(costs) == ("10 controllers", 100)  # one cluster has one owner
    assert costs.memory(4, 1_000) == 91
    assert costs.memory_of_each(scale.Fleet(8, 2_000, 2, 8), 2) == 96


def test_a_fleet_renews_at_three_fifths_of_its_certificates_lifetime() -> None:
    assert round(scale.renewals(100_000, 86_400), 2) == 1.93


def test_the_page_on_scale_is_what_the_bench_writes_from_its_last_runs() -> None:
    text = scale.PAGE.read_text(encoding="utf-8")
    if scale.GROWTH_RUN.exists():
        text = scale.written(text, Run.read(scale.PAGE_RUN), Run.read(scale.GROWTH_RUN))
    assert text == scale.PAGE.read_text(encoding="utf-8")


def test_without_a_figure_that_the_model_needs_nothing_is_written() -> None:
    assert scale.parts(run_of("aaa"), growth_of()) == {}
