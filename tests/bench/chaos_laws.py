"""What a chaos run has seen, and the laws: pure functions of the whole history, which yield what breaks them."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, replace

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeattest_controller.model.attestation_object import parse_attestation
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers import envelope
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.tpm.protocol import SecondEvidence, parse_evidence
from nodeattest_providers.tpm.structures import parse_public


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


def signed_certificate(where: str, pem: bytes) -> Signed:
    certificate = x509.load_pem_x509_certificate(pem)
    spki = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    name = str(certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)
    return Signed(
        where,
        name.removeprefix("system:node:"),
        "sha256:" + hashlib.sha256(spki).hexdigest(),
        f"{certificate.serial_number:x}",
    )


def ledger_seen(obj: JsonObject) -> LedgerSeen:
    """Read a MachineAttestation: its certificates, and the keys that it remembers."""
    read = parse_attestation(obj)
    found = [signed_certificate(read.name, entry.certificate.encode()) for entry in read.issued]
    for entry, one in zip(read.issued, found, strict=True):
        assert (entry.spki, int(entry.serial, 16)) == (one.spki, int(one.serial, 16)), "the ledger's own words differ"
    retired = (Signed(read.name, "", key.spki, key.serial) for key in read.retired)
    return LedgerSeen(read.name, text(obj, "spec", "providerID"), text(obj, "spec", "nodeName"), (*found, *retired))


@dataclass(frozen=True)
class Verdict:
    """What one law found."""

    law: str
    checked: int
    violations: tuple[str, ...]


_Findings = Iterator[str]


def check(history: History) -> list[Verdict]:
    """Apply every law."""
    return [Verdict(law, len(seen(history)), tuple(find(history))) for law, seen, find in LAWS]


def _attested(history: History) -> _Findings:
    """Each certificate was asked for by a second request whose first one showed the registered machine's TPM.

    1. The name is a registered machine's that joins.
    2. The key is the one of the request.
    3. The request answers a first one of the same name and key.
    4. The endorsement key of the first one is the machine's registered one.
    """
    for uid, found in history.certificates.items():
        request = history.requests[uid]
        for one in found.values():
            where = f"{one.where}: certificate {one.serial} of {one.node}"
            truth = history.machines.get(one.node)
            if truth is None or not truth.joins:  # 1
                yield f"{where}: no honest machine has this name"
                continue
            if (request.node, request.spki) != (truth.node, one.spki):  # 2
                yield f"{where}: the request is for {request.node} and {request.spki}"
                continue
            first = history.requests.get(request.first_uid)
            if first is None:  # 3
                yield f"{where}: the request answers no first one that was seen"
                continue
            if (first.node, first.spki) != (request.node, request.spki):
                yield f"{where}: the first request is for {first.node} and {first.spki}"
            if first.endorsement_key != truth.endorsement_key:  # 4
                yield f"{where}: the first request shows {first.endorsement_key}, registered is {truth.endorsement_key}"


def _no_attacker(history: History) -> _Findings:
    for one in set(all_certificates(history)):
        if one.spki in history.attacker_keys:
            yield f"{one.where}: certificate {one.serial} of {one.node} has an attacker's key"


def _one_name(history: History) -> _Findings:
    nodes = defaultdict[str, set[str]](set)
    for one in all_certificates(history):
        nodes[one.spki] |= {one.node} - {""}
    yield from _several(nodes, "nodes")


def _one_certificate_for_a_key(history: History) -> _Findings:
    serials, keys = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for one in all_certificates(history):
        serials[one.spki].add(one.serial)
        keys[one.serial].add(one.spki)
    yield from [*_several(serials, "serial numbers"), *_several(keys, "keys")]


def _several(found: Mapping[str, set[str]], what: str) -> list[str]:
    return [f"{name} has the {what} {', '.join(sorted(each))}" for name, each in found.items() if len(each) > 1]


def _one_certificate_for_a_request(history: History) -> _Findings:
    for uid, found in history.certificates.items():
        if len(found) > 1:
            serials = ", ".join(sorted(one.serial for one in found.values()))
            yield f"{history.requests[uid].name} was signed {len(found)} times: {serials}"


def _one_machine_for_a_name(history: History) -> _Findings:
    """No name has ledgers of two machines, now or in any version, and none but its own machine's."""
    owners = defaultdict[str, set[str]](set)
    for ledger in history.ledgers:
        if ledger.node and ledger.certificates:
            owners[ledger.node].add(ledger.provider_id)
    for node, ids in owners.items():
        truth = history.machines.get(node)
        if truth is None or ids != {truth.provider_id}:
            yield f"{node} has the machines {', '.join(sorted(ids))}, registered is {truth and truth.provider_id}"


def _ledger_holds_what_was_issued(history: History) -> _Findings:
    kept = {(one.spki, one.serial) for ledger in history.final_ledgers for one in ledger.certificates}
    for found in history.certificates.values():
        for one in found.values():
            if (one.spki, one.serial) not in kept:
                yield f"{one.where}: certificate {one.serial} of {one.node} is not in the ledger"


def _one_replica(history: History) -> _Findings:
    """A replica writes only while it is the last that wrote the Lease.

    A request that was received before the Lease changed hands was sent by the leader.
    """
    renewals = sorted((write for write in history.writes if write.what == "lease"), key=lambda write: write.completed)
    for write in history.writes:
        if write.what == "lease":
            continue
        last = _last_before(renewals, write.received)
        if last is None:
            yield f"{write.replica} wrote {write.what} at {write.received:.3f}, and no leader was seen before"
        elif last.replica != write.replica:
            yield (
                f"{write.replica} wrote {write.what} at {write.received:.3f}, {write.received - last.completed:.3f} s "
                f"after {last.replica} had written the Lease"
            )


def _last_before(renewals: list[Write], moment: float) -> Write | None:
    return next((one for one in reversed(renewals) if one.completed <= moment), None)


def _every_node_ends_well(history: History) -> _Findings:
    for node, truth in history.machines.items():
        if truth.joins and (wrong := history.ends.get(node, "nobody looked")):
            yield f"{node}: {wrong}"


LAWS: tuple[tuple[str, Callable[[History], Sized], Callable[[History], _Findings]], ...] = (
    ("nobody is certified without the proof of its registered TPM", lambda seen: seen.certificates, _attested),
    ("no attacker's key is certified", lambda seen: seen.attacker_keys, _no_attacker),
    ("no key is certified for two names", lambda seen: seen.certificates, _one_name),
    ("no key is certified twice", lambda seen: seen.certificates, _one_certificate_for_a_key),
    ("no request is signed twice", lambda seen: seen.certificates, _one_certificate_for_a_request),
    ("no two machines have one node name", lambda seen: seen.ledgers, _one_machine_for_a_name),
    ("every certificate is in the ledger", lambda seen: seen.certificates, _ledger_holds_what_was_issued),
    ("one replica at a time writes", lambda seen: seen.writes, _one_replica),
    ("every honest node ends with a valid certificate", lambda seen: seen.ends, _every_node_ends_well),
)
"""Each with what a run must have seen for the law to say anything."""
