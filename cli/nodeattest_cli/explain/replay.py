"""Evaluate a stored request again: the controller's own checks, in their order, on documents instead of an API.

A check is "not checked" if it needs what nobody has here (``NotChecked``), or what another check refused. Left out is
what only the day could tell: which requests came at the same time, whether the token still existed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from cryptography.hazmat.primitives.serialization import load_der_public_key

from nodeattest_cli.explain.facts import DocumentFacts, NotChecked
from nodeattest_controller.controllers.csr.checks import CHECKS, verified
from nodeattest_controller.controllers.csr.issuer import is_reusable
from nodeattest_controller.controllers.csr.kubelet_checks import CHECKS as KUBELET_CHECKS
from nodeattest_controller.controllers.csr.kubelet_checks import KubeletFacts
from nodeattest_controller.controllers.csr.machine_checks import evidence_version, first_request_named
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.csr_request import RequestState, parse_kubelet_request, parse_request, summarize
from nodeattest_controller.model.node_names import node_names
from nodeattest_controller.model.resolver import platform_endorsement_keys
from nodeattest_controller.verification.checks import RequestCheck, Stage
from nodeattest_controller.verification.facts import CSRFacts, RequestFacts
from nodeattest_parsing.objects import condition, items, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason, Unavailable
from nodeattest_providers.identifiers import ANNOTATION_REASON, printable
from nodeattest_providers.node_interface import check_supported
from nodeattest_providers.platform import OFFLINE, make_signer
from nodeattest_providers.verifier_interface import AttestedNode, NodeRequest

F = TypeVar("F", bound=RequestFacts)

_PARSED: Final = "well-formed request"
_ENDS: Final = frozenset({evidence_version.name, first_request_named.name})
"""Where one of these refuses, nothing can be said of the evidence."""


class CheckOutcome(StrEnum):
    """How a step went."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_CHECKED = "not checked"
    """``got`` says what it needs."""


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
    remedy: str = ""

    def to_json(self) -> JsonObject:
        """Return the entry of ``checks``."""
        entry: JsonObject = {
            "name": self.name,
            "section": self.section,
            "outcome": self.outcome,
            "expected": self.expected,
            "got": self.got,
        }
        return {**entry, "reason": self.reason, "remedy": self.remedy} if self.reason else entry


def _passed(name: str, section: str, expected: str) -> CheckStep:
    return CheckStep(name, section, expected, expected, CheckOutcome.PASSED)


def _not_checked(name: str, section: str, why: str) -> CheckStep:
    return CheckStep(name, section, "", why, CheckOutcome.NOT_CHECKED)


def _refusal(name: str, section: str, denied: Denied) -> CheckStep:
    outcome = CheckOutcome.FAILED
    return CheckStep(name, section, denied.expected, denied.got, outcome, denied.reason, denied.remedy)


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
        check_supported(request.evidence, signer.versions)
        ref = signer.first_request(request)
    except Denied:
        return None
    return ref.name if ref else None


def explain_request(csr: JsonObject, documents: Sequence[JsonObject]) -> Explanation:
    """Evaluate a stored request as far as the documents allow."""
    facts, stored = list(_stored_facts(csr)), summarize(csr)
    denied = condition(items(csr, "status", "conditions"), "Denied")
    # A first request that was closed because its answer was certified was refused by nothing.
    superseded = denied is not None and denied.get("reason") == Reason.SUPERSEDED
    if stored is not None and stored.is_kubelets:
        steps = _explain_kubelets(csr, documents, facts)
    else:
        steps = _explain_attested(csr, documents, facts)
    refused_then = stored is not None and stored.state is RequestState.DENIED and not superseded
    return Explanation(facts=facts, steps=steps, refused_then=refused_then)


def _explain_attested(csr: JsonObject, documents: Sequence[JsonObject], said: list[tuple[str, str]]) -> list[CheckStep]:
    """Evaluate an attested request, and add to its facts."""
    try:
        request = parse_request(csr)
    except Denied as denied:
        return [_refusal(_PARSED, "wire format", denied)]
    said += _request_facts(request)
    source = DocumentFacts(documents, request.created, provider_id=request.csr.provider_id)
    facts, recorded = CSRFacts(source, request), source.recorded(request.csr.provider_id)

    async def steps() -> list[CheckStep]:
        evaluated = await _replay(CHECKS, facts, lambda check: _settle(check, request, recorded))
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
    facts = KubeletFacts(DocumentFacts(documents, request.created, node_name=request.node_name), request)
    parsed = _passed(name, section, "one PKCS#10 block, by the node for itself")
    return [parsed, *asyncio.run(_replay(KUBELET_CHECKS, facts))]


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
    waits = text(csr, "metadata", "annotations", ANNOTATION_REASON)
    if waits and not conditions:
        yield "waits", waits
    yield "certificate", "issued" if text(csr, "status", "certificate") else "none"


def _request_facts(request: NodeRequest) -> Iterator[tuple[str, str]]:
    yield "node", request.csr.node_name
    yield "provider ID", request.csr.provider_id
    key = load_der_public_key(request.csr.spki)
    kind = f"{type(key).__name__.removesuffix('PublicKey')}-{getattr(key, 'key_size', 0)}"
    yield "key", f"{kind}, {request.csr.spki_sha256}"
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


async def _replay(
    checks: Sequence[RequestCheck[F]],
    facts: F,
    settle: Callable[[RequestCheck[F]], CheckStep | None] = lambda _check: None,
) -> list[CheckStep]:
    """Run checks one after the other, and continue after one that refuses or lacks a document.

    ``settle`` returns the step of a check that cannot be run any more. Several checks get the same exception object in
    place of a fact: the first one shows it, and the others need the first.
    """
    steps: list[CheckStep] = []
    needs: dict[Exception, str] = {}
    ended = ""
    for check in checks:
        settled = _not_checked(check.name, check.source, ended) if ended else settle(check)
        if settled is not None:
            steps.append(settled)
        elif await check.applies(facts):
            try:
                await check.run(facts)
                if isinstance(facts, CSRFacts) and check.name == verified.name:
                    steps += _parts(await facts.attested())
                steps.append(_passed(check.name, check.source, check.rule))
            except ChallengeRequired as challenge:
                # What remains is asked of the request that answers it.
                return [*steps, *_parts(challenge), _passed(check.name, check.source, check.rule)]
            except (NotChecked, Denied, Unavailable) as error:
                if error in needs:
                    steps.append(_not_checked(check.name, check.source, needs[error]))
                    continue
                step = _end(check, error)
                steps += [*(_parts(error) if check.name == verified.name else ()), step]
                is_refused = step.outcome is CheckOutcome.FAILED
                needs[error] = f"needs: {check.name}" if is_refused else step.got
                ended = needs[error] if is_refused and check.name in _ENDS else ""
    return steps


def _end(check: RequestCheck[F], error: NotChecked | Denied | Unavailable) -> CheckStep:
    match error:
        case NotChecked():
            return _not_checked(check.name, check.source, str(error))
        case Unavailable() if error.reason is Reason.PLATFORM_UNAVAILABLE:
            return _not_checked(check.name, check.source, f"needs the platform: {error.detail}")
        case Unavailable():
            failed = CheckOutcome.FAILED
            return CheckStep(check.name, check.source, check.rule, error.detail, failed, error.reason, error.remedy)
        case Denied():
            return _refusal(check.name, check.source, error)


def _parts(end: AttestedNode | NotChecked | Denied | Unavailable | ChallengeRequired) -> list[CheckStep]:
    """Show each check of a provider's verification."""
    if isinstance(end, NotChecked):
        return []
    outcomes = {True: CheckOutcome.PASSED, False: CheckOutcome.FAILED}
    return [
        _refusal(check.name, check.section, end)
        if isinstance(end, Denied) and not check.passed
        else CheckStep(check.name, check.section, check.expected, check.got, outcomes[check.passed])
        for check in end.checks
    ]


def _settle(check: RequestCheck[CSRFacts], request: NodeRequest, recorded: Attestation | None) -> CheckStep | None:
    """Return the step of a check directly before signing, where the record that was given is not that of its day."""
    if recorded is None or check.stage is not Stage.ISSUE:
        return None
    known = recorded.entry_for(request.csr.spki_sha256, request.purpose)
    if known is not None and (known.issued_at >= request.created or is_reusable(known, request.created)):
        # Its certificate is on record, from this request or from before; then it is handed out again.
        return _passed(check.name, check.source, check.rule)
    if any(entry.issued_at > request.created for entry in recorded.issued) or recorded.has_retired(
        request.csr.spki_sha256
    ):
        return _not_checked(check.name, check.source, "not given: the MachineAttestation of its day")
    return None
