"""An attack for each check of ``aws``, ``azure``, ``gcp`` and ``oci``, each at a cloud on loopback."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import oci_world
from aws_cloud import ACCOUNT, ROLE, Cloud, Principal, node_role
from aws_world import INSTANCE, POLICY, Node, filed_aws, trust_bundle
from aws_world import facts_of as aws_facts
from azure_world import document_for, facts_for, request_of, with_document
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from gcp_world import NUMBER, PROJECT, answer_of, instance_of, node_facts, node_request, platform_of
from tpm_world import SoftTpm
from worlds import PIN

from clouds import cms
from clouds.azure.authority import Issuer, signer_of
from clouds.azure.cloud import SandboxAzure
from clouds.azure.metadata import Signing
from clouds.azure.state import SandboxMachine
from clouds.gcp.cloud import GoogleCloud
from nodeattest_providers.aws.verifier import AwsSigner
from nodeattest_providers.azure.attested_document import nonce_for
from nodeattest_providers.azure.verifier import AzureSigner
from nodeattest_providers.errors import ChallengeRequired
from nodeattest_providers.gcp.verifier import GcpSigner
from nodeattest_providers.identifiers import ClusterPin
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.oci.verifier import OciSigner
from nodeattest_providers.platform import Platform
from nodeattest_providers.tpm.protocol import Challenge
from nodeattest_providers.verifier_interface import AttestedNode, LedgerFacts, NodeRequest

OTHERS_ACCOUNT: Final = "999999999999"

# Amazon


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsScene:
    """A region with one instance, whose role signs."""

    cloud: Cloud
    instance: str
    folder: Path
    signers: dict[tuple[str, ...], AwsSigner] = field(default_factory=dict[tuple[str, ...], AwsSigner])
    """By the regions of their trust bundles: a client of AWS takes longer to make than a verification."""

    def signer(self, *regions: str) -> AwsSigner:
        """Return the verifier whose bundle has these regions."""
        if regions not in self.signers:
            bundle = trust_bundle(self.folder / ("-".join(regions) or "usual"), *regions)
            platform = Platform(settings={**self.cloud.settings, "trustBundle": str(bundle)})
            self.signers[regions] = AwsSigner(platform=platform)
        return self.signers[regions]

    async def aclose(self) -> None:
        """Close the verifiers."""
        for signer in self.signers.values():
            await signer.aclose()

    @property
    def node(self) -> Node:
        return Node(instance_id=self.instance)

    async def verified(
        self,
        node: Node | None = None,
        *,
        principal: Principal | None = None,
        policy: dict[str, JsonValue] | None = None,
        regions: tuple[str, ...] = (),
        ledger: LedgerFacts | None = None,
        **evidence: Any,
    ) -> AttestedNode:
        """Verify the request of a node; what is given is spoilt."""
        self.cloud.reset()
        asking = node or self.node
        self.cloud.principal = principal or node_role(asking.instance_id)
        facts = aws_facts(asking, {**POLICY, **(policy or {})})
        request = filed_aws(asking, replace(asking.evidence(), **evidence))
        return await self.signer(*regions).verify_client_attestation_data(
            request, replace(facts, ledger=ledger) if ledger is not None else facts
        )


def saying(**content: str) -> Callable[[AwsScene], Awaitable[object]]:
    """Show a document that AWS signed, with another content."""

    async def attack(scene: AwsScene) -> AttestedNode:
        document = scene.node.document(**content)
        return await scene.verified(document=document, pkcs7=scene.node.pkcs7(document).der())

    return attack


def by_principal(**changes: str) -> Callable[[AwsScene], Awaitable[object]]:
    """Sign with credentials of somebody else."""

    async def attack(scene: AwsScene) -> AttestedNode:
        own = node_role(scene.instance)
        made = {name: value.format(id=scene.instance) for name, value in changes.items()}
        return await scene.verified(principal=replace(own, **made))  # pyright: ignore[reportArgumentType] - real fields

    return attack


def under(**policy: JsonValue) -> Callable[[AwsScene], Awaitable[object]]:
    return lambda s: s.verified(policy=policy)


async def of_another_region(scene: AwsScene) -> AttestedNode:
    sent = scene.node.evidence().sts
    return await scene.verified(sts=replace(sent, authorization=sent.authorization.replace("us-east-1", "us-west-2")))


async def of_another_owner(scene: AwsScene) -> AttestedNode:
    """The account of the thief's is listed, too; the instance is not of it."""
    node = replace(scene.node, account=OTHERS_ACCOUNT)
    principal = node_role(node.instance_id, account=OTHERS_ACCOUNT)
    return await scene.verified(node, principal=principal, policy={"accounts": [ACCOUNT, OTHERS_ACCOUNT]})


async def stopped(scene: AwsScene) -> AttestedNode:
    (made,) = scene.cloud.start()
    scene.cloud.ec2().stop_instances(InstanceIds=[made])
    return await scene.verified(Node(instance_id=made))


AWS: Final[Mapping[str, Callable[[AwsScene], Awaitable[object]]]] = {
    "region allowed": under(regions=["eu-west-1"]),
    "region of the evidence": lambda s: s.verified(region="eu-west-1"),
    "region of the signature": of_another_region,
    "signed in time": lambda s: s.verified(replace(s.node, signed_at=s.cloud.now - timedelta(minutes=16))),
    "account allowed": under(accounts=[OTHERS_ACCOUNT]),
    "instance ID of the document": saying(instanceId=INSTANCE),
    "availability zone of the document": saying(availabilityZone="us-east-1b"),
    "region of the document": saying(region="eu-west-1"),
    "pendingTime": saying(pendingTime="2026-03-01T12:05:01Z"),
    "region's certificates": lambda s: s.verified(regions=("eu-west-1",)),
    "content of the PKCS#7": lambda s: s.verified(document=s.node.document() + b"\n"),
    "signature of the document": lambda s: s.verified(pkcs7=s.node.pkcs7(region="eu-west-1").der()),
    "pinned instance": lambda s: s.verified(ledger=LedgerFacts(fingerprints={"instance": f"{OTHERS_ACCOUNT}/i-0"})),
    "signed over the binding": lambda s: s.verified(sts=replace(s.node, zone="us-east-1b").evidence().sts),
    "signed by a role": by_principal(arn=f"arn:aws:iam::{ACCOUNT}:user/{{id}}"),
    "account of the role": by_principal(arn=f"arn:aws:sts::{OTHERS_ACCOUNT}:assumed-role/{ROLE}/{{id}}"),
    "role allowed": by_principal(arn=f"arn:aws:sts::{ACCOUNT}:assumed-role/admin/{{id}}"),
    "session of the instance": by_principal(arn=f"arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE}/{INSTANCE}"),
    "instance exists": lambda s: s.verified(Node(instance_id=INSTANCE)),
    "owner of the instance": of_another_owner,
    "zone of the instance": lambda s: s.verified(replace(s.node, zone="us-east-1b")),
    "state of the instance": stopped,
    "tags of the instance": under(tags={"team": "others"}),
    "network of the instance": under(vpcs=["vpc-0123456789abcdef0"]),
}


# Azure


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureScene:
    """A subscription with one machine made for this attack."""

    cloud: SandboxAzure
    machine: SandboxMachine

    async def verified(
        self,
        document: Callable[[NodeRequest], bytes] | None = None,
        *,
        ledger: LedgerFacts | None = None,
        **policy: JsonValue,
    ) -> AttestedNode:
        """Verify the machine's request with a document, its own unless another is given."""
        made = document or self.signed()
        request = request_of(self.machine)
        asking = with_document(request, made(request))
        facts = facts_for(self.machine, **policy)
        signer = AzureSigner(platform=Platform(settings=cast("dict[str, JsonValue]", self.cloud.configuration)))
        try:
            return await signer.verify_client_attestation_data(
                asking, replace(facts, ledger=ledger) if ledger is not None else facts
            )
        finally:
            await signer.aclose()

    def signed(self, **changes: object) -> Callable[[NodeRequest], bytes]:
        """Let Azure sign another content."""
        return lambda request: document_for(request, self.machine, self.cloud.signing, changes=changes)

    def by(self, signing: Signing) -> Callable[[NodeRequest], bytes]:
        """Let somebody else sign."""
        return lambda request: document_for(request, self.machine, signing)


async def without_certificate(scene: AzureScene) -> AttestedNode:
    good = cms.azure_form(b"{}", scene.cloud.signing.key, scene.cloud.signing.certificate)
    return await scene.verified(lambda _: replace(good, certificates=()).der())


async def nonce_written_in(scene: AzureScene) -> AttestedNode:
    """Take a document of another request, and write this one's nonce into it."""

    def document(request: NodeRequest) -> bytes:
        (pin, *_) = sorted(facts_for(scene.machine).cluster.pins)
        old = "0" * 32
        made = document_for(request, scene.machine, scene.cloud.signing, nonce=old)
        return made.replace(old.encode(), nonce_for(request.binding(pin).digest).encode())

    return await scene.verified(document)


async def of_other_names(scene: AzureScene) -> AttestedNode:
    names = [x509.DNSName("contoso.com")]
    return await scene.verified(scene.by(Signing(*scene.cloud.issuing.issue("contoso.com", names))))


async def self_made(scene: AzureScene) -> AttestedNode:
    issuer = Issuer.root("Sandbox Global Root").issuing("Sandbox Azure TLS Issuing CA 01")
    return await scene.verified(scene.by(Signing(*signer_of(issuer))))


async def another_machines(scene: AzureScene) -> AttestedNode:
    other = scene.cloud.launch(f"{scene.machine.name}-other")
    return await scene.verified(lambda request: document_for(request, other, scene.cloud.signing))


async def gone(scene: AzureScene) -> AttestedNode:
    scene.machine.exists = False
    return await scene.verified()


async def on_its_way_out(scene: AzureScene) -> AttestedNode:
    scene.machine.provisioning_state = "Deleting"
    return await scene.verified()


AZURE: Final[Mapping[str, Callable[[AzureScene], Awaitable[object]]]] = {
    "signer's certificate": without_certificate,
    "signature": nonce_written_in,
    "signer's names": of_other_names,
    "certificate chain": self_made,
    "nonce": lambda s: s.verified(s.signed(nonce="0" * 32)),
    "time of the document": lambda s: s.verified(
        lambda request: document_for(request, s.machine, s.cloud.signing, created=timedelta(seconds=-301))
    ),
    "subscription and resource group": lambda s: s.verified(resourceGroups=["other"]),
    "subscription of the document": lambda s: s.verified(
        s.signed(subscriptionId="8d10da13-8125-4ba9-a717-bf7490507b3d")
    ),
    "machine": gone,
    "vmId": another_machines,
    "pinned vmId": lambda s: s.verified(ledger=LedgerFacts(fingerprints={"vm": "0" * 36})),
    "provisioning state": on_its_way_out,
    "scale set": lambda s: s.verified(scaleSets=["pool"]),
    "tags": lambda s: s.verified(tags={"owner": "us"}),
}


# Google


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpScene:
    """A project with one Shielded VM."""

    cloud: GoogleCloud
    tpm: SoftTpm

    async def verified(
        self, tpm: SoftTpm | None = None, *, ledger: LedgerFacts | None = None, **settings: JsonValue
    ) -> AttestedNode:
        """Go through both rounds with a TPM, the instance's own unless another is given."""
        asking = tpm or self.tpm
        facts = node_facts({"projects": [PROJECT], **settings}, **({"ledger": ledger} if ledger is not None else {}))
        first = node_request(asking.first())
        signer = GcpSigner(platform=platform_of(self.cloud))
        try:
            try:
                await signer.verify_client_attestation_data(first, facts)
            except ChallengeRequired as required:
                challenge = Challenge.parse(required.challenge)
            else:
                raise AssertionError("a first request never attests a node")
            answer = node_request(answer_of(asking, first, facts, challenge))
            return await signer.verify_client_attestation_data(answer, replace(facts, first_request=first))
        finally:
            await signer.aclose()

    async def of_instance(self, **changes: object) -> AttestedNode:
        """Join as an instance that is otherwise."""
        self.put(**changes)
        return await self.verified()

    def put(self, **changes: object) -> None:
        """Have the one instance be as given."""
        self.cloud.instances = [instance_of(self.tpm, **changes)]


GCP: Final[Mapping[str, Callable[[GcpScene], Awaitable[object]]]] = {
    "project": lambda s: s.verified(projects=["other-project"]),
    "zone": lambda s: s.verified(zones=["europe-west4-b"]),
    "instance": lambda s: s.of_instance(name="node-8"),
    "pinned instance": lambda s: s.verified(ledger=LedgerFacts(fingerprints={"instance": f"{NUMBER}0"})),
    "instance runs": lambda s: s.of_instance(status="TERMINATED"),
    "label": lambda s: s.verified(labels={"role": "control-plane"}),
    "service account": lambda s: s.verified(serviceAccounts=["other@fleet-project.iam.gserviceaccount.com"]),
    "vTPM": lambda s: s.of_instance(vtpm=False),
    "Secure Boot": lambda s: s.verified(requireSecureBoot=True),
    "integrity monitoring": lambda s: s.verified(requireIntegrityMonitoring=True),
    "endorsement key: the instance's": lambda s: s.verified(SoftTpm()),
}


# Oracle


@dataclass(frozen=True, slots=True, kw_only=True)
class OciScene:
    """A region's CA, and one instance."""

    cloud: oci_world.OracleCloud
    instance: oci_world.Instance

    async def verified(
        self, shown: oci_world.Instance | None = None, *, pin: ClusterPin = PIN, **policy: JsonValue
    ) -> AttestedNode:
        """Verify a request for the instance's Machine, with evidence of the instance or of another."""
        request = oci_world.request_of(self.instance)
        request = replace(request, evidence=(shown or self.instance).evidence(request, pin=pin))
        signer = OciSigner(platform=Platform(settings=self.cloud.platform))
        return await signer.verify_client_attestation_data(request, oci_world.facts_for(self.instance, **policy))


def oracles_server(scene: OciScene) -> Awaitable[AttestedNode]:
    usage = ExtendedKeyUsageOID.SERVER_AUTH
    return scene.verified(scene.cloud.launch("victim", usage=usage))


async def of_ones_own_root(scene: OciScene) -> AttestedNode:
    with TemporaryDirectory() as folder:
        return await scene.verified(oci_world.OracleCloud(Path(folder)).launch("victim"))


OCI: Final[Mapping[str, Callable[[OciScene], Awaitable[object]]]] = {
    "extended key usage": oracles_server,
    "certificate chain": of_ones_own_root,
    "signed by the instance": lambda s: s.verified(pin=ClusterPin("sha256:" + "c3" * 32)),
    "instance": lambda s: s.verified(s.cloud.launch("thief")),
    "tenancy": lambda s: s.verified(tenancies=["ocid1.tenancy.oc1..other"]),
    "compartment": lambda s: s.verified(compartments=["ocid1.compartment.oc1..other"]),
}
