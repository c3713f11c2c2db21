"""Creates the Secrets for provider ``challenge`` in the namespace of each cluster whose policy asks for it.

A Machine needs one until its bootstrap data exists, which holds the value; one that was deleted later is not created
again. A Secret that exists is never changed, and no value is logged.
Nothing is created for a cluster that is paused, being deleted, another replica's, or under ``enforcement: Audit``, nor
while this ServiceAccount may create other Secrets than these. A dry run of one that the shipped
ValidatingAdmissionPolicy refuses shows whether it may.
Out of scope: referring to the Secret (the webhook), deleting it (the garbage collector, by its owner).
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from nodeattest_controller.model import kubeadm_config, machine_view
from nodeattest_controller.runtime.cluster_controller import ClusterReconciler, ReconcilerDeps
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.references import KubeadmConfigs
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import AlreadyExists, ApiError, Forbidden, Invalid, TooManyRequests
from nodeattest_kube.events import ObjectRef
from nodeattest_kube.periodic import ResyncConfig
from nodeattest_kube.store import in_batches
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.strict_base64 import encode_base64
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Unavailable

NOT_CREATED: Final = "ChallengeSecretNotCreated"
PROBE: Final = "nodeattest-probe"
"""Name of the Secret that the dry run would create."""
_REMEDY: Final = (
    "apply manifests/challenge-secrets in the management cluster, or take challenge.createSecrets out of the policy"
)
_AGAIN: Final = 2.0
"""Seconds until a Machine is looked at again whose KubeadmConfig Cluster API has not given to it yet."""
_LOOK_AGAIN: Final = 60.0
"""The same for any other Machine. Until the bootstrap data exists, its Secret may be deleted, its KubeadmConfig may be
replaced, and whatever refused the Secret may be corrected."""
_LIMITED_FOR: Final = 600.0
"""Seconds for which the answer to a dry run is believed."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A Machine without bootstrap data, and its KubeadmConfig."""

    machine: ObjectRef
    config: machine_view.ContractReference


class Step(StrEnum):
    """What to do for a candidate."""

    CREATE = "Create"
    WAIT = "Wait"
    """Cluster API has not made the Machine the owner of its KubeadmConfig yet."""
    NOTHING = "Nothing"


def candidate(machine: JsonObject) -> Candidate | None:
    """Return a worker Machine that has a KubeadmConfig and no bootstrap data yet; None for any other."""
    meta, reference = mapping(machine, "metadata"), machine_view.bootstrap_config_ref(machine)
    if reference is None or (reference.group, reference.kind) != kubeadm_config.KUBEADM_CONFIG:
        return None
    if "deletionTimestamp" in meta or machine_view.CONTROL_PLANE_LABEL in mapping(meta, "labels"):
        return None
    if machine_view.PAUSED_ANNOTATION in mapping(meta, "annotations") or text(
        machine, "spec", "bootstrap", "dataSecretName"
    ):
        return None
    name, namespace, uid = text(meta, "name"), text(meta, "namespace"), text(meta, "uid")
    api_version = text(machine, "apiVersion")
    return Candidate(
        ObjectRef(api_version=api_version, kind="Machine", namespace=namespace, name=name, uid=uid), reference
    )


def evaluate(config: JsonObject, machine: Candidate) -> Step:
    """Decide by a candidate's KubeadmConfig.

    1. It is of no use any more, or paused. 2. Its bootstrap data does not hold the Secret's value, or exists already.
    3. It belongs to nobody yet. 4. It belongs to another Machine.
    """
    meta = mapping(config, "metadata")
    if "deletionTimestamp" in meta or machine_view.PAUSED_ANNOTATION in mapping(meta, "annotations"):  # 1
        return Step.NOTHING
    if kubeadm_config.has_bootstrap_data(config) or not refers_to_secret(config):  # 2
        return Step.NOTHING
    owner = kubeadm_config.machine_uid(config)
    if not owner:  # 3
        return Step.WAIT
    return Step.CREATE if owner == machine.machine.uid else Step.NOTHING  # 4


def new_secret(config: JsonObject, *, cluster: str, value: str) -> JsonObject:
    """Make the Secret; ``value`` is random text, because user data carries text only."""
    meta = mapping(config, "metadata")
    name = text(meta, "name")
    owner: JsonObject = {
        "apiVersion": text(config, "apiVersion"),
        "kind": kubeadm_config.KUBEADM_CONFIG[1],
        "name": name,
        "uid": text(meta, "uid"),
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": kubeadm_config.challenge_secret_name(name),
            "namespace": text(meta, "namespace"),
            "labels": {machine_view.CLUSTER_LABEL: cluster},
            "ownerReferences": [owner],
        },
        "type": kubeadm_config.SECRET_TYPE,
        "immutable": True,
        "data": {kubeadm_config.SECRET_KEY: encode_base64(value.encode())},
    }


def refers_to_secret(config: JsonObject) -> bool:
    wanted = kubeadm_config.challenge_secret_name(text(config, "metadata", "name"))
    named = (text(file, "contentFrom", "secret", "name") for file in items(config, "spec", "files"))
    return wanted in named


class ChallengeSecretReconciler(ClusterReconciler):
    """The Secrets of one cluster's Machines."""

    resync = ResyncConfig(min_interval=1.0, share=50, max_retry=60.0)
    """The bootstrap provider backs off while the Secret does not exist, so a run follows a new Machine within
    seconds."""

    def __init__(
        self,
        deps: ReconcilerDeps,
        configs: KubeadmConfigs,
        key: ClusterKey,
        client: ApiClient,
        resync: ResyncConfig | None = None,
    ) -> None:
        super().__init__(deps, key, client, resync)
        self._configs = configs
        self._next: dict[str, float] = {}
        """When a candidate is looked at again, by the Machine's UID."""
        self._limited_until = -math.inf

    async def reconcile(self) -> float | None:
        cluster = self._writable_cluster()
        if cluster is None:
            return None
        found = dict[str, float]()
        async for machine in in_batches(self._management.objects_of(self._key, "machines")):
            wanted = candidate(machine)
            if wanted is None:
                continue
            due = self._next.get(wanted.machine.uid, -math.inf)
            if due <= self._clock():
                due = self._clock() + await self._provide(wanted, cluster)
            self._next[wanted.machine.uid] = found[wanted.machine.uid] = due
        self._next = found
        return _AGAIN if any(due <= self._clock() for due in found.values()) else None

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        what = "cannot create a Secret for provider challenge"
        self._events.report(what, error, reason=NOT_CREATED, remedy=_REMEDY, failures=failures, delay=delay)

    async def _provide(self, wanted: Candidate, cluster: JsonObject) -> float:
        """Do what a candidate needs; returns in how many seconds to look at it again. Raises TooManyRequests."""
        machine = wanted.machine
        try:
            config = await self._configs.read(wanted.config, machine.namespace)
            step = evaluate(config, wanted)
            if step is Step.WAIT:
                return 0.0
            if step is Step.CREATE and await self._is_limited(machine.namespace):
                await self._create(machine, config, cluster)
        except Unavailable as unavailable:
            more = {"machine": machine.name, "detail": unavailable.detail}
            self._events.warn(("unreadable", machine.uid), "cannot read a KubeadmConfig", **more)
            return 0.0
        except TooManyRequests:
            raise
        except ApiError as error:
            delay = _LOOK_AGAIN if isinstance(error, (Forbidden, Invalid)) else 0.0
            await self.failed(error, 1, delay or _AGAIN)
            return delay
        return _LOOK_AGAIN

    async def _create(self, machine: ObjectRef, config: JsonObject, cluster: JsonObject) -> None:
        """Create the Secret, or report on the Machine that the one that exists is not ours. Raises ApiError."""
        name = kubeadm_config.challenge_secret_name(text(config, "metadata", "name"))
        secret = new_secret(config, cluster=text(cluster, "metadata", "name"), value=secrets.token_hex(32))
        if self._writable_cluster() is None:
            return
        try:
            await self._management.client.create(paths.core_path("secrets", namespace=machine.namespace), secret)
        except AlreadyExists:
            stored = await self._management.secret(machine.namespace, name)
            found = kubeadm_config.read_secret(stored, kubeadm_config.read_config(config), machine.uid)
            what = "the Secret for provider challenge is somebody else's"
            if isinstance(found, Denied) and self._events.warn(
                ("foreign", machine.uid), what, machine=machine.name, secret=name, got=found.got
            ):
                message = f"{what}: expected {found.expected}, got {found.got}; {found.remedy}"
                self._events.event("Warning", NOT_CREATED, message, on=machine)
        else:
            self._events.info("created a Secret for provider challenge", machine=machine.name, secret=name)

    async def _is_limited(self, namespace: str) -> bool:
        """Return whether the API server refuses another Secret of ours; reports where it does not. Raises ApiError."""
        if self._clock() < self._limited_until:
            return True
        probe: JsonObject = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": PROBE, "namespace": namespace},
            "type": "Opaque",
        }
        try:
            await self._management.client.create(f"{paths.core_path('secrets', namespace=namespace)}?dryRun=All", probe)
        except (Forbidden, Invalid):
            self._limited_until = self._clock() + _LIMITED_FOR
            return True
        what = "no Secret is created for provider challenge: this ServiceAccount may create any Secret"
        if self._events.warn("unlimited", what, remedy=_REMEDY):
            self._events.event("Warning", NOT_CREATED, f"{what}; {_REMEDY}")
        return False

    def _writable_cluster(self) -> JsonObject | None:
        """Return the Cluster if its Secrets may be created now."""
        enforced = self._guard.enforced_cluster(self._key)
        try:
            return enforced[0] if enforced is not None and kubeadm_config.creates_secrets(enforced[1]) else None
        except Denied:
            return None
