"""The names of the signers that a cluster's nodes ask, and where an infrastructure object holds them. Pure.

The proposal has the provider's controller fill ``InfraCluster.status.kubeletClientCertificateSigner`` and
``kubeletServingCertificateSigner`` in while the attestation controller runs (proposal 004, "All providers"). No
infrastructure provider's CRD has these fields yet; where they are dropped, annotations hold the same names.
Why one name, and which: docs/decisions.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nodeattest_controller.model.objects import mapping, text, text_map
from nodeattest_controller.model.policy import Policy
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_providers.names import ProviderName, Purpose, signer_for
from nodeattest_providers.registry import INSECURE

__all__ = ["NONE", "Signers", "annotations_patch", "fields_patch", "has_fields", "signers_of"]

CLIENT_FIELD: Final = "kubeletClientCertificateSigner"
SERVING_FIELD: Final = "kubeletServingCertificateSigner"
CLIENT_ANNOTATION: Final = "attestation.cluster.x-k8s.io/kubelet-client-certificate-signer"
SERVING_ANNOTATION: Final = "attestation.cluster.x-k8s.io/kubelet-serving-certificate-signer"


@dataclass(frozen=True, slots=True)
class Signers:
    """What is published of a cluster."""

    client: str | None
    serving: str | None
    """None: nobody signs serving certificates by attestation."""
    others: tuple[str, ...] = ()
    """Client signers that the policy admits besides."""

    @property
    def fields(self) -> dict[str, str | None]:
        """The fields of the infrastructure object's status."""
        return {CLIENT_FIELD: self.client, SERVING_FIELD: self.serving}

    @property
    def annotations(self) -> dict[str, str | None]:
        """The annotations that stand for them."""
        return {CLIENT_ANNOTATION: self.client, SERVING_ANNOTATION: self.serving}


NONE: Final = Signers(None, None)
"""What is published of a cluster that no policy selects."""


def signers_of(policy: Policy, *, serves: bool) -> Signers:
    """Name the signers: of the first provider that the policy names; ``serves``: serving requests are handled here."""
    admitted = [provider for provider in policy.listed if provider in policy.attestors]
    if not admitted:
        return NONE
    clients = tuple(str(signer_for(provider, Purpose.CLIENT)) for provider in admitted)
    signs = serves and policy.serving.signs_attested and admitted[0] not in INSECURE
    return Signers(clients[0], _serving(admitted[0]) if signs else None, clients[1:])


def fields_patch(infra: JsonObject, wanted: Signers) -> JsonObject | None:
    """Make the merge patch of ``/status`` after which the fields are as wanted; None when they are."""
    changed = _changes(text_map(infra, "status"), wanted.fields)
    return {"status": changed} if changed else None


def has_fields(infra: JsonObject, wanted: Signers) -> bool:
    """Return whether an object holds the fields as wanted: an answer that does not was pruned."""
    return not _changes(text_map(infra, "status"), wanted.fields)


def annotations_patch(infra: JsonObject, wanted: Signers) -> JsonObject | None:
    """Make the merge patch after which the annotations are as wanted; None when they are."""
    changed = _changes(text_map(infra, "metadata", "annotations"), wanted.annotations)
    version = text(mapping(infra, "metadata"), "uid")
    return {"metadata": {"uid": version, "annotations": changed}} if changed else None


def _changes(known: dict[str, str], wanted: dict[str, str | None]) -> dict[str, JsonValue]:
    return {name: value for name, value in wanted.items() if known.get(name) != value}


def _serving(provider: ProviderName) -> str:
    return str(signer_for(provider, Purpose.SERVING))
