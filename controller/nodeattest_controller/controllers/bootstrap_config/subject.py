"""KubeadmConfigs and KubeadmControlPlanes: the bootstrap configuration in them, and whose it is. Pure.

Sources, of cluster-api: controllers/external/util.go (a clone bears label and owner from its creation),
internal/controllers/machine/machine_controller_phases.go (what a user made gets label and owner by an update),
controlplane/kubeadm/internal/desiredstate (labels of a control plane's machines),
bootstrap/kubeadm/internal/controllers/kubeadmconfig_controller.go (the token and ``status.dataSecretName``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from nodeattest_controller.controllers.bootstrap_config.admission_review import JsonPointer, paths
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.payload import DROP_IN, MARK
from nodeattest_controller.model.machine_view import CLUSTER_LABEL, CONTROL_PLANE_LABEL, PAUSED_ANNOTATION
from nodeattest_controller.model.token_binding import has_bootstrap_data
from nodeattest_parsing.objects import dig, items, mapping, number, strings, text
from nodeattest_parsing.values import JsonObject

_CONTROL_PLANE: Final = "KubeadmControlPlane"
_GROUPS: Final = {"KubeadmConfig": "bootstrap.cluster.x-k8s.io", _CONTROL_PLANE: "controlplane.cluster.x-k8s.io"}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An object of one of the kinds that are rendered."""

    kind: str
    namespace: str
    name: str
    whole: JsonObject = field(repr=False)

    @property
    def is_control_plane(self) -> bool:
        """Whether it is a KubeadmControlPlane."""
        return self.kind == _CONTROL_PLANE

    @property
    def place(self) -> JsonPointer:
        """Where its bootstrap configuration is."""
        return ("spec", "kubeadmConfigSpec") if self.is_control_plane else ("spec",)

    @property
    def spec(self) -> JsonObject:
        """The bootstrap configuration: a KubeadmConfigSpec in either kind."""
        return mapping(self.whole, *self.place)

    @property
    def is_rendered(self) -> bool:
        """Whether the agent is in it, of whatever version of us: known by our files and commands."""
        commands = strings(self.spec, "preKubeadmCommands")
        return any(command.endswith(MARK) for command in commands) or any(
            text(file, "path") == DROP_IN for file in items(self.spec, "files")
        )

    @property
    def cluster(self) -> str:
        """The name of its Cluster as far as the object itself says; empty where it does not (yet)."""
        return text(self.whole, "metadata", "labels", CLUSTER_LABEL) or self._owner("Cluster")

    @property
    def pool(self) -> str:
        """The MachinePool whose instances are made of it; empty where it is no pool's, or not yet."""
        return self._owner("MachinePool")

    @property
    def made_by_control_plane(self) -> bool:
        """Whether a control plane made it, which compares it with its own spec forever.

        One that differs is rolled out (controlplane/kubeadm/internal/filters.go, MatchesKubeadmBootstrapConfig).
        """
        owners = items(self.whole, "metadata", "ownerReferences")
        owned = any(owner.get("kind") == _CONTROL_PLANE for owner in owners)
        return not self.is_control_plane and (owned or CONTROL_PLANE_LABEL in mapping(self.whole, "metadata", "labels"))

    @property
    def settled(self) -> bool:
        """Whether machines were made of it, or are being made, so that a change would come too late for them.

        The bootstrap provider writes the token when it has made the data of it, and the Secret's name with the status.
        """
        if self.is_control_plane:
            return bool(number(self.whole, "status", "replicas"))
        token = text(self.spec, "joinConfiguration", "discovery", "bootstrapToken", "token")
        return has_bootstrap_data(self.whole) or bool(token)

    @property
    def paused(self) -> bool:
        """Whether it is paused by itself."""
        return PAUSED_ANNOTATION in mapping(self.whole, "metadata", "annotations")

    @property
    def deleting(self) -> bool:
        """Whether it is being deleted."""
        return "deletionTimestamp" in mapping(self.whole, "metadata")

    def joins_pool(self, before: Subject | None) -> bool:
        """Return whether it becomes a MachinePool's, before any bootstrap data was made of it."""
        joins = bool(self.pool) and (before is None or not before.pool)
        return joins and not self.is_control_plane and not self.settled

    def asks_for_machines(self, before: Subject) -> bool:
        """Return whether an update of a control plane is one by which its user wants new machines."""
        old, new = mapping(before.whole, "spec"), mapping(self.whole, "spec")
        return self.is_control_plane and any(dig(old, *field) != dig(new, *field) for field in _ROLLOUT)

    def changes(self, before: Subject) -> frozenset[JsonPointer]:
        """Return what an update changes in the bootstrap configuration."""
        if self.is_control_plane:
            return paths(before.spec, self.spec)
        # The bootstrap provider makes a joinConfiguration for the token where there is none.
        return paths({"joinConfiguration": {}, **before.spec}, {"joinConfiguration": {}, **self.spec})

    def is_providers_own(self, changes: frozenset[JsonPointer]) -> bool:
        """Return whether only what the bootstrap provider writes has changed, or nothing at all."""
        own = () if self.is_control_plane else _BY_PROVIDER
        return all(any(path[: len(each)] == each for each in own) for path in changes)

    def with_spec(self, spec: JsonObject) -> JsonObject:
        """Return the object with another bootstrap configuration."""
        if not self.is_control_plane:
            return {**self.whole, "spec": spec}
        return {**self.whole, "spec": {**mapping(self.whole, "spec"), "kubeadmConfigSpec": spec}}

    def is_control_plane_of(self, cluster: JsonObject) -> bool:
        """Return whether a Cluster refers to this control plane; it does before the label says so."""
        reference = mapping(cluster, "spec", "controlPlaneRef")
        return self.is_control_plane and (reference.get("kind"), reference.get("name")) == (self.kind, self.name)

    def _owner(self, kind: str) -> str:
        for owner in items(self.whole, "metadata", "ownerReferences"):
            if owner.get("kind") == kind and text(owner, "apiVersion").partition("/")[0] == _CLUSTER_GROUP:
                return text(owner, "name")
        return ""


def subject_of(whole: JsonObject, *, group: str, kind: str, namespace: str, name: str) -> Subject | None:
    """Take an object of a kind that is rendered; None for any other."""
    if _GROUPS.get(kind) != group:
        return None
    name = name or text(whole, "metadata", "name") or text(whole, "metadata", "generateName")
    return Subject(kind=kind, namespace=namespace, name=name, whole=whole)
