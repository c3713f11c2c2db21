"""The node half of aws: a metadata service, the sandbox's or one that answers wrongly, and what its answers say."""

from __future__ import annotations

import base64
import json
import logging
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import pytest
from worlds import denied_for

from clouds.serving import Reply, Request, Serving
from nodeattest_providers.aws.attestor import AwsAttestor
from nodeattest_providers.aws.node import (
    parse_credentials,
    parse_imds_document,
    parse_imds_signature,
    to_definite_length,
)
from nodeattest_providers.aws.protocol import parse_evidence
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import ClusterPin, EvidenceBlock, SignerName
from nodeattest_providers.node_interface import Binding

BINDING = Binding(
    EvidenceBlock("aws/v1"), ClusterPin("sha256:" + "a1" * 32), SignerName("cluster.x-k8s.io/x"), bytes(32)
)
ROLES = "/latest/meta-data/iam/security-credentials/"
DOCUMENT = "/latest/dynamic/instance-identity/document"
SIGNATURE = "/latest/dynamic/instance-identity/rsa2048"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
TOKEN = "FwoGZXIvYXdzEXAMPLE"
KEYS = {
    "Code": "Success",
    "Type": "AWS-HMAC",
    "AccessKeyId": "ASIAEXAMPLEEXAMPLE00",
    "SecretAccessKey": SECRET,
    "Token": TOKEN,
    "Expiration": "2099-01-01T00:00:00Z",
}
PLACE = {"region": "us-east-1", "availabilityZone": "us-east-1a", "instanceId": "i-0123456789abcdef0"}

Answers = Mapping[str, tuple[int, bytes]]
GOOD: Answers = {
    "PUT /latest/api/token": (200, b"session-token=="),
    ROLES: (200, b"nodes"),
    ROLES + "nodes": (200, json.dumps(KEYS).encode()),
    DOCUMENT: (200, json.dumps(PLACE).encode()),
    SIGNATURE: (200, b"MAA="),
}


@contextmanager
def service(answers: Answers, *, seen: list[str] | None = None) -> Generator[str]:
    """Serve answers by path; whatever is asked besides is told in ``seen``."""

    def answer(request: Request) -> Reply:
        what = request.path if request.method == "GET" else f"{request.method} {request.path}"
        if seen is not None:
            seen.append(f"{what} {request.headers.get('x-aws-ec2-metadata-token', '')}".strip())
        return Reply(*answers.get(what, (404, b"")))

    serving = Serving(answer)
    try:
        yield f"http://127.0.0.1:{serving.port}"
    finally:
        serving.stop()


def attestor(endpoint: str) -> AwsAttestor:
    return AwsAttestor({"metadataEndpoint": endpoint}, sleep=lambda _: None)


def test_everything_is_asked_with_a_token_and_the_secret_leaves_in_no_form(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []
    with service(GOOD, seen=seen) as endpoint:
        made = attestor(endpoint).attest(BINDING)
    assert seen[0] == "PUT /latest/api/token"
    assert all(one.endswith(" session-token==") for one in seen[1:])
    assert {one.partition(" ")[0] for one in seen[1:]} == {DOCUMENT, SIGNATURE, ROLES, ROLES + "nodes"}
    assert SECRET not in json.dumps(made.data)
    assert not any(word in caplog.text for word in (SECRET, TOKEN, "session-token"))
    assert TOKEN not in repr((made, parse_evidence(made.data)))


Row = tuple[Answers, type[Exception], Reason, str]
WRONG: dict[str, Row] = {
    "a service that knows version 1 only": (
        {"PUT /latest/api/token": (405, b"")}, Denied, Reason.PLATFORM_DOCUMENT_MALFORMED, "IMDSv2"),
    "an endpoint that is switched off": (
        {"PUT /latest/api/token": (403, b"")}, Unavailable, Reason.PLATFORM_UNAVAILABLE, "switched off"),
    "a token that is no header's word": (
        {"PUT /latest/api/token": (200, b"a\r\nb")}, Denied, Reason.PLATFORM_DOCUMENT_MALFORMED, "IMDSv2"),
    "roles that are not shown": ({ROLES: (403, b"nodes")}, Unavailable, Reason.PLATFORM_UNAVAILABLE, "status 403"),
    "no instance profile": ({ROLES: (404, b"")}, Denied, Reason.PLATFORM_ROLE_NOT_ALLOWED, "instance profile"),
    "two roles": ({ROLES: (200, b"a\nb")}, Denied, Reason.PLATFORM_DOCUMENT_MALFORMED, "one role"),
    "no document": ({DOCUMENT: (404, b"")}, Unavailable, Reason.PLATFORM_UNAVAILABLE, "status 404"),
    "a signature that is no base64": (
        {SIGNATURE: (200, b"*")}, Denied, Reason.PLATFORM_DOCUMENT_MALFORMED, "base64"),
    "a role that EC2 may not assume": (
        {ROLES + "nodes": (200, json.dumps({**KEYS, "Code": "AssumeRoleUnauthorizedAccess"}).encode())},
        Denied, Reason.PLATFORM_PROOF_REFUSED, "ec2.amazonaws.com"),
    "credentials that have ended": (
        {ROLES + "nodes": (200, json.dumps({**KEYS, "Expiration": "2020-01-01T00:00:00Z"}).encode())},
        Unavailable, Reason.PLATFORM_UNAVAILABLE, "clock"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_missing_is_told_in_one_line_with_what_to_do(what: str) -> None:
    answers, kind, reason, said = WRONG[what]
    with service({**GOOD, **answers}) as endpoint, pytest.raises(kind) as caught:
        attestor(endpoint).attest(BINDING)
    assert isinstance(caught.value, Denied | Unavailable)
    assert caught.value.reason is reason
    assert said in str(caught.value)
    assert not any(word in str(caught.value) for word in ("\n", SECRET, TOKEN, "session-token"))


def test_nobody_at_the_address_is_told_with_the_hop_limit() -> None:
    with pytest.raises(Unavailable) as caught:
        attestor("http://127.0.0.1:1").provider_id()
    assert "the EC2 instance metadata service at 127.0.0.1:1 cannot be reached" in caught.value.detail
    assert "on the node itself" in caught.value.remedy
    assert "HttpPutResponseHopLimit of 1" in caught.value.remedy


def test_botocore_comes_when_something_is_signed_and_not_before() -> None:
    with service(GOOD) as endpoint:
        program = f"""
import sys
from nodeattest_providers.aws.attestor import AwsAttestor
from nodeattest_providers.node_interface import Binding
made = AwsAttestor({{"metadataEndpoint": {endpoint!r}}})
assert made.provider_id() == "aws:///us-east-1a/i-0123456789abcdef0"
before = {{name.partition(".")[0] for name in sys.modules}}
assert not before & {{"botocore", "boto3", "urllib3", "jmespath", "dateutil", "pyasn1", "cryptography"}}, before
made.attest(Binding("aws/v1", "sha256:00", "x", bytes(32)))
assert "botocore.auth" in sys.modules
assert not set(sys.modules) & {{"boto3", "botocore.session", "botocore.client"}}
"""
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


ANSWER_KEYS: dict[str, object] = {
    "Code": "Success",
    "LastUpdated": "2026-03-01T12:00:00Z",
    "Type": "AWS-HMAC",
    "AccessKeyId": "ASIAEXAMPLEEXAMPLE00",
    "SecretAccessKey": SECRET,
    "Token": "IQoJb3JpZ2luX2VjEXAMPLE//////////wEaDEXAMPLE=",
    "Expiration": "2026-03-01T18:00:00Z",
    "AccountId": "111122223333",
}
ANSWER_PLACE: dict[str, object] = {
    "accountId": "111122223333",
    "availabilityZone": "eu-central-1b",
    "instanceId": "i-0123456789abcdef0",
    "region": "eu-central-1",
}


def spelt(values: object) -> bytes:
    return json.dumps(values).encode()


def test_credentials_are_read_and_show_neither_secret_nor_token() -> None:
    found = parse_credentials(spelt(ANSWER_KEYS))
    assert (found.secret.reveal().decode(), found.token) == (SECRET, ANSWER_KEYS["Token"])
    assert SECRET not in repr(found)
    assert found.token not in repr(found)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Type", "AWS-OTHER"),
        ("AccessKeyId", "asia0123456789abcdef"),
        ("SecretAccessKey", SECRET + "\n"),
        ("Token", "x\r\nHost: evil"),
        ("Token", "x" * 8193),
        ("Expiration", "2026-13-01T00:00:00Z"),
    ],
)
def test_credentials_with_one_field_spoilt_are_refused_without_showing_them(key: str, value: object) -> None:
    with denied_for(Reason.PLATFORM_DOCUMENT_MALFORMED) as caught:
        parse_credentials(spelt({**ANSWER_KEYS, key: value}))
    assert SECRET not in str(caught.value)
    missing = {name: one for name, one in ANSWER_KEYS.items() if name != key}
    with pytest.raises(Denied):
        parse_credentials(spelt(missing))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("region", "us-east-1"),
        ("availabilityZone", "eu-central-1"),
        ("instanceId", "i-xyz"),
        ("padding", "x" * 4096),
    ],
)
def test_a_document_with_one_field_spoilt_is_refused(key: str, value: object) -> None:
    with pytest.raises(Denied):
        parse_imds_document(spelt({**ANSWER_PLACE, key: value}))


def test_the_signature_is_base64_in_lines_and_becomes_definite() -> None:
    ber = bytes.fromhex("3080 2480 0402 0102 0401 03 0000 0000")
    text = base64.encodebytes(ber)
    assert parse_imds_signature(text) == bytes.fromhex("3005 0403 010203")
    for spoilt in (b"", b"*", b"-----BEGIN PKCS7-----\n" + text, b"A===", b"AAAAA", text[4:]):
        with pytest.raises(Denied):
            parse_imds_signature(spoilt)
    with pytest.raises(Denied, match="at most 8192 bytes"):
        parse_imds_signature(base64.b64encode(b"\x04\x82\x23\x00" + bytes(0x2300)))


@pytest.mark.parametrize(
    ("ber", "der"),
    [
        ("3003020101", "3003020101"),
        ("30800201010000", "3003020101"),
        ("3080308002010100000000", "30053003020101"),
        ("a080248004016104026263000000 00", "a0050403616263"),
        ("24060401610401 62", "04026162"),
        ("2480 2404 04026162 0401 63 0000", "0403616263"),
    ],
)
def test_lengths_become_definite_and_octet_strings_whole(ber: str, der: str) -> None:
    assert to_definite_length(bytes.fromhex(ber)).hex() == der


@pytest.mark.parametrize(
    "ber",
    [
        "",
        "3080",
        "3080020101",
        "3003020101ff",
        "0000",
        "1f0100",
        "24030201 01",
        "3080" * 20 + "0000" * 20,
    ],
)
def test_what_is_no_element_is_denied(ber: str) -> None:
    with denied_for(Reason.PLATFORM_DOCUMENT_MALFORMED):
        to_definite_length(bytes.fromhex(ber))
