"""One cluster, one machine, and requests to it: what the provider tests share."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from nodeattest_providers import envelope
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason
from nodeattest_providers.identifiers import ClusterPin, ProviderID, ProviderName, Purpose, signer_for
from nodeattest_providers.node_interface import Evidence, PublishedChallenge, SecretBytes
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.platform import CallOutcome
from nodeattest_providers.verifier_interface import (
    AttestedNode,
    ClusterAPISigner,
    ClusterFacts,
    Facts,
    MachineFacts,
    NodeRequest,
)

T1 = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
PIN = ClusterPin("sha256:" + "a1" * 32)
OLD_PIN = ClusterPin("sha256:" + "b2" * 32)
SECRET = bytes(range(32))
KEY = ec.generate_private_key(ec.SECP256R1())
PROVIDER_ID = "metal:///rack-1/7"
BOOTSTRAP_GROUPS = frozenset({"system:bootstrappers", "system:authenticated"})


def denied_for(reason: Reason) -> AbstractContextManager[pytest.ExceptionInfo[Denied]]:
    """Expect a refusal for this reason."""
    return pytest.raises(Denied, match=rf"^{reason}: ")


def attested(signer: ClusterAPISigner, request: NodeRequest, facts: Facts) -> AttestedNode:
    """Verify one request by a signer that has just started; raises what it does."""

    async def verify() -> AttestedNode:
        try:
            return await signer.verify_client_attestation_data(request, facts)
        finally:
            await signer.aclose()

    return asyncio.run(verify())


def challenge_by(verify: Callable[[], AttestedNode]) -> ChallengeRequired:
    """Verify a first request that is expected to be sound."""
    with pytest.raises(ChallengeRequired) as challenge:
        verify()
    return challenge.value


class Calls:
    """Counts calls as the controller's metrics would."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, CallOutcome]] = []

    def __call__(self, service: str, outcome: CallOutcome, seconds: float) -> None:
        assert seconds >= 0
        self.seen.append((service, outcome))


def csr_of(key: ec.EllipticCurvePrivateKey = KEY, *, serving: bool = False) -> bytes:
    return build_csr(key, "n-0", PROVIDER_ID, dns_names=("n-0",) if serving else ())


CSR = csr_of()
SERVING_CSR = csr_of(serving=True)


def filed(evidence: Evidence, *, csr: bytes = CSR, purpose: Purpose = Purpose.CLIENT, uid: str = "u-1") -> NodeRequest:
    """A request as the API server stored it."""
    request = envelope.encode(csr, evidence)
    parsed, decoded = envelope.decode(request, purpose=purpose)
    return NodeRequest(
        name=f"csr-{uid}",
        uid=uid,
        created=T1,
        signer_name=signer_for(ProviderName(evidence.provider.replace("insecure", "tpm")), purpose),
        purpose=purpose,
        username="system:bootstrap:abcdef",
        groups=BOOTSTRAP_GROUPS,
        expiration_seconds=None,
        request=request,
        csr=parsed,
        evidence=decoded,
    )


def answering(first: NodeRequest, evidence: Evidence, *, after: timedelta = timedelta(seconds=5)) -> NodeRequest:
    """The second request, as ``filed`` by the same requester."""
    second = filed(evidence, csr=first.csr.der, purpose=first.purpose, uid="u-2")
    return dataclasses.replace(second, created=first.created + after, username=first.username, groups=first.groups)


def published(first: NodeRequest, text: str) -> PublishedChallenge:
    return PublishedChallenge(name=first.name, uid=first.uid, csr_sha256=first.csr.sha256, text=text)


FACTS = Facts(
    cluster=ClusterFacts(uid="cluster-uid", pins=frozenset({PIN, OLD_PIN})),
    machine=MachineFacts(
        uid="machine-uid",
        provider_id=ProviderID(PROVIDER_ID),
        attestation_secret=SecretBytes(SECRET),
    ),
    challenge_keys=(SecretBytes(b"k" * 32), SecretBytes(b"p" * 32)),
    verified_at=T1,
)
