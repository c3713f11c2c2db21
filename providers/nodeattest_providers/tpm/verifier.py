"""The TPM protocol as the controller checks it, and the ``tpm`` provider's verifier.

Source: docs/wire-format.md, "tpm/v1", §3 (steps in the docstrings), §4.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from nodeattest_providers.challenge_response import (
    LABEL_NONCE,
    LABEL_SECRET,
    challenge_context,
    check_first_request,
    derive,
    master_keys,
)
from nodeattest_providers.checks import Checks, Rules, check_block, check_parsed
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason, Unavailable
from nodeattest_providers.identifiers import (
    ANNOTATION_TPM_ENDORSEMENT_KEY,
    NodeName,
    ProviderID,
    ProviderName,
    printable,
)
from nodeattest_providers.keys import PublicKey
from nodeattest_providers.node_interface import Evidence, FirstRequestRef, JsonValue
from nodeattest_providers.platform import OFFLINE, Platform
from nodeattest_providers.tpm import protocol
from nodeattest_providers.tpm.boot_state import check_boot_state, check_clock, check_event_log, check_recorded_boot
from nodeattest_providers.tpm.config import PolicyCache, ProtocolPolicy, TpmPolicy, parse_policy
from nodeattest_providers.tpm.endorsement_key import check_recorded_key, check_trust, parse_endorsement_key
from nodeattest_providers.tpm.key_templates import (
    Quote,
    check_attestation_key,
    parse_quote,
    parse_signature,
    qualified_name,
    signature_is_valid,
)
from nodeattest_providers.tpm.structures import PublicArea, parse_public
from nodeattest_providers.verifier_interface import AttestedNode, BootState, CheckedSigner, Facts, NodeRequest

_START_OVER: Final = "file a new first request and answer its own challenge"
_START_OVER_OR_PIN: Final = (
    f"{_START_OVER}; if this comes back, the node trusts another cluster CA than this cluster has"
)
_OWN_KEY: Final = "attest with the key that kubelet-authenticator makes in the TPM"
_RESET: Final = "if the TPM was replaced, an operator resets the ledger (nodeattest machines reset)"


@dataclass(frozen=True, slots=True)
class _Keys:
    """The two keys that phase 1 showed, checked."""

    ek: PublicArea
    ak: PublicArea

    def challenge_context(self, facts: Facts, first: NodeRequest) -> bytes:
        return challenge_context(facts, first, self.ak.name, self.ek.spki_sha256)


EndorsementTrust = Callable[[Checks, PublicArea, protocol.FirstEvidence], None]


class TpmProtocolSigner(CheckedSigner):
    """A provider of the TPM protocol; a subclass says which policy holds and whose an endorsement key is."""

    versions: tuple[int, ...] = (protocol.VERSION,)
    two_step = True
    takes_platform = True
    takes_certificates: bool

    def __init__(self, *, platform: Platform = OFFLINE, random: Callable[[int], bytes] = secrets.token_bytes) -> None:
        self._platform = platform
        self._random = random

    def first_request(self, request: NodeRequest) -> FirstRequestRef | None:
        evidence = self._read(Checks(), request.evidence)
        return evidence.first if isinstance(evidence, protocol.SecondEvidence) else None

    def _read(self, checks: Checks, evidence: Evidence) -> protocol.FirstEvidence | protocol.SecondEvidence:
        """Read the evidence block, cheapest test first (TPM protocol §3, steps 2 and 9)."""
        check_block(checks, evidence, self.provider, self.versions)
        return check_parsed(
            checks,
            "evidence schema",
            f"wire format, {evidence.block}",
            lambda: protocol.parse_evidence(evidence.data, form=evidence.block, certificates=self.takes_certificates),
        )

    def _verify_protocol(
        self, checks: Checks, request: NodeRequest, facts: Facts, *, policy: ProtocolPolicy, trust: EndorsementTrust
    ) -> AttestedNode:
        evidence = self._read(checks, request.evidence)
        if isinstance(evidence, protocol.SecondEvidence):
            return self._verify_second(checks, request, evidence, facts, policy=policy, trust=trust)
        keys = _check_claims(checks, evidence, facts, trust)
        challenge = self._challenge(keys, request, facts, policy)
        annotations = {ANNOTATION_TPM_ENDORSEMENT_KEY: keys.ek.fingerprint}
        raise ChallengeRequired(challenge.to_text(), annotations, checks=checks.record())

    def _challenge(self, keys: _Keys, request: NodeRequest, facts: Facts, policy: ProtocolPolicy) -> protocol.Challenge:
        """Encrypt the secret to the endorsement key, for the attestation key's Name (TPM protocol §3, steps 5, 6)."""
        key = master_keys(facts)[0]
        ctx = keys.challenge_context(facts, request)
        secret = derive(LABEL_SECRET, key, ctx)
        blob, encrypted = protocol.make_credential(keys.ek, keys.ak.name, secret, random=self._random)
        return protocol.Challenge(
            uid=request.uid,
            spki_sha256=request.csr.spki_sha256,
            nonce=derive(LABEL_NONCE, key, ctx),
            blob=blob,
            secret=encrypted,
            pcrs=policy.selection,
            log=policy.event_log_required,
        )

    def _verify_second(
        self,
        checks: Checks,
        request: NodeRequest,
        evidence: protocol.SecondEvidence,
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
        5. The signer is a primary key of the endorsement hierarchy, this attestation key (§4.3).
        6. The attestation key signed the quote.
        7. The quoted boot state is allowed (§3, step 12).
        8. The event log explains it, where the policy wants one (§3, step 12).
        9. The TPM's clock went forward (§3, step 12; §4.2).
        """
        # 1
        first = check_first_request(checks, request, facts, evidence.first)
        # 2
        first_evidence = self._read(checks, first.evidence)
        if not isinstance(first_evidence, protocol.FirstEvidence):
            raise Denied(
                Reason.FIRST_REQUEST_MISMATCH,
                expected="a first request with evidence of phase 1",
                got="evidence of phase 2",
                remedy=_START_OVER,
                checks=checks.record(),
            )
        keys = _check_claims(checks, first_evidence, facts, trust)
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


def _check_claims(checks: Checks, evidence: protocol.FirstEvidence, facts: Facts, trust: EndorsementTrust) -> _Keys:
    """Check what the first request claims; nothing is proved by it yet.

    1. The endorsement key has exactly one of TCG's templates ("The keys").
    2. The attestation key signs nothing but what its TPM made, and carries our mark (§2).
    3. Both are those that the ledger pins for this machine, if it pins any.
    4. The endorsement key is this Machine's (§3, step 4).
    """
    pins = facts.ledger.fingerprints
    rules = Rules(checks, "TPM protocol §3, step 4b", Reason.ENDORSEMENT_KEY_CHANGED, _RESET)
    # 1
    ek = rules.parsed("endorsement key template", lambda: parse_endorsement_key(evidence.ek_public))
    # 2
    reason = Reason.ATTESTATION_KEY_NOT_ALLOWED
    ak = rules.parsed(
        "attestation key public area",
        lambda: parse_public(evidence.ak_public, what="attestation key", reason=reason),
    )
    check_attestation_key(checks, ak, ek)
    # 3
    rules.equal("pinned ek", pins.get("ek", ek.fingerprint), ek.fingerprint)
    name, reason = ak.name.hex(), Reason.ATTESTATION_KEY_CHANGED
    rules.equal("pinned ak", pins.get("ak", name), name, reason=reason)
    # 4
    trust(checks, ek, evidence)
    return _Keys(ek, ak)


def _check_quote(
    checks: Checks, evidence: protocol.SecondEvidence, ak: PublicArea, answers: Iterable[tuple[bytes, bytes]]
) -> Quote:
    """Check steps 3 to 6 of the second request, and return the quote.

    4a. M or X is one of these: else the challenge is not ours, or its master key is gone (restartable, §4.6).
    4b. M is right: the TPM decrypted the secret. 4c. X is right: the quote is over this CSR. Both for one pair of
    master key and CA.
    """
    rules = Rules(checks, "TPM protocol §3, step 11", Reason.PROOF_INVALID, _START_OVER)
    # 3
    quote = rules.parsed("quote structure", lambda: parse_quote(evidence.quote))
    signature = rules.parsed("signature structure", lambda: parse_signature(evidence.signature))
    # 4
    compared = [
        (hmac.compare_digest(evidence.mac, mac), hmac.compare_digest(quote.extra_data, extra)) for mac, extra in answers
    ]
    expected, got = "the value derived again from the first request", "another value"
    known, unknown = any(m or x for m, x in compared), Reason.CHALLENGE_UNKNOWN
    rules.require(known, "known challenge", expected, got, reason=unknown, remedy=_START_OVER_OR_PIN)
    rules.require(any(m for m, _ in compared), "activated secret", expected, got)
    rules.require((True, True) in compared, "quote binding", expected, got, reason=Reason.QUOTE_NOT_BOUND)
    # 5
    key_rules = Rules(checks, "TPM protocol §4.3", Reason.ATTESTATION_KEY_NOT_ALLOWED, _OWN_KEY)
    is_own = hmac.compare_digest(quote.qualified_signer, qualified_name(ak))
    expected = "this attestation key, as a primary key of the endorsement hierarchy"
    key_rules.require(is_own, "qualified signer", expected, quote.qualified_signer.hex())
    # 6
    is_signed, invalid = signature_is_valid(ak, signature, quote.raw), Reason.QUOTE_SIGNATURE_INVALID
    expected, got = "one that the attestation key verifies", f"{signature.scheme.name} with {signature.hash_alg.name}"
    rules.require(is_signed, "quote signature", expected, got, reason=invalid)
    return quote


def _answers(request: NodeRequest, facts: Facts, first: NodeRequest, keys: _Keys) -> Iterator[tuple[bytes, bytes]]:
    ctx = keys.challenge_context(facts, first)
    for key in master_keys(facts):
        secret, nonce = derive(LABEL_SECRET, key, ctx), derive(LABEL_NONCE, key, ctx)
        for pin in sorted(facts.cluster.pins):
            binding = request.binding(pin).digest
            yield (
                protocol.proof(secret, first.uid, first.csr.sha256, binding),
                protocol.qualifying_data(nonce, first.uid, binding),
            )


THREADS: Final = 4
"""Verifications at once: they compute, so more would only wait for a core."""
_LONG: Final = frozenset({"ekCert", "ekChain", "eventLog"})
"""Members of evidence whose check takes milliseconds, when they are of the worst kind."""
_EC2: Final = "EC2"
_EC2_PROVIDER: Final = ProviderName("aws")
_FEW_CAS: Final = 4
"""The answer is compared under each CA of the cluster."""


class TpmSigner(TpmProtocolSigner):
    """Evaluates TPM evidence."""

    provider = protocol.PROVIDER
    read_section = staticmethod(parse_policy)
    takes_certificates = True

    def __init__(self, *, platform: Platform = OFFLINE, random: Callable[[int], bytes] = secrets.token_bytes) -> None:
        if platform.settings:
            raise Denied(
                Reason.POLICY_INVALID,
                expected="no settings of its own",
                got=", ".join(map(printable, platform.settings)),
                remedy="remove the section platforms.tpm; EC2 is configured by platforms.aws",
            )
        super().__init__(platform=platform, random=random)
        self._policies = PolicyCache()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tpm")
        """Apart from the loop's own threads, which others may keep busy."""

    def check_recorded(self, facts: Facts, boot: BootState | None) -> tuple[str, ...]:
        policy, unknown = self._policies.get(facts.settings), list[str]()
        fingerprint = facts.ledger.fingerprints.get("ek")
        if fingerprint is None:
            unknown.append("the endorsement key is not on record")
        else:
            try:
                check_recorded_key(fingerprint, facts, policy)
            except Unavailable as unavailable:
                unknown.append(unavailable.detail)
        return (*unknown, *check_recorded_boot(boot, policy))

    def provable_names(self, sections: Mapping[ProviderName, Mapping[str, JsonValue]]) -> Mapping[ProviderID, NodeName]:
        """Return the node names of registered keys; a TPM proves no other. Raises Denied for invalid settings."""
        return self._policies.get(sections.get(protocol.PROVIDER, {})).node_names

    async def aclose(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _verify(self, checks: Checks, request: NodeRequest, facts: Facts) -> AttestedNode:
        """Verify here what takes less than a millisecond: to hand it to a thread would cost half of that again."""
        policy = self._policies.get(facts.settings)
        ec2_key = await self._ask_ec2(checks, request, facts, policy)
        verify = partial(self._compute, checks, request, facts, policy, ec2_key)
        if not _takes_long(request, facts):
            return verify()
        return await asyncio.get_running_loop().run_in_executor(self._threads, verify)

    async def _ask_ec2(self, checks: Checks, request: NodeRequest, facts: Facts, policy: TpmPolicy) -> str:
        """Return the fingerprint that EC2 names for the machine; empty where it is not asked. Raises as it does."""
        accounts, machine = policy.ec2_accounts, facts.machine.provider_id
        if accounts is None or not policy.asks_ec2(machine) or not self._platform.may_call:
            return ""
        shown = self._shown_key(request, facts)
        if shown is None or self._platform.find_signer is None:
            return ""
        aws = self._platform.find_signer(_EC2_PROVIDER)
        try:
            named = await aws.endorsement_key(machine, accounts=accounts, shown=shown)
        except Denied as denied:
            checks.adopt(_EC2, denied.checks)
            raise checks.denied(denied) from denied
        except Unavailable as unavailable:
            checks.adopt(_EC2, unavailable.checks)
            raise
        checks.adopt(_EC2, named.checks)
        return named.fingerprint

    def _shown_key(self, request: NodeRequest, facts: Facts) -> PublicKey | None:
        """Return the endorsement key that the first request shows; None where verifying will find no such request."""
        for shown in (request, facts.first_request):
            if shown is None:
                break
            try:
                evidence = self._read(Checks(), shown.evidence)
                if isinstance(evidence, protocol.FirstEvidence):
                    return parse_endorsement_key(evidence.ek_public).key
            except Denied:
                break
        return None

    def _compute(
        self, checks: Checks, request: NodeRequest, facts: Facts, policy: TpmPolicy, ec2_key: str
    ) -> AttestedNode:
        def trust(checks: Checks, ek: PublicArea, evidence: protocol.FirstEvidence) -> None:
            check_trust(checks, ek, evidence, facts, policy, is_renewal=request.is_renewal, ec2_key=ec2_key)

        attested = self._verify_protocol(checks, request, facts, policy=policy, trust=trust)
        machine = request.csr.provider_id
        if attested.fingerprints["ek"] not in policy.registered.get(machine, ()):
            return attested  # trusted by another source, which gives no name
        return replace(attested, proven_node_name=policy.node_names.get(machine))


def _takes_long(request: NodeRequest, facts: Facts) -> bool:
    """Whether more is checked than two keys and one signature."""
    first = () if facts.first_request is None else (facts.first_request,)
    evidence_is_long = any(not _LONG.isdisjoint(each.evidence.data) for each in (request, *first))
    return evidence_is_long or len(facts.cluster.pins) > _FEW_CAS
