"""The rules under which a certificate is recorded and signed for a machine that proved itself. Pure.

They are asked while key, node name and fingerprints are reserved. Those of a challenge hold across an operator's reset:
what a retired key answered is not forgotten. A bootstrap token's Secret may give its user a group
(``auth-extra-groups``); one of ours names a machine by a hash, and the API server writes it into the request.
Source: docs/identity-rules.md, "Ledger" and "Two steps"; k8s.io/cluster-bootstrap/token/api (BootstrapGroupPattern).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

from nodeattest_controller.model.attestation import KEEP_ISSUED, MAX_LIVE, Attestation, first_uid_of, live_keys
from nodeattest_controller.model.csr_request import CSRSummary, RequestState
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_providers.config_fields import pins_for, split_pin
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import Purpose
from nodeattest_providers.node_interface import length_prefix
from nodeattest_providers.verifier_interface import AttestedNode, NodeRequest

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
    """Keep fingerprints once pinned; the provider compared them already, and this is the last line."""
    for pin, value in attested.pins.items():
        provider, kind = split_pin(pin)
        pinned = pins_for(attestation.fingerprints, provider)
        if pinned.get(kind, value) != value:
            raise Denied(
                Reason.MACHINE_ALREADY_BOUND,
                expected=f"the pinned {kind}",
                got="another",
                remedy="if the hardware was replaced: nodeattest machines reset, or re-create the Machine",
            )


_RESTARTS = MappingProxyType({str(reason): reason for reason in (Reason.SUPERSEDED, Reason.CHALLENGE_EXPIRED)})
"""What may have become of a first request whose agent may begin anew: an answer can wait too long for its turn."""


def check_not_answered(request: NodeRequest, attestation: Attestation) -> None:
    """Refuse a first request whose answer was certified."""
    if attestation.keys_answering(request.uid):
        raise Denied(
            Reason.SUPERSEDED,
            expected="a first request that nobody answered yet",
            got="one whose second request was certified",
            remedy="nothing to do",
        )


def check_first_request_pending(request: NodeRequest, summary: CSRSummary, name: str, attestation: Attestation) -> None:
    """Refuse an answer to a first request that was decided; ``name`` is the first request's.

    A certificate for this key on record is asked before the first request's own state: a copy of the second request,
    handled earlier, closes the first one, and must not get the honest second one denied.
    """
    known = attestation.entry_for(request.csr.spki_sha256, request.purpose)
    if summary.state is not RequestState.PENDING and known is None:
        raise Denied(
            _RESTARTS.get(summary.denial_reason, Reason.FIRST_REQUEST_MISMATCH),
            expected="a first request that is still pending",
            got=f"{name} is {summary.state}",
            remedy="file a new first request",
        )


def check_challenge_answered_once(request: NodeRequest, attestation: Attestation, attested: AttestedNode) -> None:
    """Refuse a second key for one answered challenge."""
    if attestation.keys_answering(first_uid_of(attested)) - {request.csr.spki_sha256}:
        raise Denied(
            Reason.REPLAYED,
            expected="one key for one answered challenge",
            got="a second key",
            remedy="file a new first request",
        )


BOUND_GROUP_PREFIX: Final = "system:bootstrappers:nodeattest:"
_LABEL: Final = b"nodeattest/v1/token-machine"
_DIGITS: Final = 32
"""Hex digits of the hash: 128 bits, as many as an attestation record's name has."""


def bound_group(cluster: str, provider_id: str) -> str:
    """Name the group of the tokens that are good for one machine; ``cluster`` is ``namespace/name``."""
    digest = hashlib.sha256(length_prefix(_LABEL, cluster.encode(), provider_id.encode())).hexdigest()
    return BOUND_GROUP_PREFIX + digest[:_DIGITS]


def check_bound_token(request: NodeRequest, cluster: str) -> None:
    """Identity rule 4: who is bound to a machine asks for that machine, and is bound to no other besides."""
    bound = {group for group in request.groups if group.startswith(BOUND_GROUP_PREFIX)}
    if bound and bound != {bound_group(cluster, request.csr.provider_id)}:
        raise Denied(
            Reason.TOKEN_NOT_THIS_MACHINES,
            expected="a requester that is bound to the requested machine, or to none",
            got=f"{request.username}, bound to another machine",
            remedy="use the bootstrap token that was made for this machine",
        )
