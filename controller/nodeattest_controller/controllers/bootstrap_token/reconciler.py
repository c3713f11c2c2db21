"""Reconciles the bootstrap tokens of Machines and MachinePools in each cluster.

Nothing is done in a cluster that is paused, being deleted, another replica's, or under ``enforcement: Audit``. Each
write is for the version of the Secret that was evaluated. The token of a deleted owner is deleted only when the API
server has confirmed that the owner is gone while its Cluster stands, so objects that disappear while ``clusterctl
move`` runs cost no token. No secret is logged.
Out of scope: every decision (``decide``).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
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
from nodeattest_controller.model.machine_record import cluster_active
from nodeattest_controller.model.token_binding import KeptConfig
from nodeattest_controller.runtime.cluster_controller import PeriodicController
from nodeattest_controller.runtime.cluster_log import ClusterEvents
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.informers import MOST, ListLimit
from nodeattest_controller.runtime.kubeadm_configs import KubeadmConfigs
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_discovery.secret import NAMESPACE, SECRET_TYPE
from nodeattest_kube import paths
from nodeattest_kube.batches import in_batches
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Conflict, Forbidden, NotFound, TooManyRequests
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.periodic import ResyncConfig
from nodeattest_parsing.objects import items, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Unavailable

_TOKENS: Final = {"fieldSelector": f"type={SECRET_TYPE}"}
_CLOCKS_DIFFER: Final = timedelta(seconds=30)
"""A token that has run out is removed so much later: clocks differ."""
CONTROLLER: Final = "bootstrap-token"
REASON: Final = "BootstrapTokenForbidden"
REMEDY: Final = (
    "apply manifests/workload-bootstrap-token in the workload cluster, or take bootstrap-token from --controllers"
)


log = logging.getLogger(__name__)
_RESYNC: Final = ResyncConfig(share_of_changes=50)
"""A run reads all tokens and Machines, and each machine that joins is a change: thousands pay for it once a minute."""
_MAX_CLOCK_SKEW: Final = timedelta(days=1)
"""A server's clock that differs more from ours is not believed."""


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

    async def reconcile(self, cluster: JsonObject, now: datetime) -> None:
        """Do what is due; raises ApiError where the tokens cannot be listed."""
        tokens = await self._listed(now)
        view = TokenSnapshot(
            cluster, now, tokens, {owner.key: owner async for owner in self._owners()}, _by_owner(tokens)
        )
        async for owner in in_batches(view.owners.values()):
            if owner.paused:
                continue
            if owner.settled:
                await self._settle(owner, view)
            elif owner.config is not None:
                await self._renew(owner, view)
        await self._collect(view)

    async def _listed(self, now: datetime) -> dict[str, Token]:
        found: dict[str, Token] = {}
        kept = ListLimit("bootstrap tokens", self._most)
        async for page in self._client.pages(paths.core_path("secrets", namespace=NAMESPACE), _TOKENS):
            for item in items(page, "items"):
                token = token_of(item, now)
                if token is not None:
                    kept.take(token.name, token.uid, token.resource_version, token.value, str(token.record))
                    found[token.id] = token
        return found

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
            return  # a Machine's token does not change, and this one is good for long enough
        config = await self._config(owner, view.tokens.values())
        if config is None:
            return
        named = _provided(config, view.tokens.values())
        for former in held if owner.kind == "Machine" else ():
            if former is not named and former.record != record:
                await self._delete(former, owner.key)  # of a Machine that had the name before
        until = renewal(named, record, view.now) if named is not None else None
        if named is not None and until is not None:
            await self._write(named, record, until, "renewed")

    async def _config(self, owner: Owner, tokens: Collection[Token]) -> KeptConfig | None:
        """Find the owner's configuration; None where it cannot be read, or is paused.

        Only one that has one of ``tokens`` is believed as the watch shows it: what is missing is read now.
        """
        if owner.config is None:
            return None
        try:
            config = await self._configs.find(
                owner.config, owner.namespace, lambda kept: _provided(kept, tokens) is not None
            )
        except Unavailable as unavailable:
            self._events.unreadable(owner, unavailable.detail)
            return None
        return None if config.paused else config

    # Needed no more

    async def _settle(self, owner: Owner, view: TokenSnapshot) -> None:
        """Let the owner's tokens run out, and remove what has."""
        held = view.held.get((self._key, owner.key), ())
        for token in held:
            until = expire_at(token, view.now)
            if until is not None and token.record is not None:
                await self._write(token, token.record, until, "let run out")
            elif token.expires + _CLOCKS_DIFFER <= view.now:
                await self._delete(token, owner.key)

    async def _collect(self, view: TokenSnapshot) -> None:
        """Delete the tokens of owners that are gone."""
        for token in view.tokens.values():
            record = token.record
            if record is None or record.cluster != self._key or record.owner in view.owners:
                continue
            if await self._is_gone(record.owner, view.cluster):
                await self._delete(token, record.owner)

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


def bootstrap_token_controller(
    management: ManagementCache,
    *,
    configs: KubeadmConfigs,
    guard: ClusterGuard,
    events: EventRecorder,
    metrics: Metrics,
    now: Callable[[], datetime],
    resync: ResyncConfig = _RESYNC,
) -> PeriodicController:
    """Make the controller of the tokens of all clusters."""

    def task(client: ApiClient, cluster_events: ClusterEvents) -> _Task:
        return _Task(client, management, TokenEvents(cluster_events, metrics), guard=guard, configs=configs, now=now)

    return PeriodicController(name=CONTROLLER, task=task, management=management, events=events, log=log, resync=resync)


class _Task:
    """One cluster's tokens (``PeriodicTask``)."""

    def __init__(
        self,
        client: ApiClient,
        management: ManagementCache,
        events: TokenEvents,
        *,
        guard: ClusterGuard,
        configs: KubeadmConfigs,
        now: Callable[[], datetime],
    ) -> None:
        self._client, self._events, self._guard, self._now = client, events, guard, now
        self._reconciler = BootstrapTokenReconciler(
            events.key, client, management, configs, events, may_write=lambda: self._writable_cluster() is not None
        )

    async def reconcile(self) -> float | None:
        """Reconcile the tokens."""
        cluster = self._writable_cluster()
        if cluster is None:
            return None
        theirs, ours = self._client.server_time(), self._now()  # their API server decides what has expired
        believed = theirs is not None and abs(theirs - ours) < _MAX_CLOCK_SKEW
        await self._reconciler.reconcile(cluster, theirs if theirs is not None and believed else ours)
        return None

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        """Report that the tokens, or the objects that they are for, cannot be read."""
        if not self._client.has_reported(error):
            self._events.trouble("cannot set the ends of bootstrap tokens", error, failures=failures, delay=delay)

    def _writable_cluster(self) -> JsonObject | None:
        """Return the Cluster if its tokens may be written now."""
        enforced = self._guard.enforced_cluster(self._events.key)
        return enforced[0] if enforced is not None else None
