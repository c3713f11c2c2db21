from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest
from aws_world import region_certificate
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_providers.aws.api.caller_identity import parse_role_session
from nodeattest_providers.aws.config import parse_platform, parse_policy
from nodeattest_providers.aws.provider_id import PARTITIONS, parse_provider_id, partition_of
from nodeattest_providers.aws.trust_bundle import parse_bundle
from nodeattest_providers.errors import Denied, Reason

ID = "i-0123456789abcdef0"
ACCOUNT = "123456789012"
CRD = Path(__file__).parents[2] / "manifests/crd/nodeattestationpolicies.yaml"


@pytest.mark.parametrize(
    ("zone", "region"),
    [
        ("us-east-1a", "us-east-1"),
        ("ap-southeast-2c", "ap-southeast-2"),
        ("us-gov-west-1b", "us-gov-west-1"),
        ("cn-northwest-1a", "cn-northwest-1"),
        ("eusc-de-east-1a", "eusc-de-east-1"),
        ("us-iso-east-1a", "us-iso-east-1"),
        ("us-west-2-lax-1a", "us-west-2"),
        ("us-east-1-bos-1a", "us-east-1"),
        ("us-east-1-wl1-bos-wlz-1", "us-east-1"),
        ("eu-west-3-cmn-wlz-1a", "eu-west-3"),
    ],
)
def test_a_provider_id_names_zone_region_and_instance(zone: str, region: str) -> None:
    name = parse_provider_id(f"aws:///{zone}/{ID}")
    assert (name.zone, name.region, name.instance_id) == (zone, region, ID)
    assert str(name) == f"aws:///{zone}/{ID}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        ID,
        f"aws:///{ID}",
        f"aws://us-east-1a/{ID}",
        f"aws:////us-east-1a/{ID}",
        f"AWS:///us-east-1a/{ID}",
        f"aws:///us-east-1/{ID}",
        f"aws:///us-east-1A/{ID}",
        f"aws:///us-east-01a/{ID}",
        f"aws:///us-east-1a/{ID}/",
        f"aws:///us-east-1a/{ID}\n",
        f"aws:///us-east-1a//{ID}",
        f"aws:///us-east-1a/{ID}?x",
        f"aws:///us-east-1a/../us-east-1b/{ID}",
        f"aws:///us-east-1a/{ID.upper()}",
        "aws:///us-east-1a/i-0123456789abcdef",
        "aws:///us-east-1a/mi-0123456789abcdef0",
        f"azure:///us-east-1a/{ID}",
        f"aws:///us-eﬀst-1a/{ID}",
        f"aws:///mars-olympus-1a/{ID}",
    ],
)
def test_any_other_spelling_is_denied(text: str) -> None:
    with pytest.raises(Denied) as denied:
        parse_provider_id(text)
    assert denied.value.reason is Reason.PROVIDER_ID_INVALID


@given(st.text())
def test_any_text_gives_a_name_that_spells_it_or_denied(text: str) -> None:
    try:
        name = parse_provider_id(text)
    except Denied:
        return
    assert str(name) == text


def test_a_zone_of_no_known_partition_is_denied_with_the_partitions_and_the_way_out() -> None:
    with pytest.raises(Denied) as denied:
        parse_provider_id(f"aws:///eusx-de-east-1a/{ID}")
    assert "aws, aws-cn, aws-eusc, aws-iso" in denied.value.expected
    assert denied.value.got == "'eusx-de-east-1a'"
    assert "version of nodeattest" in denied.value.remedy


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
    assert set(parse_bundle({region: region_certificate(region).public_bytes(Encoding.PEM).decode()})) == {region}
    assert parse_policy({"accounts": [ACCOUNT], "regions": [region], "roles": ["nodes"]}).regions == {region}
    role = f"arn:{name}:iam::{ACCOUNT}:role/reader"
    assert parse_platform({"assumeRoles": {ACCOUNT: role}}).assume_roles == {ACCOUNT: role}
    session = parse_role_session(f"arn:{name}:sts::{ACCOUNT}:assumed-role/nodes/{ID}")
    assert session is not None
    assert session.partition == name
    pattern = next(line for line in CRD.read_text().splitlines() if "-[a-z]{4,12}-[1-9]" in line).split()[-1]
    assert re.fullmatch(pattern, region)


@pytest.mark.parametrize("region", ["", "us-east-1.evil.example", "us-east-1\n", "us-isox-east-1", "us-east-100"])
def test_what_is_no_region_has_no_partition(region: str) -> None:
    with pytest.raises(Denied) as denied:
        partition_of(region)
    assert denied.value.reason is Reason.PLATFORM_REGION_NOT_ALLOWED
