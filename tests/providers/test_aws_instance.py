"""What a metadata service says is read to a value or refused, whatever it says."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_providers.aws.node.imds_answers import (
    parse_credentials,
    parse_imds_document,
    parse_imds_signature,
    parse_imds_token,
    parse_role,
)
from nodeattest_providers.errors import Denied, Reason

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
KEYS: dict[str, object] = {
    "Code": "Success",
    "LastUpdated": "2026-03-01T12:00:00Z",
    "Type": "AWS-HMAC",
    "AccessKeyId": "ASIAEXAMPLEEXAMPLE00",
    "SecretAccessKey": SECRET,
    "Token": "IQoJb3JpZ2luX2VjEXAMPLE//////////wEaDEXAMPLE=",
    "Expiration": "2026-03-01T18:00:00Z",
    "AccountId": "111122223333",
}
PLACE: dict[str, object] = {
    "accountId": "111122223333",
    "availabilityZone": "eu-central-1b",
    "instanceId": "i-0123456789abcdef0",
    "region": "eu-central-1",
}
PARSERS = (parse_imds_token, parse_role, parse_credentials, parse_imds_document, parse_imds_signature)


def spelt(values: object) -> bytes:
    return json.dumps(values).encode()


def test_credentials_are_read_and_show_neither_secret_nor_token() -> None:
    found = parse_credentials(spelt(KEYS))
    assert found.secret.reveal().decode() == SECRET
    assert found.token == KEYS["Token"]
    assert found.expiration == datetime(2026, 3, 1, 18, tzinfo=UTC)
    assert SECRET not in repr(found)
    assert found.token not in repr(found)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Code", None),
        ("Type", "AWS-OTHER"),
        ("AccessKeyId", "asia0123456789abcdef"),
        ("AccessKeyId", "ASIA"),
        ("SecretAccessKey", ""),
        ("SecretAccessKey", SECRET + "\n"),
        ("SecretAccessKey", 7),
        ("Token", "a b"),
        ("Token", "x\r\nHost: evil"),
        ("Token", "x" * 8193),
        ("Expiration", "2026-03-01"),
        ("Expiration", "2026-13-01T00:00:00Z"),
        ("Expiration", "2026-03-01T18:00:00+00:00"),
    ],
)
def test_credentials_with_one_field_spoilt_are_refused_without_showing_them(key: str, value: object) -> None:
    with pytest.raises(Denied) as caught:
        parse_credentials(spelt({**KEYS, key: value}))
    assert caught.value.reason is Reason.PLATFORM_DOCUMENT_MALFORMED
    assert SECRET not in str(caught.value)
    missing = {name: one for name, one in KEYS.items() if name != key}
    with pytest.raises(Denied):
        parse_credentials(spelt(missing))


def test_the_document_says_zone_and_instance() -> None:
    assert str(parse_imds_document(spelt(PLACE))) == "aws:///eu-central-1b/i-0123456789abcdef0"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("region", "us-east-1"),
        ("region", None),
        ("availabilityZone", "eu-central-1"),
        ("availabilityZone", "eu-central-1b/x"),
        ("instanceId", "i-xyz"),
        ("instanceId", "i-0123456789abcdef0 "),
        ("padding", "x" * 4096),
    ],
)
def test_a_document_with_one_field_spoilt_is_refused(key: str, value: object) -> None:
    with pytest.raises(Denied):
        parse_imds_document(spelt({**PLACE, key: value}))


@pytest.mark.parametrize("parse", [parse_credentials, parse_imds_document])
@pytest.mark.parametrize("data", [b"", b"[]", b"7", b"\xff", b"{", b"[" * 100_000, b'{"a":NaN}'])
def test_what_is_no_object_is_refused(parse: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(Denied):
        parse(data)


def test_the_signature_is_base64_in_lines_and_becomes_definite() -> None:
    ber = bytes.fromhex("3080 2480 0402 0102 0401 03 0000 0000")
    text = base64.encodebytes(ber)
    assert parse_imds_signature(text) == bytes.fromhex("3005 0403 010203")
    for spoilt in (b"", b"*", b"-----BEGIN PKCS7-----\n" + text, b"A===", b"AAAAA", text[4:]):
        with pytest.raises(Denied):
            parse_imds_signature(spoilt)
    with pytest.raises(Denied, match="at most 8192 bytes"):
        parse_imds_signature(base64.b64encode(b"\x04\x82\x23\x00" + bytes(0x2300)))


@given(st.sampled_from(PARSERS), st.binary() | st.sampled_from([spelt(KEYS), spelt(PLACE)]).map(lambda one: one[:-9]))
def test_any_bytes_give_a_value_or_a_refusal(parse: Callable[[bytes], object], data: bytes) -> None:
    refusal = ""
    try:
        parse(data)
    except Denied as denied:
        refusal = str(denied)
    assert SECRET not in refusal
