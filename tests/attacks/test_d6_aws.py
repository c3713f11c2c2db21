"""D6, AWS: identity documents of others, of other instances, and documents that AWS never signed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from aws_signing import RoleSession
from aws_world import INSTANCE, Node, Stage, filed_aws, region_key, trust_bundle
from catalogue import Row, attacks, evaluated
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import AuthorityInformationAccessOID

from clouds import cms
from clouds.authority import Authority, certify
from clouds.aws import ACCOUNT
from nodeattest_providers.aws.protocol import AwsEvidence
from nodeattest_providers.verifier_interface import AttestedNode, LedgerFacts

Case = Callable[[Stage], AttestedNode]
SHA1 = bytes.fromhex("06052b0e03021a")
"""1.3.14.3.2.26."""


def shown(change: Callable[[Node, AwsEvidence], AwsEvidence]) -> Case:
    """Spoil the instance's own evidence."""
    return lambda stage: stage.attest(filed_aws(stage.node, change(stage.node, stage.node.evidence())))


def signed(**document: object) -> Case:
    """Show a document that AWS signed, and that says otherwise."""

    def change(node: Node, evidence: AwsEvidence) -> AwsEvidence:
        content = node.document(**document)
        return replace(evidence, document=content, pkcs7=node.pkcs7(content).der())

    return shown(change)


def packed(change: Callable[[Node, cms.Document], bytes]) -> Case:
    """Spoil the PKCS#7 around the instance's own document."""
    return shown(lambda node, evidence: replace(evidence, pkcs7=change(node, node.pkcs7())))


def ended(how: str) -> Case:
    def case(stage: Stage) -> AttestedNode:
        (other,) = stage.start()
        stage.cloud.act(how, InstanceIds=[other])
        node = replace(stage.node, instance_id=other)
        stage.knows(node.principal())
        return stage.attest(filed_aws(node), node)

    return case


def stolen(stage: Stage) -> AttestedNode:
    """Show the document, and sign with credentials that one has: AWS knows them as nobody's here."""
    thief = replace(stage.node, session=RoleSession(token="FwoGZXIvYXdzTHIEF00"))
    return stage.attest(filed_aws(thief))


def borrowed(stage: Stage) -> AttestedNode:
    """Show another instance's document and sign, bound rightly, with one's own role."""
    (other,) = stage.start()
    stage.knows(replace(stage.node, instance_id=other).principal())
    return stage.attest(filed_aws(stage.node))


def weak(node: Node, _: cms.Document) -> bytes:
    signing = region_key(bits=1024)
    return cms.aws_form(node.document(), signing, node.launched).der()


def own_chain(node: Node, _: cms.Document) -> bytes:
    """Certify oneself under AWS's name, with an address where more can be fetched."""
    key, honest = rsa.generate_private_key(65537, 2048), region_key().certificate
    fetch = x509.AccessDescription(
        AuthorityInformationAccessOID.CA_ISSUERS, x509.UniformResourceIdentifier("http://127.0.0.1:1/ca.crt")
    )
    made = certify(
        honest.subject, key.public_key(), honest.issuer, key,
        (x509.AuthorityInformationAccess([fetch]), False), serial=honest.serial_number,
    )  # fmt: skip
    document = cms.aws_form(node.document(), Authority(made, key), node.launched)
    return replace(document, certificates=(made.public_bytes(Encoding.DER),)).der()


def elsewhere(stage: Stage) -> AttestedNode:
    node = replace(stage.node, region="ap-south-1", zone="ap-south-1a")
    return stage.attest(filed_aws(node, stage.node.evidence()), node)


def never(stage: Stage) -> AttestedNode:
    node = replace(stage.node, instance_id=INSTANCE)
    stage.knows(node.principal())
    return stage.attest(filed_aws(node), node)


def moved(stage: Stage) -> AttestedNode:
    node = replace(stage.node, zone="us-east-1b")
    return stage.attest(filed_aws(node, replace(node, zone="us-east-1a").evidence()), node)


def twice(node: Node, evidence: AwsEvidence) -> AwsEvidence:
    content = b'{"accountId":"999999999999",' + node.document()[1:]
    return replace(evidence, document=content, pkcs7=node.pkcs7(content).der())


def another_regions_bundle(stage: Stage) -> AttestedNode:
    bundle = trust_bundle(stage.bundle.parent / "trust-eu-west-1", "eu-west-1")
    return replace(stage, bundle=bundle).attest(filed_aws(stage.node))


def of_another_owner(stage: Stage) -> AttestedNode:
    """The account of the thief's is listed, too; the instance is not of it."""
    thief = "999999999999"
    node = replace(stage.node, account=thief)
    stage.knows(node.principal())
    return stage.attest(filed_aws(node), node, accounts=[ACCOUNT, thief])


def in_another_zone(stage: Stage) -> AttestedNode:
    node = replace(stage.node, zone="us-east-1b")
    return stage.attest(filed_aws(node), node)


CASES: dict[str, Case] = {
    "D6-01": shown(lambda node, evidence: replace(evidence, document=node.document(imageId="ami-99999999"))),
    "D6-02": signed(region="eu-west-1"),
    "D6-03": signed(accountId="999999999999"),
    "D6-04": ended("terminate_instances"),
    "D6-05": stolen,
    "D6-06": packed(weak),
    "D6-07": packed(own_chain),
    "D6-20": packed(lambda node, _: node.pkcs7(region="eu-west-1").der()),
    "D6-21": ended("stop_instances"),
    "D6-22": borrowed,
    "D6-23": shown(twice),
    "D6-24": packed(lambda _, document: replace(document, signers=2).der()),
    "D6-25": packed(lambda _, document: document.der() + b"\0"),
    "D6-26": packed(lambda _, document: replace(document, digest=cms.algorithm(SHA1)).der()),
    "D6-27": packed(lambda _, document: replace(document, content=b"").der().replace(b"\xa0\x02\x04\x00", b"")),
    "D6-28": elsewhere,
    "D6-29": lambda stage: stage.attest(filed_aws(stage.node), tags={"kubernetes.io/cluster/c1": "owned"}),
    "D6-30": never,
    "D6-31": moved,
    "D6-107": signed(instanceId=INSTANCE),
    "D6-108": signed(pendingTime="2026-03-01T12:05:01Z"),
    "D6-109": another_regions_bundle,
    "D6-110": lambda stage: stage.attest(filed_aws(stage.node), ledger=LedgerFacts(fingerprints={"instance": "9/i-0"})),
    "D6-111": of_another_owner,
    "D6-112": in_another_zone,
    "D6-113": lambda stage: stage.attest(filed_aws(stage.node), vpcs=["vpc-0123456789abcdef0"]),
}


def test_the_honest_instance_passes(stage: Stage) -> None:
    assert stage.attest(filed_aws(stage.node)).provider_id == stage.node.provider_id


@pytest.mark.parametrize(("row", "case"), attacks(CASES))
def test_a_document_that_is_not_this_instances_proof_is_refused(stage: Stage, row: Row, case: Case) -> None:
    assert evaluated(lambda: case(stage), row) == row.expected
