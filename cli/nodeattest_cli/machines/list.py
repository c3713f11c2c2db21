"""``nodeattest machines list``: every machine, whether it is attested, by what, until when, and why not.

Promises: what the objects say by the controller's own rule (``row``), and nothing guessed; the fleet survives an outage
of its management cluster until the first of the newest certificates ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from nodeattest_cli.connection import Connection, kubeconfig_option, namespace_option, run
from nodeattest_cli.errors import StateError, UserError
from nodeattest_cli.machines.attestations import list_attestations
from nodeattest_cli.machines.row import MachineRow, rows_of
from nodeattest_cli.management import CLUSTER_API, OWN, cluster_api_version, list_objects, require_cluster
from nodeattest_cli.output import format_table, output_option, print_document, print_lines, to_json, to_yaml
from nodeattest_controller.model.attestation import attestation_name, owner_of
from nodeattest_controller.model.machine_kinds import machine_views
from nodeattest_controller.model.objects import rfc3339, text
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, Gone, NotFound, Unreachable, WatchType
from nodeattest_kube.jsontypes import JsonObject, JsonValue

__all__ = ["Wanted", "list_machines", "outage_budget", "read_rows", "watch_rows"]

_RESOURCES: Final = {
    "Machine": "machine.cluster.x-k8s.io",
    "MachinePool": "machinepool.cluster.x-k8s.io",
    "MachineRecord": "machinerecord.attestation.cluster.x-k8s.io",
}
"""As ``kubectl get -o name`` writes it."""
_HEADINGS: Final = (
    "NAMESPACE",
    "CLUSTER",
    "NODE",
    "MACHINE",
    "PROVIDER",
    "EXPIRES",
    "IN",
    "STATE",
    "REFUSED",
    "RESETS",
)
_WIDE: Final = ("PROVIDER ID", "ATTESTATION", "MESSAGE")
_PAUSE: Final = 1.0
"""Seconds before a server that is away is asked again."""
_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which machines are asked for."""

    namespace: str | None
    """None: of all."""
    cluster: str | None = None
    selector: str | None = None
    """Of labels, as kubectl's ``-l``."""
    not_attested: bool = False
    names: tuple[str, ...] = ()

    def fits(self, row: MachineRow) -> bool:
        """Tell whether a machine is one of them."""
        return (
            self.cluster in {None, row.cluster}
            and not (self.not_attested and row.attested)
            and (not self.names or bool(row.names & set(self.names)))
        )


def outage_budget(found: Sequence[MachineRow], now: datetime) -> timedelta | None:
    """Tell how long every node keeps a valid certificate without the controller; None where there is no node.

    Negative when a certificate has ended already.
    """
    ends = [entry.expires for entry in found if entry.expires is not None]
    return min(ends) - now if ends else None


@click.command("list")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@kubeconfig_option
@click.option("--context", help="Context of the kubeconfig.")
@namespace_option
@click.option("-A", "--all-namespaces", is_flag=True, help="Every namespace.")
@click.option("--cluster", help="One workload cluster only.")
@click.option("--not-attested", is_flag=True, help="Only machines without a valid certificate, or refused.")
@click.option("-l", "--selector", help="Labels of the Machines, such as pool=gpu,tier!=dev.")
@click.option("-w", "--watch", "watching", is_flag=True, help="Then print each Machine that changes, until Ctrl-C.")
@click.option("--no-headers", is_flag=True, help="Print no headings and no last line.")
@output_option("table", "wide", "json", "yaml", "name")
def list_machines(
    *,
    names: tuple[str, ...],
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    all_namespaces: bool,
    cluster: str | None,
    not_attested: bool,
    selector: str | None,
    watching: bool,
    no_headers: bool,
    output: str,
) -> None:
    """Show which machines are attested, by what, until when, and which are not.

    Asks the management cluster. NAME is the name of a Machine, of its node or of its attestation, or a provider ID;
    without any, all are shown. The last line says how long the fleet would survive an outage of the controller.
    """
    if watching and output in {"json", "yaml"}:
        raise UserError("--watch: prints a table or names; without -o json and -o yaml")
    connection = Connection(kubeconfig, context)
    where = None if all_namespaces else connection.namespace(namespace)
    wanted = Wanted(namespace=where, cluster=cluster, selector=selector, not_attested=not_attested, names=names)
    found = run(connection, lambda client: read_rows(client, wanted, datetime.now(UTC)))
    if names and not found:
        raise StateError(f"no machine {' or '.join(names)} in {where or 'any namespace'}; -A looks in every one")
    _print(found, output, datetime.now(UTC), where, headers=not no_headers)
    if watching:
        run(connection, lambda client: watch_rows(client, wanted, found, output))


async def read_rows(client: ApiClient, wanted: Wanted, now: datetime) -> list[MachineRow]:
    """Read the machines that are asked for, in order; raises ``StateError`` or ``ApiError``."""
    attestations = [item async for item in list_attestations(client, wanted.namespace, wanted.cluster)]
    machines: list[JsonObject] = []
    for path in await _collections(client, wanted.namespace):
        try:
            query = {"labelSelector": wanted.selector} if wanted.selector else None
            machines += [one async for one in list_objects(client, path, query)]
        except NotFound:
            continue  # MachinePools are behind a feature gate, MachineRecords of another inventory
    rows = [row for row in rows_of(machines, attestations, now) if wanted.fits(row)]
    if wanted.cluster is not None and not rows:
        await require_cluster(client, wanted.cluster, wanted.namespace)
    if wanted.selector:  # a record alone bears no labels of a Machine
        known = {(row.namespace, row.machine) for row in rows_of(machines, (), now)}
        rows = [row for row in rows if (row.namespace, row.machine) in known]
    return sorted(rows, key=lambda row: (row.namespace, row.cluster, row.node or "~", row.machine))


async def _collections(client: ApiClient, namespace: str | None) -> list[str]:
    version = await cluster_api_version(client)
    found = [paths.collection_path(*OWN, "machinerecords", namespace=namespace)]
    if version:
        found += [
            paths.collection_path(CLUSTER_API, version, resource, namespace=namespace)
            for resource in ("machines", "machinepools")
        ]
    return found


async def watch_rows(client: ApiClient, wanted: Wanted, shown: Sequence[MachineRow], output: str) -> None:
    """Print each Machine whose row changes; conditions of Machines change with their attestations.

    What changed before the watch, since ``shown`` or while the server kept no versions, a list after its version shows.
    A watch that brought nothing is followed by a list: a server may end one from a version that it no longer has.
    """
    version = await cluster_api_version(client)
    if not version:
        raise StateError(f"--watch: {client.server} has no Cluster API")
    path = paths.collection_path(CLUSTER_API, version, "machines", namespace=wanted.namespace)
    selected = {"labelSelector": wanted.selector} if wanted.selector else {}
    known = {(row.namespace, row.machine): row for row in shown}
    since = ""
    while True:
        began = since
        with suppress(Gone, Unreachable):
            if not since:
                listed = text(await client.get(path, {"limit": "1"}), "metadata", "resourceVersion")
                now = datetime.now(UTC)
                _print_changed(await read_rows(client, wanted, now), known, output, now)
                since = listed
            async with aclosing(client.watch(path, {**selected, "resourceVersion": since})) as events:
                async for event in events:
                    since = text(event.object, "metadata", "resourceVersion") or since
                    if event.type not in {WatchType.ADDED, WatchType.MODIFIED}:
                        continue
                    now = datetime.now(UTC)
                    rows = await _rows_of_one(client, {**event.object, "kind": "Machine"}, now)
                    _print_changed([row for row in rows if wanted.fits(row)], known, output, now)
        since = "" if since == began else since
        await asyncio.sleep(_PAUSE)


def _print_changed(
    rows: Sequence[MachineRow], known: dict[tuple[str, str], MachineRow], output: str, now: datetime
) -> None:
    for row in rows:
        if known.get((row.namespace, row.machine)) != row:
            known[row.namespace, row.machine] = row
            print_lines(_line(row, output, now))


async def _rows_of_one(client: ApiClient, machine: JsonObject, now: datetime) -> list[MachineRow]:
    found: list[JsonObject] = []
    for view in machine_views(machine):
        if not view.provider_id:  # its record has the provider ID with which it joined
            path = paths.collection_path(*OWN, "machineattestations", namespace=view.namespace)
            everything = [item async for item in list_objects(client, path)]
            found += [item for item in everything if text(owner_of(item), "uid") == view.uid]
            continue
        name = attestation_name(view.cluster_name, view.provider_id)
        try:
            found.append(
                await client.get(paths.object_path(*OWN, "machineattestations", name, namespace=view.namespace))
            )
        except NotFound:
            continue
    return list(rows_of([machine], found, now))


def _line(row: MachineRow, output: str, now: datetime) -> str:
    if output == "name":
        return f"{_RESOURCES[row.kind]}/{row.machine}"
    return "   ".join(_cells(row, now, wide=output == "wide"))


def _print(found: Sequence[MachineRow], output: str, now: datetime, namespace: str | None, *, headers: bool) -> None:
    match output:
        case "json":
            print_document(to_json(_document(found, now)))
        case "yaml":
            print_document(to_yaml(_document(found, now)))
        case "name":
            print_lines(*(_line(entry, output, now) for entry in found))
        case _:
            print_lines(*_table(found, now, namespace, wide=output == "wide", headers=headers))


def _document(found: Sequence[MachineRow], now: datetime) -> JsonObject:
    left = outage_budget(found, now)
    entries: list[JsonValue] = [entry.to_json() for entry in found]
    return {"machines": entries, "survivesSeconds": int(left.total_seconds()) if left is not None else None}


def _table(
    found: Sequence[MachineRow], now: datetime, namespace: str | None, *, wide: bool, headers: bool
) -> list[str]:
    rows = [_cells(entry, now, wide=wide) for entry in found]
    if not headers:
        return format_table(rows) if rows else []
    if not found:
        return ["no machine" + (f" in namespace {namespace}; -A looks in every one" if namespace else "")]
    headings = (*_HEADINGS, *(_WIDE if wide else ()))
    return [*format_table([headings, *rows]), "", _outlook(found, now)]


def _cells(entry: MachineRow, now: datetime, *, wide: bool) -> tuple[str, ...]:
    expires = rfc3339(entry.expires) if entry.expires else "-"
    left = _format_duration(entry.expires - now) if entry.expires else "-"
    words = (entry.namespace, entry.cluster, entry.node, entry.machine, entry.provider, expires, left, entry.state)
    more = (entry.provider_id, entry.attestation, entry.message) if wide else ()
    return tuple(word or "-" for word in (*words, entry.refused, str(entry.resets or ""), *more))


def _outlook(found: Sequence[MachineRow], now: datetime) -> str:
    left = outage_budget(found, now)
    first = min((entry for entry in found if entry.expires), key=lambda one: one.expires or now, default=None)
    machines = "1 machine" if len(found) == 1 else f"{len(found)} machines"
    attested = sum(entry.attested for entry in found)
    machines += f", {attested} attested" if attested < len(found) else ""
    if left is None or first is None:
        return f"{machines}, none with a certificate"
    if left < timedelta(0):
        return f"{machines}; the certificate of {first.node} ended {_format_duration(-left)} ago"
    return f"{machines}; without the controller every node would last {_format_duration(left)} (first: {first.node})"


def _format_duration(span: timedelta) -> str:
    """Say a time span as kubectl does: the two largest units."""
    seconds = int(span.total_seconds())
    if seconds < 0:
        return f"-{_format_duration(-span)}"
    for size, unit, smaller, small_unit in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "m"),
        (_MINUTE, "m", 1, "s"),
    ):
        if seconds >= size:
            rest = seconds % size // smaller
            return f"{seconds // size}{unit}" + (f"{rest}{small_unit}" if rest else "")
    return f"{seconds}s"
