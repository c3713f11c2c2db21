"""One EC2 instance and its honest evidence, to be spoilt one part at a time."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

from aws_cloud import ACCOUNT, REGION, ROLE
from aws_signing import RoleSession, sign
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from worlds import BOOTSTRAP_GROUPS, FACTS, KEY, PIN, T1

from clouds.cms import Document, aws_form
from nodeattest_providers import envelope
from nodeattest_providers.aws.protocol import AwsEvidence, sts_request
from nodeattest_providers.identifiers import ClusterPin, ProviderID, ProviderName, Purpose, signer_for
from nodeattest_providers.node_interface import Evidence, JsonValue
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.verifier_interface import Facts, NodeRequest

PROVIDER = ProviderName("aws")
ZONE = f"{REGION}a"
INSTANCE = "i-0123456789abcdef0"
POLICY: dict[str, JsonValue] = {"accounts": [ACCOUNT], "regions": [REGION, "eu-west-1"], "roles": [ROLE]}


@cache
def region_key(bits: int = 2048, _: str = REGION) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, bits)


@cache
def region_certificate(region: str = REGION, bits: int = 2048) -> x509.Certificate:
    """As AWS publishes one for each region: self-signed, for a hundred years."""
    key = region_key(bits, region)
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, f"Sandbox Web Services {region}")])
    begin = T1 - timedelta(days=3650)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 0x91, begin, begin + timedelta(days=36500))
    return builder.sign(key, hashes.SHA256())


def trust_bundle(folder: Path, *regions: str) -> Path:
    """Write a bundle as a directory; without regions, of the usual ones."""
    folder.mkdir(exist_ok=True)
    for region in regions or (REGION, "eu-west-1"):
        (folder / f"{region}.pem").write_bytes(region_certificate(region).public_bytes(Encoding.PEM))
    return folder


@cache
def _csr(provider_id: str, purpose: Purpose) -> bytes:
    return build_csr(KEY, "n-0", provider_id, dns_names=("n-0",) if purpose is Purpose.SERVING else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """What an instance has: its own document, its role's credentials, its key."""

    instance_id: str = INSTANCE
    zone: str = ZONE
    region: str = REGION
    account: str = ACCOUNT
    session: RoleSession = field(default_factory=RoleSession)
    signed_at: datetime = T1 - timedelta(seconds=2)
    pending: datetime = T1 - timedelta(hours=1)

    @property
    def provider_id(self) -> str:
        return f"aws:///{self.zone}/{self.instance_id}"

    def document(self, **changes: object) -> bytes:
        values: dict[str, object] = {
            "accountId": self.account,
            "architecture": "x86_64",
            "availabilityZone": self.zone,
            "billingProducts": None,
            "imageId": "ami-12c6146b",
            "instanceId": self.instance_id,
            "instanceType": "m7g.large",
            "pendingTime": self.pending.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "privateIp": "10.0.0.1",
            "region": self.region,
            "version": "2017-09-30",
        }
        return json.dumps({**values, **changes}, indent=2).encode()

    def pkcs7(self, document: bytes | None = None, region: str | None = None) -> Document:
        region = region or self.region
        content = self.document() if document is None else document
        return aws_form(content, region_key(2048, region), region_certificate(region), self.pending)

    def csr(self, purpose: Purpose = Purpose.CLIENT) -> bytes:
        return _csr(self.provider_id, purpose)

    def evidence(self, purpose: Purpose = Purpose.CLIENT, pin: ClusterPin = PIN) -> AwsEvidence:
        """Honest evidence for a CSR of this node."""
        unsigned = filed_with(self, {}, purpose)
        return AwsEvidence(
            document=self.document(),
            pkcs7=self.pkcs7().der(),
            region=self.region,
            sts=sign(sts_request(self.region, unsigned.binding(pin)), self.session, self.signed_at),
        )


def filed_with(node: Node, data: dict[str, JsonValue], purpose: Purpose = Purpose.CLIENT) -> NodeRequest:
    """A request of the node as the API server stored it."""
    request = envelope.encode(node.csr(purpose), Evidence(PROVIDER, 1, data))
    parsed, evidence = envelope.decode(request, purpose=purpose)
    return NodeRequest(
        name="csr-1",
        uid="u-1",
        created=T1,
        signer_name=signer_for(PROVIDER, purpose),
        purpose=purpose,
        username="system:bootstrap:abcdef",
        groups=BOOTSTRAP_GROUPS,
        expiration_seconds=None,
        request=request,
        csr=parsed,
        evidence=evidence,
    )


def filed_aws(node: Node, evidence: AwsEvidence | None = None, purpose: Purpose = Purpose.CLIENT) -> NodeRequest:
    """A request of the node with evidence, its own unless another's is given."""
    return filed_with(node, (evidence or node.evidence(purpose)).to_json(), purpose)


def facts_of(node: Node, policy: dict[str, JsonValue] | None = None) -> Facts:
    """What the controller knows of the node's machine."""
    machine = dataclasses.replace(FACTS.machine, provider_id=ProviderID(node.provider_id))
    return dataclasses.replace(FACTS, machine=machine, settings=POLICY if policy is None else policy)


def with_headers(evidence: AwsEvidence, **changes: str) -> AwsEvidence:
    """Spoil the header set."""
    return dataclasses.replace(evidence, sts=dataclasses.replace(evidence.sts, **changes))
