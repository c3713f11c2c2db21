"""The event log of a stored request, beside its quote: what ``explain`` shows of it.

Promises: data counts as verified only where the profile says that the digest is the data's, it is, and the register
replays to the quoted value; everything else, types included, is shown as what it is: the node's words.
Leaves to others: the verdict (the provider's verification), and whether the quote is genuine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodeattest_cli.explain.eventtypes import describe, event_type_name, is_hashed
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_providers.errors import Denied
from nodeattest_providers.tpm.event_log import NO_PCR, Event, EventLog, hash_of, parse_event_log
from nodeattest_providers.tpm.event_log_checks import Measured, measure
from nodeattest_providers.tpm.protocol import SecondEvidence, parse_evidence
from nodeattest_providers.tpm.quote import parse_quote
from nodeattest_providers.tpm.structures import Alg, PcrSelection, digest_size
from nodeattest_providers.verifier_interface import NodeRequest

__all__ = ["LoggedEvent", "ShownLog", "read_log"]


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One event as it is shown."""

    index: int
    pcr: int | None
    kind: str
    digest: str
    """In hex, of the shown bank; empty for an event that extends nothing."""
    verified: bool
    says: str

    def to_json(self) -> JsonObject:
        """Return the entry of ``events``."""
        return {
            "index": self.index,
            "pcr": self.pcr,
            "type": self.kind,
            "digest": self.digest,
            "verified": self.verified,
            "says": self.says,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLog:
    """A log that could be read."""

    form: str
    bank: str
    registers: Sequence[Measured]
    """Each quoted register beside its replay; empty where the log has not the quoted bank."""
    events: Sequence[LoggedEvent]

    @property
    def summary(self) -> str:
        """Say in one line what it is and which registers it explains."""
        wrong = [str(one.pcr) for one in self.registers if not one.agrees]
        right = [str(one.pcr) for one in self.registers if one.agrees]
        said = f"{self.form}, {len(self.events)} events, {self.bank}"
        if not self.registers:
            return f"{said}; has not the quoted bank"
        return f"{said}; explains PCRs {', '.join(right) or 'none'}" + (f", not {', '.join(wrong)}" if wrong else "")

    def to_json(self) -> JsonObject:
        """Return the ``eventLog`` of the explanation."""
        registers: JsonObject = {
            str(one.pcr): {
                "quoted": one.quoted.hex(),
                "expected": one.expected.hex(),
                "mentioned": one.is_mentioned,
                "agrees": one.agrees,
            }
            for one in self.registers
        }
        events: list[JsonValue] = [event.to_json() for event in self.events]
        return {"form": self.form, "bank": self.bank, "pcrs": registers, "events": events}


def read_log(request: NodeRequest) -> ShownLog | None:
    """Read the log of a request; None where there is none, or none that can be read: the verification says why."""
    if request.evidence.provider != "tpm":
        return None
    try:
        evidence = parse_evidence(request.evidence.data)
        if not isinstance(evidence, SecondEvidence) or evidence.event_log is None:
            return None
        selections = parse_quote(evidence.quote).selections
        return _shown(parse_event_log(evidence.event_log), selections, evidence.pcrs)
    except Denied:
        return None


def _shown(log: EventLog, selections: Sequence[PcrSelection], values: Sequence[bytes]) -> ShownLog:
    """Set the log beside the quoted values, if they are of one bank that it has and of that bank's size."""
    registers: list[Measured] = []
    bank = next((bank for bank in (Alg.SHA256, Alg.SHA384, Alg.SHA512) if bank in log.sizes), Alg.SHA1)
    if len(selections) == 1 and selections[0].bank is not Alg.SHA1 and selections[0].bank in log.sizes:
        bank = selections[0].bank
        if [len(value) for value in values] == [digest_size(bank)] * len(selections[0].pcrs):
            registers = list(measure(log, selections[0], values))
    explained = {one.pcr for one in registers if one.agrees}
    return ShownLog(
        form="crypto-agile" if log.crypto_agile else "the SHA-1 form",
        bank=bank.name.lower() if bank in log.sizes else "",
        registers=registers,
        events=[_event(index, event, bank, explained) for index, event in enumerate(log.events)],
    )


def _event(index: int, event: Event, bank: Alg, explained: set[int]) -> LoggedEvent:
    digest = event.digests.get(bank, b"") if event.extends else b""
    is_data = is_hashed(event.kind) and digest != b"" and hash_of(bank, event.data) == digest
    return LoggedEvent(
        index=index,
        pcr=None if event.pcr == NO_PCR else event.pcr,
        kind=event_type_name(event.kind),
        digest=digest.hex(),
        verified=is_data and event.pcr in explained,
        says=describe(event.kind, event.data),
    )
