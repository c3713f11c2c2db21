"""Names: signers, annotations, the provider-ID extension, node names, provider IDs.

Sources: the Cluster API kubelet-authentication proposal; kubernetes pkg/apis/certificates/validation (a signer's domain
needs at least two labels), pkg/apis/core/validation ValidateNodeName.
"""

from __future__ import annotations

import re
import unicodedata
from enum import StrEnum
from typing import Final, NewType

from nodeattest_providers.errors import Denied, Reason

NodeName = NewType("NodeName", str)
"""The Kubernetes Node's name: an RFC 1123 subdomain, at most 253 characters."""
ProviderID = NewType("ProviderID", str)
"""``Node.spec.providerID`` and ``Machine.spec.providerID``, compared exactly."""
ProviderName = NewType("ProviderName", str)
"""An attestation provider: ``tpm``, ``insecure``, ``aws``, or a third party's."""
SignerName = NewType("SignerName", str)
"""``spec.signerName`` of a CertificateSigningRequest."""
MachineName = NewType("MachineName", str)
"""The name under which a request asks to be filed. Never trusted: identity comes from the provider ID."""
ClusterPin = NewType("ClusterPin", str)
"""``sha256:<64 lower-case hex>`` over the SubjectPublicKeyInfo of a cluster CA."""
EvidenceBlock = NewType("EvidenceBlock", str)
"""``<provider>/v<version>``, such as ``tpm/v1``: the content of the envelope's second PEM block."""

PROVIDER_ID_OID: Final = "1.3.6.1.4.1.11129.2.1.21"
"""The proposal's KubernetesNodeProviderIdentifierOID; configurable, payload one DER UTF8String."""

NODE_USER_PREFIX: Final = "system:node:"
NODES_GROUP: Final = "system:nodes"

CLIENT_SIGNER_PREFIX: Final = "cluster.x-k8s.io/kube-apiserver-client-kubelet-"
SERVING_SIGNER_PREFIX: Final = "cluster.x-k8s.io/kubelet-serving-"

KUBELET_SERVING_SIGNER: Final = "kubernetes.io/kubelet-serving"
"""The in-tree signer of kubelet's own serving certificates: kube-controller-manager signs, somebody else approves."""

# Output only: what anybody else wrote under these keys is never read by the controller, and is overwritten.
ANNOTATION_CHALLENGE: Final = "attestation.cluster.x-k8s.io/challenge"
ANNOTATION_SUPPORTED_VERSIONS: Final = "attestation.cluster.x-k8s.io/supported-versions"
ANNOTATION_PROVIDER_ID: Final = "attestation.cluster.x-k8s.io/provider-id"
ANNOTATION_REASON: Final = "attestation.cluster.x-k8s.io/reason"
ANNOTATION_TPM_ENDORSEMENT_KEY: Final = "cluster-x-k8s-io/tpm-endorsement-key"


class Purpose(StrEnum):
    """What the certificate is for."""

    CLIENT = "client"
    SERVING = "serving"


def evidence_block(provider: ProviderName, version: int) -> EvidenceBlock:
    return EvidenceBlock(f"{provider}/v{version}")


def signer_for(provider: ProviderName, purpose: Purpose) -> SignerName:
    """Name the signer of a provider; ``insecure`` has no serving signer (proposal, "Insecure providers")."""
    prefix = CLIENT_SIGNER_PREFIX if purpose is Purpose.CLIENT else SERVING_SIGNER_PREFIX
    if provider == "insecure" and purpose is Purpose.SERVING:
        raise ValueError("the insecure provider issues no serving certificates")
    return SignerName(prefix + provider)


def split_signer(signer_name: str) -> tuple[ProviderName, Purpose] | None:
    for prefix, purpose in ((CLIENT_SIGNER_PREFIX, Purpose.CLIENT), (SERVING_SIGNER_PREFIX, Purpose.SERVING)):
        provider = signer_name.removeprefix(prefix)
        if provider != signer_name and provider and not (provider == "insecure" and purpose is Purpose.SERVING):
            return ProviderName(provider), purpose
    return None


_MAX_DNS_NAME: Final = 253
"""Characters (RFC 1123 §2.1; k8s.io/apimachinery DNS1123SubdomainMaxLength)."""
MAX_PROVIDER_ID: Final = 1024
"""Characters; the longest in use are Azure resource IDs of about 250."""
_DNS_LABEL: Final = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_NAME: Final = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*")
_SHOWN: Final = 80


def is_dns_name(text: str) -> bool:
    """Whether a text is an RFC 1123 subdomain in lower case, as Kubernetes spells it: no wildcard, no final dot."""
    return len(text) <= _MAX_DNS_NAME and _DNS_NAME.fullmatch(text) is not None


def node_name(text: str) -> NodeName:
    if not is_dns_name(text):
        raise Denied(
            Reason.NODE_NAME_INVALID,
            expected=f"an RFC 1123 subdomain in lower case, at most {_MAX_DNS_NAME} characters",
            got=printable(text),
            remedy="name the node by a lower-case DNS name",
        )
    return NodeName(text)


def provider_id(text: str) -> ProviderID:
    """Accept a provider ID: visible characters and inner spaces only; anything else is ``Denied``."""
    if not 1 <= len(text) <= MAX_PROVIDER_ID or not _is_visible(text):
        raise Denied(
            Reason.PROVIDER_ID_INVALID,
            expected=f"1 to {MAX_PROVIDER_ID} characters, none of them invisible",
            got=printable(text),
            remedy="send the value of the Machine's spec.providerID",
        )
    return ProviderID(text)


def printable(text: str, most: int = _SHOWN) -> str:
    """Show foreign text in a message: ASCII, on one line, at most so many characters of it."""
    return ascii(text[:most]) + ("…" if len(text) > most else "")


def _is_visible(text: str) -> bool:
    """Whether no character is a control, format, private or unassigned one, a surrogate, or a line separator."""
    return not any(unicodedata.category(character) in _INVISIBLE for character in text)


_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
