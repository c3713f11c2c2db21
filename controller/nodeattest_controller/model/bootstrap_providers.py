"""Control planes of Cluster API whose kubelets do not ask an API server for their certificates, and so cannot attest.

With kubeadm they do. Of a kind that is not listed here nothing is known.
Sources: k3s pkg/server/handlers (``ClientKubeletCert``, ``ServingKubeletCert``), which RKE2 shares;
microk8s-cluster-agent pkg/api/v1/sign_cert.go; talos internal/app/machined (k8stemplates/csr.go, services/kubelet.go).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from nodeattest_controller.model.machine_view import contract_reference
from nodeattest_parsing.objects import mapping
from nodeattest_parsing.values import JsonObject

_GROUP: Final = "controlplane.cluster.x-k8s.io"
_SUPERVISOR: Final = (
    "its server signs kubelet's client and serving certificates for any holder of the cluster's token, without a "
    "CertificateSigningRequest"
)


@dataclass(frozen=True, slots=True)
class BootstrapProvider:
    """One whose machines cannot attest."""

    name: str
    issuance: str
    """How its kubelets get their certificates, as the end of a sentence."""


BOOTSTRAP_PROVIDERS: Final[Mapping[str, BootstrapProvider]] = MappingProxyType(
    {
        "KThreesControlPlane": BootstrapProvider("k3s", _SUPERVISOR),
        "MicroK8sControlPlane": BootstrapProvider(
            "MicroK8s",
            "its cluster agent signs kubelet's client certificate for any holder of the join token, without a "
            "CertificateSigningRequest",
        ),
        "RKE2ControlPlane": BootstrapProvider("RKE2", _SUPERVISOR),
        "TalosControlPlane": BootstrapProvider(
            "Talos",
            "the in-tree signer gives kubelet its client certificate by one bootstrap token that all machines share, "
            "and kubelet's kubeconfig cannot be replaced, so no agent can run",
        ),
    }
)
"""By the kind of their control plane."""


def control_plane_provider(cluster: JsonObject) -> BootstrapProvider | None:
    """Return whose control plane a Cluster has; None for any other than those above."""
    reference = contract_reference(mapping(cluster, "spec", "controlPlaneRef"))
    return BOOTSTRAP_PROVIDERS.get(reference.kind) if reference is not None and reference.group == _GROUP else None
