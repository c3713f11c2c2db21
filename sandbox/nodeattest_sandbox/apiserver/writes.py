"""One cluster, and create, update, patch and delete: the general rules that every kind shares.

Promises: metadata that the server owns cannot be written; a write on another version is a 409; an update that changes
nothing writes nothing; an object with finalizers goes when the last one is gone. Garbage is collected by controllers,
which nothing here is.
Source: k8s.io/apiserver/pkg/registry/{rest,generic/registry}.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from nodeattest_sandbox.apiserver import crd, strategies
from nodeattest_sandbox.apiserver.admission import NodeAuthorizer, admit, refuse_by_policy
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, child, dump, items_at, map_at, text_at
from nodeattest_sandbox.apiserver.kinds import Kind, Kinds
from nodeattest_sandbox.apiserver.rbac import Rbac, RequestInfo
from nodeattest_sandbox.apiserver.status_errors import (
    ApiError,
    Cause,
    already_exists,
    bad_request,
    conflict,
    invalid,
    invalid_field,
    not_found,
)
from nodeattest_sandbox.apiserver.store import Key, Store, Stored, key_of
from nodeattest_sandbox.apiserver.users import Authenticator, User


def merge_patch(value: JsonValue, patch: JsonValue) -> JsonValue:
    """Apply an RFC 7396 merge patch."""
    if not isinstance(patch, dict):
        return patch
    merged: JsonMap = {**value} if isinstance(value, dict) else {}
    for key, change in patch.items():
        if change is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), change)
    return merged


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster; ``now`` comes from main."""

    store: Store
    kinds: Kinds
    authenticator: Authenticator
    authorizer: NodeAuthorizer
    now: Callable[[], datetime]

    @classmethod
    def boot(cls, store: Store, *, now: Callable[[], datetime], snapshot: JsonValue = None) -> Cluster:
        """Make a cluster over the store: from the snapshot, or with the objects of a first start."""
        cluster = cls(store, Kinds(), Authenticator(store, now), NodeAuthorizer(Rbac(store)), now)
        if snapshot is None:
            for collection, value in strategies.default_objects(cluster.new_metadata):
                store.put(collection, value)
        else:
            store.restore(snapshot)
        for stored in store.list(crd.COLLECTION):
            crd.register(cluster.kinds, stored.value)
        return cluster

    def timestamp(self) -> str:
        """Return the server's time as objects carry it: whole seconds."""
        return self.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def new_metadata(self) -> JsonMap:
        """Return what the server puts into the metadata of every new object."""
        return {"uid": str(uuid4()), "creationTimestamp": self.timestamp()}


_SERVER_OWNED: Final = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
)


@dataclass(frozen=True, slots=True)
class Write:
    """Who writes what where."""

    cluster: Cluster
    kind: Kind
    info: RequestInfo
    user: User
    dry_run: bool = False


def find(write: Write) -> Stored:
    """Return the object that the request names; raises 404."""
    key = Key(write.info.namespace if write.kind.namespaced else "", write.info.name)
    found = write.cluster.store.get(write.kind.collection, key)
    if found is None:
        raise not_found(write.kind.group, write.kind.plural, write.info.name)
    return found


def create(write: Write, body: JsonMap) -> Stored:
    """Write a new object."""
    kind, cluster = write.kind, write.cluster
    value = _typed(write, body)
    metadata = child(value, "metadata")
    _place(write, metadata)
    if text_at(metadata, "resourceVersion"):
        raise ApiError(500, "", "resourceVersion should not be set on objects to be created")
    for key in (*_SERVER_OWNED, "managedFields", "resourceVersion"):
        metadata.pop(key, None)
    name = text_at(metadata, "name")
    metadata.update(cluster.new_metadata())
    if kind.custom or kind.collection == crd.COLLECTION:
        metadata["generation"] = 1
    crd.apply(kind, value)
    causes = strategies.prepare_create(kind, value, write.user, cluster.timestamp())
    if not name:
        causes.append(invalid_field("metadata.name", '""', "a name is required"))
    _refuse(write, name, [*causes, *crd.validate(kind, value)])
    admit(cluster.authorizer, write.user, write.info, value, None)
    refuse_by_policy(cluster.store, write.user, write.info, value, dry_run=write.dry_run)
    if kind.namespaced and cluster.store.get("/namespaces", Key("", text_at(metadata, "namespace"))) is None:
        raise not_found("", "namespaces", text_at(metadata, "namespace"))
    if cluster.store.get(kind.collection, key_of(value)) is not None:
        raise already_exists(kind.group, kind.plural, name)
    return _commit(write, value)


def update(write: Write, body: JsonMap, before: Stored) -> Stored:
    """Write a new version of an object, of which ``before`` is the present one."""
    kind, cluster = write.kind, write.cluster
    value = _typed(write, body)
    metadata, old = child(value, "metadata"), map_at(before.value, "metadata")
    _place(write, metadata)
    _check_preconditions(write, metadata, before)
    for key in (*_SERVER_OWNED, "managedFields"):
        metadata.pop(key, None)
    metadata.update({key: old[key] for key in (*_SERVER_OWNED, "resourceVersion") if key in old})
    crd.apply(kind, value)
    causes = strategies.prepare_update(kind, value, before.value, write.info.subresource, cluster.timestamp())
    metadata = child(value, "metadata")
    _refuse(write, write.info.name, [*causes, *crd.validate(kind, value)])
    admit(cluster.authorizer, write.user, write.info, value, before.value)
    if value == before.value:
        return before
    generation = old.get("generation")
    if isinstance(generation, int) and _content(kind, value) != _content(kind, before.value):
        metadata["generation"] = generation + 1
    if text_at(metadata, "deletionTimestamp") and not items_at(metadata, "finalizers"):
        return _remove(cluster, kind.collection, key_of(value))
    return _commit(write, value)


def delete(write: Write, before: Stored, options: JsonMap) -> tuple[Stored, bool]:
    """Remove an object, or mark it when finalizers hold it; returns whether it is gone."""
    kind, cluster, metadata = write.kind, write.cluster, map_at(before.value, "metadata")
    for field in ("uid", "resourceVersion"):
        wanted, got = text_at(options, "preconditions", field), text_at(metadata, field)
        if wanted and wanted != got:
            why = f"the {field} in the precondition ({wanted}) does not match the one in record ({got})"
            raise conflict(kind.group, kind.plural, text_at(metadata, "name"), why)
    admit(cluster.authorizer, write.user, write.info, None, before.value)
    if write.dry_run:
        return before, True
    if not items_at(metadata, "finalizers"):
        return _remove(cluster, kind.collection, key_of(before.value)), True
    if text_at(metadata, "deletionTimestamp"):
        return before, False
    marked: JsonMap = {**metadata, "deletionTimestamp": cluster.timestamp(), "deletionGracePeriodSeconds": 0}
    return cluster.store.put(kind.collection, {**before.value, "metadata": marked}), False


def _typed(write: Write, body: JsonMap) -> JsonMap:
    """Return the object with kind and apiVersion first, and that of storage, as every stored object has them."""
    kind, stored_as = write.kind, write.cluster.kinds.of_collection(write.kind.collection) or write.kind
    if text_at(body, "kind") not in {"", kind.kind} or text_at(body, "apiVersion") not in {"", kind.api_version}:
        raise bad_request(
            f"{text_at(body, 'kind')} in version {text_at(body, 'apiVersion')!r} cannot be handled as a {kind.kind}: "
            f"the API version in the data does not match the expected API version ({kind.api_version})"
        )
    rest = {key: value for key, value in body.items() if key not in {"kind", "apiVersion"}}
    return {"kind": kind.kind, "apiVersion": stored_as.api_version, **rest}


def _place(write: Write, metadata: JsonMap) -> None:
    """Hold name and namespace of the object against those of the request."""
    for field, wanted in (("namespace", write.info.namespace), ("name", write.info.name)):
        if field == "namespace" and not write.kind.namespaced:
            metadata.pop(field, None)
        elif wanted and text_at(metadata, field) not in {"", wanted}:
            raise bad_request(f"the {field} of the provided object does not match the {field} sent on the request")
        elif wanted:
            metadata[field] = wanted


def _check_preconditions(write: Write, metadata: JsonMap, before: Stored) -> None:
    kind, name = write.kind, write.info.name
    old = map_at(before.value, "metadata")
    uid, version = text_at(metadata, "uid"), text_at(metadata, "resourceVersion")
    if uid and uid != old["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {text_at(old, 'uid')}"
        raise conflict(kind.group, kind.plural, name, why)
    if not version and not kind.unconditional_update:
        cause = invalid_field("metadata.resourceVersion", "0x0", "must be specified for an update")
        raise invalid(kind.group, kind.kind, name, [cause])
    if version and version != text_at(old, "resourceVersion"):
        raise conflict(kind.group, kind.plural, name)


def _refuse(write: Write, name: str, causes: list[Cause]) -> None:
    if causes:
        raise invalid(write.kind.group, write.kind.kind, name, causes)


def _content(kind: Kind, value: JsonMap) -> JsonMap:
    apart = {"metadata", "status"} if kind.status_subresource else {"metadata"}
    return {key: item for key, item in value.items() if key not in apart}


def _commit(write: Write, value: JsonMap) -> Stored:
    if write.dry_run:
        return Stored(value, dump(value), write.cluster.store.version)
    stored = write.cluster.store.put(write.kind.collection, value)
    if write.kind.collection == crd.COLLECTION:
        crd.register(write.cluster.kinds, value)
    return stored


def _remove(cluster: Cluster, collection: str, key: Key) -> Stored:
    """Remove an object, and of a definition all custom resources."""
    gone = cluster.store.delete(collection, key)
    if collection == crd.COLLECTION:
        for stored in cluster.store.list(crd.collection_of(gone.value)):
            cluster.store.delete(crd.collection_of(gone.value), key_of(stored.value))
        crd.unregister(cluster.kinds, gone.value)
    return gone
