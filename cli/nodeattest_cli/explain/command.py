"""``nodeattest explain``: reads or fetches the request and what it is evaluated by, prints the explanation."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from nodeattest_cli.connection import Connection, kubeconfig_option, namespace_option, run
from nodeattest_cli.documents import file_option, read_objects
from nodeattest_cli.errors import ExitCode, StateError, UserError
from nodeattest_cli.explain.bundle import read_bundle
from nodeattest_cli.explain.collect import Collected, parse_target
from nodeattest_cli.explain.eventlog import LoggedEvent, ShownLog
from nodeattest_cli.explain.facts import NO_PLATFORMS, Platforms
from nodeattest_cli.explain.model import CheckOutcome, CheckStep, Explanation
from nodeattest_cli.explain.record import record_lines, record_to_json
from nodeattest_cli.explain.remedies import remedy_of
from nodeattest_cli.explain.replay import explain_request, first_request_name
from nodeattest_cli.explain.target import fetch_target
from nodeattest_cli.machines.row import MachineRow
from nodeattest_cli.output import output_option, print_document, print_lines, to_json
from nodeattest_controller import configfile
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.objects import text
from nodeattest_controller.platforms import check_platforms
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, NotFound
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_serving.settings import SettingsError

__all__ = ["config_option", "explain", "explanation_lines", "read_platforms"]

_KIND: Final = "CertificateSigningRequest"
_SHORT: Final = 16
"""Digits of a digest that are shown: enough to find it by."""
_NAMES: Final = len("machine ")
_NO_REQUEST: Final = (
    "no request of it can be replayed: the workload cluster has none (decided ones are deleted after an hour) or was "
    "not reached; the lines above are what its record says"
)
_MARKS: Final = {CheckOutcome.PASSED: "pass", CheckOutcome.FAILED: "FAIL", CheckOutcome.NOT_CHECKED: "  ? "}

config_option = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The controller's configuration: its platforms name the trust bundles of clouds.",
)


@click.command()
@click.argument("target", required=False)
@file_option("The stored request, YAML or JSON; - is standard input.")
@click.option("--csr", "name", metavar="NAME", help="Read the request from the workload cluster instead.")
@click.option(
    "--with",
    "more",
    multiple=True,
    metavar="FILE",
    help="What it is evaluated by: NodeAttestationPolicy, Cluster, Machine, its KubeadmConfig and "
    "infrastructure machine, MachinePool, MachineAttestation, Node, first request, Secrets. As many files as you "
    "like.",
)
@config_option
@kubeconfig_option
@click.option("--context", help="Context of the kubeconfig.")
@namespace_option
@click.option("--cluster", help="Of this workload cluster only.")
@click.option(
    "--workload-kubeconfig",
    metavar="FILE",
    help="For TARGET: how to reach the workload cluster  [the Secret <cluster>-kubeconfig]",
)
@output_option("text", "json")
def explain(
    *,
    target: str | None,
    path: str | None,
    name: str | None,
    more: tuple[str, ...],
    config: Path | None,
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    cluster: str | None,
    workload_kubeconfig: str | None,
    output: str,
) -> int:
    """Evaluate a request again, check by check.

    TARGET is machine/NAME, node/NAME or csr/NAME: the request and its objects are read from the management cluster and
    the workload cluster. When the request is gone, the machine's record is shown. NAME of a machine may be its provider
    ID. TARGET may also be a file, for which no cluster is needed: of a request that was kept, or of nodeattest evidence
    export.

    A check that lacks an object is shown as not checked, and so is what only a platform's API can tell: none is asked.

    Exit code 0: nothing refuses the request. 1: a check does, or it was denied at the time and nothing that could be
    checked here says why.
    """
    if sum(one is not None for one in (target, path, name)) != 1:
        raise UserError("say which request: machine/NAME, node/NAME, csr/NAME or a file; or --csr NAME")
    platforms = read_platforms(config)
    named = parse_target(target) if target is not None else None
    if named is not None:
        if more:
            raise UserError("--with: is for a file or --csr; the objects of TARGET are read from the clusters")
        connection, access = Connection(kubeconfig, context), workload_kubeconfig
        found = fetch_target(named, connection, namespace=namespace, cluster=cluster, workload_kubeconfig=access)
        return _show_collected(found, platforms, output)
    path = path if path is not None else target
    documents = [document for file in more for document in read_objects(file)]
    if path is not None:
        given = read_objects(path)
        bundle = read_bundle(given)
        if bundle is not None:
            bundle.documents += documents
            return _show_collected(bundle, platforms, output)
        found = [document for document in given if text(document, "kind") == _KIND]
        if len(found) != 1:
            raise UserError(f"{path}: expected one {_KIND}, got {len(found)}")
        csr = found[0]
    else:
        csr, first = run(Connection(kubeconfig, context), lambda client: _fetch(client, name or ""))
        documents += [first] if first else []
    explanation = explain_request(csr, documents, platforms)
    if output == "json":
        print_document(to_json(explanation.to_json()))
    else:
        print_lines(*explanation_lines(explanation))
    return ExitCode.REFUSED if explanation.failed or explanation.unexplained else ExitCode.DONE


def _show_collected(found: Collected, platforms: Platforms, output: str) -> int:
    """Print the machine, then its request, check by check; returns the exit code."""
    row = found.row
    refused = row is not None and bool(row.refused)
    explanation = explain_request(found.csr, found.documents, platforms) if found.csr is not None else None
    if explanation is not None:
        refused = explanation.failed or explanation.unexplained
    if output == "json":
        left_out: list[JsonValue] = [*found.left_out]
        said: JsonObject = {"machine": row.to_json() if row is not None else None, "leftOut": left_out}
        said["remedies"] = {row.refused: remedy_of(row.refused)} if row is not None and row.refused else {}
        said["refusals"] = record_to_json(found.attestation.refusals) if found.attestation is not None else []
        print_document(to_json({**said, **(explanation.to_json() if explanation is not None else {})}))
    else:
        lines = [f"{name.ljust(_NAMES)}  {value}" for name, value in _machine_facts(row)]
        lines += [f"not read  {one}" for one in found.left_out]
        recorded = _recorded(found.attestation)
        lines += ["", *recorded] if recorded else []
        lines += [""] if lines else []
        print_lines(*lines, *(explanation_lines(explanation) if explanation is not None else (_NO_REQUEST,)))
    return ExitCode.REFUSED if refused else ExitCode.DONE


def _machine_facts(row: MachineRow | None) -> list[tuple[str, str]]:
    """Show a machine as its record and its condition have it."""
    if row is None:
        return []
    expires = f", certificate until {row.expires:%Y-%m-%dT%H:%M:%SZ}" if row.expires else ""
    facts = [
        ("machine", f"{row.machine} of {row.namespace}/{row.cluster} ({row.provider_id or 'no provider ID'})"),
        ("state", f"{row.state}{expires}"),
        ("because", row.message),
    ]
    if row.refused:
        facts += [("refused", f"{row.refused} (docs/denials.md)"), ("do", remedy_of(row.refused))]
    return [(name, value) for name, value in facts if value]


def _recorded(attestation: Attestation | None) -> list[str]:
    """Show the refused requests that the machine's record keeps."""
    if attestation is None:
        return []
    newest = attestation.newest_client
    return record_lines(attestation.refusals, newest.issued_at if newest is not None else None)


def read_platforms(config: Path | None) -> Platforms:
    """Read the controller's configuration for its platforms' trust bundles."""
    if config is None:
        return NO_PLATFORMS
    try:
        platforms = configfile.load(config, identity="explain").platforms
        check_platforms(platforms, str(config))
    except SettingsError as error:
        raise UserError(str(error)) from error
    return platforms


async def _fetch(client: ApiClient, name: str) -> tuple[JsonObject, JsonObject | None]:
    """Read a request, and the first request that it answers."""
    csr = await _get(client, name)
    if csr is None:
        raise StateError(f"{client.server} has no {_KIND} {name}")
    first = first_request_name(csr)
    return csr, await _get(client, first) if first else None


async def _get(client: ApiClient, name: str) -> JsonObject | None:
    try:
        found = await client.get(paths.object_path("certificates.k8s.io", "v1", "certificatesigningrequests", name))
    except NotFound:
        return None
    return {"kind": _KIND, **found}


def explanation_lines(explanation: Explanation) -> list[str]:
    """Show the facts, each check, and how it ends."""
    width = max(len(name) for name, _ in explanation.facts)
    lines = [f"{name.ljust(width)}  {value}" for name, value in explanation.facts]
    lines.append("")
    for step in explanation.steps:
        lines += _step(step)
    refusal = next((step for step in explanation.steps if step.outcome is CheckOutcome.FAILED), None)
    lines.append("")
    if refusal is not None:
        lines.append(f"refused: {refusal.reason or refusal.name}")
    elif explanation.unexplained:
        lines.append(
            "it was denied at the time, and nothing that could be checked here says why" + _missing(explanation)
        )
    elif _missing(explanation):
        lines.append("nothing refuses it so far" + _missing(explanation))
    else:
        lines.append("nothing refuses it")
    return [*lines, *(_log(explanation.log) if explanation.log else ())]


def _missing(explanation: Explanation) -> str:
    """Name what was not checked and why; empty when everything was."""
    unchecked = [step for step in explanation.steps if step.outcome is CheckOutcome.NOT_CHECKED]
    reasons = "; ".join(dict.fromkeys(step.got for step in unchecked))
    return f"; {len(unchecked)} could not be checked ({reasons})" if unchecked else ""


def _log(log: ShownLog) -> list[str]:
    """Show the event log; what is not verified is the node's word, which nothing covers."""
    rows = [("#", "PCR", "TYPE", log.bank.upper(), "DATA", "SAYS")]
    rows += [_event(event) for event in log.events]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    title = "event log, as the node reports it; data is verified where the quoted register was extended with its digest"
    return ["", title, *table]


def _event(event: LoggedEvent) -> tuple[str, ...]:
    checked = "verified" if event.verified else "unverified"
    pcr = "-" if event.pcr is None else str(event.pcr)
    return str(event.index), pcr, event.kind, event.digest[:_SHORT] or "-", checked, event.says


def _step(step: CheckStep) -> list[str]:
    lines = [f"{_MARKS[step.outcome]}  {step.name}  [{step.section}]"]
    match step.outcome:
        case CheckOutcome.PASSED:
            pass
        case CheckOutcome.FAILED:
            lines += [f"      expected  {step.expected}", f"      got       {step.got}"]
        case CheckOutcome.NOT_CHECKED:
            lines.append(f"      {step.got}")
    return lines
