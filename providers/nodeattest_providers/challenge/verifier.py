"""The ``challenge`` provider's verifier: machines without TPM or cloud, by a secret from the bootstrap data.

Source: docs/wire-format.md, "challenge/v1", §3 (steps 9-11), §5; docs/providers/challenge.md.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from nodeattest_providers.challenge import protocol
from nodeattest_providers.challenge_response import (
    LABEL_NONCE,
    challenge_context,
    check_first_request,
    derive,
    master_keys,
)
from nodeattest_providers.checks import Checks, Rules, check_block
from nodeattest_providers.config_fields import Section
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName
from nodeattest_providers.node_interface import Evidence, FirstRequestRef, JsonValue, SecretBytes
from nodeattest_providers.verifier_interface import AttestedNode, BootState, CheckedSigner, Facts, NodeRequest


@dataclass(frozen=True, slots=True)
class ChallengePolicy:
    """What a cluster's operator decided."""

    create_secrets: bool = False
    """Whether the controller creates the secret of each Machine; else operators write ``<machine>-attestation``."""


def parse_policy(settings: Mapping[str, JsonValue]) -> ChallengePolicy:
    return ChallengePolicy(Section(settings, "spec.challenge", ("createSecrets",)).boolean("createSecrets"))


_SECTION: Final = "wire format, challenge/v1"
_GIVE: Final = "give the Machine its own attestation secret, of 32 random bytes, in its bootstrap data"
_RESET: Final = "an operator gives the Machine a new secret and resets its record (nodeattest machines reset)"


class ChallengeSigner(CheckedSigner):
    """Verifies answers under a per-Machine secret."""

    provider = protocol.PROVIDER
    versions: tuple[int, ...] = (protocol.VERSION,)
    read_section = staticmethod(parse_policy)
    two_step = True
    reads_infrastructure = False
    reads_secret = True

    def first_request(self, request: NodeRequest) -> FirstRequestRef | None:
        return _evidence(Checks(), request.evidence).first

    def check_recorded(self, facts: Facts, boot: BootState | None) -> tuple[str, ...]:
        del facts, boot
        return ()

    def provable_names(self, sections: Mapping[ProviderName, Mapping[str, JsonValue]]) -> Mapping[ProviderID, NodeName]:
        del sections
        return {}

    async def _verify(self, checks: Checks, request: NodeRequest, facts: Facts) -> AttestedNode:
        """Verify one request.

        1. Evidence of this provider, a known version, a closed schema.
        2. The Machine has a secret that is long enough, the one that the ledger pins if it pins any.
        3. The secret has joined no other key yet; renewals and the same key again are free.
        4. A first request gets the challenge; a second one must answer it.
        """
        evidence = _evidence(checks, request.evidence)  # 1
        secret = _secret(checks, facts)  # 2
        _check_unused(checks, request, facts)  # 3
        if evidence.first is None:  # 4
            nonce = derive(LABEL_NONCE, master_keys(facts)[0], challenge_context(facts, request))
            challenge = protocol.Challenge(uid=request.uid, spki_sha256=request.csr.spki_sha256, nonce=nonce)
            raise ChallengeRequired(challenge.to_text(), checks=checks.record())
        _check_answer(checks, request, evidence.first, evidence.mac, facts, secret=secret)
        return AttestedNode(
            provider=protocol.PROVIDER,
            provider_id=request.csr.provider_id,
            fingerprints={"secret": protocol.fingerprint(secret)},
            first_request=evidence.first,
            checks=checks.record(),
        )


def _evidence(checks: Checks, evidence: Evidence) -> protocol.ChallengeEvidence:
    check_block(checks, evidence, protocol.PROVIDER, (protocol.VERSION,))
    return _rules(checks).parsed("evidence schema", lambda: protocol.parse_evidence(evidence.data))


def _secret(checks: Checks, facts: Facts) -> SecretBytes:
    parse_policy(facts.settings)
    rules, known = _rules(checks), facts.machine.attestation_secret
    if isinstance(known, Denied):
        checks.outcome("the Machine's secret", _SECTION, known)
    secret = protocol.normalised(known.reveal() if isinstance(known, SecretBytes) else b"")
    size = len(secret.reveal())
    least, most = protocol.MIN_SECRET, protocol.MAX_SECRET
    expected, got = f"a secret of {least} to {most} bytes", f"{size} bytes" if size else "none"
    rules.require(least <= size <= most, "the Machine's secret", expected, got, remedy=_GIVE)
    name = protocol.fingerprint(secret)
    rules.equal("pinned secret", facts.ledger.fingerprints.get("secret", name), name)
    return secret


def _check_unused(checks: Checks, request: NodeRequest, facts: Facts) -> None:
    bound, spki = facts.ledger.bound_spkis, request.csr.spki_sha256
    is_free = request.is_renewal or not bound or spki in bound or facts.ledger.answered
    expected, got = "a first join, or the key that joined", f"another key than the {len(bound)} that joined"
    _rules(checks).require(is_free, "secret used once", expected, got, reason=Reason.SECRET_USED)


def _check_answer(
    checks: Checks, request: NodeRequest, ref: FirstRequestRef, mac: bytes, facts: Facts, *, secret: SecretBytes
) -> None:
    """Check the answer to the challenge.

    1. It answers a live first request of the same requester, signer and PKCS#10 bytes, in time.
    2. That request asked for a challenge of this provider.
    3. The MAC is right under one of the master keys and one of the cluster's CAs.
    """
    rules = Rules(checks, _SECTION, Reason.FIRST_REQUEST_MISMATCH, "file a new first request and answer its challenge")
    # 1
    first = check_first_request(checks, request, facts, ref)
    # 2
    is_first = _evidence(checks, first.evidence).first is None
    rules.require(is_first, "first request's phase", "phase 1", "phase 2")
    # 3
    matches = [hmac.compare_digest(mac, right) for right in _answers(request, first, secret, facts)]
    rules.require(
        any(matches),
        "challenge answered",
        "the MAC under the Machine's secret over the challenge derived again",
        "another value",
        reason=Reason.PROOF_INVALID,
        remedy="file a new first request; if this comes back, the node has another secret or trusts another cluster CA",
    )


def _answers(request: NodeRequest, first: NodeRequest, secret: SecretBytes, facts: Facts) -> Iterator[bytes]:
    ctx = challenge_context(facts, first)
    for key in master_keys(facts):
        nonce = derive(LABEL_NONCE, key, ctx)
        for pin in sorted(facts.cluster.pins):
            yield protocol.proof(secret, nonce, first.uid, request.binding(pin).digest)


def _rules(checks: Checks) -> Rules:
    return Rules(checks, _SECTION, Reason.SECRET_MISSING, _RESET)
