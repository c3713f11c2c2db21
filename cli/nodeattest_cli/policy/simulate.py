"""``nodeattest policy simulate``: what a policy that is not applied yet would refuse at the next renewals.

Reads the management cluster and changes nothing; no platform is asked. Each machine's next renewal is replayed as
``explain`` replays a request: the controller's own checks, as far as a policy decides them, and each provider's checks
of what is on record (``RecordedChecks``). Who passes does so if it proves what it proved last; what the record does not
hold is unknown, and is no pass. Out of scope: first joins, of which nothing is on record.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import click

from nodeattest_cli.connection import Connection, run
from nodeattest_cli.documents import read_objects
from nodeattest_cli.explain.facts import DocumentFacts, NotChecked
from nodeattest_cli.fleet import ATTESTATION, POLICY, list_objects, of_kind, read_fleet
from nodeattest_cli.options import (
    cluster_option,
    connected,
    files_option,
    installed_option,
    namespace_option,
    output_option,
)
from nodeattest_cli.output import ExitCode, StateError, UserError, format_table, print_document, print_lines, to_json
from nodeattest_cli.policy.check import problems
from nodeattest_controller.controllers.csr.checks import CHECKS
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.attestation_object import parse_attestation
from nodeattest_controller.model.csr_request import Round
from nodeattest_controller.model.machine_view import CLUSTER_KINDS, MACHINE_KINDS, machine_views
from nodeattest_controller.model.policy import selects
from nodeattest_controller.runtime.references import path_of_reference
from nodeattest_controller.verification.facts import CSRFacts
from nodeattest_controller.verification.verifiers import offline_signer
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Forbidden, NotFound
from nodeattest_parsing.objects import items, rfc3339, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_providers.identifiers import Purpose, SignerName
from nodeattest_providers.node_interface import Evidence, NodeCsr
from nodeattest_providers.verifier_interface import NodeRequest

_PASSES, _REFUSED, _UNKNOWN = "passes", "refused", "unknown"
_ORDER: Final = {_REFUSED: 0, _UNKNOWN: 1, _PASSES: 2}
_COLUMNS: Final = ("cluster", "node", "machine", "provider", "outcome", "reason", "message")
_OF_POLICY: Final = frozenset(
    {"one policy", "attestor authorized", "attested serving request", "the Machine's node name"}
)
"""The checks that a policy decides, for a machine that is on record."""
_RESOURCES: Final = (
    *("machineattestations", "nodeattestationpolicies", "clusters", "clusterrecords"),
    *("machines", "machinepools", "machinerecords"),
)


@click.command()
@files_option("The policies that are not applied yet; - is standard input.")
@installed_option
@output_option("table", "json")
@connected
@namespace_option
@cluster_option
def simulate(
    *,
    connection: Connection,
    paths: tuple[str, ...],
    installed: tuple[str, ...],
    namespace: str | None,
    cluster: str | None,
    output: str,
) -> int:
    """Show which machines a policy would refuse at their next renewal, before it is applied.

    Holds what the MachineAttestations of a namespace record against the policies of FILE, beside the others that are
    there, by the controller's own rules. Renewals only: of a machine without a valid certificate nothing is on record.
    What no record holds (a platform's answer, event logs, certificates of endorsement keys) is "unknown", and so is not
    counted as passing. Machines are taken to prove what they proved last.

    Exit code 0: no renewal would be refused, though some may be unknown. 1: some would be, or the policy is invalid.
    """
    changed = [policy for path in paths for policy in of_kind(read_objects(path), POLICY)]
    if not changed:
        raise UserError(f"{', '.join(paths)}: expected a {POLICY}, got other objects only")
    for policy in changed:
        for problem in problems(policy, installed):
            name = text(policy, "metadata", "name") or "(no name)"
            raise StateError(f"{name}: {problem}; under an invalid policy no certificate is renewed")
    namespaces = {text(policy, "metadata", "namespace") for policy in changed} | {namespace or ""}
    if len(namespaces - {""}) > 1:
        raise UserError(f"expected policies of one namespace, got {', '.join(sorted(namespaces - {''}))}")
    where = connection.namespace(max(namespaces))
    documents = run(connection, lambda client: _read(client, where, cluster))
    report = asyncio.run(_simulate(documents, changed, cluster))
    if not report["clusters"]:
        raise StateError(f"the policy selects no Cluster in namespace {where}, and selected none before")
    if output == "json":
        print_document(to_json(report))
    else:
        print_lines(*_lines(report))
    return ExitCode.REFUSED if report[_REFUSED] else ExitCode.DONE


async def _read(client: ApiClient, namespace: str, cluster: str | None) -> list[JsonObject]:
    """Read a namespace, and infrastructure objects as far as this user may read them."""
    documents = await read_fleet(client, namespace, *_RESOURCES, cluster=cluster)
    views = [view for one in of_kind(documents, *MACHINE_KINDS) for view in machine_views(one)]
    for example in {(one.group, one.version, one.kind): one for view in views if (one := view.infra)}.values():
        try:
            path = await path_of_reference(client, example, namespace)
            async for item in list_objects(client, path.rpartition("/")[0]):
                documents.append({**item, "kind": example.kind})
        except (Forbidden, NotFound):
            continue  # what needs them is unknown
    return documents


async def _simulate(documents: Sequence[JsonObject], changed: Sequence[JsonObject], only: str | None) -> JsonObject:
    """Evaluate every machine with a valid certificate, of the clusters that a changed policy selects or selected."""
    now, in_force = datetime.now(UTC), of_kind(documents, POLICY)
    names = {text(policy, "metadata", "name") for policy in changed}
    replaced = [policy for policy in in_force if text(policy, "metadata", "name") in names]
    rest = [one for one in documents if one not in replaced and text(one, "kind") not in CLUSTER_KINDS]
    records = [parse_attestation(one) for one in of_kind(documents, ATTESTATION)]
    rows, clusters = list[JsonObject](), list[JsonObject]()
    for cluster in of_kind(documents, *CLUSTER_KINDS):
        name = text(cluster, "metadata", "name")
        if only not in {None, name} or not any(selects(policy, cluster) for policy in (*changed, *replaced)):
            continue
        source = DocumentFacts([cluster, *changed, *rest], now)
        clusters.append({"cluster": name, "policy": _policy_name(source)})
        for record in records:
            newest = record.live(now) if record.cluster_name == name else None
            if newest is not None:
                row: JsonObject = {
                    "cluster": name,
                    "attestation": record.name,
                    "node": record.node_name,
                    "provider": record.provider,
                    "expires": rfc3339(newest.not_after),
                }
                rows.append({**row, **await _forecast(source, record, now)})
    rows.sort(key=lambda row: (_ORDER[text(row, "outcome")], text(row, "cluster"), text(row, "node")))
    counts: JsonObject = {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in _ORDER}
    return {"machines": [*rows], "total": len(rows), **counts, "clusters": [*clusters]}


def _policy_name(source: DocumentFacts) -> str | None:
    try:
        return source.policy().name
    except (Denied, Unavailable):
        return None


class _RenewalFacts(CSRFacts):
    """The facts about a renewal that is expected, and that proves what the last one proved."""

    async def round(self) -> Round:
        """Return the last round: there is no evidence to read."""
        return Round.FINAL


async def _forecast(source: DocumentFacts, record: Attestation, now: datetime) -> JsonObject:
    """Say what the machine's next renewals would meet, of its client and of its serving certificate."""
    machine = next(iter(source.inventory.members(source.key, record.provider_id)), None)
    outcome, reason, rule, message = _PASSES, "", "", ""
    try:
        for purpose in Purpose:
            if record.live(now, purpose) is not None:
                await _replay(_RenewalFacts(source, _next_renewal(record, purpose, now)), source, record)
    except Denied as denied:
        rule = denied.checks[-1].name if denied.checks else denied.expected
        message = f"expected {denied.expected}, got {denied.got}; {denied.remedy}"
        outcome, reason = _REFUSED, denied.reason
    except Unavailable as unavailable:
        outcome, reason, rule, message = _REFUSED, unavailable.reason, "one policy", unavailable.detail
    except NotChecked as unchecked:
        outcome, rule, message = _UNKNOWN, str(unchecked), str(unchecked)
    name = machine.name if machine is not None else ""
    return {"machine": name, "outcome": outcome, "reason": reason, "rule": rule, "message": message}


async def _replay(facts: _RenewalFacts, source: DocumentFacts, record: Attestation) -> None:
    """Run what a policy decides; raises ``Denied``, ``Unavailable``, or ``NotChecked`` for what no record holds."""
    provider = facts.request.evidence.provider
    await facts.policy()
    signer = offline_signer(provider)
    for check in CHECKS:
        needs_signer = check.name != "attestor authorized"
        if check.name in _OF_POLICY and (signer is not None or not needs_signer) and await check.applies(facts):
            await check.run(facts)
    if signer is None:
        raise NotChecked(f"the provider {provider} is not installed here")
    unknown = signer.check_recorded(await source.provider_facts(facts), record.boot)
    if unknown:
        raise NotChecked("; ".join(unknown))


def _next_renewal(record: Attestation, purpose: Purpose, now: datetime) -> NodeRequest:
    """Make the renewal that a machine on record is expected to file, without keys and evidence: none is read."""
    return NodeRequest(
        name="",
        uid="",
        created=now,
        signer_name=SignerName(""),
        purpose=purpose,
        username=f"system:node:{record.node_name}",
        groups=frozenset({"system:nodes"}),
        expiration_seconds=None,
        request=b"",
        csr=NodeCsr(der=b"", node_name=record.node_name, provider_id=record.provider_id, spki=b""),
        evidence=Evidence(record.provider, 1, {}),
    )


def _lines(report: JsonObject) -> list[str]:
    """Make the table of the machines that do not pass, and the summary."""
    machines = items(report, "machines")
    shown = [row for row in machines if row["outcome"] != _PASSES]
    rows = [[text(row, name) or "-" for name in _COLUMNS] for row in shown]
    lines = [*format_table([[name.upper() for name in _COLUMNS], *rows]), ""] if rows else []
    total = "1 machine" if len(machines) == 1 else f"{len(machines)} machines"
    lines.append(f"{report[_REFUSED]} of {total} would be refused at their next renewal; {report[_UNKNOWN]} unknown")
    reasons = Counter((text(row, "outcome"), text(row, "reason"), text(row, "rule")) for row in shown)
    for (outcome, *why), count in sorted(reasons.items(), key=lambda each: (_ORDER[each[0][0]], -each[1])):
        lines.append(f"  {count} {outcome}: {': '.join(filter(None, why))}")
    return lines
