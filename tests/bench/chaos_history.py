"""What a chaos run has seen: requests, certificates, ledgers, the controller's writes, and nodes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bench.chaos_servers import UNREACHABLE, Replica
from nodeattest_controller.model.attestation_object import parse_attestation
from nodeattest_demo.world import NAMESPACE, USER, World
from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers import envelope
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.tpm.protocol import SecondEvidence, parse_evidence
from nodeattest_providers.tpm.structures import parse_public
from nodeattest_sandbox.control_plane import AuditEntry, ControlPlane


@dataclass(frozen=True)
class Truth:
    """One registered machine, as the run itself made it."""

    node: str
    provider_id: str
    endorsement_key: str
    """``sha256:<hex>`` of its TPM's key."""
    joins: bool = True
    """Whether it is honest and asks at all; a victim never does."""


@dataclass(frozen=True)
class Request:
    """One CertificateSigningRequest, as it was created."""

    uid: str
    name: str
    username: str
    node: str = ""
    spki: str = ""
    endorsement_key: str = ""
    """That a first request shows."""
    first_uid: str = ""
    """Of the request that a second one answers."""


@dataclass(frozen=True)
class Signed:
    """One certificate as somebody holds it."""

    where: str
    node: str
    spki: str
    serial: str


@dataclass(frozen=True)
class LedgerSeen:
    """One version of one MachineAttestation."""

    name: str
    provider_id: str
    node: str
    certificates: tuple[Signed, ...] = ()


@dataclass(frozen=True)
class Write:
    """A successful write of a replica, from an audit log."""

    replica: str
    what: str
    """``lease`` or ``ledger``."""
    received: float
    """Unix time at which the API server got the request."""
    completed: float


@dataclass
class History:
    """Everything that a run has seen."""

    machines: dict[str, Truth] = field(default_factory=dict[str, Truth])
    """By the name of the node."""
    attacker_keys: set[str] = field(default_factory=set[str])
    """SPKI of every key that an attacker made."""
    requests: dict[str, Request] = field(default_factory=dict[str, Request])
    """By UID."""
    certificates: dict[str, dict[str, Signed]] = field(default_factory=dict[str, dict[str, Signed]])
    """By the request's UID, then by the SHA-256 of the bytes: two entries are two certificates of one request."""
    seen_at: dict[str, float] = field(default_factory=dict[str, float])
    """When a serial number was seen first, Unix time."""
    ledgers: set[LedgerSeen] = field(default_factory=set[LedgerSeen])
    final_ledgers: list[LedgerSeen] = field(default_factory=list[LedgerSeen])
    writes: list[Write] = field(default_factory=list[Write])
    ends: dict[str, str] = field(default_factory=dict[str, str])
    """By node: what is wrong with its credential at the end, or an empty string."""

    def add_request(self, csr: JsonObject, at: float) -> None:
        """Note a request, and its certificate if it has one."""
        uid = text(csr, "metadata", "uid")
        if uid not in self.requests:
            self.requests[uid] = read_request(csr)
        encoded = text(csr, "status", "certificate")
        if encoded:
            pem = base64.b64decode(encoded)
            found = signed_certificate(text(csr, "metadata", "name"), pem)
            self.certificates.setdefault(uid, {})[hashlib.sha256(pem).hexdigest()] = found
            self.seen_at.setdefault(found.serial, at)


def node_of(signed: Signed) -> str:
    """Return the node's name of a certificate."""
    return signed.node.removeprefix("system:node:")


def read_request(csr: JsonObject) -> Request:
    """Read what a request claims; what is no envelope claims nothing."""
    bare = Request(text(csr, "metadata", "uid"), text(csr, "metadata", "name"), text(csr, "spec", "username"))
    try:
        asked, evidence = envelope.decode(base64.b64decode(text(csr, "spec", "request")))
        shown = parse_evidence(evidence.data)
        asks = replace(bare, node=asked.node_name, spki=asked.spki_sha256)
        if isinstance(shown, SecondEvidence):
            return replace(asks, first_uid=shown.first.uid)
        public = parse_public(shown.ek_public, what="key", reason=Reason.ENDORSEMENT_KEY_MALFORMED)
        return replace(asks, endorsement_key=public.fingerprint)
    except (Denied, binascii.Error):
        return bare


def all_certificates(history: History) -> Iterable[Signed]:
    """Return every certificate that was seen anywhere."""
    for found in history.certificates.values():
        yield from found.values()
    for ledger in history.ledgers:
        yield from ledger.certificates


def written_certificates(obj: JsonObject) -> list[Signed]:
    """Return the certificates of a MachineAttestation, and the keys that it remembers."""
    read = parse_attestation(obj)
    found = [signed_certificate(read.name, entry.certificate.encode()) for entry in read.issued]
    for entry, one in zip(read.issued, found, strict=True):
        assert (entry.spki, int(entry.serial, 16)) == (one.spki, int(one.serial, 16)), "the ledger's own words differ"
    return found + [Signed(read.name, "", key.spki, key.serial) for key in read.retired]


def signed_certificate(where: str, pem: bytes) -> Signed:
    certificate = x509.load_pem_x509_certificate(pem)
    spki = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    node = str(certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)
    return Signed(where, node, "sha256:" + hashlib.sha256(spki).hexdigest(), f"{certificate.serial_number:x}")


LEDGERS = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/machineattestations"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
WINDOW = 2
"""Seconds of one watch."""


class Collector:
    """Lists and watches requests and ledgers until ``end``."""

    def __init__(self, world: World, history: History) -> None:
        self._world, self._history = world, history
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._follow, args=(world.workload, CSRS, self._add_request), daemon=True),
            threading.Thread(target=self._follow, args=(world.management, LEDGERS, self._add_ledger), daemon=True),
        ]

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self, replicas: list[Replica]) -> None:
        """Read everything once more, and what only the end shows: the last ledgers, and writes in the audit log."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.sweep()
        self._history.final_ledgers += [_ledger(obj) for obj in self._world.management.client().list(LEDGERS)]
        names = {replica.address: replica.name for replica in replicas}
        for entry in self._world.management.requests():
            what = write_of(entry)
            if what and entry.user == USER and entry.source in names:
                moments = (datetime.fromisoformat(each).timestamp() for each in (entry.received, entry.completed))
                self._history.writes.append(Write(names[entry.source], what, *moments))

    def sweep(self) -> None:
        """Read everything that is there now."""
        for csr in self._world.workload.client().list(CSRS):
            self._add_request(csr)
        for obj in self._world.management.client().list(LEDGERS):
            self._add_ledger(obj)

    def _follow(self, plane: ControlPlane, path: str, add: Callable[[JsonObject], None]) -> None:
        version = ""
        while not self._stop.is_set():
            try:
                client = plane.client(timeout=WINDOW + 10.0)
                if not version:
                    version = text(client.get(path), "metadata", "resourceVersion")
                    for obj in client.list(path):
                        add(obj)
                for event in client.watch(path, WINDOW, resourceVersion=version):
                    if text(event, "type") == "ERROR":
                        version = ""
                        break
                    add(mapping(event, "object"))
                    version = text(event, "object", "metadata", "resourceVersion")
            except UNREACHABLE:
                version = ""
                self._stop.wait(1.0)

    def _add_request(self, csr: JsonObject) -> None:
        with self._lock:
            self._history.add_request(csr, time.time())

    def _add_ledger(self, obj: JsonObject) -> None:
        with self._lock:
            self._history.ledgers.add(_ledger(obj))


def _ledger(obj: JsonObject) -> LedgerSeen:
    return LedgerSeen(
        name=text(obj, "metadata", "name"),
        provider_id=text(obj, "spec", "providerID"),
        node=text(obj, "spec", "nodeName"),
        certificates=tuple(written_certificates(obj)),
    )


def write_of(entry: AuditEntry) -> str:
    """Name a successful write that only the leader makes, or that makes a leader; others are empty."""
    if entry.verb not in {"create", "update", "patch"} or entry.code not in range(200, 300):
        return ""
    return {"leases": "lease", "machineattestations": "ledger"}.get(entry.resource, "")
