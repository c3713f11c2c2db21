"""From a CertificateSigningRequest object to a ``NodeRequest``, or kubelet's own: the cheap checks, without any I/O.

Annotations are never read here: their creator wrote them. Kubelet's own is read more strictly than by its signer: one
PEM block in its one spelling, and a node asks for itself only, which NodeRestriction does not check everywhere.
Sources: kubernetes pkg/apis/certificates/helpers.go (ValidateKubeletClientCSR, ValidateKubeletServingCSR),
pkg/registry/certificates (what the API server guarantees about ``username`` and ``groups``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from nodeattest_controller.model.certificate_authority import SubjectAltNames
from nodeattest_parsing.objects import items, moment, number, strings, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject
from nodeattest_providers import envelope, identifiers, pem, pkcs10
from nodeattest_providers.envelope import LABEL_CSR
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import NODE_USER_PREFIX, NodeName, ProviderName, Purpose
from nodeattest_providers.node_interface import NodeCsr
from nodeattest_providers.verifier_interface import NodeRequest

KUBELET: Final = ProviderName("kubelet")
"""Stands for a provider where kubelet's own requests are counted."""
BOOTSTRAP_GROUP: Final = "system:bootstrappers"
_BOOTSTRAP_USER: Final = re.compile(r"system:bootstrap:[a-z0-9]{6}\Z")
"""kubernetes pkg/bootstrap: a token's id is six lower-case letters or digits."""

_USAGES: Final = {
    Purpose.CLIENT: frozenset({"digital signature", "client auth"}),
    Purpose.SERVING: frozenset({"digital signature", "server auth"}),
}
_OPTIONAL_USAGE: Final = "key encipherment"
"""A kubelet with an RSA key asks for it, too."""
_MAX_NAME: Final = 253
_MAX_UID: Final = 64
"""Characters; a UID is an RFC 4122 UUID of 36 (apimachinery pkg/types/uid.go)."""
MAX_BASE64: Final = 4 * (envelope.MAX_SIZE // 3 + 1)


class Round(StrEnum):
    """Which request of a join or renewal it is."""

    FIRST = "first"
    """The first request of a provider of two steps; its verification ends in a challenge."""
    FINAL = "final"
    """The request that gets the certificate."""


class RequestState(StrEnum):
    """Where a request stands by its conditions."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    FAILED = "failed"
    ISSUED = "issued"


@dataclass(frozen=True, slots=True)
class CSRSummary:
    """What is needed before parsing: whether it is ours, and whether it still waits for us."""

    name: str
    uid: str
    resource_version: str
    provider: ProviderName
    purpose: Purpose
    state: RequestState
    denial_reason: str
    is_kubelets: bool = False
    """Whether it is kubelet's own, for the in-tree serving signer."""

    @property
    def is_open(self) -> bool:
        """Whether something is left to do here; others sign what is approved of kubelet's own."""
        if self.is_kubelets:
            return self.state is RequestState.PENDING
        return self.state in {RequestState.PENDING, RequestState.APPROVED}


def summarize(csr: JsonObject) -> CSRSummary | None:
    """Return whose a CSR object is and where it stands; None for a signer that is not served here."""
    signer_name = text(csr, "spec", "signerName")
    is_kubelets = signer_name == identifiers.KUBELET_SERVING_SIGNER
    named = (KUBELET, Purpose.SERVING) if is_kubelets else identifiers.split_signer(signer_name)
    if named is None:
        return None
    found = {text(each, "type"): each for each in reversed(items(csr, "status", "conditions"))}
    if "Denied" in found:
        state = RequestState.DENIED
    elif "Failed" in found:
        state = RequestState.FAILED
    elif text(csr, "status", "certificate"):
        state = RequestState.ISSUED
    else:
        state = RequestState.APPROVED if "Approved" in found else RequestState.PENDING
    return CSRSummary(
        name=text(csr, "metadata", "name"),
        uid=text(csr, "metadata", "uid"),
        resource_version=text(csr, "metadata", "resourceVersion"),
        provider=named[0],
        purpose=named[1],
        state=state,
        denial_reason=text(found.get("Denied"), "reason"),
        is_kubelets=is_kubelets,
    )


def parse_request(csr: JsonObject, *, provider_id_oid: str = identifiers.PROVIDER_ID_OID) -> NodeRequest:
    """Read a CSR object; raises Denied.

    1. the signer is ours; 2. who asks may ask at all; 3. the usages are a kubelet's; 4. the envelope and its PKCS#10
    are well-formed; 5. the provider block agrees with the signer; 6. a node asks for itself only; 7. only a bootstrap
    token may ask without a provider ID.
    """
    signer_name = text(csr, "spec", "signerName")
    named = identifiers.split_signer(signer_name)  # 1
    if named is None:
        remedy = "check spec.signerName"
        raise Denied(Reason.SIGNER_UNKNOWN, expected="one of our signers", got="another", remedy=remedy)
    provider, purpose = named
    username, groups = text(csr, "spec", "username"), frozenset(strings(csr, "spec", "groups"))
    is_node = username.startswith(NODE_USER_PREFIX) and identifiers.NODES_GROUP in groups
    if not (is_node or _is_bootstrap_token(username, groups)):  # 2
        raise Denied(
            Reason.REQUESTER_NOT_ALLOWED,
            expected="a bootstrap token in system:bootstrappers, or a node in system:nodes",
            got="another user",
            remedy="join with a bootstrap token, or renew with the node's own certificate",
        )
    _check_usages(csr, purpose)  # 3
    raw = _request_bytes(text(csr, "spec", "request"))
    node_csr, evidence = envelope.decode(raw, purpose=purpose, provider_id_oid=provider_id_oid)  # 4
    if evidence.provider != provider:  # 5
        raise Denied(
            Reason.PROVIDER_MISMATCH,
            expected=f"provider block {provider!r} as in the signer's name",
            got=repr(evidence.provider),
            remedy="let the agent's provider and the signer agree",
        )
    _check_requester(node_csr, username, groups)  # 6, 7
    name, uid = text(csr, "metadata", "name"), text(csr, "metadata", "uid")
    _check_metadata(name, uid)
    return NodeRequest(
        name=name,
        uid=uid,
        created=_created(csr),
        signer_name=identifiers.SignerName(signer_name),
        purpose=purpose,
        username=username,
        groups=groups,
        expiration_seconds=number(csr, "spec", "expirationSeconds"),
        request=raw,
        csr=node_csr,
        evidence=evidence,
    )


def _check_requester(csr: NodeCsr, username: str, groups: frozenset[str]) -> None:
    if username.startswith(NODE_USER_PREFIX) and username != NODE_USER_PREFIX + csr.node_name:
        raise Denied(
            Reason.REQUESTER_NOT_ALLOWED,
            expected=f"a request of {username} for itself",
            got=f"a request for {NODE_USER_PREFIX}{csr.node_name}",
            remedy="a node may only ask for its own name; join with a bootstrap token to get another",
        )
    if not csr.provider_id and not _is_bootstrap_token(username, groups):
        raise Denied(
            Reason.PROVIDER_ID_INVALID,
            expected="the provider ID extension in a node's request",
            got="none",
            remedy="renew with the provider ID of the certificate's request; kubelet-authenticator keeps it",
        )


def _check_metadata(name: str, uid: str) -> None:
    """Bound what goes into the ledger: an API server lets names be anything that fits a path."""
    if not 0 < len(name) <= _MAX_NAME or not name.isprintable() or not 0 < len(uid) <= _MAX_UID:
        raise Denied(
            Reason.CSR_MALFORMED,
            expected=f"a printable name of at most {_MAX_NAME} characters and a UID",
            got=f"a name of {len(name)} characters and a UID of {len(uid)}",
            remedy="file the request under an ordinary name",
        )


def _is_bootstrap_token(username: str, groups: frozenset[str]) -> bool:
    return bool(_BOOTSTRAP_USER.match(username)) and BOOTSTRAP_GROUP in groups


def _created(csr: JsonObject) -> datetime:
    created = moment(text(csr, "metadata", "creationTimestamp"))
    if created is None:
        raise Denied(Reason.CSR_MALFORMED, expected="a creationTimestamp", got="none", remedy="file the request anew")
    return created


def _check_usages(csr: JsonObject, purpose: Purpose) -> None:
    asked, allowed = strings(csr, "spec", "usages"), _USAGES[purpose]
    usages = frozenset(asked)
    if usages - {_OPTIONAL_USAGE} != allowed or len(usages) != len(asked):
        raise Denied(
            Reason.USAGES_NOT_ALLOWED,
            expected=f"{', '.join(sorted(allowed))}, with or without {_OPTIONAL_USAGE}",
            got=", ".join(sorted(usages)) or "none",
            remedy="ask for exactly a kubelet's usages",
        )


def _request_bytes(encoded: str) -> bytes:
    if len(encoded) > MAX_BASE64:
        raise Denied(
            Reason.ENVELOPE_TOO_LARGE,
            expected=f"at most {envelope.MAX_SIZE} bytes",
            got=f"about {len(encoded) * 3 // 4}",
            remedy="send smaller evidence",
        )
    try:
        return decode_base64(encoded)
    except ValueError as error:
        remedy = "file the request anew"
        raise Denied(Reason.ENVELOPE_MALFORMED, expected="base64", got="something else", remedy=remedy) from error


MAX_KUBELET_CSR_BASE64: Final = 2 * pkcs10.MAX_SIZE
"""Characters of ``spec.request``: PEM in base64 is 16/9 of the DER."""


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
    if not asks or identifiers.NODES_GROUP not in strings(csr, "spec", "groups"):  # 1
        raise Denied(
            Reason.REQUESTER_NOT_ALLOWED,
            expected="a node in system:nodes",
            got=identifiers.printable(text(csr, "spec", "username")),
            remedy="let kubelet file the request with its node's client certificate",
        )
    _check_usages(csr, Purpose.SERVING)  # 2
    found = pkcs10.parse_kubelet_serving(_pkcs10(text(csr, "spec", "request")))  # 3, 4
    if found.node_name != asks:  # 5
        raise Denied(
            Reason.REQUESTER_NOT_ALLOWED,
            expected=f"a request of {identifiers.printable(asks)} for itself",
            got=f"a request for {found.node_name}",
            remedy="a node may only ask for its own name",
        )
    return KubeletServingRequest(
        name=text(csr, "metadata", "name"),
        node_name=found.node_name,
        names=SubjectAltNames(found.dns_names, found.ip_addresses),
        created=_created(csr),
    )


def _pkcs10(encoded: str) -> bytes:
    """Open the one PEM block; the signer would skip what stands around it."""
    if len(encoded) > MAX_KUBELET_CSR_BASE64:
        raise _malformed(f"at most {MAX_KUBELET_CSR_BASE64} characters", str(len(encoded)))
    try:
        (der,) = pem.decode(decode_base64(encoded), [LABEL_CSR])
    except (ValueError, Denied):
        raise _malformed(f"one {LABEL_CSR} block in PEM, in its canonical spelling", "something else") from None
    return der


def _malformed(expected: str, got: str) -> Denied:
    remedy = "let kubelet file the request itself (serverTLSBootstrap: true)"
    return Denied(Reason.CSR_MALFORMED, expected=expected, got=got, remedy=remedy)
