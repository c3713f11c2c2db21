"""D6 and D7, AWS: identity documents and requests to STS of others, and those that AWS or the node never signed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from aws_signing import RoleSession, sign
from aws_world import INSTANCE, ROLE, Node, Stage, filed_aws, filed_with, region_key, trust_bundle, with_headers
from catalogue import Row, attacks, evaluated
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import AuthorityInformationAccessOID
from worlds import OLD_PIN, PIN, T1

from clouds import cms
from clouds.authority import Authority, certify
from clouds.aws import ACCOUNT, Answer, refusal
from nodeattest_providers.aws.protocol import AwsEvidence, sts_request
from nodeattest_providers.identifiers import ClusterPin, Purpose
from nodeattest_providers.node_interface import JsonValue
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


# D7: requests to STS that are signed by somebody else, for something else, or lead somewhere else


OTHER = "i-00000000000000001"


def with_fields(**fields: JsonValue) -> Case:
    """Send fields that a gullible verifier would use."""
    return lambda stage: stage.attest(filed_with(stage.node, {**stage.node.evidence().to_json(), **fields}))


def header(old: str, new: str) -> Case:
    """Change the authorization header."""
    return shown(lambda _, one: with_headers(one, authorization=one.sts.authorization.replace(old, new)))


def signed_at(before: timedelta) -> Case:
    return lambda stage: stage.attest(filed_aws(replace(stage.node, signed_at=T1 - before)))


def signed_body(body: bytes) -> Case:
    """Sign another body, with the honest binding and credentials."""

    def case(stage: Stage) -> AttestedNode:
        request = filed_aws(stage.node)
        asked = replace(sts_request(stage.node.region, request.binding(PIN)), body=body)
        evidence = replace(stage.node.evidence(), sts=sign(asked, stage.node.session, T1))
        return stage.attest(filed_aws(stage.node, evidence))

    return case


def known_as(arn: str) -> Case:
    """Let STS tell that somebody else signed."""

    def case(stage: Stage) -> AttestedNode:
        known = arn.format(account=ACCOUNT, id=stage.node.instance_id, role=ROLE)
        stage.knows(stage.node.principal(Arn=known))
        return stage.attest(filed_aws(stage.node))

    return case


def answered(answer: Answer) -> Case:
    def case(stage: Stage) -> AttestedNode:
        stage.front.spoil = lambda action: answer if action == "GetCallerIdentity" else None
        return stage.attest(filed_aws(stage.node))

    return case


def in_china(stage: Stage) -> AttestedNode:
    node = replace(stage.node, region="cn-north-1", zone="cn-north-1a")
    return stage.attest(filed_aws(node, stage.node.evidence()), node)


def sts_elsewhere(stage: Stage) -> AttestedNode:
    evidence = stage.node.evidence(pin=ClusterPin("sha256:" + "cc" * 32))
    return stage.attest(filed_aws(stage.node, evidence))


def to_the_other_signer(stage: Stage) -> AttestedNode:
    evidence = stage.node.evidence()
    return stage.attest(filed_aws(stage.node, replace(evidence, sts=stage.node.evidence(Purpose.SERVING).sts)))


def copied(stage: Stage) -> AttestedNode:
    evidence = replace(stage.node, instance_id=OTHER).evidence()
    return stage.attest(filed_aws(stage.node, replace(stage.node.evidence(), sts=evidence.sts)))


STS_CASES: dict[str, Case] = {
    "D7-01": with_fields(url="https://sts.amazonaws.com.evil.example/"),
    "D7-02": with_fields(region="us-east-1@evil.test:1."),
    "D7-03": shown(
        lambda node, one: replace(
            one, sts=sign(sts_request("eu-west-1", filed_aws(node).binding(PIN)), node.session, T1)
        )
    ),
    "D7-04": signed_body(b"Action=AssumeRole&Version=2011-06-15"),
    "D7-05": header(";x-amz-nodeattest-binding", ""),
    "D7-06": signed_at(timedelta(minutes=16)),
    "D7-07": with_fields(headers={"host": "evil.example"}, body="QWN0aW9uPUdldENhbGxlcklkZW50aXR5"),
    "D7-08": sts_elsewhere,
    "D7-09": known_as("arn:aws:sts::{account}:assumed-role/{role}/" + INSTANCE),
    "D7-10": signed_at(timedelta(minutes=-6)),
    "D7-11": signed_body(b"Action=GetCallerIdentity&Action=AssumeRole&Version=2011-06-15"),
    "D7-12": signed_body(b"action=GetCallerIdentity&Version=2011-06-15"),
    "D7-13": header(";x-amz-nodeattest-binding", ";x-amz-nodeattest-binding;x-amz-nodeattest-binding"),
    "D7-14": known_as("arn:aws:iam::{account}:user/{id}"),
    "D7-15": known_as("arn:aws:iam::{account}:root"),
    "D7-16": known_as("arn:aws:sts::{account}:assumed-role/admin/{id}"),
    "D7-17": known_as("arn:aws:sts::{account}:assumed-role/mine/{role}/{id}"),
    "D7-18": known_as("arn:aws:sts::999999999999:assumed-role/{role}/{id}"),
    "D7-19": known_as("arn:aws-cn:sts::{account}:assumed-role/{role}/{id}"),
    "D7-20": to_the_other_signer,
    "D7-21": copied,
    "D7-22": shown(lambda _, one: with_headers(one, security_token=one.sts.security_token + "\r\nx-a: b")),
    "D7-23": header("/sts/", "/iam/"),
    "D7-24": header("host;", ""),
    "D7-25": answered((302, b"{}")),
    "D7-26": answered((200, b"<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>")),
    "D7-27": answered((200, b"{" + b" " * 100_000)),
    "D7-28": answered(refusal("ExpiredToken")),
    "D7-29": in_china,
}


def test_a_signature_for_any_ca_of_the_cluster_passes(stage: Stage) -> None:
    for pin in (PIN, OLD_PIN):
        assert stage.attest(filed_aws(stage.node, stage.node.evidence(pin=pin)))


@pytest.mark.parametrize(("row", "case"), attacks(STS_CASES))
def test_a_request_that_the_instance_did_not_sign_for_this_is_refused(stage: Stage, row: Row, case: Case) -> None:
    assert evaluated(lambda: case(stage), row) == row.expected


@pytest.mark.parametrize(
    ("row", "case"), attacks({row: STS_CASES[row] for row in ("D7-01", "D7-02", "D7-07", "D7-22")})
)
def test_nothing_of_the_nodes_leads_the_controller_anywhere(stage: Stage, row: Row, case: Case) -> None:
    assert evaluated(lambda: case(stage)) == row.expected
    assert stage.front.asked == []
