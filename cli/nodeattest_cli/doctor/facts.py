"""What ``nodeattest doctor`` fetched, for the modules that look at it. Pure.

Promises: what could not be read is an ``Unread`` with its reason, and is never taken for what is not there (None, or an
empty list).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from nodeattest_cli.doctor.shipped_rights import ShippedRight
from nodeattest_controller.model.objects import flag, items, strings, text
from nodeattest_controller.model.policy import TokenBinding, selects
from nodeattest_kube.jsontypes import JsonObject, key_of

__all__ = ["HealthFacts", "ManagementFacts", "MoveFacts", "TrialRefusal", "Unread", "WorkloadFacts", "readable"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unread:
    """Why something could not be read, in one line."""

    why: str


@dataclass(frozen=True, slots=True)
class TrialRefusal:
    """What the webhook, or the API server that did not reach it, said of a trial."""

    why: str


def readable(found: Sequence[JsonObject] | Unread) -> Sequence[JsonObject]:
    """Return what was read; nothing where it could not be, for those to whom another finding says so."""
    return () if isinstance(found, Unread) else found


@dataclass(slots=True, kw_only=True)
class ManagementFacts:
    """The management cluster."""

    version: str | Unread = ""
    """Of Kubernetes, such as ``v1.36.2``."""
    ahead: float | None = None
    """Seconds by which its clock is ahead of this machine's; None where it does not say."""
    cluster_api: str | Unread = ""
    """The version of Cluster API that it prefers; empty: it has none."""
    definitions: Mapping[str, JsonObject | Unread | None] = field(default_factory=dict[str, JsonObject | Unread | None])
    """Our CustomResourceDefinitions by name; None: not there."""
    policies: Sequence[JsonObject] | Unread = ()
    clusters: Sequence[JsonObject] | Unread = ()
    """Clusters and ClusterRecords."""
    machines: Sequence[JsonObject] | Unread = ()
    """Machines, MachinePools and MachineRecords."""
    attestations: Sequence[JsonObject] | Unread = ()
    configs: Sequence[JsonObject] | Unread | None = None
    """KubeadmConfigs; None: no machine is about to join, so nobody asked."""
    leases: Sequence[JsonObject] | Unread = ()
    """Of the controller's namespace, as read last."""
    earlier_leases: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """Their UIDs and resourceVersions as read first, by ``namespace/name``."""
    deployments: Sequence[JsonObject] | Unread = ()
    """Of the controller."""
    webhook: JsonObject | Unread | None = None
    """Our MutatingWebhookConfiguration; None: not there."""
    validation: JsonObject | Unread | None = None
    """Our ValidatingWebhookConfiguration."""
    endpoints: Sequence[JsonObject] | Unread = ()
    """EndpointSlices of the Service that it names."""
    trials: Mapping[str, JsonObject | Unread | TrialRefusal] | Unread = field(
        default_factory=dict[str, "JsonObject | Unread | TrialRefusal"]
    )
    """What the API server made of a KubeadmConfig that was created on trial, by its cluster (``namespace/name``)."""
    reviews: Mapping[ShippedRight, bool] | Unread = field(default_factory=dict[ShippedRight, bool])
    """Whether the controller has each right that the shipped manifests give."""
    secret_limits: Mapping[str, JsonObject | Unread | None] = field(
        default_factory=dict[str, JsonObject | Unread | None]
    )
    """The ValidatingAdmissionPolicy of manifests/challenge-secrets and its binding, by kind; None: not there.
    Empty: no policy has the controller create Secrets."""


@dataclass(slots=True, kw_only=True)
class WorkloadFacts:
    """One workload cluster; ``unreached`` says why there is nothing else of it."""

    unreached: Unread | None = None
    version: str | Unread = ""
    ahead: float | None = None
    """Seconds by which its clock is ahead of the management cluster's."""
    roles: Sequence[JsonObject] | Unread = ()
    bindings: Sequence[JsonObject] | Unread = ()
    cluster_info: JsonObject | Unread | None = None
    reviews: Mapping[ShippedRight, bool] | Unread = field(default_factory=dict[ShippedRight, bool])


@dataclass(slots=True, kw_only=True)
class MoveFacts:
    """A ``clusterctl move`` to come; the other facts are of its target."""

    kubeconfig: str
    """Of the target."""
    source_uid: str = ""
    """Of the source's namespace kube-system."""
    paused: list[str] = field(default_factory=list[str])
    """Clusters and ClusterClasses of the source."""
    unread: dict[str, str] = field(default_factory=dict[str, str])
    """Why something of the source could not be read, by the finding that lacks it."""
    namespaces: dict[str, JsonObject | Unread | None] = field(default_factory=dict[str, "JsonObject | Unread | None"])
    """Of the target, those whose policies need the label; None: not there."""


@dataclass(slots=True, kw_only=True)
class HealthFacts:
    """All of it."""

    now: datetime
    """The management cluster's time; this machine's where that does not say."""
    namespace: str = "nodeattest-system"
    """The controller's."""
    lease_name: str = "node-attestation-controller"
    management: ManagementFacts = field(default_factory=ManagementFacts)
    workloads: Mapping[str, WorkloadFacts] = field(default_factory=dict[str, WorkloadFacts])
    """By ``namespace/name``: the protected clusters."""
    move: MoveFacts | None = None

    def protected(self) -> list[JsonObject]:
        """Return the clusters that a policy selects."""
        return [one for one in self.clusters() if self.policies_of(one)]

    def clusters(self) -> Sequence[JsonObject]:
        """Return the clusters; none where they could not be read."""
        return readable(self.management.clusters)

    def policies_of(self, cluster: JsonObject) -> list[JsonObject]:
        """Return the policies that select a cluster."""
        namespace = text(cluster, "metadata", "namespace")
        known = readable(self.management.policies)
        return [one for one in known if text(one, "metadata", "namespace") == namespace and selects(one, cluster)]

    def enforces(self, key: str) -> bool:
        """Tell whether a policy of a cluster says Enforce."""
        cluster = next((one for one in self.clusters() if key_of(one) == key), None)
        chosen = self.policies_of(cluster) if cluster is not None else []
        return any(text(one, "spec", "enforcement") != "Audit" for one in chosen)

    def requires_named_tokens(self, key: str) -> bool:
        """Return whether a policy of a cluster denies tokens that no KubeadmConfig names, as by default."""
        cluster = next((one for one in self.clusters() if key_of(one) == key), None)
        chosen = self.policies_of(cluster) if cluster is not None else []
        return any(text(one, "spec", "tokenBinding") in {"", TokenBinding.REQUIRED} for one in chosen)

    def creates_secrets(self) -> bool:
        """Tell whether a policy has the controller create the secrets of provider ``challenge``."""
        return any(flag(one, "spec", "challenge", "createSecrets") for one in readable(self.management.policies))

    def argument(self, name: str) -> str | None:
        """Return a flag of the controller's Deployment, such as ``--controllers``; None where it is not set."""
        for deployment in readable(self.management.deployments):
            for container in items(deployment, "spec", "template", "spec", "containers"):
                words = strings(container, "args")
                for number, word in enumerate(words):
                    option, equals, value = word.partition("=")
                    if option == name:
                        return value if equals else next(iter(words[number + 1 :]), "")
        return None

    def runs(self, controller: str) -> bool:
        """Tell whether a controller runs, by the Deployment's flag; unless it says otherwise, as by default."""
        from nodeattest_controller.settings import Settings
        from nodeattest_serving.settings import SettingsError

        given = self.argument("--controllers")
        try:
            return Settings(identity="doctor", controllers=tuple((given or "*").split(","))).enabled(controller)
        except SettingsError:
            return True
