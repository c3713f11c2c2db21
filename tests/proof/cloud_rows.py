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
from mutants import CHALLENGED, CRASHED, GRANTED, ChecksWithout, Ended, ended_by, of_part
from rows import Row
from tpm_world import SoftTpm
from worlds import PIN

from nodeattest_providers.aws.verifier import AwsSigner
from nodeattest_providers.azure.protocol import nonce_for
from nodeattest_providers.azure.verifier import AzureSigner
from nodeattest_providers.errors import ChallengeRequired, Reason
from nodeattest_providers.gcp.config import parse_policy
from nodeattest_providers.gcp.verifier import GcpSigner
from nodeattest_providers.names import ClusterPin
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.oci.verifier import OciSigner
from nodeattest_providers.platform import Platform
from nodeattest_providers.tpm.protocol import Challenge
from nodeattest_providers.verifier_interface import AttestedNode, Facts, LedgerFacts, NodeRequest
from nodeattest_sandbox.clouds import cms
from nodeattest_sandbox.clouds.azure.authority import Issuer, signer_of
from nodeattest_sandbox.clouds.azure.cloud import SandboxAzure
from nodeattest_sandbox.clouds.azure.metadata import Signing
from nodeattest_sandbox.clouds.azure.state import SandboxMachine
from nodeattest_sandbox.clouds.gcp.cloud import GoogleCloud

__all__ = ["AWS_ROWS", "AZURE_ROWS", "GCP_ROWS", "OCI_ROWS", "AwsScene", "AzureScene", "GcpScene", "OciScene"]

OTHERS_ACCOUNT: Final = "999999999999"


NO_KEY: Final = ("the platform, which names no key of it", Reason.PLATFORM_UNAVAILABLE)


def named_by(part: str, ended: Ended) -> Ended:
    if ended == ("", Reason.PLATFORM_UNAVAILABLE):
        return NO_KEY
    return ended if ended in (GRANTED, CHALLENGED) or ended[0] == CRASHED else (f"{part}: {ended[0]}", ended[1])


# Amazon


class AwsWithout(AwsSigner):
    """The verifier of ``aws`` without these checks."""

    without: frozenset[str] = frozenset()

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        return await self._verify(ChecksWithout(without=self.without), request, facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsScene:
    """A region with one instance, whose role signs."""

    cloud: Cloud
    instance: str
    folder: Path
    signers: dict[tuple[str, ...], AwsWithout] = field(default_factory=dict[tuple[str, ...], AwsWithout])
    """By the regions of their trust bundles: a client of AWS takes longer to make than a verification."""
    removed: frozenset[str] = frozenset()

    def signer(self, *regions: str) -> AwsWithout:
        """Return the verifier whose bundle has these regions, without what is removed."""
        if regions not in self.signers:
            bundle = trust_bundle(self.folder / ("-".join(regions) or "usual"), *regions)
            platform = Platform(settings={**self.cloud.settings, "trustBundle": str(bundle)})
            self.signers[regions] = AwsWithout(platform=platform, random=lambda: 0.5)
        found = self.signers[regions]
        found.without = of_part("aws", self.removed)
        return found

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


def aws(attack: Callable[[AwsScene], Awaitable[object]]) -> Callable[[AwsScene], Awaitable[Ended]]:
    async def run(scene: AwsScene) -> Ended:
        return named_by("aws", await ended_by(attack(scene)))

    return run


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


def row(
    check: str,
    attack: str,
    reason: Reason,
    run: Callable[[Any], Awaitable[Ended]],
    *then: tuple[str, str],
    gains: str = "",
    stays: str = "",
) -> Row[Any]:
    return Row(check=check, attack=attack, reason=reason, run=run, then=then, gains=gains, stays=stays)


ELSEWHERE: Final = "a certificate for an instance that the operator does not let in"
AN_INSTANCE: Final = "a certificate under the name of another instance's machine"
NEEDED: Final = "its value is what every later check compares with"
ROLE_REFUSED: Final = Reason.PLATFORM_ROLE_NOT_ALLOWED

AWS_ROWS: Final[tuple[Row[AwsScene], ...]] = (
    row(
        "aws: region allowed",
        "an instance of a region that the policy does not list",
        Reason.PLATFORM_REGION_NOT_ALLOWED,
        aws(under(regions=["eu-west-1"])),
        gains=ELSEWHERE,
    ),
    row(
        "aws: region of the evidence",
        "evidence that says to be of another region",
        Reason.PLATFORM_DOCUMENT_MISMATCH,
        aws(lambda scene: scene.verified(region="eu-west-1")),
        gains="the instance's own certificate; nothing is read from this field but here",
        stays="what is sent twice must be the same",
    ),
    row(
        "aws: region of the signature",
        "a signature for STS in another region",
        Reason.PLATFORM_PROOF_MALFORMED,
        aws(of_another_region),
        ("aws: signed over the binding", Reason.PLATFORM_PROOF_NOT_BOUND),
        stays="what STS would refuse costs no call",
    ),
    row(
        "aws: signed in time",
        "a signature that was made six minutes before the request",
        Reason.PLATFORM_PROOF_EXPIRED,
        aws(lambda scene: scene.verified(replace(scene.node, signed_at=scene.cloud.now - timedelta(minutes=16)))),
        ("aws: STS confirms the signature", Reason.PLATFORM_PROOF_EXPIRED),
        stays="STS counts from its own time, this from the request's: it also holds when a request is evaluated later",
    ),
    row(
        "aws: account allowed",
        "an instance of an account that the policy does not list",
        Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
        aws(under(accounts=[OTHERS_ACCOUNT])),
        gains=ELSEWHERE,
    ),
    row(
        "aws: instance ID of the document",
        "a copied document of another instance",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        aws(saying(instanceId=INSTANCE)),
        gains="a certificate without this instance's own document; STS and EC2 still speak of this instance",
    ),
    row(
        "aws: availability zone of the document",
        "a document of another zone",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        aws(saying(availabilityZone="us-east-1b")),
        gains="a certificate without this instance's own document; STS and EC2 still speak of this instance",
    ),
    row(
        "aws: region of the document",
        "a document of another region",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        aws(saying(region="eu-west-1")),
        gains="a certificate without this instance's own document; STS and EC2 still speak of this instance",
    ),
    row(
        "aws: pendingTime",
        "a document of an instance that is started later than the request",
        Reason.PLATFORM_DOCUMENT_MISMATCH,
        aws(saying(pendingTime="2026-03-01T12:05:01Z")),
        gains="the instance's own certificate",
        stays="the time decides how long EC2 is waited for, so it must be one that can be",
    ),
    row(
        "aws: region's certificates",
        "a region of which the operator has put no certificate into the bundle",
        Reason.PLATFORM_REGION_NOT_ALLOWED,
        aws(lambda scene: scene.verified(regions=("eu-west-1",))),
        ("aws: signature of the document", Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID),
        gains="a certificate by a document that nobody signed",
        stays="it names the setting that is missing",
    ),
    row(
        "aws: content of the PKCS#7",
        "a document beside a signature over another one",
        Reason.PLATFORM_DOCUMENT_MISMATCH,
        aws(spaced),
        gains="a certificate by a document that nobody signed",
    ),
    row(
        "aws: signature of the document",
        "a document that another region's certificate signed",
        Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID,
        aws(by_another_regions_certificate),
        gains="a certificate by a document that nobody of this region signed",
    ),
    row(
        "aws: pinned instance",
        "an instance in an account that the ledger does not know it by",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        aws(lambda scene: scene.verified(ledger=LedgerFacts(fingerprints={"instance": f"{OTHERS_ACCOUNT}/i-0"}))),
        gains=AN_INSTANCE,
        stays="*fingerprints as pinned* compares once more, directly before signing",
    ),
    row(
        "aws: signed over the binding",
        "the instance's own signature for another request, as every token can read it",
        Reason.PLATFORM_PROOF_NOT_BOUND,
        aws(for_another_request),
        (CRASHED, "AssertionError"),
        stays=NEEDED,
    ),
    row(
        "aws: signed by a role",
        "a signature by a user of the account",
        ROLE_REFUSED,
        aws(by_principal(arn=f"arn:aws:iam::{ACCOUNT}:user/{{id}}")),
        ("aws: account of the role", Reason.PLATFORM_ACCOUNT_NOT_ALLOWED),
        ("aws: role allowed", ROLE_REFUSED),
        ("aws: session of the instance", Reason.PLATFORM_INSTANCE_MISMATCH),
        gains="a certificate by whoever has any credentials of the account",
        stays="it tells a user from a role of another account",
    ),
    row(
        "aws: account of the role",
        "a role of the same name in the thief's own account",
        Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
        aws(by_principal(arn=f"arn:aws:sts::{OTHERS_ACCOUNT}:assumed-role/{ROLE}/{{id}}")),
        gains=AN_INSTANCE,
    ),
    row(
        "aws: role allowed",
        "a role of the account that the policy does not list, and whose session name its holder chose",
        ROLE_REFUSED,
        aws(by_principal(arn=f"arn:aws:sts::{ACCOUNT}:assumed-role/admin/{{id}}")),
        gains=AN_INSTANCE,
    ),
    row(
        "aws: session of the instance",
        "another instance's session of the same role",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        aws(by_principal(arn=f"arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE}/{INSTANCE}")),
        gains=AN_INSTANCE,
    ),
    row(
        "aws: instance exists",
        "an instance that EC2 does not know",
        Reason.PLATFORM_INSTANCE_NOT_FOUND,
        aws(lambda scene: scene.verified(Node(instance_id=INSTANCE))),
        (CRASHED, "AssertionError"),
        stays=NEEDED,
    ),
    row(
        "aws: owner of the instance",
        "document and role of one listed account, for an instance of another",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        aws(of_another_owner),
        gains=AN_INSTANCE,
    ),
    row(
        "aws: zone of the instance",
        "a provider ID of another zone than EC2 says",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        aws(lambda scene: scene.verified(replace(scene.node, zone="us-east-1b"))),
        gains="two provider IDs for one instance, hence two machines",
    ),
    row(
        "aws: state of the instance",
        "evidence of an instance that was stopped meanwhile",
        Reason.PLATFORM_INSTANCE_NOT_RUNNING,
        aws(stopped),
        gains="a certificate for whoever took the role's credentials away from an instance that is no more",
    ),
    row(
        "aws: tags of the instance",
        "an instance without the tags that the policy demands",
        Reason.PLATFORM_TAGS_NOT_ALLOWED,
        aws(under(tags={"team": "others"})),
        gains=ELSEWHERE,
    ),
    row(
        "aws: network of the instance",
        "an instance in another network than the policy demands",
        Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED,
        aws(under(vpcs=["vpc-0123456789abcdef0"])),
        gains=ELSEWHERE,
    ),
)


# Azure


class AzureWithout(AzureSigner):
    """The verifier of ``azure`` without these checks."""

    without: frozenset[str] = frozenset()

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        return await self._verify(ChecksWithout(without=self.without), request, facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureScene:
    """A subscription with one machine made for this attack."""

    cloud: SandboxAzure
    machine: SandboxMachine
    removed: frozenset[str] = frozenset()

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
        signer = AzureWithout(platform=Platform(settings=cast("dict[str, JsonValue]", self.cloud.configuration)))
        signer.without = of_part("azure", self.removed)
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


def azure(attack: Callable[[AzureScene], Awaitable[object]]) -> Callable[[AzureScene], Awaitable[Ended]]:
    async def run(scene: AzureScene) -> Ended:
        return named_by("azure", await ended_by(attack(scene)))

    return run


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
ANY_DOCUMENT: Final = "a certificate by a document that Azure never signed"

AZURE_ROWS: Final[tuple[Row[AzureScene], ...]] = (
    row(
        "azure: signer's certificate",
        "a document without its signer's certificate",
        NOT_SIGNED,
        azure(without_certificate),
        (CRASHED, "IndexError"),
        stays=NEEDED,
    ),
    row(
        "azure: signature",
        "a document of another request, in which the nonce was written over",
        NOT_SIGNED,
        azure(nonce_written_in),
        gains=ANY_DOCUMENT,
    ),
    row(
        "azure: signer's names",
        "a document signed by a certificate for the thief's own name, of an authority that Azure uses",
        NOT_SIGNED,
        azure(of_other_names),
        gains=ANY_DOCUMENT,
    ),
    row(
        "azure: certificate chain",
        "a document signed by an authority of the thief's own, with the right names",
        NOT_SIGNED,
        azure(self_made),
        gains=ANY_DOCUMENT,
    ),
    row(
        "azure: nonce",
        "the machine's document for another request, as every token can read it",
        Reason.PLATFORM_PROOF_NOT_BOUND,
        azure(lambda scene: scene.verified(scene.signed(nonce="0" * 32))),
        gains="a certificate for the thief's key under the machine's name",
    ),
    row(
        "azure: time of the document",
        "a document that is five minutes old",
        Reason.PLATFORM_PROOF_EXPIRED,
        azure(too_old),
        gains="a certificate by a document that an intruder had made, and kept until he was out",
    ),
    row(
        "azure: subscription and resource group",
        "a machine of a group that the policy does not list",
        Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
        azure(lambda scene: scene.verified(resourceGroups=["other"])),
        gains=ELSEWHERE,
    ),
    row(
        "azure: subscription of the document",
        "a document of another subscription",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        azure(lambda scene: scene.verified(scene.signed(subscriptionId="8d10da13-8125-4ba9-a717-bf7490507b3d"))),
        gains="the machine's own certificate, since *vmId* names one machine of all Azure",
        stays="what a document says must be true, whether or not something else decides",
    ),
    row(
        "azure: machine",
        "a machine that Azure does not have any more",
        Reason.PLATFORM_INSTANCE_NOT_FOUND,
        azure(gone),
        (CRASHED, "AssertionError"),
        stays=NEEDED,
    ),
    row(
        "azure: vmId",
        "a document of the thief's own machine, in the same subscription",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        azure(another_machines),
        gains=AN_INSTANCE,
    ),
    row(
        "azure: pinned vmId",
        "a machine that was made again under the name of one that joined",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        azure(lambda scene: scene.verified(ledger=LedgerFacts(fingerprints={"vm": "0" * 36}))),
        gains=AN_INSTANCE,
        stays="*fingerprints as pinned* compares once more, directly before signing",
    ),
    row(
        "azure: provisioning state",
        "a machine that Azure is deleting",
        Reason.PLATFORM_INSTANCE_NOT_RUNNING,
        azure(on_its_way_out),
        gains="a certificate for a machine on its way out",
    ),
    row(
        "azure: scale set",
        "a machine of no scale set, where the policy lists one",
        Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
        azure(lambda scene: scene.verified(scaleSets=["pool"])),
        gains=ELSEWHERE,
    ),
    row(
        "azure: tags",
        "a machine without the tags that the policy demands",
        Reason.PLATFORM_TAGS_NOT_ALLOWED,
        azure(lambda scene: scene.verified(tags={"owner": "us"})),
        gains=ELSEWHERE,
    ),
)


# Google


class GcpWithout(GcpSigner):
    """The verifier of ``gcp`` without these checks."""

    without: frozenset[str] = frozenset()

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        policy = parse_policy(facts.settings)
        return await self._checked(ChecksWithout(without=self.without), request, facts, policy, since=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpScene:
    """A project with one Shielded VM."""

    cloud: GoogleCloud
    tpm: SoftTpm
    removed: frozenset[str] = frozenset()

    async def verified(
        self, tpm: SoftTpm | None = None, *, ledger: LedgerFacts | None = None, **settings: JsonValue
    ) -> AttestedNode:
        """Go through both rounds with a TPM, the instance's own unless another is given."""
        asking = tpm or self.tpm
        facts = node_facts({"projects": [PROJECT], **settings}, **({"ledger": ledger} if ledger is not None else {}))
        first = node_request(asking.first())
        signer = GcpWithout(platform=platform_of(self.cloud))
        signer.without = of_part("gcp", self.removed)
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
        self.cloud.instances = [instance_of(self.tpm, **changes)]
        return await self.verified()


def gcp(attack: Callable[[GcpScene], Awaitable[object]]) -> Callable[[GcpScene], Awaitable[Ended]]:
    async def run(scene: GcpScene) -> Ended:
        scene.cloud.instances = [instance_of(scene.tpm, secure_boot=False, integrity_monitoring=False)]
        return named_by("gcp", await ended_by(attack(scene)))

    return run


NOT_CONFIGURED: Final = Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED

GCP_ROWS: Final[tuple[Row[GcpScene], ...]] = (
    row(
        "gcp: project",
        "an instance of a project that the policy does not list",
        Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
        gcp(lambda scene: scene.verified(projects=["other-project"])),
        gains=ELSEWHERE,
    ),
    row(
        "gcp: zone",
        "an instance of a zone that the policy does not list",
        Reason.PLATFORM_REGION_NOT_ALLOWED,
        gcp(lambda scene: scene.verified(zones=["europe-west4-b"])),
        gains=ELSEWHERE,
    ),
    row(
        "gcp: instance",
        "an instance that the platform does not know",
        Reason.PLATFORM_INSTANCE_NOT_FOUND,
        gcp(lambda scene: scene.of_instance(name="node-8")),
        (CRASHED, "AssertionError"),
        stays=NEEDED,
    ),
    row(
        "gcp: pinned instance",
        "an instance that was made again under the name of one that joined",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        gcp(lambda scene: scene.verified(ledger=LedgerFacts(fingerprints={"instance": f"{NUMBER}0"}))),
        gains=AN_INSTANCE,
        stays="*fingerprints as pinned* compares once more, directly before signing",
    ),
    row(
        "gcp: instance runs",
        "an instance that was stopped meanwhile",
        Reason.PLATFORM_INSTANCE_NOT_RUNNING,
        gcp(lambda scene: scene.of_instance(status="TERMINATED")),
        gains="a certificate for a machine that does not run",
    ),
    row(
        "gcp: label",
        "an instance without the labels that the policy demands",
        Reason.PLATFORM_TAGS_NOT_ALLOWED,
        gcp(lambda scene: scene.verified(labels={"role": "control-plane"})),
        gains=ELSEWHERE,
    ),
    row(
        "gcp: service account",
        "an instance of another service account than the policy lists",
        Reason.PLATFORM_ROLE_NOT_ALLOWED,
        gcp(lambda scene: scene.verified(serviceAccounts=["other@fleet-project.iam.gserviceaccount.com"])),
        gains=ELSEWHERE,
    ),
    row(
        "gcp: vTPM",
        "an instance whose vTPM is off",
        NOT_CONFIGURED,
        gcp(lambda scene: scene.of_instance(vtpm=False)),
        NO_KEY,
        stays="it says which option is missing, and is no reason to wait",
    ),
    row(
        "gcp: Secure Boot",
        "an instance without Secure Boot, where the policy demands it",
        NOT_CONFIGURED,
        gcp(lambda scene: scene.verified(requireSecureBoot=True)),
        gains="a certificate for a machine that boots anything",
    ),
    row(
        "gcp: integrity monitoring",
        "an instance without integrity monitoring, where the policy demands it",
        NOT_CONFIGURED,
        gcp(lambda scene: scene.verified(requireIntegrityMonitoring=True)),
        gains=ELSEWHERE,
    ),
    row(
        "gcp: endorsement key: the instance's",
        "a vTPM of the thief's own instance",
        Reason.ENDORSEMENT_KEY_UNTRUSTED,
        gcp(lambda scene: scene.verified(SoftTpm())),
        gains=AN_INSTANCE,
    ),
)


# Oracle


class OciWithout(OciSigner):
    """The verifier of ``oci`` without these checks."""

    without: frozenset[str] = frozenset()

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        return self._verify(ChecksWithout(without=self.without), request, facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class OciScene:
    """A region's CA, and one instance."""

    cloud: oci_world.OracleCloud
    instance: oci_world.Instance
    removed: frozenset[str] = frozenset()

    async def verified(
        self, shown: oci_world.Instance | None = None, *, pin: ClusterPin = PIN, **policy: JsonValue
    ) -> AttestedNode:
        """Verify a request for the instance's Machine, with evidence of the instance or of another."""
        request = oci_world.request_of(self.instance)
        request = replace(request, evidence=(shown or self.instance).evidence(request, pin=pin))
        signer = OciWithout(platform=Platform(settings=self.cloud.platform))
        signer.without = of_part("oci", self.removed)
        return await signer.verify_client_attestation_data(request, oci_world.facts_for(self.instance, **policy))


def oci(attack: Callable[[OciScene], Awaitable[object]]) -> Callable[[OciScene], Awaitable[Ended]]:
    async def run(scene: OciScene) -> Ended:
        return named_by("oci", await ended_by(attack(scene)))

    return run


def oracles_server(scene: OciScene) -> Awaitable[AttestedNode]:
    usage = ExtendedKeyUsageOID.SERVER_AUTH
    return scene.verified(scene.cloud.launch("victim", usage=usage))


async def of_ones_own_root(scene: OciScene) -> AttestedNode:
    with TemporaryDirectory() as folder:
        return await scene.verified(oci_world.OracleCloud(Path(folder)).launch("victim"))


OCI_ROWS: Final[tuple[Row[OciScene], ...]] = (
    row(
        "oci: extended key usage",
        "a certificate for servers, by the same authority",
        NOT_SIGNED,
        oci(oracles_server),
        gains="a certificate by a key that Oracle certified for something else",
    ),
    row(
        "oci: certificate chain",
        "a certificate with the instance's names, by an authority of the thief's own",
        NOT_SIGNED,
        oci(of_ones_own_root),
        gains="a certificate by a key that Oracle never certified",
    ),
    row(
        "oci: signed by the instance",
        "the instance's signature for another cluster",
        Reason.PLATFORM_PROOF_NOT_BOUND,
        oci(lambda scene: scene.verified(pin=ClusterPin("sha256:" + "c3" * 32))),
        gains="a certificate for the thief's key under the machine's name",
    ),
    row(
        "oci: instance",
        "another instance of the same compartment",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        oci(lambda scene: scene.verified(scene.cloud.launch("thief"))),
        gains=AN_INSTANCE,
    ),
    row(
        "oci: tenancy",
        "an instance of a tenancy that the policy does not list",
        Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
        oci(lambda scene: scene.verified(tenancies=["ocid1.tenancy.oc1..other"])),
        gains=ELSEWHERE,
    ),
    row(
        "oci: compartment",
        "an instance of a compartment that the policy does not list",
        Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
        oci(lambda scene: scene.verified(compartments=["ocid1.compartment.oc1..other"])),
        gains=ELSEWHERE,
    ),
)
