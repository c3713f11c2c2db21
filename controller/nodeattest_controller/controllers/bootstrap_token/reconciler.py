"""Reconciles the bootstrap tokens of Machines and MachinePools in each cluster.

Nothing is done in a cluster that is paused, being deleted, another replica's, or under ``enforcement: Audit``. Each
write is for the version of the Secret that was evaluated. The token of a deleted owner is deleted only when the API
server has confirmed that the owner is gone while its Cluster stands, so objects that disappear while ``clusterctl
move`` runs cost no token. No secret is logged.
Out of scope: every decision (``decide``).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping
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
from nodeattest_controller.runtime.informers import MOST, ListLimit
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.references import KubeadmConfigs
from nodeattest_discovery.secret import NAMESPACE, SECRET_TYPE
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Conflict, Forbidden, NotFound, TooManyRequests
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.periodic import ResyncConfig
from nodeattest_kube.store import in_batches
from nodeattest_parsing.objects import items, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Unavailable

_TOKENS: Final = {"fieldSelector": f"type={SECRET_TYPE}"}
_CLOCKS_DIFFER: Final = timedelta(seconds=30)
"""A token that has expired is deleted so much later: clocks differ."""
_MAX_CLOCK_SKEW: Final = timedelta(days=1)
"""A server's clock that differs more from ours is not believed."""
_RESYNC: Final = ResyncConfig(share_of_changes=50)
"""A run reads all tokens and Machines, and each machine that joins is a change: thousands pay for it once a minute."""
CONTROLLER: Final = "bootstrap-token"
REASON: Final = "BootstrapTokenForbidden"
REMEDY: Final = (
    "apply manifests/workload-bootstrap-token in the workload cluster, or take bootstrap-token from --controllers"
)

log = logging.getLogger(__name__)


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

    def task(client: ApiClient, cluster_events: ClusterEvents) -> BootstrapTokenReconciler:
        return BootstrapTokenReconciler(
            client, management, cluster_events, metrics=metrics, guard=guard, configs=configs, now=now
        )

    return PeriodicController(name=CONTROLLER, task=task, management=management, events=events, log=log, resync=resync)


class BootstrapTokenReconciler:
    """The tokens of one cluster (``PeriodicTask``)."""

    def __init__(
        self,
        client: ApiClient,
        management: ManagementCache,
        events: ClusterEvents,
        *,
        metrics: Metrics,
        guard: ClusterGuard,
        configs: KubeadmConfigs,
        now: Callable[[], datetime],
    ) -> None:
        """``client`` is the workload cluster's."""
        self._key, self._client, self._management = events.key, client, management
        self._events, self._metrics, self._guard = events, metrics, guard
        self._configs, self._now = configs, now

    async def reconcile(self) -> float | None:
        """Do what is due; raises ApiError. The cluster's API server decides what has expired."""
        enforced = self._guard.enforced_cluster(self._key)
        if enforced is None:
            return None
        now = self._server_time()
        tokens = await self._list_tokens(now)
        owners = {owner.key: owner async for owner in self._owners()}
        held, unrecorded = self._by_owner(tokens), await self._unrecorded(tokens)
        async for owner in in_batches(owners.values()):
            if owner.paused:
                continue
            if owner.settled:
                config = owner.config.name if owner.config is not None else ""
                await self._settle(owner, held[owner.key] or unrecorded[config], now)
            elif owner.config is not None:
                await self._renew(owner, held[owner.key], tokens, now)
        for key in held.keys() - owners.keys():
            if await self._is_gone(key, enforced[0]):
                for token in held[key]:
                    await self._delete(token, key)
        return None

    def _server_time(self) -> datetime:
        theirs, ours = self._client.server_time(), self._now()
        return theirs if theirs is not None and abs(theirs - ours) < _MAX_CLOCK_SKEW else ours

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        """Report that the tokens, or the objects that they are for, cannot be read."""
        if not self._client.has_reported(error):
            self._report("cannot set the ends of bootstrap tokens", error, failures=failures, delay=delay)

    async def _list_tokens(self, now: datetime) -> dict[str, Token]:
        """List the tokens that the bootstrap provider made, by id; raises ApiError, also where there are too many."""
        found: dict[str, Token] = {}
        kept = ListLimit("bootstrap tokens", MOST)
        async for page in self._client.pages(paths.core_path("secrets", namespace=NAMESPACE), _TOKENS):
            for item in items(page, "items"):
                token = token_of(item, now)
                if token is not None:
                    kept.take(token.name, token.uid, token.resource_version, token.value, str(token.record))
                    found[token.id] = token
        return found

    def _by_owner(self, tokens: Mapping[str, Token]) -> defaultdict[str, list[Token]]:
        """Return the tokens that are recorded for owners of this cluster, by owner."""
        held: defaultdict[str, list[Token]] = defaultdict(list)
        for token in tokens.values():
            if token.record is not None and token.record.cluster == self._key:
                held[token.record.owner].append(token)
        return held

    async def _unrecorded(self, tokens: Mapping[str, Token]) -> defaultdict[str, list[Token]]:
        """Return tokens without a record by the KubeadmConfig that provides them: a Machine may join between runs."""
        found: defaultdict[str, list[Token]] = defaultdict(list)
        left = [token for token in tokens.values() if token.record is None]
        if left:
            await self._configs.follow()
        namespace = self._key.partition("/")[0]
        for token in left:
            for config in self._configs.naming(namespace, token.id):
                if config.provides(token.value) and not config.paused:
                    found[config.name].append(token)
        return found

    async def _owners(self) -> AsyncGenerator[Owner]:
        inventory = self._management.inventory
        async for machine in in_batches(self._management.objects_of(self._key, "machines")):
            provider_id = text(machine, "spec", "providerID")
            attestation = inventory.own_attestation(self._key, provider_id) if provider_id else None
            yield token_owner(machine, "Machine", attested=attestation is not None and attestation.has_joined)
        async for pool in in_batches(self._management.objects_of(self._key, "machinepools")):
            yield token_owner(pool, "MachinePool")

    async def _renew(self, owner: Owner, held: list[Token], tokens: Mapping[str, Token], now: datetime) -> None:
        """Renew the token that the owner's configuration names; what was recorded for it before expires by itself."""
        record = Record(self._key, owner.key, owner.uid)
        own = next((one for one in held if one.record == record), None)
        if owner.kind == "Machine" and own is not None and renewal(own, record, now) is None:
            return  # a Machine's token does not change, and this one is good for long enough
        config = await self._read_config(owner, tokens)
        if config is None:
            return
        named = _provided(config, tokens)
        for former in held if owner.kind == "Machine" else ():
            if former is not named and former.record != record:
                await self._delete(former, owner.key)  # of a Machine that had the name before
        until = renewal(named, record, now) if named is not None else None
        if named is not None and until is not None:
            await self._patch(named, record, until, "renewed")

    async def _read_config(self, owner: Owner, tokens: Mapping[str, Token]) -> KeptConfig | None:
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
            about, message = ("unreadable", owner.uid), "cannot read a bootstrap configuration"
            self._events.warn(about, message, owner=owner.key, detail=unavailable.detail)
            return None
        return None if config.paused else config

    async def _settle(self, owner: Owner, held: list[Token], now: datetime) -> None:
        """Let the owner's tokens expire, and delete what has."""
        for token in held:
            until = expire_at(token, now)
            if until is not None:
                record = token.record or Record(self._key, owner.key, owner.uid)
                await self._patch(token, record, until, "let expire")
            elif token.expires + _CLOCKS_DIFFER <= now:
                await self._delete(token, owner.key)

    async def _is_gone(self, owner: str, cluster: JsonObject) -> bool:
        """Ask the management cluster whether an owner is gone while its Cluster stands.

        The Cluster is read after the owner: ``clusterctl move`` pauses it first of all, and deletes it last.
        """
        kind, _, name = owner.partition("/")
        resource = "machinepools" if kind == "MachinePool" else "machines"
        namespace, client = text(cluster, "metadata", "namespace"), self._management.client
        try:
            await client.get(self._management.path_of(resource, namespace, name))
        except NotFound:
            pass
        except (KeyError, ValueError):  # no such kind is read here, or a record that somebody else wrote
            return False
        else:
            return False
        group, _, version = text(cluster, "apiVersion").partition("/")
        path = paths.object_path(group, version, "clusters", text(cluster, "metadata", "name"), namespace=namespace)
        try:
            now = await client.get(path)
        except NotFound:
            return False
        return text(now, "metadata", "uid") == text(cluster, "metadata", "uid") and cluster_active(now)

    # Writes, before each of which the guard is asked again, because a run takes time

    async def _patch(self, token: Token, record: Record, until: datetime, what: str) -> None:
        if self._guard.enforced_cluster(self._key) is None:
            return
        try:
            await self._client.merge_patch(_path(token), patch_of(token, record, until))
        except ApiError as error:
            self._write_failed(error, token)
        else:
            self._written(what, token, record.owner)

    async def _delete(self, token: Token, owner: str) -> None:
        if self._guard.enforced_cluster(self._key) is None:
            return
        try:
            await self._client.delete(_path(token), uid=token.uid, resource_version=token.resource_version)
        except ApiError as error:
            self._write_failed(error, token)
        else:
            self._written("deleted", token, owner)

    def _written(self, what: str, token: Token, owner: str) -> None:
        self._metrics.token_write(CONTROLLER, "written")
        self._events.info("bootstrap token", what=what, token=token.id, owner=owner)

    def _write_failed(self, error: ApiError, token: Token) -> None:
        """Report a failed write, which the next run repeats; raises it where the server wants no more of them now."""
        if isinstance(error, TooManyRequests):
            raise error
        if not isinstance(error, (NotFound, Conflict)):  # another writer was faster: the next run sees what there is
            self._metrics.token_write(CONTROLLER, write_outcome(error))
            self._report("cannot write a bootstrap token", error, token=token.id)

    def _report(self, what: str, error: ApiError, **more: object) -> None:
        """Report an error, a missing right with its remedy and an Event."""
        remedy = REMEDY if isinstance(error, Forbidden) else ""
        due = self._events.warn((what, type(error)), what, error=str(error), remedy=remedy, **more)
        if due and remedy:
            self._events.event("Warning", REASON, f"{CONTROLLER} {what}: {error}; {remedy}")


def _provided(config: KeptConfig, tokens: Mapping[str, Token]) -> Token | None:
    """Return the token that the bootstrap provider wrote into a configuration."""
    token = tokens.get(config.provided or "")
    return token if token is not None and config.provides(token.value) else None


def _path(token: Token) -> str:
    return paths.core_path("secrets", token.name, namespace=NAMESPACE)
