"""The sandbox AWS refuses what AWS refuses: version 1 of the metadata protocol, every signature that is not right."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from aws_kit import IDENTITY, Reply, ask, send, signed

from clouds.aws.cloud import REGION, Credentials, Instance, SandboxAws

TTL = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN = "X-aws-ec2-metadata-token"
DESCRIBE = b"Action=DescribeInstances&Version=2016-11-15"


@pytest.fixture(scope="module")
def instance(aws: SandboxAws) -> Instance:
    return aws.launch(role="nodes", tags={"kubernetes.io/cluster/c1": "owned"})


@pytest.fixture(scope="module")
def reader(aws: SandboxAws) -> Credentials:
    return aws.session("controller", "replica-1", may=["DescribeInstances"])


@pytest.mark.parametrize("headers", [{}, {TOKEN: ""}, {TOKEN: "x" * 56}], ids=["none", "empty", "invented"])
def test_the_metadata_service_answers_nobody_without_its_token(instance: Instance, headers: dict[str, str]) -> None:
    url = f"{instance.metadata_endpoint}/latest/dynamic/instance-identity/document"
    assert ask("GET", url, headers) == Reply(401, "")


def test_a_request_that_a_proxy_forwarded_gets_no_token(instance: Instance) -> None:
    url = f"{instance.metadata_endpoint}/latest/api/token"
    assert ask("PUT", url, {TTL: "60", "X-Forwarded-For": "10.0.0.7"}).status == 403


def _changed(name: str, value: str) -> Callable[[dict[str, str]], dict[str, str]]:
    return lambda headers: {**headers, name: value}


SPOILT: dict[str, tuple[Callable[[dict[str, str]], dict[str, str]], str]] = {
    "another token": (_changed("x-amz-security-token", "FwoGZ"), "InvalidClientTokenId"),
    "another content type": (_changed("content-type", "text/plain"), "SignatureDoesNotMatch"),
    "a header beside the signed ones": (_changed("x-amz-target", "x"), "SignatureDoesNotMatch"),
    "another key": (
        lambda headers: {**headers, "authorization": headers["authorization"].replace("Credential=A", "Credential=B")},
        "InvalidClientTokenId",
    ),
    "another signature": (
        lambda headers: {**headers, "authorization": headers["authorization"][:-1] + "_"},
        "IncompleteSignature",
    ),
    "no authorization": (lambda headers: {k: v for k, v in headers.items() if k != "authorization"}, "Missing"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_request_with_one_thing_spoilt_is_refused(aws: SandboxAws, reader: Credentials, what: str) -> None:
    spoil, code = SPOILT[what]
    good = signed(aws, reader)
    assert send(aws, good).status == 200
    answer = send(aws, spoil(good))
    assert answer.status in {400, 403}
    assert f"<Code>{code}" in answer.body


def test_another_body_host_or_region_than_was_signed_is_refused(aws: SandboxAws, reader: Credentials) -> None:
    for headers, body in (
        (signed(aws, reader), IDENTITY + b"&x=1"),
        (signed(aws, reader, host="sts.eu-central-1.amazonaws.com"), IDENTITY),
        (signed(aws, reader, region="mars-north-1"), IDENTITY),
    ):
        assert "<Code>SignatureDoesNotMatch</Code>" in send(aws, headers, body).body
    assert send(aws, signed(aws, reader, host=f"sts.{REGION}.amazonaws.com")).status == 200


@pytest.mark.parametrize(("minutes", "said"), [(-6, "Signature expired"), (6, "Signature not yet current")])
def test_a_signature_is_good_for_five_minutes_around_its_time(
    aws: SandboxAws, reader: Credentials, minutes: int, said: str
) -> None:
    at = datetime.now(UTC) + timedelta(minutes=minutes)
    answer = send(aws, signed(aws, reader, at=at))
    assert answer.status == 403
    assert said in answer.body
    near = datetime.now(UTC) + timedelta(minutes=minutes * 4 / 6)
    assert send(aws, signed(aws, reader, at=near)).status == 200


def test_a_session_that_has_ended_is_refused(aws: SandboxAws) -> None:
    ended = aws.session("nodes", "i-0123456789abcdef0", seconds=0)
    assert "<Code>ExpiredToken</Code>" in send(aws, signed(aws, ended)).body


def test_instances_are_described_to_those_who_may_read_them(
    aws: SandboxAws, instance: Instance, reader: Credentials
) -> None:
    answer = send(aws, signed(aws, reader, DESCRIBE, service="ec2"), DESCRIBE)
    assert answer.status == 200
    assert f"<instanceId>{instance.instance_id}</instanceId>" in answer.body
    assert f"<privateDnsName>{instance.private_dns}</privateDnsName>" in answer.body
    nobody = aws.session("nodes", "somebody")
    answer = send(aws, signed(aws, nobody, DESCRIBE, service="ec2"), DESCRIBE)
    assert answer.status == 403
    assert "<Code>UnauthorizedOperation</Code>" in answer.body
