"""``nodeattest policy simulate``: what a policy that is not applied yet would refuse at the next renewals.

Promises: reads the management cluster and changes nothing; no platform is asked. What cannot be known is said for each
machine, and is no pass.
Leaves to others: reading (``fleet``), the rules (``evaluate``), the sums (``report``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import click

from nodeattest_cli.connection import Connection, kubeconfig_option, namespace_option, run
from nodeattest_cli.documents import read_objects
from nodeattest_cli.errors import ExitCode, StateError, UserError
from nodeattest_cli.management import no_cluster
from nodeattest_cli.output import format_table, output_option, print_document, print_lines, to_json, to_yaml
from nodeattest_cli.policies import problems
from nodeattest_cli.policy_simulate.evaluate import Outcome
from nodeattest_cli.policy_simulate.fleet import read_fleet, read_infra
from nodeattest_cli.policy_simulate.report import Row, Scope, SimulationReport, simulate
from nodeattest_controller.model.objects import mapping, text
from nodeattest_controller.verification.policy_validation import flaw_of
from nodeattest_kube.client import ApiClient
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.registry import BUILT_IN

__all__ = ["simulate_policy"]

_KIND: Final = "NodeAttestationPolicy"
_HEADINGS: Final = ("CLUSTER", "NODE", "MACHINE", "PROVIDER", "RENEWAL", "REASON", "MESSAGE")
_WIDE: Final = ("POLICY", "IN FORCE", "ALSO NOW")
_INVALID: Final = "under an invalid policy no certificate is renewed"
_MESSAGE: Final = 240
"""Characters of a message in a table; -o wide has all."""


@click.command("simulate")
@click.option(
    "-f",
    "--file",
    "paths",
    multiple=True,
    metavar="FILE",
    help="The policies that are not applied yet; - is standard input.",
)
@click.option(
    "--baseline",
    metavar="FILE",
    help="PCR values to come, as policy learn prints them: replaces pcrs of the policies, of -f or in force.",
)
@click.option(
    "--installed", multiple=True, metavar="NAME", help="A provider that the controller has and this machine has not."
)
@kubeconfig_option
@click.option("--context", help="Context of the kubeconfig.")
@namespace_option
@click.option("--cluster", help="One workload cluster only.")
@click.option("-l", "--selector", help="Labels of the Machines, such as pool=gpu,tier!=dev.")
@click.option("--no-headers", is_flag=True, help="Print no headings and no summary.")
@output_option("table", "wide", "json", "yaml", "name")
def simulate_policy(
    *,
    paths: tuple[str, ...],
    baseline: str | None,
    installed: tuple[str, ...],
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    cluster: str | None,
    selector: str | None,
    no_headers: bool,
    output: str,
) -> int:
    """Show which machines a policy would refuse at their next renewal, before it is applied.

    Holds what the MachineAttestations of a namespace record against the policies of FILE, beside the others that are
    there, by the controller's own rules. Renewals only: of a machine without a valid certificate nothing is on record.
    What no record holds (a platform's answer, event logs, certificates of endorsement keys) is "unknown", and so is not
    counted as passing. Machines are taken to prove what they proved last.

    Exit code 0: no renewal would be refused, though some may be unknown. 1: some would be, or the policy is invalid.
    """
    if not paths and baseline is None:
        raise UserError("expected a policy (-f), PCR values (--baseline), or both")
    given = _policies(paths, installed) if paths else []
    pcrs = _baseline(baseline) if baseline is not None else {}
    connection = Connection(kubeconfig, context)
    where = _namespace(connection, namespace, given)
    report = run(connection, lambda client: _simulate(client, where, given, pcrs, cluster=cluster, selector=selector))
    if not report.clusters:
        raise StateError(f"the policy selects no Cluster in namespace {where}, and selected none before")
    _print(report, output, headers=not no_headers)
    return ExitCode.REFUSED if report.count(Outcome.REFUSED) else ExitCode.DONE


async def _simulate(
    client: ApiClient,
    namespace: str,
    given: Sequence[JsonObject],
    pcrs: Mapping[str, JsonObject],
    *,
    cluster: str | None,
    selector: str | None,
) -> SimulationReport:
    fleet = await read_fleet(client, namespace, selector)
    if cluster is not None and cluster not in fleet.clusters:
        raise no_cluster(cluster, namespace)
    changed = given or [one for one in fleet.policies.values() if _has_sections(one, pcrs)]
    by_name = {text(one, "metadata", "name"): _with_pcrs(one, pcrs) for one in changed}
    for name, policy in by_name.items():
        flaw = flaw_of(policy, sections=True)
        if flaw is not None:
            raise StateError(f"{name}: expected {flaw.expected}, got {flaw.got}; {flaw.remedy}; {_INVALID}")
    scope = Scope(changed=by_name, cluster=cluster, only_known=selector is not None)
    infra = await read_infra(client, [*fleet.machines.values(), *fleet.unconfirmed.values()], namespace)
    return simulate(fleet, scope, infra, datetime.now(UTC))


def _policies(paths: Sequence[str], installed: Sequence[str]) -> list[JsonObject]:
    """Read the policies of the files; raises ``UserError``, or ``StateError`` where one would be invalid."""
    found = [one for path in paths for one in read_objects(path) if text(one, "kind") == _KIND]
    if not found:
        raise UserError(f"{', '.join(paths)}: expected a {_KIND}, got other objects only")
    for one in found:
        for problem in problems(one, installed):
            name = text(one, "metadata", "name") or "(no name)"
            raise StateError(f"{name}: {problem}; {_INVALID}; nodeattest policy check says all that is wrong")
    return found


def _baseline(path: str) -> dict[str, JsonObject]:
    """Read ``spec.<section>.pcrs`` of a file, as ``policy learn`` prints it."""
    documents = read_objects(path)
    found = {name: mapping(one, "spec", name, "pcrs") for one in documents for name in BUILT_IN}
    found = {name: pcrs for name, pcrs in found.items() if pcrs}
    if not found:
        raise UserError(f"{path}: expected spec.tpm.pcrs or spec.gcp.pcrs, as nodeattest policy learn prints it")
    return found


def _with_pcrs(policy: JsonObject, pcrs: Mapping[str, JsonObject]) -> JsonObject:
    """Replace the registers' values of a policy."""
    spec = {**mapping(policy, "spec")}
    for name, values in pcrs.items():
        spec[name] = {**mapping(spec, name), "pcrs": values}
    return {**policy, "spec": spec}


def _has_sections(policy: JsonObject, pcrs: Mapping[str, JsonObject]) -> bool:
    spec = mapping(policy, "spec")
    listed = spec.get("authorizedAttestors")
    return any(name in spec or (isinstance(listed, list) and name in listed) for name in pcrs)


def _namespace(connection: Connection, given: str | None, policies: Sequence[JsonObject]) -> str:
    """Return the namespace that is given, else the policies', else the context's."""
    named = {text(one, "metadata", "namespace") for one in policies} - {""}
    if len(named | ({given} if given else set[str]())) > 1:
        raise UserError(
            f"expected policies of one namespace, got {', '.join(sorted(named))}; -n is {given or 'not set'}"
        )
    return connection.namespace(given or next(iter(named), None))


def _print(report: SimulationReport, output: str, *, headers: bool) -> None:
    match output:
        case "json":
            print_document(to_json(report.to_json()))
        case "yaml":
            print_document(to_yaml(report.to_json()))
        case "name":
            refused = (row for row in report.rows if row.verdict.outcome is Outcome.REFUSED)
            print_lines(*(f"machineattestation.attestation.cluster.x-k8s.io/{row.attestation}" for row in refused))
        case _:
            print_lines(*_table(report, wide=output == "wide", headers=headers))


def _table(report: SimulationReport, *, wide: bool, headers: bool) -> list[str]:
    shown = [row for row in report.rows if wide or row.verdict.outcome is not Outcome.PASSES]
    rows = [_cells(row, wide=wide) for row in shown]
    if not headers:
        return format_table(rows) if rows else []
    table = [*format_table([(*_HEADINGS, *(_WIDE if wide else ())), *rows]), ""] if rows else []
    return [*table, *_summary(report)]


def _cells(row: Row, *, wide: bool) -> tuple[str, ...]:
    verdict = row.verdict
    message = verdict.message if wide or len(verdict.message) <= _MESSAGE else f"{verdict.message[:_MESSAGE]}…"
    words = (row.cluster, row.node, row.machine, row.provider, str(verdict.outcome), verdict.reason, message)
    more = (row.policy, row.policy_now, "yes" if row.refused_now else "no") if wide else ()
    return tuple(word or "-" for word in (*words, *more))


def _summary(report: SimulationReport) -> list[str]:
    """Say how many would be refused, why, and what is not known or not simulated."""
    refused, unknown = report.count(Outcome.REFUSED), report.count(Outcome.UNKNOWN)
    already = sum(row.refused_now for row in report.rows if row.verdict.outcome is Outcome.REFUSED)
    total = "1 machine" if len(report.rows) == 1 else f"{len(report.rows)} machines"
    lines = [f"{refused} of {total} would be refused at their next renewal; {unknown} unknown"]
    lines[0] += f"; {already} are refused by the policy in force, too" if already else ""
    for outcome, reason, rule, count in report.reasons:
        lines.append(f"  {count} {outcome}: {': '.join(word for word in (reason, rule) if word)}")
    lines += [str(change) for change in report.changes]
    if report.without_certificate:
        lines.append(
            f"{report.without_certificate} without a valid certificate: only renewals are simulated, no first joins"
        )
    return lines
