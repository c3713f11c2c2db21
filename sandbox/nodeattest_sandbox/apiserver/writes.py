"""Create, update, patch and delete: the general rules that every kind shares.

Promises: metadata that the server owns cannot be written; a write on another version is a 409; an update that changes
nothing writes nothing; an object with finalizers goes when the last one is gone; dependents go with their last owner.
Source: k8s.io/apiserver/pkg/registry/{rest,generic/registry}.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from nodeattest_sandbox.apiserver import crd, schema, strategies
from nodeattest_sandbox.apiserver.admission import admit
from nodeattest_sandbox.apiserver.admission_policies import refuse_by_policy
from nodeattest_sandbox.apiserver.cluster import Cluster
from nodeattest_sandbox.apiserver.escalation import refuse_escalation
from nodeattest_sandbox.apiserver.jsonvalue import (
    JsonMap,
    JsonValue,
    child,
    dump,
    items_at,
    load,
    map_at,
    maps_at,
    text_at,
    value_at,
)
from nodeattest_sandbox.apiserver.kinds import Kind
from nodeattest_sandbox.apiserver.requestinfo import RequestInfo
from nodeattest_sandbox.apiserver.status_errors import (
    ApiError,
    Cause,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    invalid_field,
    not_found,
    required,
)
from nodeattest_sandbox.apiserver.store import Key, Stored
from nodeattest_sandbox.apiserver.users import User

__all__ = ["Write", "create", "delete", "find", "update"]

_SUBDOMAIN: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SUBDOMAIN_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    "and must start and end with an alphanumeric character"
)
_GENERATED: Final = "bcdfghjklmnpqrstvwxz2456789"  # No vowels, as in apimachinery's rand.String.
_ANNOTATIONS_LIMIT: Final = 256 * 1024  # bytes
_SERVER_OWNED: Final = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "selfLink",
)
_ETERNAL: Final = frozenset({"default", "kube-system", "kube-public"})


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
    found = write.cluster.store.get(
        write.kind.collection, Key(write.info.namespace if write.kind.namespaced else "", write.info.name)
    )
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
    name = text_at(metadata, "name") or _generate(cluster, text_at(metadata, "generateName"))
    if name:
        metadata["name"] = name
    metadata.update(cluster.new_metadata())
    if kind.custom or kind.collection == crd.COLLECTION:
        metadata["generation"] = 1
    schema.apply(kind, value)
    causes = [
        *_metadata_causes(kind, metadata),
        *strategies.prepare_create(kind, value, write.user, cluster.timestamp()),
    ]
    _refuse(write, name, [*causes, *schema.validate(kind, value)])
    admit(cluster.authorizer, write.user, write.info, value, None)
    refuse_by_policy(cluster.store, write.user, write.info, value, dry_run=write.dry_run)
    refuse_escalation(cluster.rbac, write.user, write.info, value, None)
    if kind.namespaced and cluster.store.get("/namespaces", Key("", text_at(metadata, "namespace"))) is None:
        raise not_found("", "namespaces", text_at(metadata, "namespace"))
    if cluster.store.get(kind.collection, Key(text_at(metadata, "namespace"), name)) is not None:
        raise already_exists(kind.group, kind.plural, name)
    return _commit(write, value)


def update(write: Write, body: JsonMap, before: Stored) -> Stored:
    """Write a new version of an object, of which ``before`` is the present one."""
    kind, cluster = write.kind, write.cluster
    value = _typed(write, body)
    metadata = child(value, "metadata")
    _place(write, metadata)
    _check_preconditions(write, metadata, before)
    old = map_at(before.value, "metadata")
    for key in _SERVER_OWNED:
        metadata.pop(key, None)
        if key in old:
            metadata[key] = old[key]
    metadata.pop("managedFields", None)
    metadata["resourceVersion"] = old["resourceVersion"]
    schema.apply(kind, value)
    causes = strategies.prepare_update(kind, value, before.value, write.info.subresource, cluster.timestamp())
    metadata = child(value, "metadata")
    _refuse(write, write.info.name, [*_metadata_causes(kind, metadata), *causes, *schema.validate(kind, value)])
    admit(cluster.authorizer, write.user, write.info, value, before.value)
    refuse_escalation(cluster.rbac, write.user, write.info, value, before.value)
    if value == before.value:
        return before
    if "generation" in metadata and _content(kind, value) != _content(kind, before.value):
        generation = old.get("generation")
        metadata["generation"] = generation + 1 if isinstance(generation, int) else 1
    if text_at(metadata, "deletionTimestamp") and not items_at(metadata, "finalizers"):
        return _remove(cluster, kind.collection, Key(text_at(metadata, "namespace"), text_at(metadata, "name")))
    return _commit(write, value)


def delete(write: Write, before: Stored, options: JsonMap) -> tuple[Stored, bool]:
    """Remove an object, or mark it when finalizers hold it; returns whether it is gone."""
    kind, cluster, metadata = write.kind, write.cluster, map_at(before.value, "metadata")
    name = text_at(metadata, "name")
    if kind.collection == "/namespaces" and name in _ETERNAL:
        raise forbidden("", "namespaces", name, "this namespace may not be deleted")
    for field, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        wanted, got = text_at(options, "preconditions", field), text_at(metadata, field)
        if wanted and wanted != got:
            why = (
                f"the {label} in the precondition ({wanted}) does not match the {label} in record ({got}). "
                "The object might have been deleted and then recreated"
            )
            raise conflict(kind.group, kind.plural, name, why)
    admit(cluster.authorizer, write.user, write.info, None, before.value)
    if write.dry_run:
        return before, True
    if items_at(metadata, "finalizers"):
        if text_at(metadata, "deletionTimestamp"):
            return before, False
        marked: JsonMap = {**metadata, "deletionTimestamp": cluster.timestamp(), "deletionGracePeriodSeconds": 0}
        return cluster.store.put(kind.collection, {**before.value, "metadata": marked}), False
    return _remove(cluster, kind.collection, Key(text_at(metadata, "namespace"), name)), True


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
    kind, info = write.kind, write.info
    if not kind.namespaced:
        metadata.pop("namespace", None)
    elif text_at(metadata, "namespace") not in {"", info.namespace}:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    else:
        metadata["namespace"] = info.namespace
    if info.name and text_at(metadata, "name") not in {"", info.name}:
        raise bad_request(
            f"the name of the object ({text_at(metadata, 'name')}) does not match the name on the URL ({info.name})"
        )
    if info.name:
        metadata["name"] = info.name


def _check_preconditions(write: Write, metadata: JsonMap, before: Stored) -> None:
    kind, name = write.kind, write.info.name
    old = map_at(before.value, "metadata")
    uid, version = text_at(metadata, "uid"), text_at(metadata, "resourceVersion")
    if uid and uid != old["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {text_at(old, 'uid')}"
        raise conflict(kind.group, kind.plural, name, why)
    if not version and not kind.unconditional_update:
        cause = invalid_field("metadata.resourceVersion", "0x0", "must be specified for an update")
        raise invalid(kind.group, kind.kind if not kind.custom else kind.plural, name, [cause])
    if version and version != text_at(old, "resourceVersion"):
        raise conflict(kind.group, kind.plural, name)


def _generate(cluster: Cluster, prefix: str) -> str:
    if not prefix:
        return ""
    return prefix + "".join(_GENERATED[byte % len(_GENERATED)] for byte in cluster.random(5))


def _metadata_causes(kind: Kind, metadata: JsonMap) -> list[Cause]:
    causes: list[Cause] = []
    name = text_at(metadata, "name")
    if not name:
        causes.append(required("metadata.name", "name or generateName is required"))
    elif kind.any_name and (name in {".", ".."} or "/" in name or "%" in name):
        causes.append(invalid_field("metadata.name", f'"{name}"', "may not contain '/' or '%'"))
    elif not kind.any_name and not _SUBDOMAIN.fullmatch(name):
        causes.append(invalid_field("metadata.name", f'"{name}"', _SUBDOMAIN_RULE))
    annotations = map_at(metadata, "annotations")
    if annotations and sum(len(key) + len(str(value)) for key, value in annotations.items()) > _ANNOTATIONS_LIMIT:
        causes.append(
            Cause(
                "FieldValueTooLong", f"Too long: must have at most {_ANNOTATIONS_LIMIT} bytes", "metadata.annotations"
            )
        )
    for number, owner in enumerate(maps_at(metadata, "ownerReferences")):
        field = f"metadata.ownerReferences[{number}]"
        causes.extend(
            required(f"{field}.{key}") for key in ("apiVersion", "kind", "name", "uid") if not text_at(owner, key)
        )
    return causes


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
    """Remove an object, what lives in it, and the dependents that it was the last owner of."""
    gone = cluster.store.delete(collection, key)
    if collection == "/namespaces":
        _empty_namespace(cluster, key.name)
    if collection == crd.COLLECTION:
        for stored in cluster.store.list(crd.collection_of(gone.value)):
            _remove(cluster, crd.collection_of(gone.value), _key(stored))
        crd.unregister(cluster.kinds, gone.value)
    uid = text_at(gone.value, "metadata", "uid")
    for dependent_collection, dependent_key in cluster.store.dependents(uid):
        _release(cluster, dependent_collection, dependent_key, uid)
    return gone


def _empty_namespace(cluster: Cluster, namespace: str) -> None:
    for collection, keys in cluster.store.collections():
        for key in keys:
            if key.namespace == namespace and cluster.store.get(collection, key) is not None:
                _remove(cluster, collection, key)


def _release(cluster: Cluster, collection: str, key: Key, uid: str) -> None:
    stored = cluster.store.get(collection, key)
    if stored is None:
        return
    value = load(stored.data)
    owners: list[JsonValue] = [o for o in maps_at(value, "metadata", "ownerReferences") if text_at(o, "uid") != uid]
    finalizers = items_at(value, "metadata", "finalizers")
    if owners:
        _rewrite(cluster, collection, value, {"ownerReferences": owners})
    elif finalizers and not value_at(value, "metadata", "deletionTimestamp"):
        _rewrite(cluster, collection, value, {"deletionTimestamp": cluster.timestamp()})
    elif not finalizers:
        _remove(cluster, collection, key)


def _rewrite(cluster: Cluster, collection: str, value: JsonValue, changes: JsonMap) -> None:
    if isinstance(value, dict):
        child(value, "metadata").update(changes)
        cluster.store.put(collection, value)


def _key(stored: Stored) -> Key:
    return Key(text_at(stored.value, "metadata", "namespace"), text_at(stored.value, "metadata", "name"))
