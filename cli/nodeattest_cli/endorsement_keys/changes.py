"""What an import would change: a host object's fingerprint, and a policy's list of keys. Pure.

Promises: an object that has the wanted value already gives no patch, so a second import changes nothing; another value
is replaced only where the caller overwrites; a key that another machine has is never given to a second one.
Leaves to others: reading and writing the objects (``write``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from nodeattest_cli.endorsement_keys.key_file import HOST_KINDS, MAX_ROWS, HostRef, KeyRow
from nodeattest_cli.errors import StateError
from nodeattest_controller.model.machine_record import MACHINE_RECORD
from nodeattest_controller.model.objects import mapping, text
from nodeattest_controller.model.policy import parse_attestation_policy
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_providers.errors import Denied
from nodeattest_providers.names import ProviderID, ProviderName
from nodeattest_providers.tpm.config import parse_policy

__all__ = [
    "KeyHolder",
    "check_key_is_free",
    "host_holder",
    "host_manifest",
    "host_patch",
    "policy_holders",
    "policy_manifest",
    "policy_patch",
]

_OVERWRITE: Final = "compare both with the machine, and set --overwrite if the file is right"
_POLICY: Final = ("attestation.cluster.x-k8s.io/v1alpha1", "NodeAttestationPolicy")


class KeyHolder(NamedTuple):
    """A host object or a policy's entry that has a key."""

    key: str
    """The fingerprint; empty where a host has none."""
    machine: frozenset[HostRef | ProviderID]
    """All that names the machine: the host, and its provider ID where a MachineRecord or an entry has it."""
    source: str
    """For messages."""


def host_holder(host: HostRef, found: JsonObject) -> KeyHolder:
    """Return the key on a host object."""
    machine: set[HostRef | ProviderID] = {host}
    if host.kind == MACHINE_RECORD:
        machine.add(ProviderID(text(found, "spec", "providerID")))
    return KeyHolder(text(found, *HOST_KINDS[host.kind].field), frozenset(machine), str(host))


def policy_holders(policy: JsonObject) -> Iterable[KeyHolder]:
    """Yield the keys of a policy's entries."""
    where = f"NodeAttestationPolicy {text(policy, 'metadata', 'namespace')}/{text(policy, 'metadata', 'name')}"
    for entry in _entries(policy):
        machine = ProviderID(text(entry, "providerID"))
        yield KeyHolder(text(entry, "sha256"), frozenset({machine}), f"{machine} in {where}")


def check_key_is_free(
    row: KeyRow, machine: frozenset[HostRef | ProviderID], holders: Mapping[str, Sequence[KeyHolder]]
) -> None:
    """Refuse a key that another host or entry has; ``machine`` names the row's. Raises StateError.

    Only a MachineRecord has the provider ID that makes it one machine with an entry.
    """
    others = [holder for holder in holders.get(row.fingerprint, ()) if holder.machine.isdisjoint(machine)]
    if others:
        raise StateError(
            f"{row.position}: expected a key of {row.machine} alone, got the key of {others[0].source}; a key of two "
            "machines counts for neither: remove the wrong one. If both are one machine, register its key once"
        )


def host_patch(row: KeyRow, host: HostRef, found: JsonObject, *, overwrite: bool) -> JsonObject | None:
    """Return the merge patch that records a key on its host object, None where it is there; raises StateError."""
    recorded = host_holder(host, found).key
    if recorded == row.fingerprint:
        return None
    if recorded and not overwrite:
        raise StateError(
            f"{row.position}: expected {host} without a key or with {row.fingerprint}, got {recorded}; {_OVERWRITE}"
        )
    return _nested(host, row.fingerprint)


def policy_patch(rows: Sequence[KeyRow], policy: JsonObject, *, overwrite: bool) -> JsonObject | None:
    """Return the merge patch that registers keys in a policy, None where they all are; raises StateError.

    Entries of other machines keep their order; new ones follow in the file's.
    """
    section = mapping(policy, "spec", "tpm")
    entries = _entries(policy)
    owners = {text(entry, "sha256"): text(entry, "providerID") for entry in entries}
    wanted = {str(row.machine): row for row in rows}
    for row in rows:
        owner = owners.get(row.fingerprint, row.machine)
        if owner != row.machine:
            raise StateError(
                f"{row.position}: expected a key of {row.machine} alone, got the key that the policy lists for "
                f"{owner}; remove the wrong one"
            )
    merged: list[JsonValue] = []
    placed: set[str] = set()
    for entry in entries:
        machine = text(entry, "providerID")
        row = wanted.get(machine)
        if row is None:
            merged.append(entry)
            continue
        if text(entry, "sha256") != row.fingerprint and not overwrite:
            raise StateError(
                f"{row.position}: expected a policy that lists no other key of {machine}, got {text(entry, 'sha256')}; "
                f"{_OVERWRITE}"
            )
        if machine not in placed:
            merged.append(_merged(row, entry, overwrite=overwrite))
            placed.add(machine)
    merged += [row.entry() for row in rows if row.machine not in placed]
    if merged == entries:
        return None
    patch: JsonObject = {"spec": {"tpm": {"endorsementKeys": merged}}}
    spec: JsonObject = {**mapping(policy, "spec"), "tpm": {**section, "endorsementKeys": merged}}
    _check_policy({**policy, "spec": spec}, len(merged))
    return patch


def host_manifest(row: KeyRow, host: HostRef) -> JsonObject:
    """Write the host object with its key alone, for server-side apply."""
    patch = _nested(host, row.fingerprint)
    metadata: JsonObject = {"namespace": host.namespace, "name": host.name, **mapping(patch, "metadata")}
    return {"apiVersion": HOST_KINDS[host.kind].api_version, "kind": host.kind, **patch, "metadata": metadata}


def policy_manifest(rows: Sequence[KeyRow], namespace: str, name: str) -> JsonObject:
    """Write the policy with these entries alone, for server-side apply."""
    api_version, kind = _POLICY
    entries: list[JsonValue] = [row.entry() for row in rows]
    metadata: JsonObject = {"namespace": namespace, "name": name}
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": metadata,
        "spec": {"tpm": {"endorsementKeys": entries}},
    }


def _entries(policy: JsonObject) -> list[JsonObject]:
    listed = mapping(policy, "spec", "tpm").get("endorsementKeys")
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _nested(host: HostRef, fingerprint: str) -> JsonObject:
    value: JsonValue = fingerprint
    for name in reversed(HOST_KINDS[host.kind].field):
        value = {name: value}
    return value if isinstance(value, dict) else {}


def _merged(row: KeyRow, entry: JsonObject, *, overwrite: bool) -> JsonObject:
    """Return the entry with what the row says; what it does not say stays."""
    wanted = row.entry()
    changed = sorted(name for name, value in wanted.items() if entry.get(name, value) != value)
    if changed and not overwrite:
        name = changed[0]
        raise StateError(
            f"{row.position}: expected the policy's {name} of {row.machine} to be {wanted[name]}, got {entry[name]}; "
            f"{_OVERWRITE}"
        )
    return {**entry, **wanted}


def _check_policy(policy: JsonObject, count: int) -> None:
    if count > MAX_ROWS:
        raise StateError(f"expected at most {MAX_ROWS} keys in the policy, got {count}; use several policies")
    try:
        parse_policy(parse_attestation_policy(policy).settings(ProviderName("tpm")))
    except Denied as denied:
        raise StateError(f"the policy would be invalid: expected {denied.expected}, got {denied.got}") from None
