from __future__ import annotations

import json
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_providers.aws.provider_id import AWS, AWS_CN, AWS_US_GOV, parse_provider_id, partition_of
from nodeattest_providers.errors import Denied, Reason

ID = "i-0123456789abcdef0"
KNOWN = {one.name: one for one in (AWS, AWS_CN, AWS_US_GOV)}


@pytest.mark.parametrize(
    ("zone", "region"),
    [
        ("us-east-1a", "us-east-1"),
        ("ap-southeast-2c", "ap-southeast-2"),
        ("us-gov-west-1b", "us-gov-west-1"),
        ("cn-northwest-1a", "cn-northwest-1"),
        ("us-west-2-lax-1a", "us-west-2"),
        ("us-east-1-wl1-bos-wlz-1", "us-east-1"),
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


def test_the_regions_that_botocore_knows_are_in_their_partition_and_no_other() -> None:
    for name, suffix, region in _botocores_regions():
        known = KNOWN.get(name)
        if known is None:
            with pytest.raises(Denied):
                partition_of(region)
            continue
        assert partition_of(region) is known
        assert known.dns_suffix == suffix


def _botocores_regions() -> list[tuple[str, str, str]]:
    table = json.loads((files("botocore") / "data" / "partitions.json").read_text())
    return [
        (one["id"], one["outputs"]["dnsSuffix"], region)
        for one in table["partitions"]
        for region in one["regions"]
        if not region.endswith("-global")
    ]


@pytest.mark.parametrize("region", ["", "us-east-1.evil.example", "us-east-1\n", "us-iso-east-1", "us-east-100"])
def test_what_is_no_region_has_no_partition(region: str) -> None:
    with pytest.raises(Denied) as denied:
        partition_of(region)
    assert denied.value.reason is Reason.PLATFORM_REGION_NOT_ALLOWED
