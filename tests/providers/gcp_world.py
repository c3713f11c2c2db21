"""A Google Cloud on loopback with one Shielded VM, and the requests that its node files.

The TPM is ``tpm_world``'s in software, so that each rule can be broken alone; the cloud, its tokens and its answers are
real ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tpm_world import VERSION, EkKey, SoftTpm, answer_to, facts_of, request_of
from worlds import Calls, attested, challenge_by

from clouds.gcp import CloudInstance, CloudSwitches, GoogleCloud
from nodeattest_providers.errors import ChallengeRequired
from nodeattest_providers.gcp.provider_id import PROVIDER
from nodeattest_providers.gcp.verifier import GcpSigner
from nodeattest_providers.identifiers import NodeName, ProviderID, Purpose, signer_for
from nodeattest_providers.node_interface import Evidence, JsonValue, NodeCsr
from nodeattest_providers.platform import Platform
from nodeattest_providers.tpm.protocol import Challenge, FirstEvidence, SecondEvidence
from nodeattest_providers.verifier_interface import AttestedNode, Facts, LedgerFacts, MachineFacts, NodeRequest

PROJECT = "fleet-project"
ZONE = "europe-west4-a"
NAME = "node-7"
ACCOUNT = f"controller@{PROJECT}.iam.gserviceaccount.com"
SIGNER = signer_for(PROVIDER, Purpose.CLIENT)
MACHINE_ID = ProviderID(f"gce://{PROJECT}/{ZONE}/{NAME}")
NUMBER = "4520031799277582759"
CSR = NodeCsr(der=b"PKCS#10 of node-7", node_name=NodeName(NAME), provider_id=MACHINE_ID, spki=b"SPKI of node-7")


def rsa_tpm(ek: EkKey | None = None) -> SoftTpm:
    """A TPM whose endorsement key is of the template that every vTPM has."""
    return SoftTpm(kind="rsa2048", ek=ek or rsa.generate_private_key(65537, 2048))


def pem_of(key: EkKey) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def instance_of(tpm: SoftTpm, **changes: object) -> CloudInstance:
    name = "encryptionKey" if tpm.kind == "rsa2048" else "eccP256EncryptionKey"
    made = CloudInstance(project=PROJECT, zone=ZONE, name=NAME, number=NUMBER, keys={name: pem_of(tpm.ek)})
    return replace(made, **changes)


def node_facts(settings: Mapping[str, JsonValue] | None = None, **changes: object) -> Facts:
    machine = MachineFacts(uid="machine-uid", provider_id=MACHINE_ID)
    return facts_of({"projects": [PROJECT]} if settings is None else settings, **{"machine": machine, **changes})


def node_request(answer: FirstEvidence | SecondEvidence, **changes: object) -> NodeRequest:
    made = request_of(answer, signer_name=SIGNER, csr=CSR)
    return replace(made, **{"evidence": Evidence(PROVIDER, VERSION, answer.to_json()), **changes})


def platform_of(cloud: GoogleCloud, calls: Calls | None = None, **settings: JsonValue) -> Platform:
    key = cloud.account(ACCOUNT, project=PROJECT, reads=(PROJECT,))
    found: dict[str, JsonValue] = {
        "endpoints": {"compute": cloud.endpoint},
        "caBundle": str(cloud.ca_file),
        "credentialsFile": str(key),
    }
    return Platform(settings={**found, **settings}, observe=calls or Calls())


def verified(platform: Platform, request: NodeRequest, facts: Facts) -> AttestedNode:
    return attested(GcpSigner(platform=platform), request, facts)


def challenge_from(platform: Platform, request: NodeRequest, facts: Facts) -> ChallengeRequired:
    return challenge_by(lambda: verified(platform, request, facts))


@dataclass(frozen=True)
class Joining:
    """A whole sound exchange."""

    platform: Platform
    tpm: SoftTpm
    first: NodeRequest
    facts: Facts
    answer: SecondEvidence

    def verify(self, **changes: object) -> AttestedNode:
        """Verify the answer; ``changes`` name fields of the facts."""
        return verified(self.platform, node_request(self.answer), replace(self.facts, **changes))


def joining(platform: Platform, tpm: SoftTpm, settings: Mapping[str, JsonValue] | None = None) -> Joining:
    facts = node_facts(settings)
    first = node_request(tpm.first())
    challenge = Challenge.parse(challenge_from(platform, first, facts).challenge)
    return Joining(platform, tpm, first, replace(facts, first_request=first), answer_to(first, facts, challenge, tpm))


def pinned(**fingerprints: str) -> LedgerFacts:
    return LedgerFacts(fingerprints=fingerprints)


@pytest.fixture(scope="session")
def running_google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoogleCloud]:
    with GoogleCloud(tmp_path_factory.mktemp("google")) as cloud:
        yield cloud


@pytest.fixture(scope="session")
def vtpm() -> SoftTpm:
    return rsa_tpm()


@pytest.fixture
def google(running_google: GoogleCloud, vtpm: SoftTpm) -> GoogleCloud:
    """A Google Cloud with the Machine's instance, whose vTPM is ``vtpm``."""
    running_google.switches = CloudSwitches()
    running_google.instances = [instance_of(vtpm)]
    running_google.calls.clear()
    return running_google
