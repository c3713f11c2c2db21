"""The rules under which a new certificate is recorded and signed for a machine that proved itself. Pure.

They are asked while key, node name and fingerprints are reserved, directly before signing; the record is then written
by compare-and-swap. Source: docs/identity-rules.md, "Ledger".
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from nodeattest_controller.model.attestation import KEEP_ISSUED, Attestation
from nodeattest_controller.model.csr_request import RequestState
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.retired_keys import MAX_LIVE, live_keys
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.names import Purpose
from nodeattest_providers.pins import pins_for, split_pin
from nodeattest_providers.verifier_interface import AttestedNode, NodeRequest

__all__ = [
    "check_approval_known",
    "check_key_is_new",
    "check_key_of_one_machine",
    "check_live_certificates",
    "check_pinned_fingerprints",
    "check_replacement_interval",
]

REPLACEMENT_INTERVAL: Final = timedelta(minutes=10)
"""A machine that proved itself but lost its key may replace a live one this often ("Ledger")."""


def check_approval_known(request: NodeRequest, attestation: Attestation, state: RequestState) -> None:
    """Refuse an approval that somebody else wrote: approved is not proof."""
    known = attestation.entry_for(request.csr.spki_sha256, request.purpose)
    if state is RequestState.APPROVED and known is None:
        raise Denied(
            Reason.APPROVED_ELSEWHERE,
            expected="an approval by this controller",
            got="an approval that the ledger does not know",
            remedy="leave the approval of these signers to the controller, and let the node file anew",
        )


def check_key_is_new(
    request: NodeRequest, machine: MachineView, attestation: Attestation, holders: Sequence[Attestation]
) -> None:
    """Refuse a key with an older certificate, with one of the other purpose, or with another machine's.

    ``holders`` are the attestations of the cluster that issued for this key. The machine's own may have got the key
    during the verification: then the write conflicts, and the next evaluation finds the entry.
    """
    spki = request.csr.spki_sha256
    used = attestation.entry_for(spki, request.purpose) is not None or attestation.has_retired(spki)
    if used or attestation.serves_otherwise(spki, request.purpose):
        raise _key_reused("a key with another certificate")
    check_key_of_one_machine(machine, holders)


def check_key_of_one_machine(machine: MachineView, holders: Sequence[Attestation]) -> None:
    """Refuse a key that another machine of the cluster has a certificate for, also one that is on record already."""
    if any(holder.provider_id != machine.provider_id for holder in holders):
        raise _key_reused("a key of another machine")


def _key_reused(got: str) -> Denied:
    return Denied(Reason.KEY_REUSED, expected="a key that was never certified", got=got, remedy="make a new key")


def check_replacement_interval(request: NodeRequest, attestation: Attestation, now: datetime) -> None:
    """Refuse a new key outside renewal while the last one is younger than ten minutes."""
    live = attestation.live(now)
    if request.is_renewal or live is None or now - live.issued_at >= REPLACEMENT_INTERVAL:
        return
    raise Denied(
        Reason.MACHINE_ALREADY_BOUND,
        expected=f"at most one new key in {REPLACEMENT_INTERVAL.seconds // 60} minutes outside renewal",
        got=f"another key {int((now - live.issued_at).total_seconds())} s after the last",
        remedy="try again in ten minutes; the agent keeps its key until its certificate arrives",
    )


def check_live_certificates(purpose: Purpose, attestation: Attestation, now: datetime) -> None:
    """Bound the live certificates of one machine and purpose."""
    most = MAX_LIVE[purpose]
    if live_keys(attestation.retired, purpose, now) >= most:
        raise Denied(
            Reason.MACHINE_ALREADY_BOUND,
            expected=f"at most {most} live {purpose} certificates of one machine, beside the last {KEEP_ISSUED}",
            got="one more",
            remedy="find out what asks on this machine again and again; it is served when older certificates end",
        )


def check_pinned_fingerprints(attestation: Attestation, attested: AttestedNode) -> None:
    """Keep fingerprints once pinned; the provider compared them already, and this is the last line.

    A record of an earlier version has the kind alone, maybe with a dot (``serial.cpu``).
    """
    for pin, value in attested.pins.items():
        provider, kind = split_pin(pin)
        pinned = {**attestation.fingerprints, **pins_for(attestation.fingerprints, provider)}
        if pinned.get(kind, value) != value:
            raise Denied(
                Reason.MACHINE_ALREADY_BOUND,
                expected=f"the pinned {kind}",
                got="another",
                remedy="if the hardware was replaced: nodeattest machines reset, or re-create the Machine",
            )
