"""``nodeattest machines list``: which machines are attested, by what, until when, read from MachineAttestations.

Promises: what the MachineAttestation objects say and nothing guessed; the fleet survives an outage of its management
cluster until the first of the newest certificates ends. Leaves out Machines without one: they have never joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from nodeattest_cli.connection import Connection, kubeconfig_option, run
from nodeattest_cli.machines.attestations import list_attestations
from nodeattest_cli.output import format_table, output_option, to_json, to_yaml
from nodeattest_controller.model.objects import items, mapping, moment, rfc3339, text
from nodeattest_kube.client import ApiClient
from nodeattest_kube.jsontypes import JsonObject, JsonValue

__all__ = ["Attested", "list_machines", "outage_budget", "row_from_attestation"]

_RESOURCE: Final = "machineattestation.attestation.cluster.x-k8s.io"
"""As ``kubectl get -o name`` writes it."""
_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Attested:
    """One machine of the ledger."""

    namespace: str
    name: str
    """Of the MachineAttestation."""
    cluster: str
    node: str
    machine: str
    provider: str
    provider_id: str
    expires: datetime | None
    """End of the newest certificate."""
    verdict: str
    resets: int
    """How often an operator reset it, as far as the ledger remembers."""

    def to_json(self) -> JsonObject:
        """Return the entry of ``machines``."""
        return {
            "namespace": self.namespace,
            "cluster": self.cluster,
            "node": self.node,
            "machine": self.machine,
            "provider": self.provider,
            "providerID": self.provider_id,
            "expires": rfc3339(self.expires) if self.expires else None,
            "lastVerdict": self.verdict,
            "resets": self.resets,
        }


def row_from_attestation(attestation: JsonObject) -> Attested:
    """Read a MachineAttestation."""
    spec = mapping(attestation, "spec")
    return Attested(
        namespace=text(attestation, "metadata", "namespace"),
        name=text(attestation, "metadata", "name"),
        cluster=text(spec, "clusterName"),
        node=text(spec, "nodeName"),
        machine=text(spec, "machineName"),
        provider=text(spec, "provider"),
        provider_id=text(spec, "providerID"),
        expires=moment(text(spec, "expires")),
        verdict=text(spec, "lastVerdict", "verdict"),
        resets=len(items(spec, "resets")),
    )


def outage_budget(found: Sequence[Attested], now: datetime) -> timedelta | None:
    """Tell how long every node keeps a valid certificate without the controller; None where there is no node.

    Negative when a certificate has ended already.
    """
    ends = [entry.expires for entry in found if entry.expires is not None]
    return min(ends) - now if ends else None


@click.command("list")
@kubeconfig_option
@click.option("--context", help="Context of the kubeconfig.")
@click.option("-n", "--namespace", help="Namespace of the Clusters (default).")
@click.option("-A", "--all-namespaces", is_flag=True, help="Every namespace.")
@click.option("--cluster", help="One workload cluster only.")
@output_option("table", "wide", "json", "yaml", "name")
def list_machines(
    *,
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    all_namespaces: bool,
    cluster: str | None,
    output: str,
) -> None:
    """Show which machines are attested, by what, until when.

    Asks the management cluster. The last line says how long the fleet would survive an outage of it.
    """
    where = None if all_namespaces else namespace or "default"

    async def _list(client: ApiClient) -> list[Attested]:
        return [row_from_attestation(item) async for item in list_attestations(client, where, cluster)]

    found = run(Connection(kubeconfig, context), _list)
    found.sort(key=lambda entry: (entry.namespace, entry.cluster, entry.node))
    now = datetime.now(UTC)
    click.echo(_printed(found, output, now, where), nl=False)


def _printed(found: Sequence[Attested], output: str, now: datetime, namespace: str | None) -> str:
    match output:
        case "json":
            return to_json(_document(found, now)) + "\n"
        case "yaml":
            return to_yaml(_document(found, now))
        case "name":
            return "".join(f"{_RESOURCE}/{entry.name}\n" for entry in found)
        case _:
            return _table(found, now, namespace, wide=output == "wide") + "\n"


def _document(found: Sequence[Attested], now: datetime) -> JsonObject:
    left = outage_budget(found, now)
    entries: list[JsonValue] = [entry.to_json() for entry in found]
    return {"machines": entries, "survivesSeconds": int(left.total_seconds()) if left is not None else None}


def _table(found: Sequence[Attested], now: datetime, namespace: str | None, *, wide: bool) -> str:
    if not found:
        return "no machine is attested" + (f" in namespace {namespace}; -A looks in every one" if namespace else "")
    headings = ("NAMESPACE", "CLUSTER", "NODE", "MACHINE", "PROVIDER", "EXPIRES", "IN", "VERDICT", "RESETS")
    rows = [headings, *(_row(entry, now) for entry in found)]
    if wide:
        more = [("PROVIDER ID", "NAME"), *((entry.provider_id or "-", entry.name) for entry in found)]
        rows = [(*row, *cells) for row, cells in zip(rows, more, strict=True)]
    return "\n".join([format_table(rows), "", _outlook(found, now)])


def _row(entry: Attested, now: datetime) -> tuple[str, ...]:
    expires = rfc3339(entry.expires) if entry.expires else "-"
    left = _format_duration(entry.expires - now) if entry.expires else "-"
    words = (entry.namespace, entry.cluster, entry.node, entry.machine, entry.provider, expires, left, entry.verdict)
    return (*(word or "-" for word in words), str(entry.resets or "-"))


def _outlook(found: Sequence[Attested], now: datetime) -> str:
    left = outage_budget(found, now)
    first = min((entry for entry in found if entry.expires), key=lambda one: one.expires or now, default=None)
    machines = "1 machine" if len(found) == 1 else f"{len(found)} machines"
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
