"""Finds certificates of the in-tree signer that no attestation covers, by a watch of its approved requests.

A certificate is foreign if no attestation record of the node that it names holds its key. Its request is deleted after
an hour, so it stays known until an operator has reviewed it.
Source: kubernetes pkg/controller/certificates/cleaner/cleaner.go (approvedExpiration), approver/sarapprove.go.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from nodeattest_controller.controllers.auto_approval import decide
from nodeattest_controller.controllers.auto_approval.approval_block import IN_TREE_SIGNER
from nodeattest_controller.runtime.conditions import ConditionStatus
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Forbidden
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.objects import condition, flag, items, moment, rfc3339, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.identifiers import NODE_USER_PREFIX, NodeName, Purpose

BESIDES: Final = "; besides: "
_MAX_REQUESTS: Final = 20_000
"""Requests that are watched; a list that is longer is an error, and nothing is called closed."""
_MAX_BYTES: Final = 64 << 20
MAX_FOREIGN: Final = 1000
"""Foreign certificates that are kept, so that a flood takes bounded memory."""
MAX_SILENCE: Final = 300.0
"""Seconds without contact after which the watch counts as broken; a healthy one has bookmarks or ends each minute."""
_MAX_PEM: Final = 32 * 1024
"""Characters of base64; the signer's certificates have some 1,500."""
_UNREADABLE: Final = "unknown"
_LAST: Final = re.compile(r"the in-tree signer's approval was given \d+ times, last at (\S+), for ")


@dataclass(frozen=True, slots=True, kw_only=True)
class InTreeCertificate:
    """One request that the in-tree signer's approver approved."""

    request: str
    uid: str
    username: str
    node_name: str
    """The subject of the certificate, or of the request while there is no certificate."""
    spki: str
    """``sha256:<hex>`` of its key."""
    serial: str
    """Hexadecimal; empty until the certificate is issued."""
    not_after: datetime | None
    created: datetime | None

    @property
    def renews_itself(self) -> bool:
        return self.username == f"{NODE_USER_PREFIX}{self.node_name}"

    def __str__(self) -> str:
        if not self.serial:
            return f"{self.node_name} (approved, not issued yet, request {self.request})"
        return (
            f"{self.node_name} (serial {self.serial}, until {_shown(self.not_after)}, "
            f"request {self.request} of {self.username})"
        )


class InTreeCertificates:
    """The requests of one workload cluster for the in-tree signer, watched."""

    def __init__(
        self,
        key: ClusterKey,
        client: ApiClient,
        inventory: Inventory,
        *,
        clock: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        self._key, self._client, self._inventory = key, client, inventory
        self._clock, self._on_change = clock, on_change
        self._requests = Reflector(
            client,
            paths.collection_path(decide.CSR_GROUP, "v1", decide.CSR_RESOURCE),
            on_change=self._changed,
            on_recovery=on_change,
            query={"fieldSelector": f"spec.signerName={IN_TREE_SIGNER}"},
            transform=summarize,
            max_objects=_MAX_REQUESTS,
            max_bytes=_MAX_BYTES,
            clock=clock,
        )
        self.foreign: dict[str, InTreeCertificate] = {}
        """Foreign certificates that no operator has reviewed, by the UID of the request, which may be gone."""

    async def run(self) -> None:
        await self._requests.run()

    def trouble(self) -> str:
        """Return what keeps requests from being watched; a watch that hung is trouble until the next complete list."""
        error = self._requests.last_error
        if isinstance(error, Forbidden) or not self._requests.synced:
            return str(error) if error is not None else "the first list is not complete yet"
        if self._requests.hung is not None:
            return str(self._requests.hung)
        if self._requests.left_out:
            return f"one is too large to be read, and may hide a certificate until it is deleted (see {decide.RUNBOOK})"
        is_silent = self._clock() - self._requests.last_contact > MAX_SILENCE
        return f"no contact for minutes: {error}" if is_silent else ""

    async def review(self, since: datetime, reviewed: datetime | None) -> list[InTreeCertificate]:
        """Evaluate every approved request; returns the foreign ones that the cluster still has.

        ``since``: requests that are older are no violation. ``reviewed``: an operator has handled certificates of
        requests that are older. Raises ApiError.
        """
        if reviewed is not None:
            kept = self.foreign.items()
            self.foreign = {uid: each for uid, each in kept if each.created is None or each.created >= reviewed}
        found, older = list[InTreeCertificate](), dict[str, bool]()
        for summary in list(self._requests.values()):
            issued = parse_summary(summary)
            if issued is None or (issued.created is not None and issued.created < since):
                continue
            if not is_foreign(issued, self._key, self._inventory):
                continue
            if issued.renews_itself:
                if issued.node_name not in older:
                    older[issued.node_name] = await self._is_older_node(issued.node_name, since)
                if older[issued.node_name]:
                    continue
            found.append(issued)
            if issued.uid in self.foreign or len(self.foreign) < MAX_FOREIGN:
                self.foreign[issued.uid] = issued
        return found

    async def _is_older_node(self, name: str, since: datetime) -> bool:
        """Return whether a Node is older: an adopted node may renew until kubelet restarts."""
        async for page in self._client.pages(paths.core_path("nodes"), {"fieldSelector": f"metadata.name={name}"}):
            for node in items(page, "items"):
                created = moment(text(node, "metadata", "creationTimestamp"))
                if text(node, "metadata", "name") == name and created is not None:
                    return created < since
        return False

    def _changed(self, _name: str, summary: JsonObject | None) -> None:
        if summary is not None and flag(summary, "approved"):
            self._on_change()


def is_foreign(issued: InTreeCertificate, cluster: ClusterKey, inventory: Inventory) -> bool:
    """Return whether no attestation accounts for a certificate."""
    holders = inventory.attestations_by_node_name(cluster, NodeName(issued.node_name))
    if any(attestation.entry_for(issued.spki, purpose) is not None for attestation in holders for purpose in Purpose):
        return False
    return bool(holders) or not issued.renews_itself


def describe(foreign: Collection[InTreeCertificate]) -> str:
    """Count foreign certificates and name the first; empty where there are none."""
    if not foreign:
        return ""
    issued_first = sorted(foreign, key=lambda each: not each.serial)
    last = max((each.created for each in foreign if each.created is not None), default=None)
    end = max((each.not_after for each in foreign if each.not_after is not None), default=None)
    return (
        f"the in-tree signer's approval was given {len(foreign)} times, last at {_shown(last)}, for names or keys that "
        f"no attestation covers: {decide.join_first(issued_first)}; the last certificate ends {_shown(end)}"
    )


def last_approval(message: str) -> datetime | None:
    """Return when the last request of those that a message counts was made."""
    found = _LAST.match(message)
    return moment(found[1]) if found is not None else None


def with_certificates(finding: decide.Finding, certificates: str) -> decide.Finding:
    """Give foreign certificates precedence over every other finding."""
    if not certificates:
        return finding
    message = f"{certificates}{BESIDES}{finding.message}"
    return decide.Finding(ConditionStatus.FALSE, decide.ApprovalReason.CERTIFICATES_ISSUED, message)


def summarize(csr: JsonObject) -> JsonObject:
    """Keep what matters of a request: its creator decides how large it is. What cannot be read is reported, too."""
    meta: JsonObject = {
        name: text(csr, "metadata", name)[:1024] for name in ("name", "uid", "resourceVersion", "creationTimestamp")
    }
    certificate, request = text(csr, "status", "certificate"), text(csr, "spec", "request")
    if not certificate and condition(items(csr, "status", "conditions"), "Approved") is None:
        return {"metadata": meta, "approved": False}
    try:
        if certificate:
            issued = x509.load_pem_x509_certificate(_decode(certificate))
            end = rfc3339(issued.not_valid_after_utc)
            read: JsonObject = {**_name_and_key(issued), "serial": f"{issued.serial_number:x}", "notAfter": end}
        else:
            read = _name_and_key(x509.load_pem_x509_csr(_decode(request)))
    except (*X509_ERRORS, OverflowError):
        read = {"node": _UNREADABLE, "serial": _UNREADABLE if certificate else ""}
    return {"metadata": meta, "approved": True, "username": text(csr, "spec", "username")[:256], **read}


def parse_summary(summary: JsonObject) -> InTreeCertificate | None:
    """Read what ``summarize`` kept; None for a request that was not approved."""
    if not flag(summary, "approved"):
        return None
    return InTreeCertificate(
        request=text(summary, "metadata", "name"),
        uid=text(summary, "metadata", "uid"),
        username=text(summary, "username"),
        node_name=text(summary, "node"),
        spki=text(summary, "spki"),
        serial=text(summary, "serial"),
        not_after=moment(text(summary, "notAfter")),
        created=moment(text(summary, "metadata", "creationTimestamp")),
    )


def _decode(encoded: str) -> bytes:
    if len(encoded) > _MAX_PEM:
        raise ValueError("too long")
    return decode_base64(encoded)


def _name_and_key(found: x509.Certificate | x509.CertificateSigningRequest) -> JsonObject:
    """Read name and key; of several names the last counts (Go's crypto/x509/pkix)."""
    names = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    name = names[-1].value if names else ""
    spki = found.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    node = name.removeprefix(NODE_USER_PREFIX) if isinstance(name, str) else ""
    return {"node": node[:253] or _UNREADABLE, "spki": f"sha256:{hashlib.sha256(spki).hexdigest()}"}


def _shown(time: datetime | None) -> str:
    return rfc3339(time) if time else _UNREADABLE
