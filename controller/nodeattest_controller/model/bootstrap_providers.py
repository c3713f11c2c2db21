"""Bootstrap providers of Cluster API whose kubelets do not get their certificates the way kubeadm's do. Pure.

Only a kubelet that asks its API server for a certificate can attest: with kubeadm it does. A provider that is not
listed here is unknown, and nothing is said of it.
Sources: k3s pkg/server/handlers (``ClientKubeletCert``, ``ServingKubeletCert``), which RKE2 shares;
microk8s-cluster-agent pkg/api/v1/sign_cert.go; talos internal/app/machined (k8stemplates/csr.go, services/kubelet.go);
the APIs of their bootstrap and control plane providers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from nodeattest_controller.model.machine_view import ContractReference, control_plane_ref
from nodeattest_parsing.values import JsonObject

_GROUPS: Final = {
    "bootstrap.cluster.x-k8s.io": ("Config", "ConfigTemplate"),
    "controlplane.cluster.x-k8s.io": ("ControlPlane", "ControlPlaneTemplate"),
}

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
        "KThrees": BootstrapProvider("k3s", _SUPERVISOR),
        "MicroK8s": BootstrapProvider(
            "MicroK8s",
            "its cluster agent signs kubelet's client certificate for any holder of the join token, without a "
            "CertificateSigningRequest",
        ),
        "RKE2": BootstrapProvider("RKE2", _SUPERVISOR),
        "Talos": BootstrapProvider(
            "Talos",
            "the in-tree signer gives kubelet its client certificate by one bootstrap token that all machines share, "
            "and kubelet's kubeconfig cannot be replaced, so no agent can run",
        ),
    }
)
"""By the beginning of their kinds, such as ``RKE2`` of RKE2ConfigTemplate."""


def provider_of_kind(group: str, kind: str) -> BootstrapProvider | None:
    """Return whose a kind of a bootstrap configuration or control plane is; None for kubeadm's and unknown ones."""
    for suffix in _GROUPS.get(group, ()):
        provider = BOOTSTRAP_PROVIDERS.get(kind.removesuffix(suffix))
        if provider is not None and kind.endswith(suffix):
            return provider
    return None


def control_plane_provider(cluster: JsonObject) -> BootstrapProvider | None:
    """Return whose control plane a Cluster has; None for kubeadm's, unknown ones, and a Cluster that names none."""
    reference: ContractReference | None = control_plane_ref(cluster)
    return provider_of_kind(reference.group, reference.kind) if reference is not None else None
