"""``nodeattest endorsement-keys import``: register the keys of a file, on host objects and in a policy.

Nothing is written before every row was checked against what the server has, shown and agreed to. Each write is a
compare-and-swap on the object that was checked. A second run of the same file changes nothing. Another key of a machine
is replaced only with ``--overwrite``; a key that another machine has is never given to a second one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

import click

from nodeattest_cli.connection import Connection, run
from nodeattest_cli.documents import read_text
from nodeattest_cli.errors import ExitCode, StateError, UserError
from nodeattest_cli.fleet import OWN, POLICY, list_objects, list_served
from nodeattest_cli.key_file import HOST_KINDS, MAX_ROWS, HostRef, KeyRow, parse_key_file
from nodeattest_cli.options import connected
from nodeattest_cli.output import is_confirmed, print_lines
from nodeattest_controller.model.machine_record import MACHINE_RECORD
from nodeattest_controller.model.policy import parse_attestation_policy
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Conflict, NotFound
from nodeattest_parsing.objects import items, key_of, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.tpm.config import parse_policy

_POLICIES: Final = "nodeattestationpolicies"
_OVERWRITE: Final = "compare both with the machine, and set --overwrite if the file is right"


class _Change(NamedTuple):
    """What an import does to one object."""

    summary: str
    path: str
    patch: JsonObject
    """A merge patch with the version of the object that was checked."""


@click.command("import")
@click.argument("path", metavar="FILE")
@click.option("--policy", "policy_name", metavar="NAME", help="The policy that takes rows with a providerID.")
@click.option("--overwrite", is_flag=True, help="Replace another key of a machine, after its TPM was replaced.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Print what would be changed, and change nothing.")
@connected
@click.option("-n", "--namespace", help="Namespace of the policy  [the context's; default]")
def import_keys(
    *,
    connection: Connection,
    path: str,
    policy_name: str | None,
    overwrite: bool,
    yes: bool,
    dry_run: bool,
    namespace: str | None,
) -> int:
    """Register the endorsement keys of FILE, which is CSV; - is standard input.

    Each row has a host (Kind/namespace/name) or a providerID, and an endorsementKey: certificate, public key or
    fingerprint. A host object gets the annotation cluster-x-k8s-io/tpm-endorsement-key, a MachineRecord its
    spec.endorsementKeyHash, and a provider ID an entry of the policy's spec.tpm.endorsementKeys.
    """
    try:
        rows = parse_key_file(read_text(path, "CSV"))
    except UserError as error:
        raise UserError(f"{'standard input' if path == '-' else path}: {error}") from None
    first = next((row for row in rows if not isinstance(row.machine, HostRef)), None)
    if first is not None and policy_name is None:
        raise UserError(f"--policy: {first.position} has a providerID, so name the policy that takes its key")
    if first is None and policy_name is not None:
        raise UserError("--policy: no row has a providerID, so no policy takes a key")
    policy = HostRef(POLICY, connection.namespace(namespace), policy_name) if policy_name is not None else None
    changes = run(connection, lambda client: _plan(client, rows, policy, overwrite=overwrite))
    print_lines(*(change.summary for change in changes))
    if not changes:
        print_lines(f"nothing to change: all {len(rows)} keys are registered")
    if dry_run or not changes:
        return ExitCode.DONE
    if not yes and not is_confirmed(f"Write {_objects(len(changes))}?"):
        print_lines("nothing was changed")
        return ExitCode.REFUSED

    async def write(client: ApiClient) -> None:
        for change in changes:
            try:
                await client.merge_patch(change.path, change.patch)
            except Conflict:
                raise StateError(f"{change.summary}: the object was written meanwhile; import again") from None

    run(connection, write)
    print_lines(f"wrote {_objects(len(changes))}")
    return ExitCode.DONE


def _objects(count: int) -> str:
    return "1 object" if count == 1 else f"{count} objects"


async def _plan(client: ApiClient, rows: Sequence[KeyRow], policy: HostRef | None, *, overwrite: bool) -> list[_Change]:
    """Read every object concerned and check each row against it; returns what has to change. Raises StateError.

    A key is looked for on every host and policy of the namespaces that the rows and ``policy`` are in.
    """
    hosts = {row.machine: row for row in rows if isinstance(row.machine, HostRef)}
    others = [row for row in rows if not isinstance(row.machine, HostRef)]
    namespaces = sorted({host.namespace for host in hosts} | ({policy.namespace} if policy is not None else set()))
    objects = await _read_hosts(client, namespaces, kinds={host.kind for host in hosts})
    policies = [one for name in namespaces for one in await list_served(client, OWN, _POLICIES, name)]
    for row in rows:
        if isinstance(row.machine, HostRef) and row.machine not in objects:
            expected = f"{row.position}: expected {row.machine}, got no such object"
            raise StateError(f"{expected}; correct the row, or create it first")
    _check_keys_are_free(rows, objects, policies)
    changes = [_host_change(host, row, objects[host], overwrite=overwrite) for host, row in hosts.items()]
    if policy is not None:
        found = next((one for one in policies if key_of(one) == f"{policy.namespace}/{policy.name}"), None)
        if found is None:
            raise StateError(f"--policy: expected {policy}, got no such object; create it first, or set -n")
        changes.append(_policy_change(policy, others, found, overwrite=overwrite))
    return [change for change in changes if change is not None]


async def _read_hosts(
    client: ApiClient, namespaces: Sequence[str], *, kinds: Collection[str]
) -> Mapping[HostRef, JsonObject]:
    """List every host of the namespaces, whether it is in the file or not; the server must have ``kinds``."""
    objects: dict[HostRef, JsonObject] = {}
    for kind, row in HOST_KINDS.items():
        for namespace in namespaces:
            path = paths.collection_path(row.group, row.version, row.resource, namespace=namespace)
            try:
                async for item in list_objects(client, path):
                    objects[HostRef(kind, namespace, text(item, "metadata", "name"))] = item
            except NotFound:
                if kind in kinds:
                    remedy = "point --kubeconfig at the management cluster"
                    raise StateError(f"{client.server} has no {kind} of {row.group}/{row.version}; {remedy}") from None
    return objects


def _check_keys_are_free(
    rows: Sequence[KeyRow], objects: Mapping[HostRef, JsonObject], policies: Sequence[JsonObject]
) -> None:
    """Refuse a key that another host or entry has; a MachineRecord and an entry may be one machine's."""

    def names(host: HostRef) -> set[str]:
        """Return all that names a host's machine."""
        provider_id = text(objects[host], "spec", "providerID") if host.kind == MACHINE_RECORD else ""
        return {str(host), provider_id} - {""}

    holders: defaultdict[str, list[tuple[set[str], str]]] = defaultdict(list)
    for host, found in objects.items():
        holders[text(found, *HOST_KINDS[host.kind].field)].append((names(host), str(host)))
    for policy in policies:
        for entry in items(policy, "spec", "tpm", "endorsementKeys"):
            machine = text(entry, "providerID")
            holders[text(entry, "sha256")].append(({machine}, f"{machine} in {POLICY} {key_of(policy)}"))
    for row in rows:
        own = names(row.machine) if isinstance(row.machine, HostRef) else {str(row.machine)}
        others = [source for machine, source in holders[row.fingerprint] if own.isdisjoint(machine)]
        if others:
            raise StateError(
                f"{row.position}: expected a key of {row.machine} alone, got the key of {others[0]}; a key of two "
                "machines counts for neither: remove the wrong one. If both are one machine, register its key once"
            )


def _host_change(host: HostRef, row: KeyRow, found: JsonObject, *, overwrite: bool) -> _Change | None:
    kind = HOST_KINDS[host.kind]
    recorded = text(found, *kind.field)
    if recorded == row.fingerprint:
        return None
    if recorded and not overwrite:
        raise StateError(
            f"{row.position}: expected {host} without a key or with {row.fingerprint}, got {recorded}; {_OVERWRITE}"
        )
    patch: JsonObject = {kind.field[-1]: row.fingerprint}
    for name in reversed(kind.field[:-1]):
        patch = {name: patch}
    return _Change(
        f"{host}: {kind.field[0]} {kind.field[-1]} {row.fingerprint}",
        paths.object_path(kind.group, kind.version, kind.resource, host.name, namespace=host.namespace),
        _versioned(patch, found),
    )


def _versioned(patch: JsonObject, found: JsonObject) -> JsonObject:
    version = text(found, "metadata", "resourceVersion")
    return {**patch, "metadata": {**mapping(patch, "metadata"), "resourceVersion": version}}


def _policy_change(policy: HostRef, rows: Sequence[KeyRow], found: JsonObject, *, overwrite: bool) -> _Change | None:
    """Make the change that registers keys in a policy, None where they all are; raises StateError.

    Entries of other machines keep their order; new ones follow in the file's. A machine with several keys keeps none
    but the file's.
    """
    entries = items(found, "spec", "tpm", "endorsementKeys")
    wanted = {str(row.machine): row for row in rows}
    merged: list[JsonValue] = []
    placed: set[str] = set()
    for entry in entries:
        machine = text(entry, "providerID")
        row = wanted.get(machine)
        changed = entry if row is None else _merged(row, entry, overwrite=overwrite)
        if machine not in placed:
            merged.append(changed)
        if row is not None:
            placed.add(machine)
    merged += [row.entry() for machine, row in wanted.items() if machine not in placed]
    if merged == entries:
        return None
    if len(merged) > MAX_ROWS:
        raise StateError(f"expected at most {MAX_ROWS} keys in the policy, got {len(merged)}; use several policies")
    spec = mapping(found, "spec")
    changed: JsonObject = {**found, "spec": {**spec, "tpm": {**mapping(spec, "tpm"), "endorsementKeys": merged}}}
    try:
        parse_policy(parse_attestation_policy(changed).settings(ProviderName("tpm")))
    except Denied as denied:
        raise StateError(f"the policy would be invalid: expected {denied.expected}, got {denied.got}") from None
    return _Change(
        f"{policy}: spec.tpm.endorsementKeys registers {'1 key' if len(rows) == 1 else f'{len(rows)} keys'}",
        paths.object_path(*OWN, _POLICIES, policy.name, namespace=policy.namespace),
        _versioned({"spec": {"tpm": {"endorsementKeys": merged}}}, found),
    )


def _merged(row: KeyRow, entry: JsonObject, *, overwrite: bool) -> JsonObject:
    """Return the entry with what the row says; what it does not say stays."""
    wanted = row.entry()
    for name, value in sorted(wanted.items()):
        if entry.get(name, value) != value and not overwrite:
            raise StateError(
                f"{row.position}: expected the policy's {name} of {row.machine} to be {value}, got {entry[name]}; "
                f"{_OVERWRITE}"
            )
    return {**entry, **wanted}
