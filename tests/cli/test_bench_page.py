"""The page of the bench is what the bench writes, and its figures are compared as they should be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.burst import Burst, count_requests, rate_of_last
from bench.page import plot, report
from bench.page.command import LAST, PAGE, PICTURE
from bench.page.goals import LIFTED, ONE_STEP, TPM, Goal, of, ratio
from bench.page.measures import Round, in_turns
from bench.page.numbers import ratios, replaced, spread, times
from bench.page.samples import Case, Run
from nodeattest_demo.world import USER
from nodeattest_sandbox.control_plane import AuditEntry


def run_of(**cases: dict[str, list[float]]) -> Run:
    named = {name.replace("_", " "): Case(name, samples) for name, samples in cases.items()}
    return Run("2026-01-01", "abc", {"CPU": "two cores"}, named)


def request(user: str, verb: str, resource: str, subresource: str = "") -> AuditEntry:
    return AuditEntry(user, (), verb, "/", resource, subresource, "", 200)


def test_the_generated_parts_of_the_page_are_what_the_bench_writes_from_its_last_run() -> None:
    run = Run.read(LAST)
    page = PAGE.read_text(encoding="utf-8")
    assert report.write(page, run) == page
    assert plot.draw(run) == PICTURE.read_text(encoding="utf-8")


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = run_of(tpm={"rate": [1.0, 2.0]})
    run.cases["tpm"].notes["excludes"] = "the boot"
    run.write(tmp_path / "run.json")
    assert Run.read(tmp_path / "run.json") == run


def test_a_median_is_shown_with_the_least_and_the_greatest() -> None:
    assert spread([3.0, 1.0, 2.26], "ms") == "2.26 ms (1\u20133)"
    assert spread([1234.5]) == "1234"
    assert spread(None) == "\u2013"


def test_ratios_are_pair_by_pair_and_none_is_made_of_nothing() -> None:
    assert ratios([2.0, 9.0, 1.0], [1.0, 3.0, 0.0]) == [2.0, 3.0]
    assert run_of(tpm={"rate": [10.0]}).ratio(("tpm", "rate"), ("nothing", "rate")) is None
    assert run_of().ratio(("tpm", "rate"), ("nothing", "rate")) is None
    assert times(None) == "\u2013"


@pytest.mark.parametrize(
    ("lifted", "said"),
    [([20.0, 80.0, 100.0], 0.3), ([80.0], 0.25), ([20.0, 80.0, 80.0, 100.0], 0.25)],
    ids=["round by round", "one of several rounds", "unlike numbers of rounds"],
)
def test_a_ratio_is_of_rounds_where_there_are_as_many_and_else_of_medians(lifted: list[float], said: float) -> None:
    run = run_of(tpm={"rate": [10.0, 20.0, 30.0]}, lifted={"rate": lifted})
    assert run.ratio(("tpm", "rate"), ("lifted", "rate")) == said


def test_the_table_of_joins_shows_the_ratio_of_rounds_with_the_least_and_the_greatest() -> None:
    lifted, one_step = Case(LIFTED, {"rate": [100.0, 50.0, 80.0]}), Case(ONE_STEP, {"rate": [50.0, 30.0, 36.0]})
    lines = report.peers(Run("2026-01-01", "abc", {}, {case.name: case for case in (lifted, one_step)})).splitlines()
    beside = (
        "| \u2026 beside in-tree, limits lifted | \u2013 | 1 \u00d7 (1\u20131) | 0.5 \u00d7 (0.45\u20130.6) | \u2013 |"
    )
    assert beside in lines


def round_of(rate: float, *requests: AuditEntry) -> Round:
    return Round(Burst(10, 10 / rate, [0.1], 1.0, 2.0, 0.0, 3.0, {}, []), 70.0, requests)


def test_joins_are_measured_in_turns_and_every_second_round_in_the_opposite_order() -> None:
    order: list[str] = []
    rates = iter(range(1, 10))

    def burst(name: str) -> Callable[[], Round]:
        def take() -> Round:
            order.append(name)
            return round_of(float(next(rates)))

        return take

    names = (LIFTED, TPM, ONE_STEP)
    cases = in_turns({name: burst(name) for name in names}, 3)
    assert order == [*names, *reversed(names), *names]
    assert [case.name for case in cases] == [*names]
    assert [case.samples["rate"] for case in cases] == [[1, 6, 7], [2, 5, 8], [3, 4, 9]]


def test_requests_a_join_are_counted_over_all_rounds() -> None:
    few, more = ([request(USER, "create", "machineattestations")] * count for count in (10, 30))
    rounds = iter((round_of(1.0, *few), round_of(1.0, *more), round_of(1.0, *more)))
    (case,) = in_turns({TPM: lambda: next(rounds)}, 3)
    assert case.samples["controller_requests"] == [70 / 30]
    assert case.notes["requests"] == "2.3 create machineattestations"


@pytest.mark.parametrize(
    ("bound", "at_least", "said"), [(0.2, True, "met"), (0.3, True, "**not met**"), (0.3, False, "met")]
)
def test_a_goal_says_whether_it_is_met(bound: float, at_least: bool, said: str) -> None:
    run = run_of(tpm={"rate": [25.0]}, lifted={"rate": [100.0]})
    goal = Goal("share", "\u00d7", bound, ratio(("tpm", "rate"), ("lifted", "rate")), at_least=at_least)
    assert goal.row(run)[2:] == ("0.25 \u00d7", said)


def test_a_count_a_join_may_have_a_few_periodic_requests_in_it() -> None:
    goal = Goal("requests", "", 8, of("tpm", "requests"))
    assert [goal.is_met(value) for value in (8.04, 8.06)] == [True, False]


def test_a_goal_that_was_not_measured_says_so() -> None:
    assert Goal("share", "ms", 1, of("tpm", "rate")).row(run_of())[2:] == ("\u2013", "not measured")


def test_a_rate_is_of_the_last_joins_so_that_a_first_burst_does_not_count() -> None:
    assert round(rate_of_last([0.0, 0.0, 0.0, 0.0, 0.1, 0.2, 0.3, 0.4], 4)) == 10


def test_requests_are_counted_by_side_and_reads_of_leases_by_themselves() -> None:
    entries = [
        request("system:bootstrap:abcdef", "create", "certificatesigningrequests"),
        request("controller", "update", "leases"),
        request("controller", "get", "leases"),
        request("controller", "update", "certificatesigningrequests", "approval"),
        request("controller", "get", "machines"),
        request("somebody", "get", "machines"),
    ]
    counted = count_requests(entries, user="controller", joins=1)
    assert (counted.node, counted.controller, counted.controller_writes) == (1, 2, 1)
    assert counted.lease_reads == 1
    assert counted.kinds == "1 get machines, 1 update certificatesigningrequests/approval"


def test_a_part_is_replaced_between_its_marks_and_a_page_without_them_is_refused() -> None:
    page = "before\n<!-- begin x: written by make bench -->\nold\n<!-- end x -->\nafter\n"
    once = replaced(page, "x", "new\n")
    assert [once.splitlines()[0], once.splitlines()[-1]] == ["before", "after"]
    assert "old" not in once
    assert replaced(once, "x", "new") == once
    with pytest.raises(ValueError, match="no part 'y'"):
        replaced(page, "y", "new")


def test_a_peer_that_was_not_measured_has_no_bar() -> None:
    drawn = plot.draw(run_of(tpm={"rate": [25.0], "controller_cpu": [10.0], "server_cpu": [40.0], "node_cpu": [9.0]}))
    assert drawn.count("<rect x=") == 1 + 3 + 3  # a rate, the legend, three parts
