"""Which Machines need a secret, and whether their KubeadmConfigs are ready for one. Pure.

A Machine needs one until its bootstrap data exists. The data holds the value, so a later Secret would not help: one
that was deleted is not created again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nodeattest_controller.model.challenge_secret import refers_to_secret
from nodeattest_controller.model.kubeadm_config import machine_uid
from nodeattest_controller.model.machine_view import (
    CONTROL_PLANE_LABEL,
    PAUSED_ANNOTATION,
    ContractReference,
    bootstrap_config_ref,
)
from nodeattest_controller.model.objects import mapping, text
from nodeattest_controller.model.token_binding import KUBEADM_CONFIG, has_bootstrap_data
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["Candidate", "Step", "candidate", "evaluate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A Machine without bootstrap data."""

    api_version: str
    namespace: str
    name: str
    uid: str
    config: ContractReference


class Step(StrEnum):
    """What to do for a candidate."""

    CREATE = "Create"
    WAIT = "Wait"
    """Cluster API has not made the Machine the owner of its KubeadmConfig yet."""
    NOTHING = "Nothing"


def candidate(machine: JsonObject) -> Candidate | None:
    """Return a worker Machine that has a KubeadmConfig and no bootstrap data yet; None for any other."""
    meta, reference = mapping(machine, "metadata"), bootstrap_config_ref(machine)
    if reference is None or (reference.group, reference.kind) != KUBEADM_CONFIG:
        return None
    if "deletionTimestamp" in meta or CONTROL_PLANE_LABEL in mapping(meta, "labels"):
        return None
    if PAUSED_ANNOTATION in mapping(meta, "annotations") or text(machine, "spec", "bootstrap", "dataSecretName"):
        return None
    return Candidate(
        api_version=text(machine, "apiVersion"),
        namespace=text(meta, "namespace"),
        name=text(meta, "name"),
        uid=text(meta, "uid"),
        config=reference,
    )


def evaluate(config: JsonObject, machine: Candidate) -> Step:
    """Decide by a candidate's KubeadmConfig.

    1. It is of no use any more, or paused. 2. Its bootstrap data does not hold the Secret's value, or exists already.
    3. It belongs to nobody yet. 4. It belongs to another Machine.
    """
    meta = mapping(config, "metadata")
    if "deletionTimestamp" in meta or PAUSED_ANNOTATION in mapping(meta, "annotations"):  # 1
        return Step.NOTHING
    if has_bootstrap_data(config) or not refers_to_secret(config):  # 2
        return Step.NOTHING
    owner = machine_uid(config)
    if not owner:  # 3
        return Step.WAIT
    return Step.CREATE if owner == machine.uid else Step.NOTHING  # 4
