"""An EC2 instance and its honest evidence, to be spoilt one part at a time, and a signer beside an AWS on loopback."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

import pytest
from aws_signing import RoleSession, sign
from worlds import FACTS, KEY, PIN, T1, attested, filed

from clouds.authority import Authority, rsa_key
from clouds.aws import ACCOUNT, REGION, Front, Principal, SandboxAws
from clouds.aws_metadata import Instance, document
from clouds.cms import Document, aws_form
from nodeattest_providers.aws.protocol import AwsEvidence, sts_request
from nodeattest_providers.aws.verifier import AwsSigner
from nodeattest_providers.identifiers import ClusterPin, ProviderID, ProviderName, Purpose
from nodeattest_providers.node_interface import Evidence, JsonValue
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.platform import ObserveCall, Platform
from nodeattest_providers.verifier_interface import AttestedNode, Facts, LedgerFacts, NodeRequest

PROVIDER = ProviderName("aws")
ROLE = "nodes.capa.example"
INSTANCE = "i-0123456789abcdef0"
POLICY: dict[str, JsonValue] = {"accounts": [ACCOUNT], "regions": [REGION, "eu-west-1"], "roles": [ROLE]}


@cache
def region_key(region: str = REGION, bits: int = 2048) -> Authority:
    """As AWS publishes a certificate for each region: self-signed."""
    return Authority.root(f"Sandbox Web Services {region}", key=rsa_key(bits))


def trust_bundle(folder: Path, *regions: str) -> Path:
    """Write a bundle as a directory; without regions, of the usual ones."""
    folder.mkdir(exist_ok=True)
    for region in regions or (REGION, "eu-west-1"):
        (folder / f"{region}.pem").write_text(region_key(region).pem)
    return folder


@cache
def _csr(provider_id: str, purpose: Purpose) -> bytes:
    return build_csr(KEY, "n-0", provider_id, dns_names=("n-0",) if purpose is Purpose.SERVING else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Node(Instance):
    """What an instance has: its own document, its role's credentials, its key."""

    instance_id: str = INSTANCE
    zone: str = f"{REGION}a"
    region: str = REGION
    account: str = ACCOUNT
    launched: datetime = T1 - timedelta(hours=1)
    session: RoleSession = field(default_factory=RoleSession)
    signed_at: datetime = T1 - timedelta(seconds=2)

    def document(self, **changes: object) -> bytes:
        return document(self, **changes)

    def pkcs7(self, content: bytes | None = None, region: str | None = None) -> Document:
        signing = region_key(region or self.region)
        content = self.document() if content is None else content
        return aws_form(content, signing, self.launched)

    def evidence(self, purpose: Purpose = Purpose.CLIENT, pin: ClusterPin = PIN) -> AwsEvidence:
        """Honest evidence for a CSR of this node."""
        unsigned = filed_with(self, {}, purpose)
        return AwsEvidence(
            document=self.document(),
            pkcs7=self.pkcs7().der(),
            region=self.region,
            sts=sign(sts_request(self.region, unsigned.binding(pin)), self.session, self.signed_at),
        )

    def principal(self, *, role: str = ROLE, **changes: str) -> Principal:
        """Whom STS takes the node for."""
        arn = f"arn:aws:sts::{self.account}:assumed-role/{role}/{self.instance_id}"
        known = {"Account": self.account, "Arn": arn, "UserId": f"AROAEXAMPLEEXAMPLE000:{self.instance_id}"}
        return Principal(RoleSession(), identity={**known, **changes})


def filed_with(node: Node, data: dict[str, JsonValue], purpose: Purpose = Purpose.CLIENT) -> NodeRequest:
    return filed(Evidence(PROVIDER, 1, data), csr=_csr(node.provider_id, purpose), purpose=purpose)


def filed_aws(node: Node, evidence: AwsEvidence | None = None, purpose: Purpose = Purpose.CLIENT) -> NodeRequest:
    """A request of the node with evidence, its own unless another's is given."""
    return filed_with(node, (evidence or node.evidence(purpose)).to_json(), purpose)


def facts_of(node: Node, policy: dict[str, JsonValue] | None = None) -> Facts:
    """What the controller knows of the node's machine."""
    machine = dataclasses.replace(FACTS.machine, provider_id=ProviderID(node.provider_id))
    return dataclasses.replace(FACTS, machine=machine, settings=POLICY if policy is None else policy)


def with_headers(evidence: AwsEvidence, **changes: str) -> AwsEvidence:
    return dataclasses.replace(evidence, sts=dataclasses.replace(evidence.sts, **changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """An AWS with one instance, and the bundle that the controller trusts."""

    cloud: SandboxAws
    bundle: Path
    node: Node
    observe: ObserveCall = lambda service, outcome, seconds: None  # noqa: ARG005

    @property
    def front(self) -> Front:
        return self.cloud.front

    @property
    def settings(self) -> dict[str, JsonValue]:
        endpoints: JsonValue = {"sts": self.cloud.url, "ec2": self.cloud.url}
        return {"endpoints": endpoints, "caBundle": str(self.cloud.ca_file), "trustBundle": str(self.bundle)}

    def knows(self, principal: Principal) -> None:
        """Let STS tell this of the node's credentials."""
        self.front.principals[principal.session.access_key] = principal

    def start(self, count: int = 1) -> list[str]:
        return [each["InstanceId"] for each in self.cloud.run(count)]

    def attest(
        self, request: NodeRequest, node: Node | None = None, ledger: LedgerFacts | None = None, **policy: JsonValue
    ) -> AttestedNode:
        """Verify one request; raises what the verifier does."""
        facts = facts_of(node or self.node, {**POLICY, **policy})
        signer = AwsSigner(platform=Platform(settings=self.settings, observe=self.observe))
        return attested(signer, request, dataclasses.replace(facts, ledger=ledger or facts.ledger))


@pytest.fixture(scope="session")
def played(aws: SandboxAws, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    [made] = aws.run(tags={"team": "nodes"})
    bundle = trust_bundle(tmp_path_factory.mktemp("aws-stage") / "trust")
    with pytest.MonkeyPatch.context() as patch:
        reader = aws.session("controller", "replica-1", may=["DescribeInstances", "GetInstanceTpmEkPub", "AssumeRole"])
        for name, value in {**aws.settings_only, **reader.environment}.items():
            patch.setenv(name, value)
        yield Stage(cloud=aws, bundle=bundle, node=Node(instance_id=made["InstanceId"]))


@pytest.fixture
def stage(played: Stage) -> Iterator[Stage]:
    front = played.front
    front.asked.clear()
    front.hosts.clear()
    front.now = T1
    played.knows(played.node.principal())
    yield played
    front.now, front.spoil = None, lambda _: None
