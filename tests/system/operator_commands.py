"""What an operator does: the real command, and what ``clusterctl move`` does to objects."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from typing import cast

from world import BIN, NAMESPACE, World

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.client import ApiRefusal


def nodeattest(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    """Run one of the operator's commands against the management cluster."""
    access = ["--kubeconfig", str(world.management.admin_kubeconfig), "-n", NAMESPACE]
    command = [BIN / "nodeattest", *words, *access]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def reset(world: World, name: str, reason: str = "a test") -> None:
    """Reset a machine's ledger."""
    done = nodeattest(world, "machines", "reset", name, "--reason", reason, "--yes")
    assert done.returncode == 0, done.stderr


def rejoin_token(world: World, name: str) -> str:
    """Make a token for one machine and wait until the server takes it."""
    done = nodeattest(world, "machines", "rejoin", name, "-o", "json")
    assert done.returncode == 0, done.stderr
    return world.workload.await_token(text_at(cast("JsonMap", json.loads(done.stdout)), "token"))


def collection_of(found: JsonMap) -> str:
    """Return the path of an object's collection; the kinds here form their plural by an s."""
    plural = f"{text_at(found, 'kind').lower()}s"
    return f"/apis/{text_at(found, 'apiVersion')}/namespaces/{text_at(found, 'metadata', 'namespace')}/{plural}"


def made_anew(world: World, found: JsonMap, *, owner: JsonMap | None = None, status: bool = True) -> JsonMap:
    """Delete an object and create it again: it gets a new UID, and its owners' UIDs become the owner's."""
    path, name = collection_of(found), text_at(found, "metadata", "name")
    kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
    meta: JsonMap = {key: value for key, value in map_at(found, "metadata").items() if key in kept}
    if owner is not None:
        uid = text_at(owner, "metadata", "uid")
        meta["ownerReferences"] = [{**one, "uid": uid} for one in maps_at(found, "metadata", "ownerReferences")]
    with suppress(ApiRefusal):  # collected with its owner
        world.admin.delete(f"{path}/{name}")
    body: JsonMap = {key: value for key, value in found.items() if key not in {"metadata", "status"}}
    created = world.admin.create(path, {**body, "metadata": meta})
    if status and "status" in found:  # its own controller says again what it sees
        created = world.admin.patch(f"{path}/{name}/status", {"status": found["status"]})
    return created
