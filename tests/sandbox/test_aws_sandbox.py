"""The sandbox AWS refuses what AWS refuses: version 1 of the metadata protocol, every signature that is not right."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aws_kit import IDENTITY, Reply, ask, send, signed

from nodeattest_sandbox.clouds.aws.cloud import ACCOUNT, REGION, Credentials, Instance, SandboxAws

TTL = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN = "X-aws-ec2-metadata-token"
DESCRIBE = b"Action=DescribeInstances&Version=2016-11-15"


@pytest.fixture(scope="module")
def instance(aws: SandboxAws) -> Instance:
    return aws.launch(role="nodes", tags={"kubernetes.io/cluster/c1": "owned"})


@pytest.fixture(scope="module")
def reader(aws: SandboxAws) -> Credentials:
    return aws.session("controller", "replica-1", may=["DescribeInstances"])


@pytest.fixture
def answering(aws: SandboxAws) -> Iterator[SandboxAws]:
    yield aws
    aws.answer("sts", "up")
    aws.answer("ec2", "up")


def token_of(instance: Instance, seconds: str = "60") -> Reply:
    return ask("PUT", f"{instance.metadata_endpoint}/latest/api/token", {TTL: seconds})


def read(instance: Instance, path: str) -> Reply:
    return ask("GET", f"{instance.metadata_endpoint}/latest/{path}", {TOKEN: token_of(instance).body})


@pytest.mark.parametrize("headers", [{}, {TOKEN: ""}, {TOKEN: "x" * 56}], ids=["none", "empty", "invented"])
def test_the_metadata_service_answers_nobody_without_its_token(instance: Instance, headers: dict[str, str]) -> None:
    url = f"{instance.metadata_endpoint}/latest/dynamic/instance-identity/document"
    assert ask("GET", url, headers) == Reply(401, "")


@pytest.mark.parametrize("seconds", ["0", "21601", "", "soon"])
def test_a_token_lives_a_second_to_six_hours(instance: Instance, seconds: str) -> None:
    assert token_of(instance, seconds).status == 400


def test_a_request_that_a_proxy_forwarded_gets_no_token(instance: Instance) -> None:
    url = f"{instance.metadata_endpoint}/latest/api/token"
    assert ask("PUT", url, {TTL: "60", "X-Forwarded-For": "10.0.0.7"}).status == 403


def test_the_documents_signature_is_one_that_openssl_verifies(
    aws: SandboxAws, instance: Instance, tmp_path: Path
) -> None:
    document = read(instance, "dynamic/instance-identity/document").body
    assert json.loads(document)["instanceId"] == instance.instance_id
    armoured = tmp_path / "rsa2048"
    armoured.write_text(
        f"-----BEGIN PKCS7-----\n{read(instance, 'dynamic/instance-identity/rsa2048').body}\n-----END PKCS7-----\n"
    )
    command = ["openssl", "smime", "-verify", "-in", str(armoured), "-inform", "PEM", "-noverify"]
    command += ["-certfile", str(aws.regions / f"{REGION}.pem")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == document


def test_the_roles_session_is_named_after_the_instance(aws: SandboxAws, instance: Instance) -> None:
    assert read(instance, "meta-data/iam/security-credentials/").body == "nodes"
    found = json.loads(read(instance, "meta-data/iam/security-credentials/nodes").body)
    keys = Credentials(access_key_id=found["AccessKeyId"], secret=found["SecretAccessKey"], token=found["Token"])
    answer = send(aws, signed(aws, keys))
    assert f"<Arn>arn:aws:sts::{ACCOUNT}:assumed-role/nodes/{instance.instance_id}</Arn>" in answer.body


def test_an_instance_without_role_has_no_credentials(aws: SandboxAws) -> None:
    bare = aws.launch(role=None)
    assert read(bare, "meta-data/iam/security-credentials/").status == 404


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


def test_a_reader_of_one_account_sees_no_instance_of_another(aws: SandboxAws, reader: Credentials) -> None:
    other = aws.launch(account="444455556666")
    assert other.instance_id not in send(aws, signed(aws, reader, DESCRIBE, service="ec2"), DESCRIBE).body


def test_whoever_accepts_json_gets_it_from_sts(aws: SandboxAws, reader: Credentials) -> None:
    accepting = {**signed(aws, reader), "accept": "application/json"}
    found = json.loads(send(aws, accepting).body)["GetCallerIdentityResponse"]["GetCallerIdentityResult"]
    assert found["Arn"] == f"arn:aws:sts::{ACCOUNT}:assumed-role/controller/replica-1"
    assert found["Account"] == ACCOUNT
    assert found["UserId"].endswith(":replica-1")
    refused = json.loads(send(aws, {**accepting, "content-type": "text/plain"}).body)
    assert (refused["Error"]["Code"], refused["Error"]["Type"]) == ("SignatureDoesNotMatch", "Sender")


def test_a_service_throttles_and_fails_as_it_is_told(answering: SandboxAws, reader: Credentials) -> None:
    before = answering.calls().get("ec2:RequestLimitExceeded", 0)
    answering.answer("ec2", "throttle")
    throttled = send(answering, signed(answering, reader, DESCRIBE, service="ec2"), DESCRIBE)
    assert (throttled.status, "<Code>RequestLimitExceeded</Code>" in throttled.body) == (503, True)
    assert send(answering, signed(answering, reader)).status == 200
    answering.answer("sts", "down")
    assert send(answering, signed(answering, reader)).status == 503
    assert answering.calls()["ec2:RequestLimitExceeded"] == before + 1


def test_it_ends_with_its_standard_input(tmp_path: Path) -> None:
    running = SandboxAws(tmp_path / "cloud")
    process = running.process.popen
    try:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0
    finally:
        running.stop()
