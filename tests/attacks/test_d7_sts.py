"""D7: requests to STS that are signed by somebody else, for something else, or lead somewhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from aws_signing import sign
from aws_world import INSTANCE, ROLE, Node, Stage, filed_aws, filed_with, with_headers
from catalogue import Row, attacks, evaluated
from worlds import OLD_PIN, PIN, T1

from clouds.aws import ACCOUNT, Answer, refusal
from nodeattest_providers.aws.protocol import AwsEvidence, sts_request
from nodeattest_providers.identifiers import ClusterPin, Purpose
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.verifier_interface import AttestedNode

Case = Callable[[Stage], AttestedNode]
OTHER = "i-00000000000000001"


def with_fields(**fields: JsonValue) -> Case:
    """Send fields that a gullible verifier would use."""
    return lambda stage: stage.attest(filed_with(stage.node, {**stage.node.evidence().to_json(), **fields}))


def shown(change: Callable[[Node, AwsEvidence], AwsEvidence]) -> Case:
    return lambda stage: stage.attest(filed_aws(stage.node, change(stage.node, stage.node.evidence())))


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


def elsewhere(stage: Stage) -> AttestedNode:
    evidence = stage.node.evidence(pin=ClusterPin("sha256:" + "cc" * 32))
    return stage.attest(filed_aws(stage.node, evidence))


def to_the_other_signer(stage: Stage) -> AttestedNode:
    evidence = stage.node.evidence()
    return stage.attest(filed_aws(stage.node, replace(evidence, sts=stage.node.evidence(Purpose.SERVING).sts)))


def copied(stage: Stage) -> AttestedNode:
    evidence = replace(stage.node, instance_id=OTHER).evidence()
    return stage.attest(filed_aws(stage.node, replace(stage.node.evidence(), sts=evidence.sts)))


CASES: dict[str, Case] = {
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
    "D7-08": elsewhere,
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


@pytest.mark.parametrize(("row", "case"), attacks(CASES))
def test_a_request_that_the_instance_did_not_sign_for_this_is_refused(stage: Stage, row: Row, case: Case) -> None:
    assert evaluated(lambda: case(stage), row) == row.expected


@pytest.mark.parametrize(("row", "case"), attacks({row: CASES[row] for row in ("D7-01", "D7-02", "D7-07", "D7-22")}))
def test_nothing_of_the_nodes_leads_the_controller_anywhere(stage: Stage, row: Row, case: Case) -> None:
    assert evaluated(lambda: case(stage)) == row.expected
    assert stage.front.asked == []
