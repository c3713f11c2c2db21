"""Kubelet's own request for a serving certificate, from object to value: the cheap checks, without any I/O.

Stricter than the signer that signs it (kubernetes pkg/apis/certificates/helpers.go, ValidateKubeletServingCSR): one
PEM block in its one spelling, one reading of the PKCS#10, and a node asks for itself only, which NodeRestriction
checks too, but not everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nodeattest_controller.model.certificate_authority import SubjectAltNames
from nodeattest_controller.model.csr_request import check_usages
from nodeattest_controller.model.objects import moment, strings, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject
from nodeattest_providers import pem, pkcs10
from nodeattest_providers.envelope import LABEL_CSR
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import printable
from nodeattest_providers.names import NODE_USER_PREFIX, NODES_GROUP, NodeName, Purpose

__all__ = ["KubeletServingRequest", "parse_kubelet_request", "requesting_node"]

MAX_BASE64: Final = 2 * pkcs10.MAX_SIZE
"""Characters of ``spec.request``: PEM in base64 is 16/9 of the DER."""
_REMEDY: Final = "let kubelet file the request itself (serverTLSBootstrap: true)"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletServingRequest:
    """A well-formed request of a node for itself; nothing is known of its names yet."""

    name: str
    node_name: NodeName
    names: SubjectAltNames
    created: datetime


def requesting_node(csr: JsonObject) -> str:
    """Return the node that asks, as the API server authenticated it; empty when no node does."""
    username = text(csr, "spec", "username")
    return username.removeprefix(NODE_USER_PREFIX) if username.startswith(NODE_USER_PREFIX) else ""


def parse_kubelet_request(csr: JsonObject) -> KubeletServingRequest:
    """Read a CSR object; raises Denied.

    1. A node asks; 2. the usages are a serving kubelet's; 3. one canonical PEM block; 4. the PKCS#10 is well-formed;
    5. the node asks for itself.
    """
    asks = requesting_node(csr)
    if not asks or NODES_GROUP not in strings(csr, "spec", "groups"):  # 1
        raise Denied(
            Reason.REQUESTER_NOT_ALLOWED,
            expected="a node in system:nodes",
            got=printable(text(csr, "spec", "username")),
            remedy="let kubelet file the request with its node's client certificate",
        )
    check_usages(csr, Purpose.SERVING)  # 2
    found = pkcs10.parse_kubelet_serving(_pkcs10(text(csr, "spec", "request")))  # 3, 4
    if found.node_name != asks:  # 5
        raise Denied(
            Reason.REQUESTER_NOT_ALLOWED,
            expected=f"a request of {printable(asks)} for itself",
            got=f"a request for {found.node_name}",
            remedy="a node may only ask for its own name",
        )
    created = moment(text(csr, "metadata", "creationTimestamp"))
    if created is None:
        raise Denied(Reason.CSR_MALFORMED, expected="a creationTimestamp", got="none", remedy=_REMEDY)
    return KubeletServingRequest(
        name=text(csr, "metadata", "name"),
        node_name=found.node_name,
        names=SubjectAltNames(found.dns_names, found.ip_addresses),
        created=created,
    )


def _pkcs10(encoded: str) -> bytes:
    """Open the one PEM block; the signer would skip what stands around it."""
    if len(encoded) > MAX_BASE64:
        raise _malformed(f"at most {MAX_BASE64} characters", str(len(encoded)))
    try:
        (der,) = pem.decode(decode_base64(encoded), [LABEL_CSR])
    except (ValueError, Denied):
        raise _malformed(f"one {LABEL_CSR} block in PEM, in its canonical spelling", "something else") from None
    return der


def _malformed(expected: str, got: str) -> Denied:
    return Denied(Reason.CSR_MALFORMED, expected=expected, got=got, remedy=_REMEDY)
