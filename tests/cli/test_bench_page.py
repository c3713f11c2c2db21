"""The page of the bench is what the bench writes, and its figures are compared as they should be."""

from __future__ import annotations

from bench import growth
from bench.burst import Burst, count_requests
from bench.page import LAST, Round, in_turns
from bench.report import LIFTED, ONE_STEP, PAGE, TPM, Case, Run, marks, peers, write
from nodeattest_sandbox.control_plane import AuditEntry


def test_the_generated_parts_of_the_page_are_what_the_bench_writes_from_its_last_run() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert write(page, Run.read(LAST)) == page
    begin, end = marks("growth")
    part = page.partition(begin)[2].partition(end)[0].strip()
    assert part == (growth.write(Run.read(growth.LAST)) if growth.LAST.exists() else "")


def test_the_table_of_joins_shows_the_ratio_of_rounds_with_the_least_and_the_greatest() -> None:
    lifted, one_step = Case(LIFTED, {"rate": [100.0, 50.0, 80.0]}), Case(ONE_STEP, {"rate": [50.0, 30.0, 36.0]})
    lines = peers(Run("2026-01-01", "abc", {}, {case.name: case for case in (lifted, one_step)})).splitlines()
    beside = (
        "| \u2026 beside in-tree, limits lifted | \u2013 | 1 \u00d7 (1\u20131) | 0.5 \u00d7 (0.45\u20130.6) | \u2013 |"
    )
    assert beside in lines


def test_joins_are_measured_in_turns_and_every_second_round_in_the_opposite_order() -> None:
    order: list[str] = []

    def burst(name: str) -> Round:
        order.append(name)
        rate = float(len(order))
        return Round(Burst(10, 10 / rate, [0.1], 1.0, 2.0, 0.0, 3.0, {}, []), 70.0)

    names = (LIFTED, TPM, ONE_STEP)
    cases = in_turns({name: lambda name=name: burst(name) for name in names}, 3)
    assert order == [*names, *reversed(names), *names]
    assert [case.samples["rate"] for case in cases] == [[1, 6, 7], [2, 5, 8], [3, 4, 9]]


def test_requests_are_counted_by_side_and_reads_of_leases_by_themselves() -> None:
    entries = [
        AuditEntry(user, (), verb, "/", resource, subresource, "", 200)
        for user, verb, resource, subresource in (
            ("system:bootstrap:abcdef", "create", "certificatesigningrequests", ""),
            ("controller", "update", "leases", ""),
            ("controller", "get", "leases", ""),
            ("controller", "update", "certificatesigningrequests", "approval"),
            ("controller", "get", "machines", ""),
            ("somebody", "get", "machines", ""),
        )
    ]
    counted = count_requests(entries, user="controller", joins=1)
    told = {"node_requests": 1, "controller_requests": 2, "controller_writes": 1, "lease_reads": 1}
    assert counted == told
