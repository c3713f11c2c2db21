"""Machines that stand one way or another, for the tests of the controller ``standing``."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from builders import make_member

from nodeattest_controller.model.attestation import (
    DENIED,
    Attestation,
    IssuedCertificate,
    LastDecision,
    Remediation,
    new_attestation,
)
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import FailureAction, OnFailure, Policy
from nodeattest_controller.runtime.cluster_controller import CSRDenied, CSRIssued
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName, Purpose

KEY = ClusterKey("fleet/c")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ISSUED = NOW - timedelta(days=2)


def certificate(*, ends: datetime = NOW + timedelta(days=12), issued: datetime = ISSUED) -> IssuedCertificate:
    return IssuedCertificate(
        request_name="r",
        request_uid="u",
        first_request_uid="",
        spki="sha256:" + "0" * 64,
        serial="1f",
        not_before=issued,
        not_after=ends,
        issued_at=issued,
        certificate="",
        purpose=Purpose.CLIENT,
    )


def machine(number: int = 0, *, control_plane: bool = False, node: bool = True) -> MachineView:
    """Make a member of the cluster that has joined, or not."""
    return make_member(
        name=f"node-{number}",
        uid=f"m-{number}",
        provider_id=ProviderID(f"sandbox://node-{number}"),
        is_control_plane=control_plane,
        node_ref_name=NodeName(f"node-{number}") if node else None,
    )


def ledger(
    member: MachineView,
    *,
    refused: Reason | None = None,
    treated: FailureAction | None = None,
    ends: datetime = NOW + timedelta(days=12),
    since: datetime = NOW,
) -> Attestation:
    """Make a machine's ledger with one certificate; its last word may be a refusal."""
    verdict = LastDecision(DENIED, str(refused), since) if refused else LastDecision("Approved", "Attested", ISSUED)
    done = Remediation(action=treated, node_name=member.name, node_uid="n", reason="", time=NOW) if treated else None
    return replace(
        new_attestation(member),
        resource_version="1",
        node_name=NodeName(member.name),
        provider=ProviderName("tpm"),
        issued=(certificate(ends=ends),),
        verdict=verdict,
        treatment=done,
    )


def policy(action: FailureAction = FailureAction.TAINT, share: int = 10, *, enforce: bool = True) -> Policy:
    attestors = frozenset({ProviderName("tpm")})
    return Policy(name="p", attestors=attestors, lifetime=None, enforce=enforce, on_failure=OnFailure(action, share))


def refusal(reason: Reason, **changes: object) -> CSRDenied:
    """Make the refusal of node-0's own request."""
    verdict = CSRDenied(
        cluster=KEY,
        provider_id=ProviderID("sandbox://node-0"),
        node_name=NodeName("node-0"),
        username="system:node:node-0",
        by_node=True,
        provider=ProviderName("tpm"),
        purpose=Purpose.CLIENT,
        reason=reason,
        request_name="csr-1",
        message="",
        at=NOW,
    )
    return replace(verdict, **changes)  # pyright: ignore[reportArgumentType] - the tests name real fields


def grant(member: MachineView, at: datetime = NOW) -> CSRIssued:
    return CSRIssued(
        cluster=KEY,
        member=member,
        node_name=NodeName(member.name),
        provider=ProviderName("tpm"),
        purpose=Purpose.CLIENT,
        serial="1f",
        not_after=NOW + timedelta(days=12),
        at=at,
    )
