"""What AWS says, and what somebody else may say in its place: any bytes give a value, None or Denied."""

from __future__ import annotations

import json

import pytest
from aws_signing import RoleSession, sign
from aws_world import Node
from hypothesis import given
from hypothesis import strategies as st
from worlds import T1

from nodeattest_providers.aws.api.caller_identity import parse_error_code, parse_identity, parse_role_session
from nodeattest_providers.aws.authorization_header import parse_authorization
from nodeattest_providers.aws.identity_document import parse_identity_document
from nodeattest_providers.aws.protocol import SignedHeaders, sts_request
from nodeattest_providers.binding import Binding
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.names import ClusterPin, EvidenceBlock, SignerName

ARN = "arn:aws:sts::123456789012:assumed-role/nodes/i-0123456789abcdef0"
ANSWER = {
    "GetCallerIdentityResponse": {
        "GetCallerIdentityResult": {"Account": "123456789012", "Arn": ARN, "UserId": "AROAX:i-0123456789abcdef0"},
        "ResponseMetadata": {"RequestId": "r"},
    }
}
BINDING = Binding(EvidenceBlock("aws/v1"), ClusterPin("sha256:" + "a1" * 32), SignerName("x"), bytes(32))


def test_an_answer_reads_to_account_arn_and_user() -> None:
    identity = parse_identity(json.dumps(ANSWER).encode())
    assert identity is not None
    assert (identity.account, identity.arn) == ("123456789012", ARN)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"<GetCallerIdentityResponse/>",
        json.dumps(ANSWER).replace("123456789012", "12345678901").encode(),
        json.dumps(ANSWER).replace('"Account": "123456789012"', '"Account": 123456789012').encode(),
        json.dumps(ANSWER).replace('"Account"', '"Account": "999999999999", "Account"').encode(),
        json.dumps(ANSWER).replace("UserId", "userid").encode(),
        json.dumps(ANSWER).replace("GetCallerIdentityResult", "AssumeRoleResult").encode(),
        json.dumps(ANSWER).encode("utf-16"),
        b"[" * 100_000,
    ],
)
def test_an_answer_of_another_form_is_none(body: bytes) -> None:
    assert parse_identity(body) is None


def test_a_refusal_tells_its_code() -> None:
    assert parse_error_code(b'{"Error":{"Code":"Throttling","Message":"m"}}') == ("Throttling", "m")
    assert parse_error_code(b'{"Error":{"Code":"a\\nb"}}') is None
    assert parse_error_code(b'{"Error":"Throttling"}') is None


@given(st.binary() | st.recursive(st.text() | st.integers(), st.lists).map(lambda x: json.dumps(x).encode()))
def test_any_bytes_give_an_answer_or_none(body: bytes) -> None:
    assert parse_identity(body) is None
    parse_error_code(body)


def test_an_arn_of_a_role_session_is_taken_apart() -> None:
    session = parse_role_session(ARN)
    assert session is not None
    assert (session.partition, session.role, session.session) == ("aws", "nodes", "i-0123456789abcdef0")


@given(st.text() | st.text().map(lambda text: ARN + text) | st.text().map(lambda text: text + ARN))
def test_any_text_gives_a_session_that_spells_it_or_none(arn: str) -> None:
    session = parse_role_session(arn)
    if session is not None:
        spelt = f"arn:{session.partition}:sts::{session.account}:assumed-role/{session.role}/{session.session}"
        assert spelt == arn


@pytest.mark.parametrize(
    "change",
    [
        {"instanceId": "i-0123456789ABCDEF0"},
        {"instanceId": "i-0"},
        {"accountId": "12345678901"},
        {"accountId": "\uff11" * 12},
        {"region": ""},
        {"availabilityZone": "us-east-1a\n"},
        {"pendingTime": "2026-03-01T12:00:00+00:00"},
        {"pendingTime": "2026-03-01T25:00:00Z"},
    ],
)
def test_a_document_with_a_field_of_another_form_is_denied(change: dict[str, object]) -> None:
    with pytest.raises(Denied) as denied:
        parse_identity_document(Node().document(**change))
    assert denied.value.reason is Reason.PLATFORM_DOCUMENT_MALFORMED


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"a":1,"a":2}', b"[" * 4000, b" " * 5000, b"NaN"])
def test_bytes_that_are_no_document_are_denied(data: bytes) -> None:
    with pytest.raises(Denied) as denied:
        parse_identity_document(data)
    assert denied.value.reason is Reason.PLATFORM_DOCUMENT_MALFORMED


def test_fields_that_aws_adds_are_let_through() -> None:
    assert parse_identity_document(Node().document(madeUp={"x": [1.5, None]})).account


@given(st.binary())
def test_any_bytes_give_a_document_or_denied(data: bytes) -> None:
    with pytest.raises(Denied):
        parse_identity_document(data)


@pytest.mark.parametrize("region", ["us-east-1", "us-gov-west-1", "cn-northwest-1", "ap-southeast-7"])
def test_what_botocore_signs_is_read(region: str) -> None:
    signed = parse_authorization(sign(sts_request(region, BINDING), RoleSession(), T1))
    assert (signed.region, signed.signed_at) == (region, T1)


SIGNED = sign(sts_request("us-east-1", BINDING), RoleSession(), T1)


@given(st.text(), st.integers(0, 300), st.integers(0, 10))
def test_any_header_set_gives_a_value_or_denied(text: str, start: int, cut: int) -> None:
    authorization = SIGNED.authorization[:start] + text + SIGNED.authorization[start + cut :]
    try:
        parse_authorization(SignedHeaders(authorization=authorization, date=SIGNED.date, security_token="x" * 16))
    except Denied as denied:
        if denied.reason is not Reason.PLATFORM_PROOF_MALFORMED:
            raise


@pytest.mark.parametrize(
    ("date", "token"),
    [
        ("20260301T120000z", "x" * 16),
        ("20260301T250000Z", "x" * 16),
        ("20260301t120000Z", "x" * 16),
        ("\uff120260301T120000Z", "x" * 16),
        (SIGNED.date, "x"),
        (SIGNED.date, "x" * 16 + "\r\nhost: evil"),
        (SIGNED.date, "x" * 16 + ", y"),
        (SIGNED.date, "x" * 16 + "é"),
    ],
)
def test_a_date_or_token_of_another_form_is_denied(date: str, token: str) -> None:
    with pytest.raises(Denied) as denied:
        parse_authorization(SignedHeaders(authorization=SIGNED.authorization, date=date, security_token=token))
    assert denied.value.reason is Reason.PLATFORM_PROOF_MALFORMED
