"""What the aws provider reads: settings, provider IDs, trust bundles, documents, evidence, answers of STS."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from aws_signing import RoleSession, sign
from aws_world import Node, region_key, trust_bundle
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from worlds import T1, denied_for

from nodeattest_providers import canonical_json
from nodeattest_providers.aws.api.sts import parse_role_session
from nodeattest_providers.aws.config import (
    parse_bundle,
    parse_identity_document,
    parse_platform,
    parse_policy,
    read_trust_bundle,
)
from nodeattest_providers.aws.protocol import (
    BINDING_HEADER,
    MAX_DOCUMENT,
    PARTITIONS,
    SIGNED_HEADERS,
    AwsEvidence,
    SignedHeaders,
    parse_authorization,
    parse_evidence,
    parse_provider_id,
    partition_of,
    sts_request,
)
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ClusterPin, EvidenceBlock, SignerName
from nodeattest_providers.node_interface import Binding, JsonObject, JsonValue

POLICY: dict[str, JsonValue] = {"accounts": ["123456789012"], "regions": ["us-east-1"], "roles": ["nodes"]}
ROLE = "arn:aws:iam::123456789012:role/reader"


ID = "i-0123456789abcdef0"
ACCOUNT = "123456789012"
CRD = Path(__file__).parents[2] / "manifests/crd/nodeattestationpolicies.yaml"


def botocores_regions() -> list[tuple[str, str, str]]:
    table = json.loads((files("botocore") / "data" / "partitions.json").read_text())
    return [
        (one["id"], one["outputs"]["dnsSuffix"], region)
        for one in table["partitions"]
        for region in one["regions"]
        if not region.endswith("-global")
    ]


def test_the_partitions_are_botocores() -> None:
    names = {(name, suffix) for name, suffix, _ in botocores_regions()}
    assert {(one.name, one.dns_suffix) for one in PARTITIONS} == names


@pytest.mark.parametrize(("name", "suffix", "region"), botocores_regions())
def test_every_region_that_botocore_knows_is_known_everywhere(name: str, suffix: str, region: str) -> None:
    partition = partition_of(region)
    assert (partition.name, partition.sts_host(region)) == (name, f"sts.{region}.{suffix}")
    assert parse_provider_id(f"aws:///{region}a/{ID}").region == region
    assert set(parse_bundle({region: region_key(region).pem})) == {region}
    assert parse_policy({"accounts": [ACCOUNT], "regions": [region], "roles": ["nodes"]}).regions == {region}
    role = f"arn:{name}:iam::{ACCOUNT}:role/reader"
    assert parse_platform({"assumeRoles": {ACCOUNT: role}}).assume_roles == {ACCOUNT: role}
    session = parse_role_session(f"arn:{name}:sts::{ACCOUNT}:assumed-role/nodes/{ID}")
    assert session is not None
    assert session.partition == name
    pattern = next(line for line in CRD.read_text().splitlines() if "-[a-z]{4,12}-[1-9]" in line).split()[-1]
    assert re.fullmatch(pattern, region)


def pem(region: str = "us-east-1") -> str:
    return region_key(region).pem


def self_signed(key: ec.EllipticCurvePrivateKey | dsa.DSAPrivateKey) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, T1, T1.replace(year=2100))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def test_a_directory_and_a_json_object_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "trust.json"
    file.write_text(json.dumps({"us-east-1": pem(), "eu-west-1": pem("eu-west-1")}))
    for path in (file, trust_bundle(tmp_path / "trust")):
        expected = {region: (region_key(region).certificate,) for region in ("us-east-1", "eu-west-1")}
        assert read_trust_bundle(path) == expected


@pytest.mark.parametrize(
    "texts",
    [
        {"us-east-1": ""},
        {"us-east-1": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"},
        {"us-east-1": region_key(bits=1024).pem},
        {"us-east-1": pem() + self_signed(ec.generate_private_key(ec.SECP256R1()))},
        {"us-east-1": pem() * 17},
    ],
    ids=["nothing", "garbage", "RSA-1024", "an ECDSA key beside", "17"],
)
def test_a_bundle_that_cannot_be_used_is_denied(texts: dict[str, str]) -> None:
    with denied_for(Reason.POLICY_INVALID) as denied:
        parse_bundle(texts)
    assert "trustBundle" in denied.value.expected


def test_an_unknown_region_is_skipped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert set(parse_bundle({"us-east-1": pem(), "eusx-de-east-1": "x"})) == {"us-east-1"}
    assert "region='eusx-de-east-1'" in caplog.text


@pytest.mark.parametrize("region", ["*", "US-EAST-1", ""])
def test_a_name_that_is_no_regions_is_denied(region: str) -> None:
    with pytest.raises(Denied, match="the region"):
        parse_bundle({"us-east-1": pem(), region: "x"})
    with pytest.raises(Denied, match="unknown regions only"):
        parse_bundle({"eusx-de-east-1": "x"})


@pytest.mark.parametrize("content", [b"", b'{"us-east-1": 1}', b"\xff", b" " * (1 << 21)])
def test_a_file_of_another_form_is_denied_when_the_controller_starts(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "trust.json"
    file.write_bytes(content)
    with pytest.raises(Denied):
        read_trust_bundle(file)


EVIDENCE = AwsEvidence(
    document=b'{"region" : "us-east-1"}',
    pkcs7=b"\x30\x00",
    region="us-east-1",
    sts=SignedHeaders(authorization="AWS4-HMAC-SHA256 …", date="20260301T120000Z", security_token="FwoGZ"),
)

Row = tuple[tuple[str, ...], JsonValue]
SPOILT: dict[str, Row] = {
    "no document": (("document",), None),
    "a document with padding": (("document",), "e30="),
    "a document too large": (("document",), canonical_json.b64encode(bytes(MAX_DOCUMENT + 1))),
    "a PKCS#7 of another type": (("pkcs7",), 7),
    "a header set that is none": (("sts",), "authorization"),
    "a URL": (("url",), "https://sts.evil.example"),
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


@pytest.mark.parametrize("row", SPOILT.values(), ids=SPOILT)
def test_evidence_outside_the_schema_is_denied(row: Row) -> None:
    with denied_for(Reason.EVIDENCE_MALFORMED):
        parse_evidence(spoilt(*row))


ANSWER_BINDING = Binding(EvidenceBlock("aws/v1"), ClusterPin("sha256:" + "a1" * 32), SignerName("x"), bytes(32))


@pytest.mark.parametrize(
    "change",
    [
        {"instanceId": "i-0123456789ABCDEF0"},
        {"accountId": "\uff11" * 12},
        {"pendingTime": "2026-03-01T25:00:00Z"},
    ],
)
def test_a_document_with_a_field_of_another_form_is_denied(change: dict[str, object]) -> None:
    with denied_for(Reason.PLATFORM_DOCUMENT_MALFORMED):
        parse_identity_document(Node().document(**change))


SIGNED = sign(sts_request("us-east-1", ANSWER_BINDING), RoleSession(), T1)


@pytest.mark.parametrize(
    "change",
    [
        {"date": "20260301T250000Z"},
        {"date": "2026-03-01"},
        {"date": "20300101" + SIGNED.date[8:]},
        {"security_token": "x"},
        {"security_token": "x" * 16 + "\r\nhost: evil"},
        {"authorization": "Bearer x"},
        {"authorization": SIGNED.authorization.replace("/sts/", "/ec2/")},
    ],
)
def test_headers_of_another_form_are_denied(change: dict[str, str]) -> None:
    with denied_for(Reason.PLATFORM_PROOF_MALFORMED):
        parse_authorization(replace(SIGNED, **change))


def test_a_login_that_knows_amazons_own_headers_only_refuses_the_signed_request() -> None:
    known = {"algorithm", "content-sha256", "credential", "date", "security-token", "signature", "signedheaders"}
    known |= {"user-agent"}  # Vault's default list, and Consul's
    amazons = {name.removeprefix("x-amz-") for name in SIGNED_HEADERS if name.startswith("x-amz-")}
    assert amazons - known == {BINDING_HEADER.removeprefix("x-amz-")}
