from __future__ import annotations

import dataclasses

import pytest
from aws_signing import RoleSession, sign
from hypothesis import given
from hypothesis import strategies as st
from worlds import T1

from nodeattest_providers import canonical_json
from nodeattest_providers.aws.protocol import (
    BINDING_HEADER,
    MAX_DOCUMENT,
    SIGNED_HEADERS,
    AwsEvidence,
    SignedHeaders,
    parse_evidence,
    sts_request,
)
from nodeattest_providers.binding import Binding
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.names import ClusterPin, EvidenceBlock, SignerName
from nodeattest_providers.node_interface import JsonObject, JsonValue

BINDING = Binding(
    EvidenceBlock("aws/v1"), ClusterPin("sha256:" + "a1" * 32), SignerName("cluster.x-k8s.io/x"), bytes(32)
)
EVIDENCE = AwsEvidence(
    document=b'{"region" : "us-east-1"}',
    pkcs7=b"\x30\x00",
    region="us-east-1",
    sts=SignedHeaders(authorization="AWS4-HMAC-SHA256 …", date="20260301T120000Z", security_token="FwoGZ"),
)

Row = tuple[tuple[str, ...], JsonValue]
SPOILT: dict[str, Row] = {
    "no document": (("document",), None),
    "an empty document": (("document",), ""),
    "a document with padding": (("document",), "e30="),
    "a document too large": (("document",), canonical_json.b64encode(bytes(MAX_DOCUMENT + 1))),
    "a PKCS#7 of another type": (("pkcs7",), 7),
    "a region too short": (("region",), "us"),
    "a date too long": (("sts", "x-amz-date"), "20260301T120000.0Z"),
    "an empty token": (("sts", "x-amz-security-token"), ""),
    "a token that is a list": (("sts", "x-amz-security-token"), ["a", "b"]),
    "a header set that is none": (("sts",), "authorization"),
    "a URL": (("url",), "https://sts.evil.example"),
    "a body": (("sts", "body"), "Action=AssumeRole"),
    "a binding of the node's choice": (("sts", BINDING_HEADER), "00" * 32),
    "a host": (("sts", "host"), "sts.evil.example"),
}


def spoilt(path: tuple[str, ...], value: JsonValue) -> JsonObject:
    data = EVIDENCE.to_json()
    inner = data
    for key in path[:-1]:
        below = inner[key]
        assert isinstance(below, dict)
        inner = below
    inner[path[-1]] = value
    return data


def test_evidence_reads_back_as_it_was_written() -> None:
    assert parse_evidence(canonical_json.loads(canonical_json.dumps(EVIDENCE.to_json()))) == EVIDENCE


@pytest.mark.parametrize("row", SPOILT.values(), ids=SPOILT)
def test_evidence_outside_the_schema_is_denied(row: Row) -> None:
    with pytest.raises(Denied) as denied:
        parse_evidence(spoilt(*row))
    assert denied.value.reason is Reason.EVIDENCE_MALFORMED


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_any_field_gives_a_value_or_denied(value: JsonValue) -> None:
    for path in (("document",), ("pkcs7",), ("region",), ("sts",), ("sts", "authorization")):
        try:
            parsed = parse_evidence(spoilt(path, value))
        except Denied:
            continue
        assert parsed.to_json() == spoilt(path, value)


def test_proofs_do_not_show_in_a_repr() -> None:
    assert "FwoGZ" not in repr(EVIDENCE)
    assert "AWS4" not in repr(EVIDENCE)


@pytest.mark.parametrize(
    ("region", "url"),
    [
        ("eu-central-1", "https://sts.eu-central-1.amazonaws.com/"),
        ("cn-north-1", "https://sts.cn-north-1.amazonaws.com.cn/"),
        ("us-gov-west-1", "https://sts.us-gov-west-1.amazonaws.com/"),
    ],
)
def test_the_endpoint_follows_from_the_region(region: str, url: str) -> None:
    assert sts_request(region, BINDING).url == url


def test_no_request_for_an_unknown_region() -> None:
    with pytest.raises(Denied) as denied:
        sts_request("us-east-1.evil.example/", BINDING)
    assert denied.value.reason is Reason.PLATFORM_REGION_NOT_ALLOWED


def test_the_request_holds_the_binding_of_cluster_signer_and_csr() -> None:
    other = dataclasses.replace(BINDING, csr_sha256=bytes(31) + b"\1")
    assert sts_request("us-east-1", BINDING).headers[BINDING_HEADER] == BINDING.digest.hex()
    assert sts_request("us-east-1", BINDING) != sts_request("us-east-1", other)


def test_botocore_signs_exactly_the_headers_that_the_controller_rebuilds() -> None:
    signed = sign(sts_request("us-east-1", BINDING), RoleSession(), T1)
    assert f"SignedHeaders={';'.join(SIGNED_HEADERS)}," in signed.authorization


def test_a_login_that_knows_amazons_own_headers_only_refuses_the_signed_request() -> None:
    known = {"algorithm", "content-sha256", "credential", "date", "security-token", "signature", "signedheaders"}
    known |= {"user-agent"}  # Vault's default list, and Consul's
    amazons = {name.removeprefix("x-amz-") for name in SIGNED_HEADERS if name.startswith("x-amz-")}
    assert amazons - known == {BINDING_HEADER.removeprefix("x-amz-")}
