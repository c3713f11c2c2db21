"""The rules of a challenge's two requests: one answer to one first request, and one key for one answer. Pure.

Both hold across an operator's reset: what a retired key answered is not forgotten.

Source: docs/identity-rules.md, "Two steps".
"""

from __future__ import annotations

from types import MappingProxyType

from nodeattest_controller.model.attestation import Attestation, first_uid_of
from nodeattest_controller.model.csr_request import CSRSummary, RequestState
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.verifier_interface import AttestedNode, NodeRequest

__all__ = ["check_challenge_answered_once", "check_first_request_pending", "check_not_answered"]

_RESTARTS = MappingProxyType({str(reason): reason for reason in (Reason.SUPERSEDED, Reason.CHALLENGE_EXPIRED)})
"""What may have become of a first request whose agent may begin anew: an answer can wait too long for its turn."""


def check_not_answered(request: NodeRequest, attestation: Attestation) -> None:
    """Refuse a first request whose answer was certified."""
    if attestation.answered_first(request.uid):
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
    if attestation.answered_otherwise(first_uid_of(attested), request.csr.spki_sha256):
        raise Denied(
            Reason.REPLAYED,
            expected="one key for one answered challenge",
            got="a second key",
            remedy="file a new first request",
        )
