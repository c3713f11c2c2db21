"""The TPM protocol's two steps as the controller checks them, whatever provider trusts the endorsement key.

No state is kept between the rounds, and nothing is asked: any replica gives the same answer, now or later.
Source: docs/wire-format.md, "tpm/v1", §3 (steps in the docstrings), §4.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from nodeattest_providers.challenge_response import (
    LABEL_NONCE,
    LABEL_SECRET,
    challenge_context,
    check_first_request,
    derive,
    master_keys,
)
from nodeattest_providers.checks import Checks, check_block, check_parsed
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY, ProviderName
from nodeattest_providers.node_interface import Evidence, FirstRequestRef
from nodeattest_providers.tpm.config import ProtocolPolicy
from nodeattest_providers.tpm.endorsement_key import parse_endorsement_key
from nodeattest_providers.tpm.event_log_checks import check_boot_state, check_clock, check_event_log
from nodeattest_providers.tpm.key_templates import check_attestation_key, qualified_name
from nodeattest_providers.tpm.make_credential import make_credential
from nodeattest_providers.tpm.protocol import (
    VERSION,
    Challenge,
    FirstEvidence,
    SecondEvidence,
    parse_evidence,
    proof,
    qualifying_data,
)
from nodeattest_providers.tpm.quote import Quote, parse_quote, parse_signature, signature_is_valid
from nodeattest_providers.tpm.structures import PublicArea, parse_public
from nodeattest_providers.verifier_interface import AttestedNode, Facts, NodeRequest

_START_OVER: Final = "file a new first request and answer its own challenge"
_START_OVER_OR_PIN: Final = (
    f"{_START_OVER}; if this comes back, the node trusts another cluster CA than this cluster has"
)
_RESET: Final = "if the TPM was replaced, an operator resets the ledger (nodeattest machines reset)"


@dataclass(frozen=True, slots=True)
class _Keys:
    """The two keys that phase 1 showed, checked."""

    ek: PublicArea
    ak: PublicArea

    def challenge_context(self, facts: Facts, first: NodeRequest) -> bytes:
        """Fix what the challenge is for (docs/wire-format.md, "Two steps")."""
        return challenge_context(facts, first, self.ak.name, self.ek.spki_sha256)


class EndorsementTrust(Protocol):
    """Decides whose an endorsement key is."""

    def __call__(self, checks: Checks, ek: PublicArea, evidence: FirstEvidence, /) -> None:
        """Check that the key is this Machine's; raises Denied unless it is."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TpmProtocolVerifier:
    """A provider that uses the protocol."""

    provider: ProviderName
    certificates: bool
    """Whether its first evidence may bring the endorsement key's certificates."""
    random: Callable[[int], bytes] = secrets.token_bytes

    def read(self, checks: Checks, evidence: Evidence) -> FirstEvidence | SecondEvidence:
        """Read the evidence block, cheapest test first (TPM protocol §3, steps 2 and 9)."""
        check_block(checks, evidence, self.provider, (VERSION,))
        return check_parsed(
            checks,
            "evidence schema",
            f"wire format, {evidence.block}",
            lambda: parse_evidence(evidence.data, form=evidence.block, certificates=self.certificates),
        )

    def first_request(self, request: NodeRequest) -> FirstRequestRef | None:
        """Return the first request that this one answers, None for a first one; Denied on malformed evidence."""
        evidence = self.read(Checks(), request.evidence)
        return evidence.first if isinstance(evidence, SecondEvidence) else None

    def verify(
        self, checks: Checks, request: NodeRequest, facts: Facts, *, policy: ProtocolPolicy, trust: EndorsementTrust
    ) -> AttestedNode:
        """Verify a first or a second request; raises Denied, Unavailable or ChallengeRequired."""
        evidence = self.read(checks, request.evidence)
        if isinstance(evidence, SecondEvidence):
            return self._verify_second(checks, request, evidence, facts, policy=policy, trust=trust)
        keys = self._check_claims(checks, request, evidence, facts, trust)
        challenge = self._challenge(keys, request, facts, policy)
        annotations = {ANNOTATION_TPM_ENDORSEMENT_KEY: keys.ek.fingerprint}
        raise ChallengeRequired(challenge.to_text(), annotations, checks=checks.record())

    def _challenge(self, keys: _Keys, request: NodeRequest, facts: Facts, policy: ProtocolPolicy) -> Challenge:
        """Encrypt the secret to the endorsement key, for the attestation key's Name (TPM protocol §3, steps 5, 6)."""
        key = master_keys(facts)[0]
        ctx = keys.challenge_context(facts, request)
        secret = derive(LABEL_SECRET, key, ctx)
        credential = make_credential(keys.ek, keys.ak.name, secret, random=self.random)
        return Challenge(
            uid=request.uid,
            spki_sha256=request.csr.spki_sha256,
            nonce=derive(LABEL_NONCE, key, ctx),
            blob=credential.blob,
            secret=credential.secret,
            pcrs=policy.selection,
            log=policy.event_log_required,
        )

    def _verify_second(
        self,
        checks: Checks,
        request: NodeRequest,
        evidence: SecondEvidence,
        facts: Facts,
        *,
        policy: ProtocolPolicy,
        trust: EndorsementTrust,
    ) -> AttestedNode:
        """Check the answer to the challenge.

        1. It answers a live first request of the same requester, signer and PKCS#10 bytes, in time (§3, step 10).
        2. That request's claims still hold: what was trusted then may have been withdrawn since (§3, step 10).
        3. The quote is one, and well-formed (§3, step 11).
        4. M and X belong to the challenge derived again, for one of the cluster's CAs (§3, step 11).
        5. The signer is a primary key of the endorsement hierarchy, this attestation key (§4.7).
        6. The attestation key signed the quote.
        7. The quoted boot state is allowed (§3, step 12).
        8. The event log explains it, where the policy wants one (§3, step 12).
        9. The TPM's clock went forward (§3, step 12; §4.2).
        """
        # 1
        first = check_first_request(checks, request, facts, evidence.first)
        # 2
        first_evidence = self.read(checks, first.evidence)
        if not isinstance(first_evidence, FirstEvidence):
            raise _not_a_first_request(checks)
        keys = self._check_claims(checks, first, first_evidence, facts, trust)
        # 3 to 6
        answers = _answers(request, facts, first, keys)
        quote = _check_quote(checks, evidence, keys.ak, answers)
        # 7
        state = check_boot_state(checks, quote, evidence.pcrs, policy)
        # 8
        check_event_log(checks, evidence.event_log, policy, evidence.pcrs)
        # 9
        check_clock(checks, state, facts.ledger)
        return AttestedNode(
            provider=self.provider,
            provider_id=request.csr.provider_id,
            fingerprints={"ek": keys.ek.fingerprint, "ak": keys.ak.name.hex()},
            boot=state,
            first_request=evidence.first,
            checks=checks.record(),
        )

    def _check_claims(
        self, checks: Checks, first: NodeRequest, evidence: FirstEvidence, facts: Facts, trust: EndorsementTrust
    ) -> _Keys:
        """Check what the first request claims; nothing is proved by it yet.

        1. The endorsement key has exactly one of TCG's templates (§4.10).
        2. The attestation key signs nothing but what its TPM made, and carries our mark (§2).
        3. Both are those that the ledger pins for this machine, if it pins any.
        4. The endorsement key is this Machine's (§3, step 4).
        """
        pins = facts.ledger.fingerprints
        # 1
        ek = check_parsed(checks, "endorsement key template", "TPM protocol §4.10", lambda: _ek(evidence))
        # 2
        ak = check_parsed(checks, "attestation key public area", "TPM protocol §3, step 4b", lambda: _ak(evidence))
        check_attestation_key(checks, ak, ek)
        # 3
        _check_pin(checks, "ek", pins, ek.fingerprint, Reason.ENDORSEMENT_KEY_CHANGED)
        _check_pin(checks, "ak", pins, ak.name.hex(), Reason.ATTESTATION_KEY_CHANGED)
        # 4
        trust(checks, ek, evidence)
        return _Keys(ek, ak)


def _check_quote(
    checks: Checks, evidence: SecondEvidence, ak: PublicArea, answers: Iterable[tuple[bytes, bytes]]
) -> Quote:
    """Check steps 3 to 6 of the second request, and return the quote."""
    # 3
    section = "TPM protocol §3, step 11"
    quote = check_parsed(checks, "quote structure", section, lambda: parse_quote(evidence.quote))
    signature = check_parsed(checks, "signature structure", section, lambda: parse_signature(evidence.signature))
    # 4
    _check_answer(checks, evidence.mac, quote, answers)
    # 5
    checks.require(
        hmac.compare_digest(quote.qualified_signer, qualified_name(ak)),
        "qualified signer",
        section="TPM protocol §4.7",
        reason=Reason.ATTESTATION_KEY_NOT_ALLOWED,
        expected="this attestation key, as a primary key of the endorsement hierarchy",
        got=quote.qualified_signer.hex(),
        remedy="attest with the key that kubelet-authenticator makes in the TPM",
    )
    # 6
    checks.require(
        signature_is_valid(ak, signature, quote.raw),
        "quote signature",
        section=section,
        reason=Reason.QUOTE_SIGNATURE_INVALID,
        expected="a signature that the attestation key verifies",
        got=f"one by {signature.scheme.name} with {signature.hash_alg.name}",
        remedy=_START_OVER,
    )
    return quote


def _check_pin(checks: Checks, pin: str, pins: Mapping[str, str], got: str, reason: Reason) -> None:
    expected = pins.get(pin, got)
    checks.require(
        expected == got,
        f"pinned {pin}",
        section="TPM protocol §3, step 4b",
        reason=reason,
        expected=expected,
        got=got,
        remedy=_RESET,
    )


def _ek(evidence: FirstEvidence) -> PublicArea:
    return parse_endorsement_key(evidence.ek_public)


def _ak(evidence: FirstEvidence) -> PublicArea:
    return parse_public(evidence.ak_public, what="attestation key", reason=Reason.ATTESTATION_KEY_NOT_ALLOWED)


def _not_a_first_request(checks: Checks) -> Denied:
    return Denied(
        Reason.FIRST_REQUEST_MISMATCH,
        expected="a first request with evidence of phase 1",
        got="evidence of phase 2",
        remedy=_START_OVER,
        checks=checks.record(),
    )


def _answers(request: NodeRequest, facts: Facts, first: NodeRequest, keys: _Keys) -> Iterator[tuple[bytes, bytes]]:
    """Derive M and X again for each master key and each CA of the cluster."""
    ctx = keys.challenge_context(facts, first)
    for key in master_keys(facts):
        secret, nonce = derive(LABEL_SECRET, key, ctx), derive(LABEL_NONCE, key, ctx)
        for pin in sorted(facts.cluster.pins):
            binding = request.binding(pin).digest
            yield proof(secret, first.uid, first.csr.sha256, binding), qualifying_data(nonce, first.uid, binding)


def _check_answer(checks: Checks, mac: bytes, quote: Quote, answers: Iterable[tuple[bytes, bytes]]) -> None:
    """Check that M and X are those of one master key and one CA.

    1. Neither is any: the challenge is not ours, or its master key is gone (restartable, §4.14).
    2. M is right: the TPM decrypted the secret. 3. X is right: the quote is over this CSR. Both under the same pair.
    """
    compared = [
        (hmac.compare_digest(mac, expected_mac), hmac.compare_digest(quote.extra_data, expected_extra))
        for expected_mac, expected_extra in answers
    ]
    section, got = "TPM protocol §3, step 11", "another value"
    rules = (
        ("known challenge", Reason.CHALLENGE_UNKNOWN, any(m or x for m, x in compared), _START_OVER_OR_PIN),
        ("activated secret", Reason.PROOF_INVALID, any(m for m, _ in compared), _START_OVER),
        ("quote binding", Reason.QUOTE_NOT_BOUND, (True, True) in compared, _START_OVER),
    )
    for name, reason, passed, remedy in rules:
        expected = "the value derived again from the first request"
        checks.require(
            passed,
            name,
            section=section,
            reason=reason,
            expected=expected,
            got=expected if passed else got,
            remedy=remedy,
        )
