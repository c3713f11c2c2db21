"""An attack for each check of ``aws``, ``azure``, ``gcp`` and ``oci``, each at a cloud on loopback."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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
from removal import Row
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
from nodeattest_providers.errors import ChallengeRequired, Reason
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
            self.signers[regions] = AwsSigner(platform=platform, random=lambda: 0.5)
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


def aws(check: str, reason: Reason, attack: str, run: Callable[[AwsScene], Awaitable[object]]) -> Row[AwsScene]:
    return Row(f"aws: {check}", attack, reason, run)


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
    return lambda scene: scene.verified(policy=policy)


async def of_another_region(scene: AwsScene) -> AttestedNode:
    sent = scene.node.evidence().sts
    return await scene.verified(sts=replace(sent, authorization=sent.authorization.replace("us-east-1", "us-west-2")))


async def spaced(scene: AwsScene) -> AttestedNode:
    return await scene.verified(document=scene.node.document() + b"\n")


async def by_another_regions_certificate(scene: AwsScene) -> AttestedNode:
    return await scene.verified(pkcs7=scene.node.pkcs7(region="eu-west-1").der())


async def for_another_request(scene: AwsScene) -> AttestedNode:
    return await scene.verified(sts=replace(scene.node, zone="us-east-1b").evidence().sts)


async def of_another_owner(scene: AwsScene) -> AttestedNode:
    """The account of the thief's is listed, too; the instance is not of it."""
    node = replace(scene.node, account=OTHERS_ACCOUNT)
    principal = node_role(node.instance_id, account=OTHERS_ACCOUNT)
    return await scene.verified(node, principal=principal, policy={"accounts": [ACCOUNT, OTHERS_ACCOUNT]})


async def stopped(scene: AwsScene) -> AttestedNode:
    (made,) = scene.cloud.start()
    scene.cloud.ec2().stop_instances(InstanceIds=[made])
    return await scene.verified(Node(instance_id=made))


ROLE_REFUSED: Final = Reason.PLATFORM_ROLE_NOT_ALLOWED

AWS_ROWS: Final[tuple[Row[AwsScene], ...]] = (
    aws(
        "region allowed",
        Reason.PLATFORM_REGION_NOT_ALLOWED,
        "an instance of a region that the policy does not list",
        under(regions=["eu-west-1"]),
    ),
    aws(
        "region of the evidence",
        Reason.PLATFORM_DOCUMENT_MISMATCH,
        "evidence that says to be of another region",
        lambda scene: scene.verified(region="eu-west-1"),
    ),
    aws(
        "region of the signature",
        Reason.PLATFORM_PROOF_MALFORMED,
        "a signature for STS in another region",
        of_another_region,
    ),
    aws(
        "signed in time",
        Reason.PLATFORM_PROOF_EXPIRED,
        "a signature that was made six minutes before the request",
        lambda scene: scene.verified(replace(scene.node, signed_at=scene.cloud.now - timedelta(minutes=16))),
    ),
    aws(
        "account allowed",
        Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
        "an instance of an account that the policy does not list",
        under(accounts=[OTHERS_ACCOUNT]),
    ),
    aws(
        "instance ID of the document",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        "a copied document of another instance",
        saying(instanceId=INSTANCE),
    ),
    aws(
        "availability zone of the document",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        "a document of another zone",
        saying(availabilityZone="us-east-1b"),
    ),
    aws(
        "region of the document",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        "a document of another region",
        saying(region="eu-west-1"),
    ),
    aws(
        "pendingTime",
        Reason.PLATFORM_DOCUMENT_MISMATCH,
        "a document of an instance that is started later than the request",
        saying(pendingTime="2026-03-01T12:05:01Z"),
    ),
    aws(
        "region's certificates",
        Reason.PLATFORM_REGION_NOT_ALLOWED,
        "a region of which the operator has put no certificate into the bundle",
        lambda scene: scene.verified(regions=("eu-west-1",)),
    ),
    aws(
        "content of the PKCS#7",
        Reason.PLATFORM_DOCUMENT_MISMATCH,
        "a document beside a signature over another one",
        spaced,
    ),
    aws(
        "signature of the document",
        Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID,
        "a document that another region's certificate signed",
        by_another_regions_certificate,
    ),
    aws(
        "pinned instance",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        "an instance in an account that the ledger does not know it by",
        lambda scene: scene.verified(ledger=LedgerFacts(fingerprints={"instance": f"{OTHERS_ACCOUNT}/i-0"})),
    ),
    aws(
        "signed over the binding",
        Reason.PLATFORM_PROOF_NOT_BOUND,
        "the instance's own signature for another request, as every token can read it",
        for_another_request,
    ),
    aws(
        "signed by a role",
        ROLE_REFUSED,
        "a signature by a user of the account",
        by_principal(arn=f"arn:aws:iam::{ACCOUNT}:user/{{id}}"),
    ),
    aws(
        "account of the role",
        Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
        "a role of the same name in the thief's own account",
        by_principal(arn=f"arn:aws:sts::{OTHERS_ACCOUNT}:assumed-role/{ROLE}/{{id}}"),
    ),
    aws(
        "role allowed",
        ROLE_REFUSED,
        "a role of the account that the policy does not list, and whose session name its holder chose",
        by_principal(arn=f"arn:aws:sts::{ACCOUNT}:assumed-role/admin/{{id}}"),
    ),
    aws(
        "session of the instance",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        "another instance's session of the same role",
        by_principal(arn=f"arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE}/{INSTANCE}"),
    ),
    aws(
        "instance exists",
        Reason.PLATFORM_INSTANCE_NOT_FOUND,
        "an instance that EC2 does not know",
        lambda scene: scene.verified(Node(instance_id=INSTANCE)),
    ),
    aws(
        "owner of the instance",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        "document and role of one listed account, for an instance of another",
        of_another_owner,
    ),
    aws(
        "zone of the instance",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        "a provider ID of another zone than EC2 says",
        lambda scene: scene.verified(replace(scene.node, zone="us-east-1b")),
    ),
    aws(
        "state of the instance",
        Reason.PLATFORM_INSTANCE_NOT_RUNNING,
        "evidence of an instance that was stopped meanwhile",
        stopped,
    ),
    aws(
        "tags of the instance",
        Reason.PLATFORM_TAGS_NOT_ALLOWED,
        "an instance without the tags that the policy demands",
        under(tags={"team": "others"}),
    ),
    aws(
        "network of the instance",
        Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED,
        "an instance in another network than the policy demands",
        under(vpcs=["vpc-0123456789abcdef0"]),
    ),
)


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


def azure(check: str, reason: Reason, attack: str, run: Callable[[AzureScene], Awaitable[object]]) -> Row[AzureScene]:
    return Row(f"azure: {check}", attack, reason, run)


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


async def too_old(scene: AzureScene) -> AttestedNode:
    return await scene.verified(
        lambda request: document_for(request, scene.machine, scene.cloud.signing, created=timedelta(seconds=-301))
    )


async def another_machines(scene: AzureScene) -> AttestedNode:
    other = scene.cloud.launch(f"{scene.machine.name}-other")
    return await scene.verified(lambda request: document_for(request, other, scene.cloud.signing))


async def gone(scene: AzureScene) -> AttestedNode:
    scene.machine.exists = False
    return await scene.verified()


async def on_its_way_out(scene: AzureScene) -> AttestedNode:
    scene.machine.provisioning_state = "Deleting"
    return await scene.verified()


NOT_SIGNED: Final = Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID

AZURE_ROWS: Final[tuple[Row[AzureScene], ...]] = (
    azure(
        "signer's certificate",
        NOT_SIGNED,
        "a document without its signer's certificate",
        without_certificate,
    ),
    azure(
        "signature",
        NOT_SIGNED,
        "a document of another request, in which the nonce was written over",
        nonce_written_in,
    ),
    azure(
        "signer's names",
        NOT_SIGNED,
        "a document signed by a certificate for the thief's own name, of an authority that Azure uses",
        of_other_names,
    ),
    azure(
        "certificate chain",
        NOT_SIGNED,
        "a document signed by an authority of the thief's own, with the right names",
        self_made,
    ),
    azure(
        "nonce",
        Reason.PLATFORM_PROOF_NOT_BOUND,
        "the machine's document for another request, as every token can read it",
        lambda scene: scene.verified(scene.signed(nonce="0" * 32)),
    ),
    azure(
        "time of the document",
        Reason.PLATFORM_PROOF_EXPIRED,
        "a document that is five minutes old",
        too_old,
    ),
    azure(
        "subscription and resource group",
        Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
        "a machine of a group that the policy does not list",
        lambda scene: scene.verified(resourceGroups=["other"]),
    ),
    azure(
        "subscription of the document",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        "a document of another subscription",
        lambda scene: scene.verified(scene.signed(subscriptionId="8d10da13-8125-4ba9-a717-bf7490507b3d")),
    ),
    azure("machine", Reason.PLATFORM_INSTANCE_NOT_FOUND, "a machine that Azure does not have any more", gone),
    azure(
        "vmId",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        "a document of the thief's own machine, in the same subscription",
        another_machines,
    ),
    azure(
        "pinned vmId",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        "a machine that was made again under the name of one that joined",
        lambda scene: scene.verified(ledger=LedgerFacts(fingerprints={"vm": "0" * 36})),
    ),
    azure(
        "provisioning state",
        Reason.PLATFORM_INSTANCE_NOT_RUNNING,
        "a machine that Azure is deleting",
        on_its_way_out,
    ),
    azure(
        "scale set",
        Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
        "a machine of no scale set, where the policy lists one",
        lambda scene: scene.verified(scaleSets=["pool"]),
    ),
    azure(
        "tags",
        Reason.PLATFORM_TAGS_NOT_ALLOWED,
        "a machine without the tags that the policy demands",
        lambda scene: scene.verified(tags={"owner": "us"}),
    ),
)


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


def gcp(check: str, reason: Reason, attack: str, run: Callable[[GcpScene], Awaitable[object]]) -> Row[GcpScene]:
    async def attacked(scene: GcpScene) -> object:
        scene.put(secure_boot=False, integrity_monitoring=False)
        return await run(scene)

    return Row(f"gcp: {check}", attack, reason, attacked)


NOT_CONFIGURED: Final = Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED

GCP_ROWS: Final[tuple[Row[GcpScene], ...]] = (
    gcp(
        "project",
        Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
        "an instance of a project that the policy does not list",
        lambda scene: scene.verified(projects=["other-project"]),
    ),
    gcp(
        "zone",
        Reason.PLATFORM_REGION_NOT_ALLOWED,
        "an instance of a zone that the policy does not list",
        lambda scene: scene.verified(zones=["europe-west4-b"]),
    ),
    gcp(
        "instance",
        Reason.PLATFORM_INSTANCE_NOT_FOUND,
        "an instance that the platform does not know",
        lambda scene: scene.of_instance(name="node-8"),
    ),
    gcp(
        "pinned instance",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        "an instance that was made again under the name of one that joined",
        lambda scene: scene.verified(ledger=LedgerFacts(fingerprints={"instance": f"{NUMBER}0"})),
    ),
    gcp(
        "instance runs",
        Reason.PLATFORM_INSTANCE_NOT_RUNNING,
        "an instance that was stopped meanwhile",
        lambda scene: scene.of_instance(status="TERMINATED"),
    ),
    gcp(
        "label",
        Reason.PLATFORM_TAGS_NOT_ALLOWED,
        "an instance without the labels that the policy demands",
        lambda scene: scene.verified(labels={"role": "control-plane"}),
    ),
    gcp(
        "service account",
        Reason.PLATFORM_ROLE_NOT_ALLOWED,
        "an instance of another service account than the policy lists",
        lambda scene: scene.verified(serviceAccounts=["other@fleet-project.iam.gserviceaccount.com"]),
    ),
    gcp("vTPM", NOT_CONFIGURED, "an instance whose vTPM is off", lambda scene: scene.of_instance(vtpm=False)),
    gcp(
        "Secure Boot",
        NOT_CONFIGURED,
        "an instance without Secure Boot, where the policy demands it",
        lambda scene: scene.verified(requireSecureBoot=True),
    ),
    gcp(
        "integrity monitoring",
        NOT_CONFIGURED,
        "an instance without integrity monitoring, where the policy demands it",
        lambda scene: scene.verified(requireIntegrityMonitoring=True),
    ),
    gcp(
        "endorsement key: the instance's",
        Reason.ENDORSEMENT_KEY_UNTRUSTED,
        "a vTPM of the thief's own instance",
        lambda scene: scene.verified(SoftTpm()),
    ),
)


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


def oci(check: str, reason: Reason, attack: str, run: Callable[[OciScene], Awaitable[object]]) -> Row[OciScene]:
    return Row(f"oci: {check}", attack, reason, run)


def oracles_server(scene: OciScene) -> Awaitable[AttestedNode]:
    usage = ExtendedKeyUsageOID.SERVER_AUTH
    return scene.verified(scene.cloud.launch("victim", usage=usage))


async def of_ones_own_root(scene: OciScene) -> AttestedNode:
    with TemporaryDirectory() as folder:
        return await scene.verified(oci_world.OracleCloud(Path(folder)).launch("victim"))


OCI_ROWS: Final[tuple[Row[OciScene], ...]] = (
    oci("extended key usage", NOT_SIGNED, "a certificate for servers, by the same authority", oracles_server),
    oci(
        "certificate chain",
        NOT_SIGNED,
        "a certificate with the instance's names, by an authority of the thief's own",
        of_ones_own_root,
    ),
    oci(
        "signed by the instance",
        Reason.PLATFORM_PROOF_NOT_BOUND,
        "the instance's signature for another cluster",
        lambda scene: scene.verified(pin=ClusterPin("sha256:" + "c3" * 32)),
    ),
    oci(
        "instance",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        "another instance of the same compartment",
        lambda scene: scene.verified(scene.cloud.launch("thief")),
    ),
    oci(
        "tenancy",
        Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
        "an instance of a tenancy that the policy does not list",
        lambda scene: scene.verified(tenancies=["ocid1.tenancy.oc1..other"]),
    ),
    oci(
        "compartment",
        Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
        "an instance of a compartment that the policy does not list",
        lambda scene: scene.verified(compartments=["ocid1.compartment.oc1..other"]),
    ),
)
