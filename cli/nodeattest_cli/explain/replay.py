"""Judge a stored request again: the controller's own functions, on documents instead of an API.

Promises: a check that lacks a document is "not checked", neither passed nor failed, and so is one that only a
platform's API can answer: no platform is asked here. Certificates are judged at the
request's creation, so an old request gives the answer of its day. Without a MachineAttestation the machine counts as
one that has never joined. Leaves out what only live reads can tell (the
Node of that name, whether the token still exists) and what other requests did (the ledger's compare-and-swap).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from cryptography.hazmat.primitives.serialization import load_der_public_key

from nodeattest_cli.explain.eventlog import read_log
from nodeattest_cli.explain.model import Explanation, Outcome, Step, from_check
from nodeattest_cli.explain.serving import attested_steps, explain_kubelets
from nodeattest_cli.explain.steps import attempt, needs_platform, not_checked, passed, refusal
from nodeattest_cli.explain.surroundings import Given, pick
from nodeattest_cli.explain.tokens import token_steps
from nodeattest_cli.explain.tpm import check_keys, check_signature, tpm_facts
from nodeattest_controller.model import attestation as attestations
from nodeattest_controller.model.bound_tokens import check_bound_token
from nodeattest_controller.model.csr_request import RequestState, parse_request, summarize
from nodeattest_controller.model.identity_rules import (
    NameContext,
    allowed_node_names,
    check_binding,
    check_node_name,
    find_machine,
)
from nodeattest_controller.model.objects import condition, items, text
from nodeattest_controller.model.policy import check_authorized, parse_attestation_policy
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers import evidence_versions
from nodeattest_providers.checks import Check, Checks
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason, Unavailable
from nodeattest_providers.identifiers import printable
from nodeattest_providers.names import ProviderName, Purpose
from nodeattest_providers.node_interface import JsonValue, SecretBytes
from nodeattest_providers.platform import OFFLINE, Platform, make_signer
from nodeattest_providers.verifier_interface import (
    ChallengeSigner,
    ClusterAPISigner,
    Facts,
    LedgerFacts,
    MachineFacts,
    NodeRequest,
)

__all__ = ["NO_PLATFORMS", "Platforms", "explain_request", "first_request_name"]

Platforms = Mapping[str, Mapping[str, JsonValue]]
NO_PLATFORMS: Final[Platforms] = MappingProxyType({})
_NO_KEYS: Final = (SecretBytes(bytes(32)),)
"""Stands in for challenge keys that were not given; what depends on them is reported as not checked."""
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
_EMPTY_HANDED: Final = ("endorsement key: on no other machine's entry",)
"""Checks, of a part or alone, that pass when there is nothing to compare with."""


def first_request_name(csr: JsonObject) -> str | None:
    """Tell which first request a stored one answers; None when none, or when it cannot be read."""
    try:
        return _first_name(parse_request(csr))
    except Denied:
        return None


def explain_request(
    csr: JsonObject, documents: Sequence[JsonObject], platforms: Platforms = NO_PLATFORMS
) -> Explanation:
    """Judge a stored request as far as the documents allow; ``platforms``: of the controller's configuration.

    1. It is well-formed; 2. its evidence can be read; 3. the policy admits the provider; 4. the Machine may have this
    node name; 5. the provider's own verification.
    """
    facts = list(_stored_facts(csr))
    stored = summarize(csr)
    refused_then = stored is not None and stored.state is RequestState.DENIED and not _is_superseded(csr)
    if stored is not None and stored.is_kubelets:
        return replace(explain_kubelets(csr, documents, facts), refused_then=refused_then)
    return replace(_explain_attested(csr, documents, facts, platforms), refused_then=refused_then)


def _is_superseded(csr: JsonObject) -> bool:
    """Tell a first request that was closed because its answer was certified: nothing refused it."""
    denied = condition(items(csr, "status", "conditions"), "Denied")
    return denied is not None and denied.get("reason") == Reason.SUPERSEDED


def _explain_attested(
    csr: JsonObject, documents: Sequence[JsonObject], facts: list[tuple[str, str]], platforms: Platforms
) -> Explanation:
    try:  # 1
        request = parse_request(csr)
    except Denied as denied:
        return Explanation(facts=facts, steps=[refusal("well-formed request", "wire format", denied)])
    steps = [passed("well-formed request", "wire format", "a kubelet's request in the canonical envelope")]
    facts += _request_facts(request)
    try:  # 2
        first_name = _first_name(request)
    except Denied as denied:
        return Explanation(facts=facts, steps=[*steps, refusal("evidence version and schema", "wire format", denied)])
    if request.evidence.provider == "tpm":
        facts += tpm_facts(request)
    log = read_log(request)
    facts += [("event log", log.summary)] if log else []
    given = pick(documents, request, first_name)
    steps += _policy_steps(request, given)  # 3
    steps += _identity_steps(request, given)  # 4
    if request.purpose is Purpose.SERVING:
        steps += attested_steps(request, given)
    steps += _provider_steps(request, given, platforms)  # 5
    return Explanation(facts=facts, steps=steps, log=log)


def _first_name(request: NodeRequest) -> str | None:
    signer = make_signer(request.evidence.provider, OFFLINE)
    evidence_versions.check(request.evidence, signer.versions)
    ref = signer.first_request(request) if isinstance(signer, ChallengeSigner) else None
    return ref.name if ref else None


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


# Steps


def _policy_steps(request: NodeRequest, given: Given) -> Iterator[Step]:
    name, section = "attestor authorized", "identity rule 0"
    if given.policy is None:
        yield not_checked(name, section, "the NodeAttestationPolicy")
        return
    policy = given.policy
    yield attempt(name, section, lambda: check_authorized(parse_attestation_policy(policy), request.evidence.provider))


def _identity_steps(request: NodeRequest, given: Given) -> Iterator[Step]:
    if not given.members:
        yield not_checked("one Machine", "identity rule 1", f"a Machine with provider ID {request.csr.provider_id}")
        return
    member = given.members[0]
    yield attempt("one Machine, alive and ready", "identity rule 1", lambda: find_machine(request, given.members))
    cluster = f"{member.namespace}/{member.cluster_name}"
    yield attempt("a token of no other machine", "identity rule 4", lambda: check_bound_token(request, cluster))
    yield from token_steps(request, given, member)
    name = request.csr.node_name
    around = NameContext(claimants=[one for one in given.claimants if name in allowed_node_names(one)], holders=[])
    yield attempt("the Machine's node name", "identity rule 2", lambda: check_node_name(request, member, around, None))
    ledger = given.ledger or attestations.new_attestation(member)
    secure = make_signer(request.evidence.provider, OFFLINE).secure
    yield attempt(
        "not bound otherwise", "identity rules 3 and 4", lambda: check_binding(request, member, ledger, secure=secure)
    )


def _provider_steps(request: NodeRequest, given: Given, platforms: Platforms) -> Iterator[Step]:
    """Let the provider verify; what its own record cannot show is judged besides."""
    try:
        first = parse_request(given.first) if given.first is not None else None
    except Denied as denied:
        yield refusal("first request", "wire format", denied)
        return
    checks, end = _verify(_offline(request.evidence.provider, platforms), request, _facts(request, given, first))
    denied = end if isinstance(end, Denied) else None
    for check in checks:
        missing = "" if check.passed and not check.name.endswith(_EMPTY_HANDED) else _missing(check.name, given)
        if denied is not None and not check.passed:
            missing = missing or _platform_missing(check.name, denied.reason, given, platforms)
        step = from_check(check)
        if missing:
            yield not_checked(check.name, check.section, missing)
        elif denied is not None and not check.passed:
            yield refusal(check.name, check.section, denied)
        else:
            yield step
    if denied is not None and not checks:
        yield refusal("provider's verification", "provider", denied)
    if isinstance(end, Unavailable):
        yield _waiting(end)
    if request.evidence.provider == "tpm":
        yield from _tpm_steps(request, first, {check.name for check in checks})


def _offline(provider: ProviderName, platforms: Platforms) -> ClusterAPISigner:
    """Make the half, and those of a composite's parts, with their trust bundles and no way to the platform."""
    half = partial(_offline, platforms=platforms)
    return make_signer(provider, Platform(settings=platforms.get(provider, {}), may_call=False, half=half))


def _platform_missing(check: str, reason: Reason, given: Given, platforms: Platforms) -> str:
    """Tell what a refusal by a cloud's provider would have needed: a policy, the CAs, a trust bundle; or empty."""
    if check.endswith(_REGION_CERTIFICATES) and "trustBundle" not in platforms.get("aws", {}):
        return "platforms.aws.trustBundle of the controller's configuration (--config)"
    if reason in _BY_POLICY and given.policy is None:
        return "NodeAttestationPolicy"
    if reason is Reason.PLATFORM_PROOF_NOT_BOUND and not given.pins:
        return "Cluster, Machine, Secret <cluster>-ca"
    return ""


def _waiting(end: Unavailable) -> Step:
    """Show what was not at hand: a platform never is, and that refuses nothing."""
    if end.reason is Reason.PLATFORM_UNAVAILABLE:
        return needs_platform("the platform's own answer", "provider", end.detail)
    wanted = "everything that the provider needs"
    return Step("facts at hand", "provider", wanted, end.detail, Outcome.FAILED, end.reason)


def _verify(
    signer: ClusterAPISigner, request: NodeRequest, facts: Facts
) -> tuple[Sequence[Check], Denied | Unavailable | None]:
    serving = request.purpose is Purpose.SERVING
    verify = signer.verify_serving_attestation_data if serving else signer.verify_client_attestation_data
    try:
        return asyncio.run(verify(request, facts)).checks, None
    except Denied as denied:
        return denied.checks, denied
    except ChallengeRequired as required:
        done = Check("first request", "provider", "a sound first request", "one that gets a challenge", passed=True)
        return (*required.checks, done), None
    except Unavailable as unavailable:
        return unavailable.checks, unavailable


def _facts(request: NodeRequest, given: Given, first: NodeRequest | None) -> Facts:
    if given.members:
        machine = given.members[0].facts(infra=given.infra, secret=given.attestation_secret)
    else:
        machine = MachineFacts(name="", namespace="", uid="", provider_id=request.csr.provider_id)
    facts = Facts(
        cluster=given.cluster_facts,
        machine=machine,
        settings=_sections(given).get(request.evidence.provider, {}),
        sections=_sections(given),
        first_request=first,
        challenge_keys=given.challenge_keys or _NO_KEYS,
        verified_at=request.created,
    )
    return replace(facts, ledger=_ledger_facts(request, given.ledger, first)) if given.ledger else facts


def _ledger_facts(request: NodeRequest, ledger: attestations.Attestation, first: NodeRequest | None) -> LedgerFacts:
    """Leave the clock out for a request that was certified before the newest: the ledger of its day had another."""
    facts = ledger.facts(request, first.uid if first else "")
    is_newest = bool(ledger.issued) and ledger.issued[-1].spki == request.csr.spki_sha256
    return facts if is_newest or not facts.answered else replace(facts, clock=None)


def _sections(given: Given) -> Mapping[ProviderName, Mapping[str, JsonValue]]:
    """Read the providers' sections; an invalid policy was refused by a step of its own."""
    try:
        return parse_attestation_policy(given.policy).sections if given.policy is not None else {}
    except Denied:
        return {}


def _missing(check: str, given: Given) -> str:
    """Tell which documents a check that failed would have needed; empty when it had them all."""
    check = check.removeprefix("challenge: ").removeprefix("tpm: ")  # of a composite proof's part
    wanted: list[tuple[str, bool]] = []
    if check.startswith("endorsement key:"):
        infra = bool(given.members) and (given.infra is not None or given.members[0].infra is None)
        wanted = [
            ("NodeAttestationPolicy", given.policy is not None),
            ("Machine", bool(given.members)),
            (given.infra_title, infra or not given.members),
        ]
    elif check.startswith(("PCR ", "event log ")):
        wanted = [("NodeAttestationPolicy", given.policy is not None)]
    elif check == "first request exists":
        wanted = [("first request", given.first is not None)]
    elif check == "the Machine's secret":
        wanted = [("Secret <machine>-attestation", given.attestation_secret is not None)]
    elif check in _DERIVED:
        wanted = [
            ("Cluster", given.cluster is not None),
            ("Machine", bool(given.members)),
            ("Secret <cluster>-ca", bool(given.pins)),
            ("Secret node-attestation-challenge-keys", bool(given.challenge_keys)),
        ]
    return ", ".join(name for name, is_given in wanted if not is_given)


def _tpm_steps(request: NodeRequest, first: NodeRequest | None, done: set[str]) -> Iterator[Step]:
    """Judge the keys of a first request, and the quote's signature where the verification did not come so far."""
    checks = Checks()
    try:
        check_keys(checks, request)
        if first is not None and "quote signature" not in done:
            check_signature(checks, request, first)
    except Denied as denied:
        for check in checks.record():
            yield from_check(check) if check.passed else refusal(check.name, check.section, denied)
        return
    yield from (from_check(check) for check in checks.record() if check.name not in done)
