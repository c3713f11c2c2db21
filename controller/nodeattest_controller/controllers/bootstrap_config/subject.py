"""KubeadmConfigs and KubeadmControlPlanes: the bootstrap configuration in them, and whose it is. Pure.

Sources, of cluster-api: controllers/external/util.go (a clone bears label and owner from its creation),
internal/controllers/machine/machine_controller_phases.go (what a user made gets label and owner by an update),
controlplane/kubeadm/internal/desiredstate (labels of a control plane's machines),
bootstrap/kubeadm/internal/controllers/kubeadmconfig_controller.go (the token and ``status.dataSecretName``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from nodeattest_controller.controllers.bootstrap_config.admission_review import JsonPointer, paths
from nodeattest_controller.model.machine_view import CLUSTER_LABEL, CONTROL_PLANE_LABEL, PAUSED_ANNOTATION
from nodeattest_controller.model.token_binding import has_bootstrap_data
from nodeattest_parsing.objects import dig, items, mapping, number, text
from nodeattest_parsing.values import JsonObject

_GROUPS: Final = {
    "KubeadmConfig": "bootstrap.cluster.x-k8s.io",
    "KubeadmControlPlane": "controlplane.cluster.x-k8s.io",
}
_CLUSTER_GROUP: Final = "cluster.x-k8s.io"
_ROLLOUT: Final[tuple[JsonPointer, ...]] = (
    ("version",),
    ("machineTemplate",),
    ("rolloutAfter",),
    ("rolloutBefore",),
    ("rollout", "after"),
    ("rollout", "before"),
)
"""Fields of a control plane's spec with which its user asks for new machines (v1beta1; v1beta2)."""
_BY_PROVIDER: Final[tuple[JsonPointer, ...]] = (("joinConfiguration", "discovery"), ("clusterConfiguration",))
"""What the kubeadm bootstrap provider itself writes into a configuration: the token, what the Cluster says."""


class Kind(StrEnum):
    """The kinds that are rendered."""

    CONFIG = "KubeadmConfig"
    CONTROL_PLANE = "KubeadmControlPlane"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One such object."""

    kind: Kind
    api_version: str
    namespace: str
    name: str
    whole: JsonObject = field(repr=False)

    @property
    def spec(self) -> JsonObject:
        """The bootstrap configuration: a KubeadmConfigSpec in either kind."""
        return mapping(self.whole, *self.place)

    @property
    def place(self) -> JsonPointer:
        """Where that stands."""
        return ("spec",) if self.kind is Kind.CONFIG else ("spec", "kubeadmConfigSpec")

    @property
    def cluster(self) -> str:
        """Name its cluster as far as the object itself says; empty where it does not (yet)."""
        named = text(self.whole, "metadata", "labels", CLUSTER_LABEL)
        return named or next(
            (text(owner, "name") for owner in self._owners("Cluster") if _group(owner) == _CLUSTER_GROUP), ""
        )

    @property
    def made_by_control_plane(self) -> bool:
        """Return whether a control plane made it, which compares it with its own spec forever.

        One that differs is rolled out (controlplane/kubeadm/internal/filters.go, MatchesKubeadmBootstrapConfig).
        """
        labelled = CONTROL_PLANE_LABEL in mapping(self.whole, "metadata", "labels")
        return self.kind is Kind.CONFIG and (labelled or bool(self._owners("KubeadmControlPlane")))

    @property
    def settled(self) -> bool:
        """Return whether machines were made of it, or are being made, so that a change would come too late for them.

        The bootstrap provider writes the token when it has made the data of it, and the Secret's name with the status.
        """
        if self.kind is Kind.CONTROL_PLANE:
            return bool(number(self.whole, "status", "replicas"))
        token = text(self.spec, "joinConfiguration", "discovery", "bootstrapToken", "token")
        return has_bootstrap_data(self.whole) or bool(token)

    @property
    def pool(self) -> str:
        """Name the MachinePool whose instances are made of it; empty where it is no pool's, or not yet."""
        owners = (owner for owner in self._owners("MachinePool") if _group(owner) == _CLUSTER_GROUP)
        return next((text(owner, "name") for owner in owners), "")

    def joins_pool(self, before: Subject | None) -> bool:
        """Tell whether it becomes a MachinePool's, before any bootstrap data was made of it."""
        joins = bool(self.pool) and (before is None or not before.pool)
        return self.kind is Kind.CONFIG and joins and not self.settled

    @property
    def paused(self) -> bool:
        """Return whether it is paused by itself."""
        return PAUSED_ANNOTATION in mapping(self.whole, "metadata", "annotations")

    @property
    def deleting(self) -> bool:
        """Return whether it is going away."""
        return "deletionTimestamp" in mapping(self.whole, "metadata")

    def asks_for_machines(self, before: Subject) -> bool:
        """Return whether an update of a control plane is one by which its user wants new machines."""
        if self.kind is Kind.CONFIG:
            return False
        old, new = mapping(before.whole, "spec"), mapping(self.whole, "spec")
        return any(dig(old, *field) != dig(new, *field) for field in _ROLLOUT)

    def changes(self, before: Subject) -> frozenset[JsonPointer]:
        """Return what an update changes in the bootstrap configuration."""
        if self.kind is Kind.CONTROL_PLANE:
            return paths(before.spec, self.spec)
        # The bootstrap provider makes a joinConfiguration for the token where there is none.
        return paths({"joinConfiguration": {}, **before.spec}, {"joinConfiguration": {}, **self.spec})

    def is_providers_own(self, changes: frozenset[JsonPointer]) -> bool:
        """Return whether only what the bootstrap provider writes has changed, or nothing at all."""
        if self.kind is Kind.CONTROL_PLANE:
            return not changes
        return all(any(path[: len(own)] == own for own in _BY_PROVIDER) for path in changes)

    def with_spec(self, spec: JsonObject) -> JsonObject:
        """Return the object with another bootstrap configuration."""
        if self.kind is Kind.CONFIG:
            return {**self.whole, "spec": spec}
        return {**self.whole, "spec": {**mapping(self.whole, "spec"), "kubeadmConfigSpec": spec}}

    def is_control_plane_of(self, cluster: JsonObject) -> bool:
        """Return whether a Cluster refers to this control plane; it does before the label says so."""
        reference = mapping(cluster, "spec", "controlPlaneRef")
        named = (text(reference, "kind"), text(reference, "name"))
        return self.kind is Kind.CONTROL_PLANE and named == (self.kind.value, self.name)

    def _owners(self, kind: str) -> list[JsonObject]:
        return [owner for owner in items(self.whole, "metadata", "ownerReferences") if owner.get("kind") == kind]


def subject_of(whole: JsonObject, *, group: str, kind: str, namespace: str, name: str) -> Subject | None:
    """Take an object of a kind that is rendered; None for any other."""
    if kind not in set(Kind) or _GROUPS[kind] != group:
        return None
    return Subject(
        kind=Kind(kind),
        api_version=text(whole, "apiVersion"),
        namespace=namespace,
        name=name or text(whole, "metadata", "name") or text(whole, "metadata", "generateName"),
        whole=whole,
    )


def machines_of(cluster: str) -> dict[str, str]:
    """Return the query for one of the Machines of a cluster's control plane."""
    return {"labelSelector": f"{CLUSTER_LABEL}={cluster},{CONTROL_PLANE_LABEL}", "limit": "1"}


def _group(owner: JsonObject) -> str:
    return text(owner, "apiVersion").partition("/")[0]
