"""``nodeattest machines list``: every machine, whether it is attested, by what, until when, and why not.

The fleet survives an outage of its management cluster until the first of the newest certificates expires.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from nodeattest_cli.connection import Connection, run
from nodeattest_cli.fleet import MACHINE_GONE, MachineRow, read_fleet, rows_of
from nodeattest_cli.options import cluster_option, connected, namespace_option, output_option, selector_option
from nodeattest_cli.output import StateError, format_table, print_document, print_lines, to_json
from nodeattest_kube.client import ApiClient
from nodeattest_parsing.objects import rfc3339
from nodeattest_parsing.times import format_seconds

_HEADINGS: Final = (
    *("NAMESPACE", "CLUSTER", "NODE", "MACHINE", "PROVIDER", "EXPIRES", "IN", "STATE", "REFUSED", "RESETS"),
    *("PROVIDER ID", "ATTESTATION", "MESSAGE"),
)
_NARROW: Final = 10
"""Columns of a table that is not wide."""


@click.command("list")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("-A", "--all-namespaces", is_flag=True, help="Every namespace.")
@click.option("--not-attested", is_flag=True, help="Only machines without a valid certificate, or refused.")
@selector_option
@output_option("table", "wide", "json")
@connected
@namespace_option
@cluster_option
def list_machines(
    *,
    connection: Connection,
    names: tuple[str, ...],
    namespace: str | None,
    all_namespaces: bool,
    cluster: str | None,
    not_attested: bool,
    selector: str | None,
    output: str,
) -> None:
    """Show which machines are attested, by what, until when, and which are not.

    Asks the management cluster. NAME is the name of a Machine, of its node or of its attestation, or a provider ID;
    without any, all are shown. The last line says how long the fleet would survive an outage of the controller.
    """
    where = None if all_namespaces else connection.namespace(namespace)
    now = datetime.now(UTC)

    async def read(client: ApiClient) -> list[MachineRow]:
        resources = ("machineattestations", "machinerecords", "machines", "machinepools")
        documents = await read_fleet(client, where, *resources, cluster=cluster, selector=selector)
        rows = [
            row
            for row in rows_of(documents, now)
            if cluster in {None, row.cluster}
            and not (not_attested and row.attested)
            and not (names and row.names.isdisjoint(names))
            and not (selector and row.state == MACHINE_GONE)  # a record alone bears no labels of a Machine
        ]
        return sorted(rows, key=lambda row: (row.namespace, row.cluster, row.node or "~", row.machine))

    found = run(connection, read)
    if names and not found:
        raise StateError(f"no machine {' or '.join(names)} in {where or 'any namespace'}; -A looks in every one")
    if output == "json":
        left = outage_budget(found, now)
        survives = int(left.total_seconds()) if left is not None else None
        print_document(to_json({"machines": [row.to_json() for row in found], "survivesSeconds": survives}))
        return
    columns = len(_HEADINGS) if output == "wide" else _NARROW
    rows = [_cells(row, now)[:columns] for row in found]
    if not found:
        print_lines("no machine" + (f" in namespace {where}; -A looks in every one" if where else ""))
    else:
        print_lines(*format_table([_HEADINGS[:columns], *rows]), "", _outlook(found, now))


def outage_budget(found: Sequence[MachineRow], now: datetime) -> timedelta | None:
    """Return how long every node keeps a valid certificate without the controller; None where there is no node.

    Negative when a certificate has expired already.
    """
    ends = [row.expires for row in found if row.expires is not None]
    return min(ends) - now if ends else None


def _cells(row: MachineRow, now: datetime) -> tuple[str, ...]:
    expires, left = (rfc3339(row.expires), _format_duration(row.expires - now)) if row.expires else ("", "")
    words = (
        *(row.namespace, row.cluster, row.node, row.machine, row.provider, expires, left, row.state, row.refused),
        *(str(row.resets or ""), row.provider_id, row.attestation, row.message),
    )
    return tuple(word or "-" for word in words)


def _outlook(found: Sequence[MachineRow], now: datetime) -> str:
    left = outage_budget(found, now)
    first = min((row for row in found if row.expires), key=lambda row: row.expires or now, default=None)
    machines = "1 machine" if len(found) == 1 else f"{len(found)} machines"
    attested = sum(row.attested for row in found)
    machines += f", {attested} attested" if attested < len(found) else ""
    if left is None or first is None:
        return f"{machines}, none with a certificate"
    if left < timedelta(0):
        return f"{machines}; the certificate of {first.node} expired {_format_duration(-left)} ago"
    return f"{machines}; without the controller every node would last {_format_duration(left)} (first: {first.node})"


def _format_duration(span: timedelta) -> str:
    """Write a time span to the minute."""
    return ("-" if span < timedelta(0) else "") + format_seconds(abs(span) // timedelta(minutes=1) * 60)
