"""``nodeattest endorsement-keys import``: register the keys of a file, on host objects and in a policy.

Promises: a machine is only what its row names; nothing is written before it was shown and agreed to; a second run of
the same file changes nothing. ``-o yaml`` prints manifests instead and contacts no server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from nodeattest_cli.connection import Connection, kubeconfig_option, run
from nodeattest_cli.documents import read_text
from nodeattest_cli.endorsement_keys.changes import host_manifest, policy_manifest
from nodeattest_cli.endorsement_keys.key_file import HostRef, KeyRow, parse_key_file
from nodeattest_cli.endorsement_keys.write import KeyChange, PolicyRef, plan_changes, write_change
from nodeattest_cli.errors import ExitCode, UserError
from nodeattest_cli.lazy import LazyGroup
from nodeattest_cli.machines.reset import ask_confirmation
from nodeattest_cli.output import output_option, print_document, print_lines, to_yaml
from nodeattest_kube.client import ApiClient

__all__ = ["endorsement_keys", "import_keys"]

_COMMANDS: Final = {
    "import": (
        "nodeattest_cli.endorsement_keys.command:import_keys",
        "Register the endorsement keys of a CSV or JSON file.",
    ),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def endorsement_keys() -> None:
    """Register the endorsement keys of machines' TPMs."""


@click.command("import")
@click.argument("path", metavar="FILE")
@click.option("--policy", "policy_name", metavar="NAME", help="The policy that takes rows with a providerID.")
@click.option("--overwrite", is_flag=True, help="Replace another key of a machine, after its TPM was replaced.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Print what would be changed, and change nothing.")
@output_option("text", "yaml")
@kubeconfig_option
@click.option("--context", help="Context of the kubeconfig.")
@click.option("-n", "--namespace", help="Namespace of the policy  [the context's; default]")
def import_keys(
    *,
    path: str,
    policy_name: str | None,
    overwrite: bool,
    yes: bool,
    dry_run: bool,
    output: str,
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
) -> int:
    """Register the endorsement keys of FILE, which is CSV or JSON; - is standard input.

    Each row has a host (Kind/namespace/name) or a providerID, and an endorsementKey: certificate, public key or
    fingerprint. A host object gets the annotation cluster-x-k8s-io/tpm-endorsement-key, a MachineRecord its
    spec.endorsementKeyHash, and a provider ID an entry of the policy's spec.tpm.endorsementKeys. With -o yaml these
    are printed as manifests for kubectl apply --server-side, and no server is contacted.
    """
    rows = _read(path)
    connection = Connection(kubeconfig, context)
    policy = _policy(rows, policy_name, connection, namespace)
    if output == "yaml":
        _print_manifests(rows, policy)
        return ExitCode.DONE
    changes = run(connection, lambda client: plan_changes(client, rows, policy, overwrite=overwrite))
    needed = [change for change in changes if change.is_needed]
    print_lines(*(change.summary for change in needed))
    if not needed:
        print_lines(f"nothing to change: all {len(rows)} keys are registered")
    if dry_run or not needed:
        return ExitCode.DONE
    if not yes and not ask_confirmation(f"Write {_objects(len(needed))}?"):
        print_lines("nothing was changed")
        return ExitCode.REFUSED
    written = run(connection, lambda client: _write(client, needed))
    print_lines(f"wrote {_objects(written)}")
    return ExitCode.DONE


def _read(path: str) -> Sequence[KeyRow]:
    try:
        return parse_key_file(read_text(path))
    except UserError as error:
        raise UserError(f"{'standard input' if path == '-' else path}: {error}") from None


def _policy(
    rows: Sequence[KeyRow], name: str | None, connection: Connection, namespace: str | None
) -> PolicyRef | None:
    first = next((row for row in rows if not isinstance(row.machine, HostRef)), None)
    if first is not None and name is None:
        raise UserError(f"--policy: {first.position} has a providerID, so name the policy that takes its key")
    if first is None and name is not None:
        raise UserError("--policy: no row has a providerID, so no policy takes a key")
    return None if name is None else PolicyRef(namespace=connection.namespace(namespace), name=name)


def _print_manifests(rows: Sequence[KeyRow], policy: PolicyRef | None) -> None:
    documents = [host_manifest(row, row.machine) for row in rows if isinstance(row.machine, HostRef)]
    if policy is not None:
        others = [row for row in rows if not isinstance(row.machine, HostRef)]
        documents.append(policy_manifest(others, policy.namespace, policy.name))
    for number, document in enumerate(documents):
        if number:
            print_lines("---")
        print_document(to_yaml(document))


async def _write(client: ApiClient, changes: Sequence[KeyChange]) -> int:
    return sum([await write_change(client, change) for change in changes])


def _objects(count: int) -> str:
    return "1 object" if count == 1 else f"{count} objects"
