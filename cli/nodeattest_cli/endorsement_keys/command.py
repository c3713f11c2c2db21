"""``nodeattest endorsement-keys import``: register the keys of a file, on host objects and in a policy.

A machine is only what its row names. Nothing is written before every row was checked against what the server has, and
before it was shown and agreed to. Each write is a compare-and-swap on the object that was checked, and is checked again
after a conflict. A second run of the same file changes nothing, and an import that was interrupted is run again.
Another key of a machine is replaced only with ``--overwrite``; a key that another machine has is never given to a
second one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import click

from nodeattest_cli.connection import Connection, run
from nodeattest_cli.documents import read_text
from nodeattest_cli.endorsement_keys.key_file import HOST_KINDS, MAX_ROWS, HostRef, KeyRow, parse_key_file
from nodeattest_cli.errors import ExitCode, StateError, UserError
from nodeattest_cli.fleet import OWN, POLICY, list_objects, list_served
from nodeattest_cli.machines.reset import ask_confirmation
from nodeattest_cli.options import connected
from nodeattest_cli.output import print_lines
from nodeattest_controller.model.machine_record import MACHINE_RECORD
from nodeattest_controller.model.policy import parse_attestation_policy
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Conflict, NotFound
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import ProviderID, ProviderName
from nodeattest_providers.tpm.config import parse_policy

_POLICIES: Final = "nodeattestationpolicies"
_TRIES: Final = 5
_OVERWRITE: Final = "compare both with the machine, and set --overwrite if the file is right"


class _KeyHolder(NamedTuple):
    """A host object or a policy's entry that has a key."""

    machine: frozenset[HostRef | ProviderID]
    """All that names the machine: the host, and its provider ID where a MachineRecord or an entry has it."""
    source: str
    """For messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What an import does to one object."""

    target: str
    summary: str
    path: str
    found: JsonObject = field(repr=False)
    make_patch: Callable[[JsonObject], JsonObject | None] = field(repr=False)
    """Returns the merge patch for the object as it is now, None where there is nothing to do; raises StateError."""


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
        rows = parse_key_file(read_text(path))
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
    if not yes and not ask_confirmation(f"Write {_objects(len(changes))}?"):
        print_lines("nothing was changed")
        return ExitCode.REFUSED

    async def write(client: ApiClient) -> int:
        return sum([await _write(client, change) for change in changes])

    print_lines(f"wrote {_objects(run(connection, write))}")
    return ExitCode.DONE


def _objects(count: int) -> str:
    return "1 object" if count == 1 else f"{count} objects"


async def _plan(client: ApiClient, rows: Sequence[KeyRow], policy: HostRef | None, *, overwrite: bool) -> list[_Change]:
    """Read every object concerned and check each row against it; returns what has to change. Raises StateError.

    A key is looked for on every host and policy of the namespaces that the rows and ``policy`` are in.
    """
    hosts = [(row, row.machine) for row in rows if isinstance(row.machine, HostRef)]
    others = [row for row in rows if not isinstance(row.machine, HostRef)]
    namespaces = sorted({host.namespace for _, host in hosts} | ({policy.namespace} if policy is not None else set()))
    objects = await _read_hosts(client, namespaces, kinds={host.kind for _, host in hosts})
    holders: defaultdict[str, list[_KeyHolder]] = defaultdict(list)
    for host, found in objects.items():
        holders[_key_of_host(host, found)].append(_KeyHolder(_names_of_host(host, found), str(host)))
    for namespace in namespaces:
        for found in await list_served(client, OWN, _POLICIES, namespace):
            for key, holder in _policy_holders(found):
                holders[key].append(holder)
    changes = [_host_change(row, host, objects, holders, overwrite=overwrite) for row, host in hosts]
    for row in others:
        _check_key_is_free(row, frozenset({row.machine}), holders)
    if policy is not None:
        changes.append(await _policy_change(client, others, policy, overwrite=overwrite))
    return [change for change in changes if change.make_patch(change.found) is not None]


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
                if kind not in kinds:
                    continue
                raise StateError(
                    f"{client.server} has no {kind} of {row.api_version}; point --kubeconfig at the management cluster"
                ) from None
    return objects


def _key_of_host(host: HostRef, found: JsonObject) -> str:
    """Return the fingerprint on a host object; empty where there is none."""
    return text(found, *HOST_KINDS[host.kind].field)


def _names_of_host(host: HostRef, found: JsonObject) -> frozenset[HostRef | ProviderID]:
    """Return what names a host's machine; only a MachineRecord has the provider ID that makes it one with an entry."""
    names: set[HostRef | ProviderID] = {host}
    if host.kind == MACHINE_RECORD:
        names.add(ProviderID(text(found, "spec", "providerID")))
    return frozenset(names)


def _policy_holders(policy: JsonObject) -> Iterator[tuple[str, _KeyHolder]]:
    """Yield the keys of a policy's entries, and who has each."""
    where = f"{POLICY} {text(policy, 'metadata', 'namespace')}/{text(policy, 'metadata', 'name')}"
    for entry in items(policy, "spec", "tpm", "endorsementKeys"):
        machine = ProviderID(text(entry, "providerID"))
        yield text(entry, "sha256"), _KeyHolder(frozenset({machine}), f"{machine} in {where}")


def _check_key_is_free(
    row: KeyRow, machine: frozenset[HostRef | ProviderID], holders: Mapping[str, Sequence[_KeyHolder]]
) -> None:
    """Refuse a key that another host or entry has; ``machine`` names the row's. Raises StateError."""
    others = [holder for holder in holders.get(row.fingerprint, ()) if holder.machine.isdisjoint(machine)]
    if others:
        raise StateError(
            f"{row.position}: expected a key of {row.machine} alone, got the key of {others[0].source}; a key of two "
            "machines counts for neither: remove the wrong one. If both are one machine, register its key once"
        )


def _host_change(
    row: KeyRow,
    host: HostRef,
    objects: Mapping[HostRef, JsonObject],
    holders: Mapping[str, Sequence[_KeyHolder]],
    *,
    overwrite: bool,
) -> _Change:
    found = objects.get(host)
    if found is None:
        raise StateError(f"{row.position}: expected {host}, got no such object; correct the row, or create it first")
    _check_key_is_free(row, _names_of_host(host, found), holders)
    kind = HOST_KINDS[host.kind]

    def make_patch(now: JsonObject) -> JsonObject | None:
        recorded = _key_of_host(host, now)
        if recorded == row.fingerprint:
            return None
        if recorded and not overwrite:
            raise StateError(
                f"{row.position}: expected {host} without a key or with {row.fingerprint}, got {recorded}; {_OVERWRITE}"
            )
        *outer, last = kind.field
        patch: JsonObject = {last: row.fingerprint}
        for name in reversed(outer):
            patch = {name: patch}
        return patch

    return _Change(
        target=str(host),
        summary=f"{host}: {kind.field[0]} {kind.field[-1]} {row.fingerprint}",
        path=paths.object_path(kind.group, kind.version, kind.resource, host.name, namespace=host.namespace),
        found=found,
        make_patch=make_patch,
    )


async def _policy_change(client: ApiClient, rows: Sequence[KeyRow], policy: HostRef, *, overwrite: bool) -> _Change:
    path = paths.object_path(*OWN, _POLICIES, policy.name, namespace=policy.namespace)
    try:
        found = await client.get(path)
    except NotFound:
        raise StateError(f"--policy: expected {policy}, got no such object; create it first, or set -n") from None
    keys = "1 key" if len(rows) == 1 else f"{len(rows)} keys"
    return _Change(
        target=str(policy),
        summary=f"{policy}: spec.tpm.endorsementKeys registers {keys}",
        path=path,
        found=found,
        make_patch=lambda now: _policy_patch(rows, now, overwrite=overwrite),
    )


def _policy_patch(rows: Sequence[KeyRow], policy: JsonObject, *, overwrite: bool) -> JsonObject | None:
    """Return the merge patch that registers keys in a policy, None where they all are; raises StateError.

    Entries of other machines keep their order; new ones follow in the file's.
    """
    entries = items(policy, "spec", "tpm", "endorsementKeys")
    owners = {text(entry, "sha256"): text(entry, "providerID") for entry in entries}
    for row in rows:
        owner = owners.get(row.fingerprint, row.machine)
        if owner != row.machine:
            raise StateError(
                f"{row.position}: expected a key of {row.machine} alone, got the key that the policy lists for "
                f"{owner}; remove the wrong one"
            )
    wanted = {str(row.machine): row for row in rows}
    merged: dict[str, JsonObject] = {}
    for entry in entries:
        machine = text(entry, "providerID")
        row = wanted.get(machine)
        if row is None:
            merged[f"{len(merged)}\0{machine}"] = entry
        else:
            merged.setdefault(machine, _merged(row, entry, overwrite=overwrite))
    merged |= {machine: row.entry() for machine, row in wanted.items() if machine not in merged}
    listed: list[JsonValue] = [*merged.values()]
    if listed == entries:
        return None
    if len(listed) > MAX_ROWS:
        raise StateError(f"expected at most {MAX_ROWS} keys in the policy, got {len(listed)}; use several policies")
    spec = mapping(policy, "spec")
    changed: JsonObject = {**policy, "spec": {**spec, "tpm": {**mapping(spec, "tpm"), "endorsementKeys": listed}}}
    try:
        parse_policy(parse_attestation_policy(changed).settings(ProviderName("tpm")))
    except Denied as denied:
        raise StateError(f"the policy would be invalid: expected {denied.expected}, got {denied.got}") from None
    return {"spec": {"tpm": {"endorsementKeys": listed}}}


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


async def _write(client: ApiClient, change: _Change) -> bool:
    """Write one object, and return whether it changed; raises StateError."""
    found = change.found
    for _ in range(_TRIES):
        patch = change.make_patch(found)
        if patch is None:
            return False
        version = {"resourceVersion": text(found, "metadata", "resourceVersion")}
        try:
            await client.merge_patch(change.path, {**patch, "metadata": {**mapping(patch, "metadata"), **version}})
        except Conflict:
            found = await client.get(change.path)
            if text(found, "metadata", "uid") != text(change.found, "metadata", "uid"):
                raise StateError(f"{change.target} was created anew meanwhile: import again") from None
            continue
        return True
    raise StateError(f"{change.target} is written all the time; import again")
