from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from aws_world import region_certificate, trust_bundle
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from worlds import T1

from nodeattest_providers.aws.trust_bundle import TrustBundle, parse_bundle
from nodeattest_providers.errors import Denied, Reason


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def pem(region: str = "us-east-1", bits: int = 2048) -> str:
    return region_certificate(region, bits).public_bytes(Encoding.PEM).decode()


def self_signed(key: ec.EllipticCurvePrivateKey | dsa.DSAPrivateKey) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, T1, T1.replace(year=2100))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def test_a_directory_and_a_json_object_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "trust.json"
    file.write_text(json.dumps({"us-east-1": pem(), "eu-west-1": pem("eu-west-1")}))
    for path in (file, trust_bundle(tmp_path / "trust")):
        bundle = TrustBundle(path, Clock())
        assert bundle.of("us-east-1") == (region_certificate(),)
        assert bundle.of("eu-west-1") == (region_certificate("eu-west-1"),)
        assert bundle.of("us-west-2") == ()


def test_without_a_bundle_no_region_is_trusted() -> None:
    assert TrustBundle(None, Clock()).of("us-east-1") == ()


def test_a_region_may_have_two_certificates_while_they_change() -> None:
    assert len(parse_bundle({"us-east-1": pem() + pem("eu-west-1")})["us-east-1"]) == 2


@pytest.mark.parametrize(
    "texts",
    [
        {"us-east-1": ""},
        {"us-east-1": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"},
        {"us-east-1": pem(bits=1024)},
        {"us-east-1": pem() + self_signed(ec.generate_private_key(ec.SECP256R1()))},
        {"us-east-1": pem() * 17},
    ],
    ids=["nothing", "garbage", "RSA-1024", "an ECDSA key beside", "17"],
)
def test_a_bundle_that_cannot_be_used_is_denied(texts: dict[str, str]) -> None:
    with pytest.raises(Denied) as denied:
        parse_bundle(texts)
    assert denied.value.reason is Reason.POLICY_INVALID
    assert "trustBundle" in denied.value.expected


def test_an_unknown_region_is_skipped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert set(parse_bundle({"us-east-1": pem(), "eusx-de-east-1": "x"})) == {"us-east-1"}
    assert "region='eusx-de-east-1'" in caplog.text


@pytest.mark.parametrize("region", ["*", "../us-east-1", "US-EAST-1", "us-east-1\n", "x", ""])
def test_a_name_that_is_no_regions_is_denied(region: str) -> None:
    with pytest.raises(Denied) as denied:
        parse_bundle({"us-east-1": pem(), region: "x"})
    assert denied.value.got == f"the region {region!r}"


def test_a_new_bundle_of_unknown_regions_only_leaves_the_last_good_one(tmp_path: Path) -> None:
    path, clock = trust_bundle(tmp_path / "trust", "us-east-1"), Clock()
    bundle = TrustBundle(path, clock)
    (path / "us-east-1.pem").rename(path / "eusx-de-east-1.pem")
    clock.now = 6
    assert bundle.of("us-east-1") == (region_certificate(),)
    with pytest.raises(Denied, match="unknown regions only"):
        TrustBundle(path, clock)


def test_a_dsa_certificate_is_denied() -> None:
    with pytest.raises(Denied) as denied:
        parse_bundle({"us-east-1": self_signed(dsa.generate_private_key(2048))})
    assert denied.value.reason is Reason.POLICY_INVALID


@given(st.dictionaries(st.sampled_from(["us-east-1", "eusx-de-east-1"]), st.text() | st.just(pem())))
def test_any_text_gives_a_bundle_or_denied(texts: dict[str, str]) -> None:
    try:
        bundle = parse_bundle(texts)
    except Denied:
        return
    assert set(bundle) == set(texts) - {"eusx-de-east-1"}


@pytest.mark.parametrize("content", [b"", b"[]", b'{"us-east-1": 1}', b"\xff", b"[" * 100_000, b" " * (1 << 21)])
def test_a_file_of_another_form_is_denied_when_the_controller_starts(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "trust.json"
    file.write_bytes(content)
    with pytest.raises(Denied):
        TrustBundle(file, Clock())


def test_a_file_that_is_not_there_is_denied_when_the_controller_starts(tmp_path: Path) -> None:
    with pytest.raises(Denied) as denied:
        TrustBundle(tmp_path / "none", Clock())
    assert "No such file" in denied.value.got


def test_a_bundle_that_changed_is_read_again(tmp_path: Path) -> None:
    path, clock = trust_bundle(tmp_path / "trust", "us-east-1"), Clock()
    bundle = TrustBundle(path, clock)
    trust_bundle(path, "eu-west-1")
    assert bundle.of("eu-west-1") == ()
    clock.now = 6
    assert bundle.of("eu-west-1")
    (path / "us-east-1.pem").unlink()
    clock.now = 12
    assert bundle.of("us-east-1") == ()


def test_a_broken_new_bundle_leaves_the_last_good_one_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = trust_bundle(tmp_path / "trust"), Clock()
    bundle = TrustBundle(path, clock)
    (path / "us-east-1.pem").write_text("x")
    clock.now = 6
    with caplog.at_level(logging.WARNING):
        assert bundle.of("us-east-1") == (region_certificate(),)
    assert "last good one stays" in caplog.text
    caplog.clear()
    clock.now = 12
    assert bundle.of("us-east-1")
    assert not caplog.text
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    clock.now = 18
    assert bundle.of("us-east-1")
    assert "last good one stays" in caplog.text
