"""What the in-tree signer issued in a workload cluster, and which of it no attestation covers.

Requests are recorded as they appear, since kube-controller-manager deletes them an hour after they were answered: a
certificate that slipped through stays valid, and stays reported, when its request is gone.
A certificate counts when its request was made after the policy (and after what an operator said was dealt with), and:
1. no attestation record of the node that it names holds its key, and 2. it is no renewal by a node for itself that is
not in the ledger, or whose Node is older than that time: those are counted as Nodes (``NodeCoverage``).
Sources: kubernetes pkg/controller/certificates/cleaner/cleaner.go (approvedExpiration), approver/sarapprove.go.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from nodeattest_controller.controllers.auto_approval.approval_block import IN_TREE_SIGNER
from nodeattest_controller.controllers.auto_approval.permissions import CSR_GROUP, CSR_RESOURCE
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Forbidden
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.objects import condition, flag, items, moment, rfc3339, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.identifiers import NODE_USER_PREFIX, NodeName, Purpose

_KEPT_BY_CLEANER: Final = timedelta(hours=1)
"""How long an answered request is kept (cleaner.go, approvedExpiration)."""
MAX_GAP: Final = 50 * 60.0
"""Seconds without contact after which requests may have come and gone; contact is sampled every some minutes."""
MAX_SILENCE: Final = 300.0
"""Seconds without contact after which a watch counts as broken; a healthy one has bookmarks or ends each minute."""
_MAX_REQUESTS: Final = 20_000
"""Requests of one cluster that are recorded; a list that is longer is an error, and nothing is called closed."""
_MAX_BYTES: Final = 64 << 20
NAMED: Final = 10
"""Certificates that a message names."""
_MAX_PEM: Final = 32 * 1024
"""Characters of base64; the signer's certificates have some 1,500."""
_UNREADABLE: Final = "unknown"
_LAST: Final = re.compile(r"the in-tree signer's approval was given \d+ times, last at (\S+), for ")


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedInTree:
    """One request that the in-tree signer's approver approved."""

    request: str
    uid: str
    username: str
    """Who asked."""
    node_name: str
    """Whom the certificate, or before there is one the request, names."""
    spki: str
    """``sha256:<hex>`` of its key."""
    serial: str
    """Hexadecimal; empty until the certificate is issued."""
    not_after: datetime | None
    created: datetime | None

    @property
    def renews_itself(self) -> bool:
        """Whether a node asked for its own name."""
        return self.username == f"{NODE_USER_PREFIX}{self.node_name}"

    def __str__(self) -> str:
        """Say what was issued to whom, and when it expires."""
        if not self.serial:
            return f"{self.node_name} (approved, not issued yet, request {self.request})"
        return (
            f"{self.node_name} (serial {self.serial}, until {_end(self.not_after)}, "
            f"request {self.request} of {self.username})"
        )


@dataclass(slots=True)
class UncoveredCertificates:
    """Certificates without attestation, counted in bounded memory."""

    count: int = 0
    named: dict[str, IssuedInTree] = field(default_factory=dict[str, IssuedInTree])
    """The first of them by the UID of the request: those that have a certificate, then those that have none yet."""
    last_end: datetime | None = None
    last_created: datetime | None = None

    def add(self, found: IssuedInTree, *, is_new: bool) -> None:
        """Count one more, or take in that one which was approved is issued now."""
        self.count += is_new
        self.named[found.uid] = found
        issued_first = sorted(self.named.values(), key=lambda each: not each.serial)
        self.named = {each.uid: each for each in issued_first[:NAMED]}
        self.last_end = max(filter(None, (self.last_end, found.not_after)), default=None)
        self.last_created = max(filter(None, (self.last_created, found.created)), default=None)

    def accept(self, until: datetime | None) -> None:
        """Forget what an operator says is dealt with: all of it, or nothing."""
        if until is not None and self.last_created is not None and self.last_created < until:
            self.count, self.named, self.last_end, self.last_created = 0, {}, None, None

    def __str__(self) -> str:
        """Say how many, the first of them by name, and when the last one expires; empty where there are none."""
        if not self.count:
            return ""
        more = f" and {self.count - len(self.named)} more" if self.count > len(self.named) else ""
        return (
            f"the in-tree signer's approval was given {self.count} times, last at {_end(self.last_created)}, for names "
            f"or keys that no attestation covers: {', '.join(map(str, self.named.values()))}{more}; the last "
            f"certificate ends {_end(self.last_end)}"
        )


def last_approval(message: str) -> datetime | None:
    """Return when the last request of those that a message counts was made."""
    found = _LAST.match(message)
    return moment(found[1]) if found is not None else None


class CertificateLog:
    """The requests of one workload cluster for the in-tree signer, watched."""

    def __init__(
        self,
        key: ClusterKey,
        client: ApiClient,
        inventory: Inventory,
        *,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._key = key
        self._inventory = inventory
        self._now = now
        self._clock = clock
        self.on_change: Callable[[], None] = lambda: None
        """Called when a request was approved or issued, and when the watch begins or recovers."""
        self._evaluated: dict[str, tuple[str, bool]] = {}
        """By name of a request that is still there: its UID, and whether its certificate was issued when evaluated."""
        self._observed_from: datetime | None = None
        self._contact = float("-inf")
        self._skipped = 0
        """Requests that were too large to be read."""
        self.found: Final = UncoveredCertificates()
        self._reflector = Reflector(
            client,
            paths.collection_path(CSR_GROUP, "v1", CSR_RESOURCE),
            on_change=self._changed,
            on_recovery=self._recovered,
            query={"fieldSelector": f"spec.signerName={IN_TREE_SIGNER}"},
            transform=_summary,
            max_objects=_MAX_REQUESTS,
            max_bytes=_MAX_BYTES,
            clock=clock,
        )

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._reflector.run()

    def trouble(self) -> str:
        """Return what keeps the requests from being followed; a watch that just ended is no trouble.

        One that hung is, until the collection was listed again: nobody knows which changes it did not show.
        """
        error = self._reflector.last_error
        if isinstance(error, Forbidden) or not self._reflector.synced:
            return str(error) if error is not None else "the first list is not complete yet"
        if self._reflector.hung is not None:
            return str(self._reflector.hung)
        is_silent = self._clock() - self._reflector.last_contact > MAX_SILENCE
        return f"no contact for minutes: {error}" if is_silent else ""

    def observed_from(self) -> datetime | None:
        """Return from when on every request is on record; None while that cannot be said.

        Called at each audit, it notices a gap in the watch that was too long: what came and went in it is unknown.
        """
        contact, last = self._reflector.last_contact, self._contact
        if not self._reflector.synced or self._clock() - contact > MAX_GAP:
            return None
        self._contact = contact
        if self._observed_from is None or contact - last > MAX_GAP:
            self._observed_from = self._now() - timedelta(seconds=self._clock() - contact) - _KEPT_BY_CLEANER
        if self._reflector.passed_over > self._skipped:
            self._skipped = self._reflector.passed_over
            self._observed_from = self._now()
        return self._observed_from

    def review(self, since: datetime, nodes: Mapping[str, datetime | None] | None) -> Iterator[IssuedInTree]:
        """Take account of what was approved, and yield what was issued, that no attestation covers: each once.

        ``nodes`` says when each Node was created; without it renewals of attested nodes wait to be evaluated.
        """
        for value in list(self._reflector.values()):
            if not flag(value, "approved"):
                continue
            issued = _parsed(value)
            state, known = (issued.uid, bool(issued.serial)), self._evaluated.get(issued.request, ("", False))
            is_older = issued.created is not None and issued.created < since
            if state == known or is_older or is_covered(issued, self._key, self._inventory):
                continue
            if issued.renews_itself:
                created = nodes.get(issued.node_name) if nodes is not None else None
                if nodes is None or (created is not None and created < since):
                    continue
            self._evaluated[issued.request] = state
            self.found.add(issued, is_new=known[0] != issued.uid)
            if issued.serial:
                yield issued

    def _recovered(self) -> None:
        self.on_change()

    def _changed(self, name: str, value: JsonObject | None) -> None:
        if value is None:
            self._evaluated.pop(name, None)
        elif flag(value, "approved"):
            self.on_change()


def is_covered(issued: IssuedInTree, cluster: ClusterKey, inventory: Inventory) -> bool:
    """Return whether an attestation accounts for a certificate, or a node without one renewed its own."""
    holders = inventory.attestations_by_node_name(cluster, NodeName(issued.node_name))
    if any(attestation.entry_for(issued.spki, purpose) is not None for attestation in holders for purpose in Purpose):
        return True
    return not holders and issued.renews_itself


def _summary(csr: JsonObject) -> JsonObject:
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
    except (ValueError, TypeError, UnsupportedAlgorithm, OverflowError):
        read = {"node": _UNREADABLE, "serial": _UNREADABLE if certificate else ""}
    return {"metadata": meta, "approved": True, "username": text(csr, "spec", "username")[:256], **read}


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


def _parsed(value: JsonObject) -> IssuedInTree:
    return IssuedInTree(
        request=text(value, "metadata", "name"),
        uid=text(value, "metadata", "uid"),
        username=text(value, "username"),
        node_name=text(value, "node"),
        spki=text(value, "spki"),
        serial=text(value, "serial"),
        not_after=moment(text(value, "notAfter")),
        created=moment(text(value, "metadata", "creationTimestamp")),
    )


def _end(time: datetime | None) -> str:
    return rfc3339(time) if time else _UNREADABLE
