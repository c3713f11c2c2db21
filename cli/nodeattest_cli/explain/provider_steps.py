"""The provider's own record of its verification, step by step, and what a check of it would have needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nodeattest_cli.explain.facts import Platforms
from nodeattest_cli.explain.inputs import Inputs
from nodeattest_cli.explain.model import CheckOutcome, CheckStep, from_check, needs_platform, not_checked, refusal
from nodeattest_cli.explain.tpm import explain_endorsement_keys, explain_quote_signature
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import ChallengeRequired, Check, Denied, Reason, Unavailable
from nodeattest_providers.verifier_interface import AttestedNode, NodeRequest

__all__ = ["VerificationEnd", "provider_steps"]

VerificationEnd = AttestedNode | Denied | Unavailable | ChallengeRequired
_DERIVED: Final = frozenset({"known challenge", "activated secret", "quote binding", "challenge answered"})
"""Checks against values that are derived again from the challenge keys and the context."""
_REGION_CERTIFICATES: Final = "region's certificates"
"""The check of ``aws``, of a part or alone, that needs the trust bundle."""
_BY_POLICY: Final = frozenset(
    {
        Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
        Reason.PLATFORM_REGION_NOT_ALLOWED,
        Reason.PLATFORM_ROLE_NOT_ALLOWED,
        Reason.PLATFORM_TAGS_NOT_ALLOWED,
        Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED,
    }
)
"""Refusals by what the policy lists."""
_NOTHING_TO_COMPARE: Final = ("endorsement key: on no other machine's entry",)
"""Checks, of a part or alone, that pass when there is nothing to compare with."""


def provider_steps(
    request: NodeRequest, first: NodeRequest | None, end: VerificationEnd, inputs: Inputs, platforms: Platforms
) -> Iterator[CheckStep]:
    """Show each check of a verification and how it ended; what its record cannot show is evaluated besides."""
    denied = end if isinstance(end, Denied) else None
    for check in end.checks:
        yield _step(check, denied, first, inputs, platforms)
    match end:
        case ChallengeRequired():
            wanted = "a sound first request"
            yield from_check(Check("first request", "provider", wanted, "one that gets a challenge", passed=True))
        case Unavailable() if end.reason is Reason.PLATFORM_UNAVAILABLE:
            yield needs_platform("the platform's own answer", "provider", end.detail)
        case Unavailable():
            wanted = "everything that the provider needs"
            yield CheckStep("facts at hand", "provider", wanted, end.detail, CheckOutcome.FAILED, end.reason)
        case Denied() | AttestedNode():
            pass
    if request.evidence.provider == "tpm":
        yield from _tpm_steps(request, first, {check.name for check in end.checks})


def _step(
    check: Check, denied: Denied | None, first: NodeRequest | None, inputs: Inputs, platforms: Platforms
) -> CheckStep:
    compared = check.passed and not check.name.endswith(_NOTHING_TO_COMPARE)
    missing = "" if compared else _missing(check.name, first, inputs)
    if denied is not None and not check.passed:
        missing = missing or _platform_missing(check.name, denied.reason, inputs, platforms)
    if missing:
        return not_checked(check.name, check.section, missing)
    return refusal(check.name, check.section, denied) if denied is not None and not check.passed else from_check(check)


def _platform_missing(check: str, reason: Reason, inputs: Inputs, platforms: Platforms) -> str:
    """Tell what a refusal by a cloud's provider would have needed: a policy, the CAs, a trust bundle; or empty."""
    if check.endswith(_REGION_CERTIFICATES) and "trustBundle" not in platforms.get("aws", {}):
        return "platforms.aws.trustBundle of the controller's configuration (--config)"
    if reason in _BY_POLICY and not inputs.policies:
        return "NodeAttestationPolicy"
    if reason is Reason.PLATFORM_PROOF_NOT_BOUND and not inputs.pins:
        return "Cluster, Machine, Secret <cluster>-ca"
    return ""


def _missing(check: str, first: NodeRequest | None, inputs: Inputs) -> str:
    """Return which documents a check that failed would have needed; empty when it had them all."""
    check = check.removeprefix("challenge: ").removeprefix("tpm: ")  # of a composite proof's part
    wanted: list[tuple[str, bool]] = []
    machine = inputs.machine
    if check.startswith("endorsement key:"):
        has_infra = machine is None or machine.infra is None or inputs.infra is not None
        wanted = [
            ("NodeAttestationPolicy", bool(inputs.policies)),
            ("Machine", machine is not None),
            (inputs.infra_title, has_infra),
        ]
    elif check.startswith(("PCR ", "event log ")):
        wanted = [("NodeAttestationPolicy", bool(inputs.policies))]
    elif check == "first request exists":
        wanted = [("first request", first is not None)]
    elif check == "the Machine's secret":
        wanted = [*inputs.secret_documents.items()]
    elif check in _DERIVED:
        wanted = [
            ("Cluster", inputs.cluster is not None),
            ("Machine", machine is not None),
            ("Secret <cluster>-ca", bool(inputs.pins)),
            ("Secret node-attestation-challenge-keys", bool(inputs.challenge_keys)),
        ]
    return ", ".join(name for name, is_given in wanted if not is_given)


def _tpm_steps(request: NodeRequest, first: NodeRequest | None, done: set[str]) -> Iterator[CheckStep]:
    """Evaluate the keys of a first request, and the quote's signature where the verification did not come so far."""
    checks = Checks()
    try:
        explain_endorsement_keys(checks, request)
        if first is not None and "quote signature" not in done:
            explain_quote_signature(checks, request, first)
    except Denied as denied:
        for check in checks.record():
            yield from_check(check) if check.passed else refusal(check.name, check.section, denied)
        return
    yield from (from_check(check) for check in checks.record() if check.name not in done)
