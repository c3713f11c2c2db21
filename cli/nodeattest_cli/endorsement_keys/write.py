"""Read the objects of an import, check all of them, and write those that change.

Promises: nothing is written before every row was checked against what the server has; each write is a compare-and-swap
on the object that was checked, and is checked again after a conflict. An import that was interrupted is run again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from nodeattest_cli.endorsement_keys.changes import (
    KeyHolder,
    check_key_is_free,
    host_holder,
    host_patch,
    policy_holders,
    policy_patch,
)
from nodeattest_cli.endorsement_keys.key_file import HOST_KINDS, HostRef, KeyRow
from nodeattest_cli.errors import StateError
from nodeattest_cli.management import OWN, list_objects, list_served
from nodeattest_controller.model.objects import text
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, Conflict, NotFound
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["KeyChange", "PolicyRef", "plan_changes", "write_change"]

_POLICIES: Final = "nodeattestationpolicies"
_TRIES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRef:
    """The policy that takes rows with a provider ID."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"NodeAttestationPolicy {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChange:
    """What an import does to one object."""

    target: str
    summary: str
    path: str
    found: JsonObject = field(repr=False)
    make_patch: Callable[[JsonObject], JsonObject | None] = field(repr=False)
    """Returns the merge patch for the object as it is now; raises StateError."""

    @property
    def is_needed(self) -> bool:
        """Whether the object has to change."""
        return self.make_patch(self.found) is not None


async def plan_changes(
    client: ApiClient, rows: Sequence[KeyRow], policy: PolicyRef | None, *, overwrite: bool
) -> list[KeyChange]:
    """Read every object concerned and check each row against it; raises StateError.

    A key is looked for on every host and policy of the namespaces that the rows and ``policy`` are in.
    """
    hosts = [(row, row.machine) for row in rows if isinstance(row.machine, HostRef)]
    others = [row for row in rows if not isinstance(row.machine, HostRef)]
    namespaces = sorted({host.namespace for _, host in hosts} | ({policy.namespace} if policy is not None else set()))
    objects = await _read_hosts(client, namespaces, kinds={host.kind for _, host in hosts})
    holders: defaultdict[str, list[KeyHolder]] = defaultdict(list)
    for host, found in objects.items():
        holder = host_holder(host, found)
        holders[holder.key].append(holder)
    for namespace in namespaces:
        async for found in list_served(client, OWN, _POLICIES, namespace):
            for holder in policy_holders(found):
                holders[holder.key].append(holder)
    changes = [_host_change(row, host, objects, holders, overwrite=overwrite) for row, host in hosts]
    for row in others:
        check_key_is_free(row, frozenset({row.machine}), holders)
    if policy is not None and others:
        changes.append(await _policy_change(client, others, policy, overwrite=overwrite))
    return changes


async def write_change(client: ApiClient, change: KeyChange) -> bool:
    """Write one object, and return whether it changed; raises StateError."""
    found = change.found
    for _ in range(_TRIES):
        patch = change.make_patch(found)
        if patch is None:
            return False
        version = {"resourceVersion": text(found, "metadata", "resourceVersion")}
        metadata = patch.get("metadata")
        body: JsonObject = {**patch, "metadata": {**(metadata if isinstance(metadata, dict) else {}), **version}}
        try:
            await client.merge_patch(change.path, body)
        except Conflict:
            found = await client.get(change.path)
            if text(found, "metadata", "uid") != text(change.found, "metadata", "uid"):
                raise StateError(f"{change.target} was created anew meanwhile: import again") from None
            continue
        return True
    raise StateError(f"{change.target} is written all the time; import again")


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


def _host_change(
    row: KeyRow,
    host: HostRef,
    objects: Mapping[HostRef, JsonObject],
    holders: Mapping[str, Sequence[KeyHolder]],
    *,
    overwrite: bool,
) -> KeyChange:
    found = objects.get(host)
    if found is None:
        raise StateError(f"{row.position}: expected {host}, got no such object; correct the row, or create it first")
    check_key_is_free(row, host_holder(host, found).machine, holders)
    kind = HOST_KINDS[host.kind]
    change = KeyChange(
        target=str(host),
        summary=f"{host}: {'.'.join(kind.field[:1])} {kind.field[-1]} {row.fingerprint}",
        path=paths.object_path(kind.group, kind.version, kind.resource, host.name, namespace=host.namespace),
        found=found,
        make_patch=lambda now: host_patch(row, host, now, overwrite=overwrite),
    )
    change.make_patch(found)  # raises before anything is written
    return change


async def _policy_change(client: ApiClient, rows: Sequence[KeyRow], policy: PolicyRef, *, overwrite: bool) -> KeyChange:
    path = paths.object_path(*OWN, _POLICIES, policy.name, namespace=policy.namespace)
    try:
        found = await client.get(path)
    except NotFound:
        raise StateError(f"--policy: expected {policy}, got no such object; create it first, or set -n") from None
    keys = "1 key" if len(rows) == 1 else f"{len(rows)} keys"
    change = KeyChange(
        target=str(policy),
        summary=f"{policy}: spec.tpm.endorsementKeys registers {keys}",
        path=path,
        found=found,
        make_patch=lambda now: policy_patch(rows, now, overwrite=overwrite),
    )
    change.make_patch(found)
    return change
