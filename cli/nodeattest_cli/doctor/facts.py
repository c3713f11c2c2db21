"""What ``nodeattest doctor`` fetched, and what follows from it at once: policies, rights to have, Leases. Pure.

What could not be read is an ``Unread`` with its reason, and is never taken for what is not there (None, or an empty
list). The shipped manifests are the only list of rights; a role counts where a binding gives it to the controller's
ServiceAccount. A Lease is renewed if its version changes between two reads, as an elector sees it, whatever its
holder's clock shows; a ``renewTime`` that agrees with the API server's time spares the wait. A Lease that changed was
renewed a moment ago, so its ``renewTime`` is its holder's clock.
Source: kubernetes staging/src/k8s.io/api/authorization/v1/types.go (ResourceAttributes); client-go
tools/leaderelection/leaderelection.go (observedTime).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from nodeattest_controller import manifests
from nodeattest_controller.model.policy import TokenBinding, selects
from nodeattest_controller.settings import Settings
from nodeattest_kube.access_review import ResourceAttributes
from nodeattest_kube.jsontypes import version_of
from nodeattest_parsing.objects import flag, items, key_of, mapping, moment, number, strings, text
from nodeattest_parsing.values import JsonObject
from nodeattest_serving.bounded_server import SettingsError

_ACCOUNT: Final = "node-attestation-controller"
_NAMESPACE: Final = "nodeattest-system"
"""The controller's, as the manifests have it."""
SECRET_LIMIT: Final = "nodeattest-challenge-secrets"
"""Name of the ValidatingAdmissionPolicy of manifests/challenge-secrets, and of its binding."""
SECRET_LIMIT_RESOURCES: Final[Mapping[str, str]] = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
"""Both, by kind."""
TOLERATED: Final = 60.0
"""Seconds by which clocks may differ: a Date has whole ones, an answer takes its time, and a Lease is renewed every few
seconds."""


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


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class ShippedRight:
    """One verb on one resource, perhaps of one name."""

    folder: str
    """Of the manifests: what to apply where it is missing."""
    namespace: str
    """Empty: everywhere."""
    group: str
    resource: str
    subresource: str
    verb: str
    name: str
    """Empty: any."""

    def attributes(self, namespace: str = "") -> ResourceAttributes:
        """Return how an API server is asked for it; ``namespace`` stands in for none."""
        return ResourceAttributes(
            verb=self.verb,
            group=self.group,
            resource=self.resource,
            subresource=self.subresource,
            name=self.name,
            namespace=self.namespace or namespace,
        )

    def __str__(self) -> str:
        """Say it as ``kubectl auth can-i`` is asked."""
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        named = f" {self.name}" if self.name else ""
        where = f" -n {self.namespace}" if self.namespace else ""
        return f"{self.verb} {resource}{'.' if self.group else ''}{self.group}{named}{where}"


def shipped_rights(folders: Sequence[str], *, namespace: str = _NAMESPACE) -> list[ShippedRight]:
    """List what these folders give, in order; ``namespace``: where the controller is, instead of the manifests' own."""
    return sorted({right for folder in folders for right in _of_folder(folder, namespace)})


def _of_folder(folder: str, namespace: str) -> Iterator[ShippedRight]:
    documents = manifests.objects(folder)
    roles = {(text(one, "kind"), text(one, "metadata", "name")): one for one in documents}
    for binding in documents:
        if not any(text(subject, "name") == _ACCOUNT for subject in items(binding, "subjects")):
            continue
        role = roles.get((text(binding, "roleRef", "kind"), text(binding, "roleRef", "name")))
        where = text(binding, "metadata", "namespace")
        for rule in items(role or {}, "rules"):
            yield from _of_rule(folder, rule, namespace if where == _NAMESPACE else where)


def _of_rule(folder: str, rule: JsonObject, namespace: str) -> Iterator[ShippedRight]:
    for group in strings(rule, "apiGroups"):
        for whole in strings(rule, "resources"):
            resource, _, subresource = whole.partition("/")
            for verb in strings(rule, "verbs"):
                for name in strings(rule, "resourceNames") or ("",):
                    yield ShippedRight(
                        folder=folder,
                        namespace=namespace,
                        group=group,
                        resource=resource,
                        subresource=subresource,
                        verb=verb,
                        name=name,
                    )


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
        return any(text(one, "spec", "enforcement") != "Audit" for one in self._ruling(key))

    def requires_named_tokens(self, key: str) -> bool:
        """Return whether a policy of a cluster denies tokens that no KubeadmConfig names, as by default."""
        return any(text(one, "spec", "tokenBinding") in {"", TokenBinding.REQUIRED} for one in self._ruling(key))

    def _ruling(self, key: str) -> list[JsonObject]:
        return [policy for one in self.clusters() if key_of(one) == key for policy in self.policies_of(one)]

    def creates_secrets(self) -> bool:
        """Tell whether a policy has the controller create the secrets of provider ``challenge``."""
        return any(flag(one, "spec", "challenge", "createSecrets") for one in readable(self.management.policies))

    def argument(self, name: str) -> str | None:
        """Return a flag of the controller's Deployment, such as ``--controllers``; None where it is not set."""
        for deployment in readable(self.management.deployments):
            for container in items(deployment, "spec", "template", "spec", "containers"):
                words = strings(container, "args")
                for position, word in enumerate(words):
                    option, equals, value = word.partition("=")
                    if option == name:
                        return value if equals else next(iter(words[position + 1 :]), "")
        return None

    def runs(self, controller: str) -> bool:
        """Tell whether a controller runs, by the Deployment's flag; unless it says otherwise, as by default."""
        given = self.argument("--controllers")
        try:
            return Settings(identity="doctor", controllers=tuple((given or "*").split(","))).enabled(controller)
        except SettingsError:
            return True


def management_folders(facts: HealthFacts) -> list[str]:
    """Name the folders of manifests whose rights the controller needs in the management cluster."""
    folders = ["rbac"]
    folders += ["challenge-secrets"] if facts.creates_secrets() else []
    folders += ["webhook"] if isinstance(facts.management.webhook, dict) else []
    return folders


def workload_folders(facts: HealthFacts) -> list[str]:
    """Name those of a workload cluster, by the controllers that run and by what policies say."""
    policies = facts.management.policies
    acts = any(mapping(one, "spec", "onFailure") for one in readable(policies))
    wanted = {
        "workload-rbac": True,
        "workload-hardening": facts.runs("hardening"),
        "workload-bootstrap-token": facts.runs("bootstrap-token"),
        "workload-discovery": facts.runs("bootstrap-signer") or facts.runs("token-cleaner"),
        "workload-on-failure": acts,
    }
    return [folder for folder, needed in wanted.items() if needed]


def leader_leases(facts: HealthFacts) -> list[JsonObject]:
    """Return the leader's Lease, where there is one."""
    return [one for one in readable(facts.management.leases) if text(one, "metadata", "name") == facts.lease_name]


def is_renewed(facts: HealthFacts, lease: JsonObject) -> bool:
    """Tell whether a Lease is held by somebody who renews it."""
    seconds, off = number(lease, "spec", "leaseDurationSeconds"), _offset(lease, facts.now)
    if not text(lease, "spec", "holderIdentity"):
        return False
    return _changed(facts, lease) or (seconds is not None and off is not None and -seconds <= off <= TOLERATED)


def writer_ahead(facts: HealthFacts, lease: JsonObject) -> float | None:
    """Return the seconds by which the holder's clock is ahead of the API server's; None where no renewal was seen."""
    off = _offset(lease, facts.now)
    if off is None or not is_renewed(facts, lease):
        return None
    return off if _changed(facts, lease) else max(off, 0.0)  # an older renewal may have been some time ago


def _changed(facts: HealthFacts, lease: JsonObject) -> bool:
    """Tell whether it was written between the two reads."""
    before = facts.management.earlier_leases.get(key_of(lease))
    return before is not None and before != version_of(lease)


def _offset(lease: JsonObject, now: datetime) -> float | None:
    written = moment(text(lease, "spec", "renewTime"))
    return (written - now).total_seconds() if written is not None else None
