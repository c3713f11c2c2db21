"""Evaluate a stored request again: the controller's own checks, in their order, on documents instead of an API.

Promises: a check that lacks a document is "not checked", neither passed nor failed, and so is one that only a
platform's API can answer, and one whose facts another check refused. Leaves out what only the day could tell: which
requests came at the same time, whether the token still existed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, Generic, TypeVar

from cryptography.hazmat.primitives.serialization import load_der_public_key

from nodeattest_cli.explain.eventlog import read_log
from nodeattest_cli.explain.facts import NO_PLATFORMS, DocumentFacts, NeedsPlatform, NotGiven, Platforms
from nodeattest_cli.explain.inputs import pick
from nodeattest_cli.explain.model import (
    CheckOutcome,
    CheckStep,
    Explanation,
    needs_platform,
    not_checked,
    passed,
    refusal,
)
from nodeattest_cli.explain.provider_steps import VerificationEnd, provider_steps
from nodeattest_cli.explain.tpm import tpm_facts
from nodeattest_controller.controllers.csr.checks import CHECKS, EVIDENCE, ROUND, VERIFICATION, CSRFacts
from nodeattest_controller.controllers.csr.issuer import is_reusable
from nodeattest_controller.controllers.kubelet_serving.checks import CHECKS as KUBELET_CHECKS
from nodeattest_controller.controllers.kubelet_serving.checks import KubeletFacts
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.csr_request import RequestState, parse_request, summarize
from nodeattest_controller.model.kubelet_csr import parse_kubelet_request
from nodeattest_controller.model.node_names import node_names
from nodeattest_controller.model.objects import condition, items, text
from nodeattest_controller.model.resolver import platform_endorsement_keys
from nodeattest_controller.verification.checks import RequestCheck, Stage
from nodeattest_controller.verification.facts import RequestFacts
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers import evidence_versions
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason, Unavailable
from nodeattest_providers.identifiers import printable
from nodeattest_providers.platform import OFFLINE, make_signer
from nodeattest_providers.verifier_interface import ChallengeSigner, NodeRequest

__all__ = ["explain_request", "first_request_name"]

_PARSED: Final = "well-formed request"
_ENDS: Final = frozenset({EVIDENCE, ROUND})
"""Where one of these refuses, nothing can be said of the evidence."""
F = TypeVar("F", bound=RequestFacts)


def first_request_name(csr: JsonObject) -> str | None:
    """Return which first request a stored one answers; None when none, or when it cannot be read."""
    try:
        request = parse_request(csr)
        signer = make_signer(request.evidence.provider, OFFLINE)
        evidence_versions.check(request.evidence, signer.versions)
        ref = signer.first_request(request) if isinstance(signer, ChallengeSigner) else None
    except Denied:
        return None
    return ref.name if ref else None


def explain_request(
    csr: JsonObject, documents: Sequence[JsonObject], platforms: Platforms = NO_PLATFORMS
) -> Explanation:
    """Evaluate a stored request as far as the documents allow; ``platforms``: of the controller's configuration."""
    facts = list(_stored_facts(csr))
    stored = summarize(csr)
    refused_then = stored is not None and stored.state is RequestState.DENIED and not _is_superseded(csr)
    if stored is not None and stored.is_kubelets:
        explanation = _explain_kubelets(csr, documents, facts)
    else:
        explanation = _explain_attested(csr, documents, facts, platforms)
    return replace(explanation, refused_then=refused_then)


def _is_superseded(csr: JsonObject) -> bool:
    """Tell a first request that was closed because its answer was certified: nothing refused it."""
    denied = condition(items(csr, "status", "conditions"), "Denied")
    return denied is not None and denied.get("reason") == Reason.SUPERSEDED


def _explain_attested(
    csr: JsonObject, documents: Sequence[JsonObject], said: list[tuple[str, str]], platforms: Platforms
) -> Explanation:
    try:
        request = parse_request(csr)
    except Denied as denied:
        return Explanation(facts=said, steps=[refusal(_PARSED, "wire format", denied)])
    said += _request_facts(request)
    if request.evidence.provider == "tpm":
        said += tpm_facts(request)
    log = read_log(request)
    said += [("event log", log.summary)] if log else []
    inputs = pick(documents, provider_id=request.csr.provider_id)
    source = DocumentFacts(inputs=inputs, created=request.created, platforms=platforms)
    facts = CSRFacts(source, request)  # as it was evaluated: pending

    async def verification() -> list[CheckStep]:
        try:
            return list(provider_steps(request, await facts.first(), await _verification(facts), inputs, platforms))
        except (NotGiven, NeedsPlatform, Denied):  # the step of the verification itself says so
            return []

    async def steps() -> list[CheckStep]:
        replay = _Replay(facts, verification)
        evaluated = await replay.run([check for check in CHECKS if check.stage is Stage.EVALUATE])
        return [*evaluated, *await _issuance_steps(replay, request, inputs.attestation)]

    async def both() -> tuple[list[CheckStep], list[tuple[str, str]]]:
        return await steps(), await _source_facts(facts)

    parsed = passed(_PARSED, "wire format", "a kubelet's request in the canonical envelope")
    found, sources = asyncio.run(both())
    return Explanation(facts=[*said, *sources], steps=[parsed, *found], log=log)


def _explain_kubelets(csr: JsonObject, documents: Sequence[JsonObject], said: list[tuple[str, str]]) -> Explanation:
    """Evaluate kubelet's own request; who signs it is the cluster's kube-controller-manager."""
    name, section = f"{_PARSED} of kubelet", "serving certificates"
    try:
        request = parse_kubelet_request(csr)
    except Denied as denied:
        return Explanation(facts=said, steps=[refusal(name, section, denied)])
    names = ", ".join((*request.names.dns_names, *request.names.ip_addresses))
    inputs = pick(documents, node_name=request.node_name)
    facts = KubeletFacts(DocumentFacts(inputs=inputs, created=request.created, platforms=NO_PLATFORMS), request)
    parsed = passed(name, section, "one PKCS#10 block, by the node for itself")
    steps = asyncio.run(_Replay(facts).run(KUBELET_CHECKS))
    return Explanation(facts=[*said, ("node", request.node_name), ("names", names)], steps=[parsed, *steps])


# Facts


def _stored_facts(csr: JsonObject) -> Iterator[tuple[str, str]]:
    yield "request", text(csr, "metadata", "name") or "(no name)"
    yield "signer", printable(text(csr, "spec", "signerName"))[1:-1]
    yield "requester", printable(text(csr, "spec", "username"))[1:-1]
    yield "created", text(csr, "metadata", "creationTimestamp") or "(no time)"
    conditions = items(csr, "status", "conditions")
    for kind in ("Approved", "Denied", "Failed"):
        found = condition(conditions, kind)
        if found is not None:
            yield "verdict of the day", f"{kind}: {found.get('reason', '')}: {found.get('message', '')}"
    yield "certificate", "issued" if text(csr, "status", "certificate") else "none"


def _request_facts(request: NodeRequest) -> Iterator[tuple[str, str]]:
    yield "node", request.csr.node_name
    yield "provider ID", request.csr.provider_id
    key = load_der_public_key(request.csr.spki)
    yield (
        "key",
        f"{type(key).__name__.removesuffix('PublicKey')}-{getattr(key, 'key_size', 0)}, {request.csr.spki_sha256}",
    )
    yield "usages", ", ".join(sorted(request.usages))
    yield "asks for", f"{request.expiration_seconds} s" if request.expiration_seconds else "the signer's lifetime"
    yield "evidence", f"{request.evidence.provider}/v{request.evidence.version}"


async def _source_facts(facts: CSRFacts) -> list[tuple[str, str]]:
    """Say what the management cluster expects of the machine, and which object each of it comes from."""
    found: list[tuple[str, str]] = []
    with suppress(NotGiven, NeedsPlatform, Denied, Unavailable):
        expected, machine = await facts.expected_provider_id(), await facts.machine()
        found.append(("Machine", f"{machine.kind} {machine.name}"))
        if expected is not None:
            found.append(("expected provider ID", f"{expected.value} ({expected.source})"))
        claims = node_names(machine, await facts.name_sources(None))
        found.append(("node names", ", ".join(f"{claim.name} ({claim.source})" for claim in claims) or "none"))
        keys = platform_endorsement_keys(machine, await facts.infrastructure(), has_joined=True)
        found += [("endorsement key", f"{key} ({source})") for source, key in keys.items()]
    return found


# Steps


async def _verification(facts: CSRFacts) -> VerificationEnd:
    """Return what the verification proved, or how else it ended."""
    try:
        return await facts.attested()
    except (Denied, Unavailable, ChallengeRequired) as end:
        return end


class _Replay(Generic[F]):
    """Runs checks one after the other, and continues after one that refuses or lacks a document."""

    def __init__(self, facts: F, record: Callable[[], Awaitable[list[CheckStep]]] | None = None) -> None:
        """``record`` gives the steps that the provider's verification consists of."""
        self._facts = facts
        self._record = record
        self._absent: list[tuple[Exception, str]] = []
        """What came instead of a fact, and what that says of every other check that needs the fact."""
        self.ended = ""
        """Why no further check says anything; empty while they do."""
        self.challenged = False
        """Whether the request got a challenge: the rest is asked of the request that answers it."""

    async def run(self, checks: Sequence[RequestCheck[F]]) -> list[CheckStep]:
        """Make a step of each check that applies."""
        steps: list[CheckStep] = []
        for check in checks:
            if self.challenged:
                break
            if self.ended:
                steps.append(_unchecked(check, self.ended))
            elif await check.applies(self._facts):
                steps += await self._steps(check)
        return steps

    async def _steps(self, check: RequestCheck[F]) -> list[CheckStep]:
        step, error = await self._try(check)
        parts = await self._record() if check.name == VERIFICATION and self._record is not None else []
        unchecked = [part for part in parts if part.outcome is CheckOutcome.NOT_CHECKED]
        if (
            step.outcome is CheckOutcome.FAILED
            and unchecked
            and all(p.outcome is not CheckOutcome.FAILED for p in parts)
        ):
            step = _unchecked(check, unchecked[-1].got)  # what refuses it is a document that was not given
        if error is not None:
            self._absent.append(
                (error, step.got if step.outcome is CheckOutcome.NOT_CHECKED else f"needs: {check.name}")
            )
        if step.outcome is CheckOutcome.FAILED and check.name in _ENDS:
            self.ended = f"needs: {check.name}"
        return [*parts, step]

    async def _try(self, check: RequestCheck[F]) -> tuple[CheckStep, Exception | None]:
        try:
            await check.run(self._facts)
        except ChallengeRequired:
            self.challenged = True
        except (NotGiven, NeedsPlatform, Denied, Unavailable) as error:
            said = next((said for known, said in self._absent if known is error), None)
            return (_unchecked(check, said), None) if said is not None else (_end(check, error), error)
        return passed(check.name, check.source, check.rule), None


def _unchecked(check: RequestCheck[F], why: str) -> CheckStep:
    return CheckStep(check.name, check.source, "", why, CheckOutcome.NOT_CHECKED)


def _end(check: RequestCheck[F], error: NotGiven | NeedsPlatform | Denied | Unavailable) -> CheckStep:
    match error:
        case NotGiven():
            return not_checked(check.name, check.source, str(error))
        case NeedsPlatform():
            return needs_platform(check.name, check.source, str(error))
        case Unavailable() if error.reason is Reason.PLATFORM_UNAVAILABLE:
            return needs_platform(check.name, check.source, error.detail)
        case Unavailable():
            return CheckStep(check.name, check.source, check.rule, error.detail, CheckOutcome.FAILED, error.reason)
        case Denied():
            return refusal(check.name, check.source, error)


async def _issuance_steps(
    replay: _Replay[CSRFacts], request: NodeRequest, recorded: Attestation | None
) -> list[CheckStep]:
    """Run the checks directly before signing, where the record that was given can be that of the day."""
    checks = [check for check in CHECKS if check.stage is Stage.ISSUE]
    known = recorded.entry_for(request.csr.spki_sha256, request.purpose) if recorded is not None else None
    if replay.challenged or replay.ended or recorded is None:
        return await replay.run(checks)
    if known is not None and (known.issued_at >= request.created or is_reusable(known, request.created)):
        # Its certificate is on record, from this request or from before; then it is handed out again.
        return [passed(check.name, check.source, check.rule) for check in checks]
    later = any(entry.issued_at > request.created for entry in recorded.issued)
    if later or recorded.has_retired(request.csr.spki_sha256):
        return [not_checked(check.name, check.source, "the MachineAttestation of its day") for check in checks]
    return await replay.run(checks)
