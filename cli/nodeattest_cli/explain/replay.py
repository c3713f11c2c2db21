"""Evaluate a stored request again: the controller's own checks, in their order, on documents instead of an API.

A check that lacks a document is "not checked", neither passed nor failed, and so is one that only a platform's API can
answer, and one whose facts another check refused. Left out is what only the day could tell: which requests came at the
same time, whether the token still existed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

from cryptography.hazmat.primitives.serialization import load_der_public_key

from nodeattest_cli.explain.facts import NO_PLATFORMS, DocumentFacts, Inputs, NotChecked, Platforms, pick
from nodeattest_cli.explain.tpm import tpm_facts
from nodeattest_controller.controllers.csr.checks import CHECKS, VERIFICATION
from nodeattest_controller.controllers.csr.issuer import is_reusable
from nodeattest_controller.controllers.csr.machine_checks import EVIDENCE, ROUND
from nodeattest_controller.controllers.kubelet_serving.checks import CHECKS as KUBELET_CHECKS
from nodeattest_controller.controllers.kubelet_serving.checks import KubeletFacts
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.csr_request import RequestState, parse_kubelet_request, parse_request, summarize
from nodeattest_controller.model.node_names import node_names
from nodeattest_controller.model.resolver import platform_endorsement_keys
from nodeattest_controller.verification.checks import RequestCheck, Stage
from nodeattest_controller.verification.facts import CSRFacts, RequestFacts
from nodeattest_parsing.objects import condition, items, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import evidence_versions
from nodeattest_providers.errors import ChallengeRequired, Check, Denied, Reason, Unavailable
from nodeattest_providers.identifiers import printable
from nodeattest_providers.platform import OFFLINE, make_signer
from nodeattest_providers.verifier_interface import AttestedNode, NodeRequest

F = TypeVar("F", bound=RequestFacts)

_PARSED: Final = "well-formed request"
_ENDS: Final = frozenset({EVIDENCE, ROUND})
"""Where one of these refuses, nothing can be said of the evidence."""
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
_NOTHING_TO_COMPARE: Final = "endorsement key: on no other machine's entry"
"""The check, of a part or alone, that passes when there is nothing to compare with."""


class CheckOutcome(StrEnum):
    """How a step went."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_CHECKED = "not checked"
    """Something that it needs was not given, or is a platform's to tell; ``got`` says what."""


@dataclass(frozen=True, slots=True)
class CheckStep:
    """One check of the replay."""

    name: str
    section: str
    expected: str
    got: str
    outcome: CheckOutcome
    reason: str = ""
    """The Reason of a refusal."""

    def to_json(self) -> JsonObject:
        """Return the entry of ``checks``."""
        entry: JsonObject = {
            "name": self.name,
            "section": self.section,
            "outcome": self.outcome,
            "expected": self.expected,
            "got": self.got,
        }
        return entry | ({"reason": self.reason} if self.reason else {})


def _passed(name: str, section: str, expected: str) -> CheckStep:
    return CheckStep(name, section, expected, expected, CheckOutcome.PASSED)


def _not_checked(name: str, section: str, why: str) -> CheckStep:
    return CheckStep(name, section, "", why, CheckOutcome.NOT_CHECKED)


def _refusal(name: str, section: str, denied: Denied) -> CheckStep:
    return CheckStep(name, section, denied.expected, denied.got, CheckOutcome.FAILED, denied.reason)


def _recorded(check: Check) -> CheckStep:
    """Take over a check of a verification's record."""
    outcome = CheckOutcome.PASSED if check.passed else CheckOutcome.FAILED
    return CheckStep(check.name, check.section, check.expected, check.got, outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that can be said of a request."""

    facts: Sequence[tuple[str, str]]
    """What the request says, name and value; never a secret, never evidence bytes."""
    steps: Sequence[CheckStep]
    refused_then: bool = False
    """Whether the request's stored verdict is a denial."""

    @property
    def failed(self) -> bool:
        """Whether a check refuses the request."""
        return any(step.outcome is CheckOutcome.FAILED for step in self.steps)

    @property
    def unexplained(self) -> bool:
        """Whether the request was denied, and nothing that could be checked here says why."""
        return self.refused_then and not self.failed

    def to_json(self) -> JsonObject:
        """Return the one object of ``-o json``."""
        return {
            "facts": dict[str, JsonValue](self.facts),
            "checks": [step.to_json() for step in self.steps],
            "refused": self.failed,
            "refusedThen": self.refused_then,
        }


def first_request_name(csr: JsonObject) -> str | None:
    """Return which first request a stored one answers; None when none, or when it cannot be read."""
    try:
        request = parse_request(csr)
        signer = make_signer(request.evidence.provider, OFFLINE)
        evidence_versions.check(request.evidence, signer.versions)
        ref = signer.first_request(request)
    except Denied:
        return None
    return ref.name if ref else None


def explain_request(
    csr: JsonObject, documents: Sequence[JsonObject], platforms: Platforms = NO_PLATFORMS
) -> Explanation:
    """Evaluate a stored request as far as the documents allow; ``platforms``: of the controller's configuration."""
    facts = list(_stored_facts(csr))
    stored = summarize(csr)
    denied = condition(items(csr, "status", "conditions"), "Denied")
    # A first request that was closed because its answer was certified was refused by nothing.
    superseded = denied is not None and denied.get("reason") == Reason.SUPERSEDED
    if stored is not None and stored.is_kubelets:
        steps = _explain_kubelets(csr, documents, facts)
    else:
        steps = _explain_attested(csr, documents, facts, platforms)
    refused_then = stored is not None and stored.state is RequestState.DENIED and not superseded
    return Explanation(facts=facts, steps=steps, refused_then=refused_then)


def _explain_attested(
    csr: JsonObject, documents: Sequence[JsonObject], said: list[tuple[str, str]], platforms: Platforms
) -> list[CheckStep]:
    """Evaluate an attested request, and add to its facts."""
    try:
        request = parse_request(csr)
    except Denied as denied:
        return [_refusal(_PARSED, "wire format", denied)]
    said += _request_facts(request)
    if request.evidence.provider == "tpm":
        said += tpm_facts(request)
    inputs = pick(documents, provider_id=request.csr.provider_id)
    source = DocumentFacts(inputs=inputs, created=request.created, platforms=platforms)
    facts = CSRFacts(source, request)  # as it was evaluated: pending

    async def verification() -> list[CheckStep]:
        try:
            return [*_provider_steps(await facts.first(), await _verification(facts), inputs, platforms)]
        except (NotChecked, Denied):  # the step of the verification itself says so
            return []

    async def steps() -> list[CheckStep]:
        replay = _Replay(facts, verification)
        evaluated = await replay.run([check for check in CHECKS if check.stage is Stage.EVALUATE])
        evaluated += await _issuance_steps(replay, request, inputs.attestation)
        said.extend(await _source_facts(facts))
        return evaluated

    parsed = _passed(_PARSED, "wire format", "a kubelet's request in the canonical envelope")
    return [parsed, *asyncio.run(steps())]


def _explain_kubelets(csr: JsonObject, documents: Sequence[JsonObject], said: list[tuple[str, str]]) -> list[CheckStep]:
    """Evaluate kubelet's own request; who signs it is the cluster's kube-controller-manager."""
    name, section = f"{_PARSED} of kubelet", "serving certificates"
    try:
        request = parse_kubelet_request(csr)
    except Denied as denied:
        return [_refusal(name, section, denied)]
    names = ", ".join((*request.names.dns_names, *request.names.ip_addresses))
    said += [("node", request.node_name), ("names", names)]
    inputs = pick(documents, node_name=request.node_name)
    facts = KubeletFacts(DocumentFacts(inputs=inputs, created=request.created, platforms=NO_PLATFORMS), request)
    parsed = _passed(name, section, "one PKCS#10 block, by the node for itself")
    return [parsed, *asyncio.run(_Replay(facts).run(KUBELET_CHECKS))]


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
    kind = f"{type(key).__name__.removesuffix('PublicKey')}-{getattr(key, 'key_size', 0)}"
    yield "key", f"{kind}, {request.csr.spki_sha256}"
    yield "usages", ", ".join(sorted(request.usages))
    yield "asks for", f"{request.expiration_seconds} s" if request.expiration_seconds else "the signer's lifetime"
    yield "evidence", f"{request.evidence.provider}/v{request.evidence.version}"


async def _source_facts(facts: CSRFacts) -> list[tuple[str, str]]:
    """Say what the management cluster expects of the machine, and which object each of it comes from."""
    found: list[tuple[str, str]] = []
    with suppress(NotChecked, Denied, Unavailable):
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
                steps.append(_not_checked(check.name, check.source, self.ended))
            elif await check.applies(self._facts):
                steps += await self._steps(check)
        return steps

    async def _steps(self, check: RequestCheck[F]) -> list[CheckStep]:
        step, error = await self._try(check)
        parts = await self._record() if check.name == VERIFICATION and self._record is not None else []
        outcomes = [part.outcome for part in parts]
        if step.outcome is CheckOutcome.FAILED and CheckOutcome.FAILED not in outcomes:
            unchecked = [part.got for part in parts if part.outcome is CheckOutcome.NOT_CHECKED]
            if unchecked:  # what refuses it is a document that was not given
                step = _not_checked(check.name, check.source, unchecked[-1])
        needs = f"needs: {check.name}"
        if error is not None:
            self._absent.append((error, step.got if step.outcome is CheckOutcome.NOT_CHECKED else needs))
        if step.outcome is CheckOutcome.FAILED and check.name in _ENDS:
            self.ended = needs
        return [*parts, step]

    async def _try(self, check: RequestCheck[F]) -> tuple[CheckStep, Exception | None]:
        try:
            await check.run(self._facts)
        except ChallengeRequired:
            self.challenged = True
        except (NotChecked, Denied, Unavailable) as error:
            said = next((said for known, said in self._absent if known is error), None)
            if said is not None:
                return _not_checked(check.name, check.source, said), None
            return _end(check, error), error
        return _passed(check.name, check.source, check.rule), None


def _end(check: RequestCheck[F], error: NotChecked | Denied | Unavailable) -> CheckStep:
    match error:
        case NotChecked():
            return _not_checked(check.name, check.source, str(error))
        case Unavailable() if error.reason is Reason.PLATFORM_UNAVAILABLE:
            return _not_checked(check.name, check.source, f"needs the platform: {error.detail}")
        case Unavailable():
            return CheckStep(check.name, check.source, check.rule, error.detail, CheckOutcome.FAILED, error.reason)
        case Denied():
            return _refusal(check.name, check.source, error)


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
        return [_passed(check.name, check.source, check.rule) for check in checks]
    later = any(entry.issued_at > request.created for entry in recorded.issued)
    if later or recorded.has_retired(request.csr.spki_sha256):
        why = "not given: the MachineAttestation of its day"
        return [_not_checked(check.name, check.source, why) for check in checks]
    return await replay.run(checks)


# The provider's verification

_VerificationEnd = AttestedNode | Denied | Unavailable | ChallengeRequired


async def _verification(facts: CSRFacts) -> _VerificationEnd:
    """Return what the verification proved, or how else it ended."""
    try:
        return await facts.attested()
    except (Denied, Unavailable, ChallengeRequired) as end:
        return end


def _provider_steps(
    first: NodeRequest | None, end: _VerificationEnd, inputs: Inputs, platforms: Platforms
) -> Iterator[CheckStep]:
    """Show each check of a verification and how it ended."""
    denied = end if isinstance(end, Denied) else None
    for check in end.checks:
        yield _provider_step(check, denied, first, inputs, platforms)
    match end:
        case ChallengeRequired():
            yield CheckStep(
                "first request", "provider", "a sound first request", "one that gets a challenge", CheckOutcome.PASSED
            )
        case Unavailable() if end.reason is Reason.PLATFORM_UNAVAILABLE:
            yield _not_checked("the platform's own answer", "provider", f"needs the platform: {end.detail}")
        case Unavailable():
            wanted = "everything that the provider needs"
            yield CheckStep("facts at hand", "provider", wanted, end.detail, CheckOutcome.FAILED, end.reason)
        case Denied() | AttestedNode():
            pass


def _provider_step(
    check: Check, denied: Denied | None, first: NodeRequest | None, inputs: Inputs, platforms: Platforms
) -> CheckStep:
    compared = check.passed and not check.name.endswith(_NOTHING_TO_COMPARE)
    missing = "" if compared else _missing(check.name, first, inputs)
    if denied is not None and not check.passed:
        missing = missing or _platform_missing(check.name, denied.reason, inputs, platforms)
    if missing:
        return _not_checked(check.name, check.section, f"not given: {missing}")
    if denied is not None and not check.passed:
        return _refusal(check.name, check.section, denied)
    return _recorded(check)


def _platform_missing(check: str, reason: Reason, inputs: Inputs, platforms: Platforms) -> str:
    """Return what a refusal by a cloud's provider would have needed: a policy, the CAs, a trust bundle; or empty."""
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
    machine, policy = inputs.machine, ("NodeAttestationPolicy", bool(inputs.policies))
    wanted: Sequence[tuple[str, bool]] = ()
    if check.startswith("endorsement key:"):
        infra = machine.infra if machine is not None else None
        title = f"infrastructure machine {infra.kind} {infra.name}" if infra else "infrastructure machine"
        wanted = (policy, ("Machine", machine is not None), (title, infra is None or inputs.infra is not None))
    elif check.startswith(("PCR ", "event log ")):
        wanted = (policy,)
    elif check == "first request exists":
        wanted = (("first request", first is not None),)
    elif check == "the Machine's secret":
        wanted = [*inputs.secret_documents.items()]
    elif check in _DERIVED:
        wanted = (
            ("Cluster", inputs.cluster is not None),
            ("Machine", machine is not None),
            ("Secret <cluster>-ca", bool(inputs.pins)),
            ("Secret node-attestation-challenge-keys", bool(inputs.challenge_keys)),
        )
    return ", ".join(name for name, is_given in wanted if not is_given)
