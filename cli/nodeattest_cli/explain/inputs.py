"""The objects that a request is evaluated by, as far as they were given: picked by kind out of any documents.

Promises: what is absent is distinguished from what is empty. A Secret's content goes where it is needed and nowhere
else. Machines and attestations go into the controller's own indexes, so that what a name or key belongs to is looked up
here as it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography import x509

from nodeattest_controller.model.attestation import Attestation, parse_attestation
from nodeattest_controller.model.certificate_authority import bundle_pins
from nodeattest_controller.model.challenge_secret import (
    challenge_secret_name,
    creates_secrets,
    has_own_config,
    no_own_config,
    operators_secret_name,
    read_secret,
    secret_value,
)
from nodeattest_controller.model.kubeadm_config import kept_config, slim_config
from nodeattest_controller.model.machine_kinds import CLUSTER_KINDS, MACHINE_KINDS, machine_views
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.node_names import claimed_names
from nodeattest_controller.model.objects import flag, mapping, metadata, text
from nodeattest_controller.model.policy import Policy
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory, cluster_key
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_providers.names import ClusterPin, NodeName
from nodeattest_providers.node_interface import SecretBytes
from nodeattest_providers.verifier_interface import ClusterFacts, UnusableSecret

__all__ = ["Inputs", "pick"]

_CHALLENGE_KEYS = "node-attestation-challenge-keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What was given for one request; None and empty mean that it was not."""

    key: ClusterKey | None = None
    """Which cluster it is; None where neither a Cluster nor a machine says."""
    cluster: JsonObject | None = None
    policies: tuple[JsonObject, ...] = ()
    inventory: Inventory = field(default_factory=Inventory)
    machine: MachineView | None = None
    """The first with the request's provider ID, or node name."""
    has_machines: bool = False
    """Whether any machine was given."""
    infra: JsonObject | None = None
    attestation: Attestation | None = None
    pins: frozenset[ClusterPin] = frozenset()
    challenge_keys: tuple[SecretBytes, ...] = ()
    documents: tuple[JsonObject, ...] = ()

    @property
    def infra_title(self) -> str:
        """What to call the infrastructure object, given or not."""
        infra = self.machine.infra if self.machine is not None else None
        return f"infrastructure machine {infra.kind} {infra.name}" if infra else "infrastructure machine"

    @property
    def cluster_facts(self) -> ClusterFacts:
        """The value that providers see; its pins are empty where the CA was not given."""
        cluster = self.cluster or {}
        return ClusterFacts(
            name=text(cluster, "metadata", "name"),
            namespace=text(cluster, "metadata", "namespace"),
            uid=text(cluster, "metadata", "uid"),
            pins=self.pins,
        )

    @property
    def secret_documents(self) -> dict[str, bool]:
        """Name the documents that hold the machine's attestation secret, each with whether it was given."""
        machine = self.machine
        if not any(flag(policy, "spec", "challenge", "createSecrets") for policy in self.policies):
            name = operators_secret_name(machine.name) if machine else ""
            return {"Secret <machine>-attestation": self.named("Secret", name) is not None}
        config = machine.bootstrap.name if machine and machine.bootstrap else ""
        return {
            f"Secret {challenge_secret_name('<KubeadmConfig>')}": self.named("Secret", challenge_secret_name(config))
            is not None,
            "KubeadmConfig": self.named("KubeadmConfig", config) is not None,
        }

    def attestation_secret(self, policy: Policy | None) -> SecretBytes | UnusableSecret | None:
        """Return the machine's attestation secret as the controller reads it; None where it was not given."""
        machine = self.machine
        if machine is None:
            return None
        if policy is None or not creates_secrets(policy):
            return secret_value(self.named("Secret", operators_secret_name(machine.name)))
        if machine.bootstrap is None or not has_own_config(machine):
            return no_own_config(machine)
        secret = self.named("Secret", challenge_secret_name(machine.bootstrap.name))
        config = self.named("KubeadmConfig", machine.bootstrap.name)
        if secret is None or config is None:
            return None
        return read_secret(secret, kept_config(slim_config(config)), machine.uid)

    def named(self, kind: str, name: str) -> JsonObject | None:
        """Return a given object by kind and name."""
        return _one(_of_kind(self.documents, kind), name)


def pick(documents: Sequence[JsonObject], *, provider_id: str = "", node_name: NodeName | None = None) -> Inputs:
    """Pick what belongs to a request, which names its machine by a provider ID, or by the node that asks."""
    everyone = [view for one in _of_kind(documents, *MACHINE_KINDS) for view in machine_views(one)]
    named = [
        one for one in everyone if (provider_id and one.provider_id == provider_id) or node_name in claimed_names(one)
    ]
    machine = min(named, key=lambda one: one.is_pool_instance, default=None)
    cluster = _one(_of_kind(documents, *CLUSTER_KINDS), machine.cluster_name if machine else None)
    key = _key_of(machine, cluster)
    cluster_name = text(cluster or {}, "metadata", "name")
    inventory = _indexed(documents, key)
    infra = machine.infra if machine else None
    wanted = machine.provider_id if machine else provider_id
    recorded = (parse_attestation(one) for one in _of_kind(documents, "MachineAttestation"))
    return Inputs(
        key=key,
        cluster=cluster,
        policies=tuple(_of_kind(documents, "NodeAttestationPolicy")),
        inventory=inventory,
        machine=machine,
        has_machines=bool(everyone),
        infra=_one(_of_kind(documents, infra.kind), infra.name) if infra else None,
        attestation=next((one for one in recorded if one.provider_id == wanted), None),
        pins=_pins(_one(_of_kind(documents, "Secret"), f"{cluster_name}-ca")) if cluster else frozenset(),
        challenge_keys=_values(_one(_of_kind(documents, "Secret"), _CHALLENGE_KEYS), "current", "previous"),
        documents=tuple(documents),
    )


def _key_of(machine: MachineView | None, cluster: JsonObject | None) -> ClusterKey | None:
    if machine is not None:
        return cluster_key(machine.namespace, machine.cluster_name)
    if cluster is not None:
        return cluster_key(text(cluster, "metadata", "namespace"), text(cluster, "metadata", "name"))
    return None


def _indexed(documents: Sequence[JsonObject], key: ClusterKey | None) -> Inventory:
    """Put machines and attestations into the controller's indexes; one without a cluster counts as of this one."""
    inventory = Inventory()
    puts = {
        "Machine": inventory.put_machine,
        "MachinePool": inventory.put_pool,
        "MachineRecord": inventory.put_record,
        "MachineAttestation": inventory.put_attestation,
    }
    namespace, _, name = (key or "").partition("/")
    for number, document in enumerate(documents):
        put = puts.get(text(document, "kind"))
        if put is not None:
            meta: JsonObject = {"namespace": namespace, **metadata(document)}
            spec: JsonObject = {"clusterName": name, **mapping(document, "spec")}
            put(str(number), {**document, "metadata": meta, "spec": spec})
    return inventory


def _of_kind(documents: Sequence[JsonObject], *kinds: str) -> list[JsonObject]:
    return [document for document in documents if text(document, "kind") in kinds]


def _one(found: Sequence[JsonObject], name: str | None) -> JsonObject | None:
    """Return the object of a name; without a name, the only one."""
    if name is None:
        return found[0] if len(found) == 1 else None
    return next((one for one in found if text(one, "metadata", "name") == name), None)


def _values(secret: JsonObject | None, *names: str) -> tuple[SecretBytes, ...]:
    data = mapping(secret or {}, "data")
    try:
        return tuple(SecretBytes(decode_base64(text(data, name))) for name in names if name in data)
    except ValueError:
        return ()


def _pins(secret: JsonObject | None) -> frozenset[ClusterPin]:
    found: frozenset[ClusterPin] = frozenset()
    for value in _values(secret, "tls.crt"):
        try:
            found = bundle_pins(x509.load_pem_x509_certificates(value.reveal()))
        except ValueError:
            continue
    return found
