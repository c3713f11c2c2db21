"""``nodeattest explain`` and ``nodeattest evidence export``: read or fetch a request, print or keep the explanation.

Remedies are those of docs/denials.md, which ships with the command; a reason that the page does not have, as another
version's, has none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

import click

from nodeattest_authenticator.state.storage import write_atomically
from nodeattest_cli.connection import Connection
from nodeattest_cli.documents import MAX_FILE, read_objects
from nodeattest_cli.explain.bundle import make_bundle, read_bundle
from nodeattest_cli.explain.collect import Collected, fetch, parse_target
from nodeattest_cli.explain.replay import CheckOutcome, Explanation, explain_request
from nodeattest_cli.fleet import MachineRow
from nodeattest_cli.options import cluster_option, connected, namespace_option, output_option, workload_option
from nodeattest_cli.output import (
    ExitCode,
    StateError,
    UserError,
    format_fields,
    print_document,
    print_exactly,
    print_lines,
    to_json,
)
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.attestation_status import Requester, render_refusals
from nodeattest_parsing.objects import rfc3339, text
from nodeattest_parsing.values import JsonObject

_MODE: Final = 0o600
"""No secret is in a bundle, but what a fleet is made of."""
_NO_REQUEST: Final = (
    "no request of it can be replayed: the workload cluster has none (decided ones are deleted after an hour) or was "
    "not reached; the lines above are what its record says"
)
_MARKS: Final = {CheckOutcome.PASSED: "pass", CheckOutcome.FAILED: "FAIL", CheckOutcome.NOT_CHECKED: "  ? "}
_WHO: Final = {
    Requester.NODE: "by the machine's own node",
    Requester.BOOTSTRAP: "by a bootstrap token, whoever held it",
    Requester.OTHER: "by somebody else",
}
_PAGE: Final = "denials.md"
_CELLS: Final = " | "
_AGENT_REASONS: Final = "\n## On the node\n"
"""The last section's reasons are the agent's own, some of the same names."""
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")


@click.command()
@click.argument("target")
@output_option("text", "json")
@connected
@namespace_option
@cluster_option
@workload_option
def explain(
    *,
    connection: Connection,
    target: str,
    namespace: str | None,
    cluster: str | None,
    workload: Connection | None,
    output: str,
) -> int:
    """Say why a request or a machine is refused or waits, by the controller's own checks.

    TARGET is machine/NAME, node/NAME or csr/NAME: the request and its objects are read from the management cluster and
    the workload cluster. When the request is gone, the machine's record is shown. NAME of a machine may be its provider
    ID. TARGET may also be a file of nodeattest evidence export, or - for standard input: then no cluster is needed.

    A check that lacks an object is shown as not checked. So is what needs a platform's API or a secret of the
    controller: none is used here.

    Exit code 0: nothing refuses the request. 1: a check does, or it was denied at the time and nothing that could be
    checked here says why.
    """
    named = parse_target(target)
    if named is not None:
        return _show(fetch(named, connection, namespace=namespace, cluster=cluster, workload=workload), output)
    bundle = read_bundle(read_objects(target))
    if bundle is None:
        how = "write one with nodeattest evidence export csr/NAME -o FILE"
        raise UserError(f"{target}: expected a file of nodeattest evidence export, got other objects; {how}")
    return _show(bundle, output)


@click.command()
@click.argument("target")
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write; - is standard output.")
@connected
@namespace_option
@cluster_option
@workload_option
def export(
    *,
    connection: Connection,
    target: str,
    output: str,
    namespace: str | None,
    cluster: str | None,
    workload: Connection | None,
) -> None:
    """Write what explains a machine into one file without secrets.

    TARGET is machine/NAME, node/NAME or csr/NAME, as for explain, and the same is read. nodeattest explain FILE shows
    the same without any cluster.

    The file has the request with its evidence, the machine's record and those of the other machines of its cluster,
    policies, and the ids of bootstrap tokens without their secret parts. It has no kubeconfig, no key and no bootstrap
    data.
    """
    named = parse_target(target)
    if named is None:
        raise UserError(f"say what to export: machine/NAME, node/NAME or csr/NAME, got {target}")
    found = fetch(named, connection, namespace=namespace, cluster=cluster, workload=workload)
    written = to_json(make_bundle(found, datetime.now(UTC).replace(microsecond=0))) + "\n"
    if len(written.encode()) > MAX_FILE:
        raise StateError(f"the bundle has more than {MAX_FILE} bytes, which explain reads: the cluster is too large")
    if output == "-":
        print_exactly(written)
    else:
        write_atomically(os.fspath(output), written.encode(), mode=_MODE)
    print_lines(*(f"not read  {said}" for said in found.left_out), err=True)


def _show(found: Collected, output: str) -> int:
    """Print the machine, then its request, check by check; returns the exit code."""
    row, attestation = found.row, found.attestation
    refused = row is not None and bool(row.refused)
    explanation = explain_request(found.csr, found.documents) if found.csr is not None else None
    if explanation is not None:
        refused = explanation.failed or explanation.unexplained
    if output == "json":
        refusals = render_refusals(attestation.refusals) if attestation is not None else ()
        document: JsonObject = {
            "machine": {**row.to_json(), "remedy": remedy_of(row.refused)} if row is not None else None,
            "leftOut": [*found.left_out],
            "refusals": [{**entry, "remedy": remedy_of(text(entry, "reason"))} for entry in refusals],
        }
        print_document(to_json({**document, **(explanation.to_json() if explanation is not None else {})}))
    else:
        fields = [*_machine_facts(row), *(("not read", said) for said in found.left_out)]
        recorded = _recorded(attestation)
        lines = [*(format_fields(fields, indent=0) if fields else ()), *([""] if recorded else ()), *recorded]
        shown = explanation_lines(explanation) if explanation is not None else [_NO_REQUEST]
        print_lines(*lines, *([""] if lines else ()), *shown)
    return ExitCode.REFUSED if refused else ExitCode.DONE


def _machine_facts(row: MachineRow | None) -> Iterator[tuple[str, str]]:
    """Show a machine as its record and its condition have it."""
    if row is None:
        return
    expires = f", certificate until {rfc3339(row.expires)}" if row.expires else ""
    yield "machine", f"{row.machine} of {row.namespace}/{row.cluster} ({row.provider_id or 'no provider ID'})"
    yield "state", f"{row.state}{expires}"
    if row.message:
        yield "because", row.message
    if row.refused:
        yield "refused", f"{row.refused} (docs/denials.md)"
        yield "do", remedy_of(row.refused)


def _recorded(attestation: Attestation | None) -> list[str]:
    """Show the refused requests that the machine's record keeps; those before its newest certificate are marked."""
    if attestation is None or not attestation.refusals:
        return []
    newest = attestation.newest_client
    lines = ["refused requests, as its MachineAttestation has them:"]
    for one in attestation.refusals:
        past = ", before its newest certificate" if newest is not None and one.time < newest.issued_at else ""
        lines.append(f"  {one.reason}: {_WHO[one.requester]}, last at {rfc3339(one.time)}{past}")
        details = [("CSR", one.request), ("found", one.message), ("do", remedy_of(one.reason))]
        lines += format_fields([(name, value) for name, value in details if value], indent=6)
    return lines


def explanation_lines(explanation: Explanation) -> list[str]:
    """Show the facts, each check, and how it ends."""
    lines = [*format_fields(explanation.facts, indent=0), ""]
    for step in explanation.steps:
        lines.append(f"{_MARKS[step.outcome]}  {step.name}  [{step.section}]")
        match step.outcome:
            case CheckOutcome.PASSED:
                pass
            case CheckOutcome.FAILED:
                details = [("expected", step.expected), ("got", step.got), ("do", step.remedy)]
                lines += format_fields(details, indent=6)
            case CheckOutcome.NOT_CHECKED:
                lines.append(f"      {step.got}")
    return [*lines, "", _verdict(explanation)]


def _verdict(explanation: Explanation) -> str:
    """Say how it ends, and what was not checked and why."""
    refusal = next((step for step in explanation.steps if step.outcome is CheckOutcome.FAILED), None)
    if refusal is not None:
        return f"refused: {refusal.reason or refusal.name}"
    unchecked = [step for step in explanation.steps if step.outcome is CheckOutcome.NOT_CHECKED]
    reasons = "; ".join(dict.fromkeys(step.got for step in unchecked))
    missing = f"; {len(unchecked)} could not be checked ({reasons})" if unchecked else ""
    if explanation.unexplained:
        return f"it was denied at the time, and nothing that could be checked here says why{missing}"
    return f"nothing refuses it so far{missing}" if missing else "nothing refuses it"


def remedy_of(reason: str) -> str:
    """Return what docs/denials.md says to do, as one line without markup; empty for a reason that it does not have."""
    return _remedies().get(reason, "")


@cache
def _remedies() -> dict[str, str]:
    packaged = resources.files("nodeattest_cli") / _PAGE
    page = packaged if packaged.is_file() else Path(__file__).parents[3] / "docs" / _PAGE
    lines = page.read_text(encoding="utf-8").partition(_AGENT_REASONS)[0].splitlines()
    rows = [line.strip("| ").split(_CELLS) for line in lines if line.startswith("| `")]
    return {cells[0].strip("`"): _plain(cells[-1]) for cells in rows}


def _plain(markdown: str) -> str:
    """Take links and emphasis out of a cell."""
    return _LINK.sub(r"\1", markdown).replace("**", "")
