"""Machines: how many are attested, refused or not attested; and whose certificates end next. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from nodeattest_cli.doctor.facts import HealthFacts, Unread, readable
from nodeattest_cli.doctor.model import HealthFinding, HealthSeverity, listed
from nodeattest_cli.machines.row import MACHINE_GONE, MachineRow, rows_of
from nodeattest_controller.controllers.node_attested.conditions import Known, newest_certificate
from nodeattest_controller.model.attestation import IssuedCertificate, parse_attestation
from nodeattest_controller.model.objects import rfc3339
from nodeattest_kube.jsontypes import key_of

__all__ = ["IDS", "look"]

IDS: Final = ("machines-attested", "certificates")
_PARTS: Final = 4
"""A certificate with less than a quarter of its lifetime left was not renewed: agents renew long before."""


def look(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Look at the machines of each protected cluster."""
    machines, attestations = facts.management.machines, facts.management.attestations
    for value, what in ((machines, "Machines"), (attestations, "MachineAttestations")):
        if isinstance(value, Unread):
            expected, remedy = "every machine of a protected cluster is attested", f"let this user list {what}"
            yield HealthFinding(
                id="machines-attested",
                severity=HealthSeverity.UNKNOWN,
                expected=expected,
                found=value.why,
                remedy=remedy,
            )
            return
    known = readable(attestations)
    certificates = {key_of(one): newest_certificate(parse_attestation(one)) for one in known}
    rows = list(rows_of(readable(machines), known, facts.now))
    for cluster in facts.protected():
        key = key_of(cluster)
        own = [row for row in rows if f"{row.namespace}/{row.cluster}" == key and row.state != MACHINE_GONE]
        yield _counted(key, own)
        ends = [
            (certificate, row)
            for row in own
            if (certificate := certificates.get(f"{row.namespace}/{row.attestation}")) is not None
        ]
        yield _certificates(key, ends, facts.now)


def _counted(key: str, rows: Sequence[MachineRow]) -> HealthFinding:
    """Count them by state; what ended is said with the certificates."""
    counts = Counter(row.state for row in rows)
    refused = [f"{row.machine} ({row.refused})" for row in rows if row.refused and row.expires is not None]
    claimed = [f"{row.machine} ({row.refused})" for row in rows if row.refused and row.expires is None]
    foreign = [row.machine for row in rows if row.state == Known.NOT_ATTESTED]
    severity = HealthSeverity.WARNING if claimed or foreign else HealthSeverity.OK
    severity = HealthSeverity.ERROR if refused else severity
    said = [f"{number} {state}" for state, number in sorted(counts.items())] or ["no machine"]
    said += [f"renewal refused: {listed(refused)}"] if refused else []
    said += [f"requests refused that claim {listed(claimed)}"] if claimed else []
    said += [f"joined without attestation: {listed(foreign)}"] if foreign else []
    remedy = "nodeattest machines list --not-attested; nodeattest explain machine/NAME; docs/adoption.md"
    return HealthFinding(
        id="machines-attested",
        severity=severity,
        expected="every machine is attested or about to be, and none is refused",
        found="; ".join(said),
        remedy="" if severity is HealthSeverity.OK else remedy,
        cluster=key,
    )


def _certificates(key: str, found: Sequence[tuple[IssuedCertificate, MachineRow]], now: datetime) -> HealthFinding:
    by_end = sorted(found, key=lambda one: (one[0].not_after, one[1].machine))
    ended = [row.machine for certificate, row in by_end if certificate.not_after <= now]
    late = [row.machine for certificate, row in by_end if now < certificate.not_after and _is_late(certificate, now)]
    said = [f"ended: {listed(ended)}"] if ended else []
    said += [f"less than a quarter left: {listed(late)}"] if late else []
    first = next(((end, row) for end, row in by_end if end.not_after > now), None)
    said += [f"the first ends at {rfc3339(first[0].not_after)} ({first[1].machine})"] if first else []
    severity = HealthSeverity.ERROR if ended else HealthSeverity.WARNING if late else HealthSeverity.OK
    runbooks = {
        HealthSeverity.ERROR: "docs/runbooks.md#nodeattestationcertificateended",
        HealthSeverity.WARNING: "docs/runbooks.md#nodeattestationcertificateendssoon",
    }
    return HealthFinding(
        id="certificates",
        severity=severity,
        expected="every certificate has a quarter of its lifetime left",
        found="; ".join(said) or "no certificate",
        remedy=runbooks.get(severity, ""),
        cluster=key,
    )


def _is_late(certificate: IssuedCertificate, now: datetime) -> bool:
    return certificate.not_after - now < (certificate.not_after - certificate.not_before) / _PARTS
