"""Reconciles the bootstrap tokens of one cluster: lists them, finds their owners, and makes at most one write for each.

Promises: every write is a compare-and-swap on what was read in this run; a token of a Machine that is gone is deleted
only when a live read of the management cluster shows that the Machine is gone and that the Cluster exists, is the same
and is not paused, so that objects which disappear while ``clusterctl move`` runs cost no token. No secret is logged.
Leaves to others: when to run (``controller``), every decision (``decide``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from nodeattest_controller.controllers.bootstrap_token.decide import (
    Owner,
    Record,
    Token,
    expire_at,
    patch_of,
    renewal,
    token_of,
    token_owner,
)
from nodeattest_controller.metrics import Metrics, write_outcome
from nodeattest_controller.model.kubeadm_config import KeptConfig
from nodeattest_controller.model.machine_record import cluster_active
from nodeattest_controller.runtime.cluster_log import ClusterEvents
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.informers import MOST, ListLimit
from nodeattest_controller.runtime.kubeadm_configs import KubeadmConfigs
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_discovery.secret import NAMESPACE, SECRET_TYPE, stored_token
from nodeattest_kube import client as paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Conflict, Forbidden, NotFound, TooManyRequests
from nodeattest_kube.events import ObjectRef
from nodeattest_kube.store import in_batches
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Unavailable

_TOKENS: Final = {"fieldSelector": f"type={SECRET_TYPE}"}
_CLOCKS_DIFFER: Final = timedelta(seconds=30)
"""A token that has run out is removed so much later: clocks differ."""
CONFIRM_AFTER: Final = 10.0
"""Seconds until a second run confirms that the owner of a token is gone."""
CONFIRM_LOST: Final = timedelta(minutes=5)
"""How long a machine's token is not found before that is reported: the provider names a token before it makes it, and
after ``clusterctl move`` a node that joined before the policy has no nodeRef until Cluster API has found it again."""


CONTROLLER: Final = "bootstrap-token"
REASON: Final = "BootstrapTokenForbidden"
LOST: Final = "BootstrapTokenLost"
REMEDY: Final = (
    "apply manifests/workload-bootstrap-token in the workload cluster, or take bootstrap-token from --controllers"
)


class TokenEvents:
    """Reports what becomes of one cluster's tokens."""

    def __init__(self, events: ClusterEvents, metrics: Metrics) -> None:
        self.key = events.key
        self._events = events
        self._metrics = metrics

    def written(self, what: str, token_id: str, owner: str) -> None:
        """Count and log a write: ``renewed``, ``let run out`` or ``deleted``."""
        self._metrics.token_write(CONTROLLER, "written")
        self._events.info("bootstrap token", what=what, token=token_id, owner=owner)

    def failed(self, error: ApiError, token_id: str) -> None:
        """Count and report a failed write; the next run repeats it where it is still due."""
        self._metrics.token_write(CONTROLLER, write_outcome(error))
        self.trouble("cannot write a bootstrap token", error, token=token_id)

    def lost(self, owner: Owner) -> None:
        """Report on the machine that it cannot join with the token that it has."""
        if not self._events.warn(("lost", owner.uid), "a machine's bootstrap token is gone", owner=owner.key):
            return
        machine = ObjectRef(
            api_version=owner.api_version, kind=owner.kind, namespace=owner.namespace, name=owner.name, uid=owner.uid
        )
        message = (
            "the bootstrap token that its bootstrap data holds is not there, has expired, or is not the bootstrap "
            "provider's: a machine that has not joined yet cannot; delete the Machine, so that another is made with a "
            "new token"
        )
        self._events.event("Warning", LOST, message, on=machine)

    def unreadable(self, owner: Owner, detail: str) -> None:
        """Report that a bootstrap configuration could not be read."""
        about = ("unreadable", owner.uid)
        self._events.warn(about, "cannot read a bootstrap configuration", owner=owner.key, detail=detail)

    def trouble(self, what: str, error: ApiError, **more: object) -> None:
        """Report an error, a missing right with its remedy and an Event."""
        remedy = REMEDY if isinstance(error, Forbidden) else ""
        due = self._events.warn((what, type(error)), what, error=str(error), remedy=remedy, **more)
        if due and remedy:
            self._events.event("Warning", REASON, f"{CONTROLLER} {what}: {error}; {remedy}")


@dataclass(frozen=True, slots=True)
class TokenSnapshot:
    """What one run sees."""

    cluster: JsonObject
    now: datetime
    tokens: Mapping[str, Token]
    """Those that the bootstrap provider made, by id."""
    others: frozenset[str]
    """Ids of all other bootstrap tokens."""
    owners: Mapping[str, Owner]
    held: Mapping[tuple[str, str], Sequence[Token]]
    """The same tokens by the cluster and owner that they are recorded for."""


class BootstrapTokenReconciler:
    """The tokens of one cluster."""

    def __init__(
        self,
        key: ClusterKey,
        client: ApiClient,
        management: ManagementCache,
        configs: KubeadmConfigs,
        events: TokenEvents,
        *,
        may_write: Callable[[], bool],
        most: int = MOST,
    ) -> None:
        """``client`` is the workload cluster's; ``may_write`` is asked before each write, because a run takes time.

        ``most`` is how many tokens are kept in one run; where there are more, none is reconciled.
        """
        self._key = key
        self._client = client
        self._management = management
        self._configs = configs
        self._events = events
        self._may_write = may_write
        self._most = most
        self._gone: set[str] = set()
        """Tokens whose owners the last run did not find: a second run confirms it, for the cache may be filling."""
        self._missed: dict[str, datetime] = {}
        """Since when each run has not found the token of a machine, by UID."""
        self._missing: dict[str, datetime] = {}
        """The same, of the run that is under way."""

    async def reconcile(self, cluster: JsonObject, now: datetime) -> float | None:
        """Do what is due; returns the seconds until the next run where it must come soon.

        Raises ApiError where the tokens cannot be listed.
        """
        tokens, others = await self._listed(now)
        view = TokenSnapshot(
            cluster, now, tokens, others, {owner.key: owner async for owner in self._owners()}, _by_owner(tokens)
        )
        self._missed, self._missing = self._missing, {}
        async for owner in in_batches(view.owners.values()):
            if owner.paused:
                continue
            if owner.settled:
                await self._settle(owner, view)
            elif owner.config is not None:
                await self._renew(owner, view)
        return CONFIRM_AFTER if await self._collect(view) else None

    async def _listed(self, now: datetime) -> tuple[dict[str, Token], frozenset[str]]:
        found: dict[str, Token] = {}
        others: set[str] = set()
        kept = ListLimit("bootstrap tokens", self._most)
        async for page in self._client.pages(paths.core_path("secrets", namespace=NAMESPACE), _TOKENS):
            listed = page.get("items")
            for item in listed if isinstance(listed, list) else []:
                token = token_of(item, now) if isinstance(item, dict) else None
                if token is not None:
                    kept.take(token.name, token.uid, token.resource_version, token.value, str(token.record))
                    found[token.id] = token
                elif isinstance(item, dict) and (other := stored_token(item)) is not None:
                    kept.take(other.id)
                    others.add(other.id)
        return found, frozenset(others)

    async def _owners(self) -> AsyncGenerator[Owner]:
        async for one in in_batches(self._management.objects_of(self._key, "machines")):
            yield token_owner(one, "Machine", attested=self._has_joined(text(one, "spec", "providerID")))
        async for one in in_batches(self._management.objects_of(self._key, "machinepools")):
            yield token_owner(one, "MachinePool")

    def _has_joined(self, provider_id: str) -> bool:
        attestation = self._management.inventory.own_attestation(self._key, provider_id) if provider_id else None
        return attestation is not None and attestation.has_joined

    # Needed

    async def _renew(self, owner: Owner, view: TokenSnapshot) -> None:
        """Renew the token that the owner's configuration names; what was recorded for it before runs out by itself."""
        record = Record(self._key, owner.key, owner.uid)
        held = view.held.get((self._key, owner.key), ())
        own = next((one for one in held if one.record == record), None)
        if owner.kind == "Machine" and own is not None and renewal(own, record, view.now) is None:
            if own.is_past(view.now):
                self._lost(owner, view.now)
            return  # a Machine's token does not change, and this one is good for long enough
        config = await self._config(owner, view.tokens.values(), () if held else view.others)
        if config is None:
            return
        named = _provided(config, view.tokens.values())
        for former in held if owner.kind == "Machine" else ():
            if former is not named and former.record != record:
                await self._delete(former, owner.key)  # of a Machine that had the name before
        if named is None or named.is_past(view.now):
            if config.provided not in {"", *view.others}:
                self._lost(owner, view.now)
            return
        until = renewal(named, record, view.now)
        if until is not None:
            await self._write(named, record, until, "renewed")

    def _lost(self, owner: Owner, now: datetime) -> None:
        """Report a token that was not found for a while. None is made: its deletion may have been intended."""
        since = self._missing[owner.uid] = self._missed.get(owner.uid, now)
        if now - since >= CONFIRM_LOST:
            self._events.lost(owner)

    async def _config(self, owner: Owner, tokens: Collection[Token], others: Container[str]) -> KeptConfig | None:
        """Find the owner's configuration; None where it cannot be read, or is paused.

        Only one that has one of ``tokens``, or a token with an id in ``others``, is believed as the watch shows it:
        what is missing is read now.
        """

        def is_wished(kept: KeptConfig) -> bool:
            return kept.provided in others or _provided(kept, tokens) is not None

        if owner.config is None:
            return None
        try:
            config = await self._configs.find(owner.config, owner.namespace, is_wished)
        except Unavailable as unavailable:
            if not owner.settled:  # the configuration of a Machine that is being deleted may be gone
                self._events.unreadable(owner, unavailable.detail)
            return None
        return None if config.paused else config

    # Needed no more

    async def _settle(self, owner: Owner, view: TokenSnapshot) -> None:
        """Let the owner's tokens run out, and remove what has."""
        held = view.held.get((self._key, owner.key), ())
        if not held and owner.is_recent(view.now):
            await self._settle_unrecorded(owner, view)
        for token in held:
            until = expire_at(token, view.now)
            if until is not None and token.record is not None:
                await self._write(token, token.record, until, "let run out")
            elif token.expires + _CLOCKS_DIFFER <= view.now:
                await self._delete(token, owner.key)

    async def _settle_unrecorded(self, owner: Owner, view: TokenSnapshot) -> None:
        """Record the token of an owner that joined before a run saw it, and let it run out like any other."""
        unrecorded = [one for one in view.tokens.values() if one.record is None and not one.is_past(view.now)]
        config = await self._config(owner, unrecorded, view.others) if unrecorded else None
        named = _provided(config, unrecorded) if config is not None else None
        if named is not None:
            until = expire_at(named, view.now) or named.expires
            await self._write(named, Record(self._key, owner.key, owner.uid), until, "let run out")

    async def _collect(self, view: TokenSnapshot) -> bool:
        """Delete the tokens of owners that are gone; returns whether another run is to confirm that some are."""
        missing = {
            token.id: token
            for token in view.tokens.values()
            if token.record and token.record.cluster == self._key and token.record.owner not in view.owners
        }
        fresh = missing.keys() - self._gone
        for token_id, token in missing.items():
            if token_id not in fresh and token.record and await self._is_gone(token.record.owner, view.cluster):
                await self._delete(token, token.record.owner)
        self._gone = set(missing)
        return bool(fresh)

    async def _is_gone(self, owner: str, cluster: JsonObject) -> bool:
        """Ask the management cluster whether an owner is gone while its Cluster stands.

        The Cluster is read after the owner: ``clusterctl move`` pauses it first of all, and deletes it last.
        """
        kind, _, name = owner.partition("/")
        resource = "machinepools" if kind == "MachinePool" else "machines"
        namespace = text(cluster, "metadata", "namespace")
        client = self._management.client
        try:
            await client.get(self._management.path_of(resource, namespace, name))
        except NotFound:
            pass
        except (KeyError, ValueError):  # no such kind is read here, or a record that somebody else wrote
            return False
        else:
            return False
        group, _, version = text(cluster, "apiVersion").partition("/")
        cluster_name = text(cluster, "metadata", "name")
        try:
            now = await client.get(paths.object_path(group, version, "clusters", cluster_name, namespace=namespace))
        except NotFound:
            return False
        return text(now, "metadata", "uid") == text(cluster, "metadata", "uid") and cluster_active(now)

    # Writes

    async def _write(self, token: Token, record: Record, until: datetime, what: str) -> None:
        if not self._may_write():
            return
        try:
            await self._client.merge_patch(_path(token), patch_of(token, record, until))
        except ApiError as error:
            self._failed(error, token)
        else:
            self._events.written(what, token.id, record.owner)

    async def _delete(self, token: Token, owner: str) -> None:
        if not self._may_write():
            return
        try:
            await self._client.delete(_path(token), uid=token.uid, resource_version=token.resource_version)
        except ApiError as error:
            self._failed(error, token)
        else:
            self._events.written("deleted", token.id, owner)

    def _failed(self, error: ApiError, token: Token) -> None:
        """Report a failed write; raises it where the server wants no more of them now."""
        if isinstance(error, TooManyRequests):
            raise error
        if not isinstance(error, (NotFound, Conflict)):  # another writer was faster: the next run sees what there is
            self._events.failed(error, token.id)


def _by_owner(tokens: Mapping[str, Token]) -> dict[tuple[str, str], list[Token]]:
    held: dict[tuple[str, str], list[Token]] = {}
    for token in tokens.values():
        if token.record is not None:
            held.setdefault((token.record.cluster, token.record.owner), []).append(token)
    return held


def _provided(config: KeptConfig, tokens: Collection[Token]) -> Token | None:
    """Return the token that the bootstrap provider wrote into a configuration."""
    return next((one for one in tokens if one.id == config.provided and config.provides(one.value)), None)


def _path(token: Token) -> str:
    return paths.core_path("secrets", token.name, namespace=NAMESPACE)
