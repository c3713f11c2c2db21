"""The objects that a request is judged by, as far as they were given: picked by kind out of a heap of documents.

Promises: what is absent is told apart from what is empty. A Secret's content goes where it is needed and nowhere else.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass, field

from nodeattest_controller.model.attestation import Attestation, parse_attestation
from nodeattest_controller.model.certificate_authority import bundle_pins
from nodeattest_controller.model.identity_rules import allowed_node_names
from nodeattest_controller.model.machine_kinds import CLUSTER_KINDS, machine_views
from nodeattest_controller.model.machine_record import MACHINE_RECORD
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.objects import mapping, text
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.names import ClusterPin, MachineName, NodeName
from nodeattest_providers.node_interface import SecretBytes
from nodeattest_providers.verifier_interface import ClusterFacts, NodeRequest

__all__ = ["Given", "pick", "pick_for_node"]

_CHALLENGE_KEYS = "node-attestation-challenge-keys"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What was given for one request; None and empty mean that it was not."""

    cluster: JsonObject | None = None
    policy: JsonObject | None = None
    members: tuple[MachineView, ...] = ()
    """Those with the request's provider ID."""
    claimants: tuple[MachineView, ...] = ()
    """Every Machine of the cluster."""
    infra: JsonObject | None = None
    config: JsonObject | None = None
    """The machine's bootstrap configuration, as it is now: nobody keeps what it was when the request came."""
    infra_title: str = "infrastructure machine"
    """What to call the infrastructure object, given or not."""
    ledger: Attestation | None = None
    first: JsonObject | None = None
    """The first request of a challenge."""
    pins: frozenset[ClusterPin] = frozenset()
    challenge_keys: tuple[SecretBytes, ...] = ()
    attestation_secret: SecretBytes | None = field(default=None, repr=False)

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


def pick(documents: Sequence[JsonObject], request: NodeRequest, first_name: str | None) -> Given:
    """Pick what belongs to a request."""
    everyone = _members(documents)
    members = tuple(member for member in everyone if member.provider_id == request.csr.provider_id)
    cluster = _one(_of_kind(documents, *CLUSTER_KINDS), members[0].cluster_name if members else None)
    cluster_name = text(cluster or {}, "metadata", "name")
    attestations = [parse_attestation(one) for one in _of_kind(documents, "MachineAttestation")]
    infra = members[0].infra if members else None
    config = members[0].bootstrap if members else None
    machine = MachineName(members[0].name) if members else MachineName("")
    return Given(
        cluster=cluster,
        policy=_one(_of_kind(documents, "NodeAttestationPolicy"), None),
        members=members,
        claimants=everyone,
        infra=_one(_of_kind(documents, infra.kind), infra.name) if infra else None,
        config=_one(_of_kind(documents, config.kind), config.name) if config else None,
        infra_title=f"infrastructure machine {infra.kind} {infra.name}" if infra else "infrastructure machine",
        ledger=next((one for one in attestations if one.provider_id == request.csr.provider_id), None),
        first=_one(_of_kind(documents, "CertificateSigningRequest"), first_name) if first_name else None,
        pins=_pins(_one(_of_kind(documents, "Secret"), f"{cluster_name}-ca")) if cluster else frozenset(),
        challenge_keys=_values(_one(_of_kind(documents, "Secret"), _CHALLENGE_KEYS), "current", "previous"),
        attestation_secret=next(
            iter(_values(_one(_of_kind(documents, "Secret"), f"{machine}-attestation"), "secret")), None
        ),
    )


def pick_for_node(documents: Sequence[JsonObject], node_name: NodeName) -> Given:
    """Pick what belongs to a node's request that names no provider ID; the members are those of this node name."""
    everyone = _members(documents)
    members = tuple(member for member in everyone if node_name in allowed_node_names(member))
    attestations = [parse_attestation(one) for one in _of_kind(documents, "MachineAttestation")]
    return Given(
        cluster=_one(_of_kind(documents, *CLUSTER_KINDS), members[0].cluster_name if members else None),
        policy=_one(_of_kind(documents, "NodeAttestationPolicy"), None),
        members=members,
        claimants=everyone,
        ledger=next((one for one in attestations if members and one.provider_id == members[0].provider_id), None),
    )


def _members(documents: Sequence[JsonObject]) -> tuple[MachineView, ...]:
    """Read every Machine and MachineRecord; a pool's instances are judged by what their requests claim."""
    found = _of_kind(documents, "Machine", MACHINE_RECORD)
    return tuple(member for one in found for member in machine_views(one))


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
        return tuple(SecretBytes(base64.b64decode(text(data, name), validate=True)) for name in names if name in data)
    except (binascii.Error, ValueError):
        return ()


def _pins(secret: JsonObject | None) -> frozenset[ClusterPin]:
    from cryptography import x509

    found: frozenset[ClusterPin] = frozenset()
    for value in _values(secret, "tls.crt"):
        try:
            found = bundle_pins(x509.load_pem_x509_certificates(value.reveal()))
        except ValueError:
            continue
    return found
