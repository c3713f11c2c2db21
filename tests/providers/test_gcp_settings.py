"""Provider IDs, the policy's section and the platform's settings: a value, or a refusal that names the place."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tpm_authority import Authority

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.gcp.api.tokens import trust
from nodeattest_providers.gcp.config import CredentialsKind, GcpPlatform, credentials_kind, parse_platform, parse_policy
from nodeattest_providers.gcp.provider_id import InstanceRef, parse_provider_id
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.tpm.structures import Alg, PcrSelection

# Provider IDs


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("gce://fleet-project/europe-west4-a/node-7", InstanceRef("fleet-project", "europe-west4-a", "node-7")),
        ("gce://example.com:old-one/us-central1-f/a", InstanceRef("example.com:old-one", "us-central1-f", "a")),
        ("gce://p12345/northamerica-northeast1-ai1a/n", InstanceRef("p12345", "northamerica-northeast1-ai1a", "n")),
    ],
)
def test_a_provider_id_is_read_and_written_alike(text: str, place: InstanceRef) -> None:
    assert parse_provider_id(text) == place
    assert place.provider_id == text


def test_a_zones_region_is_known() -> None:
    assert parse_provider_id("gce://fleet-project/europe-west4-a/node-7").region == "europe-west4"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gce:///europe-west4-a/node-7",
        "gce://fleet-project/europe-west4-a/",
        "gce://fleet-project/europe-west4/node-7",
        "gce://fleet-project/europe-west4-a/node-7/",
        "gce://fleet-project/europe-west4-a/node-7\n",
        "gce://fleet-project//node-7",
        "GCE://fleet-project/europe-west4-a/node-7",
        "gce://Fleet-project/europe-west4-a/node-7",
        "gce://fleet-project/europe-west4-a/Node-7",
        "gce://fleet-project/europe-west4-a/7",
        "gce://fleet-project/europe-west4-a/node-7-",
        "gce://fleet-project/europe-west4-a/../node-7",
        "gce://fleet-project/europe-west4-a/node%2d7",
        "gce://fleet-project/europe-west4-a/node-7?x",
        "gce://tiny/europe-west4-a/node-7",
        f"gce://fleet-project/europe-west4-a/{'n' * 64}",
        "gce://user@fleet-project/europe-west4-a/node-7",
        "gce://fleet-project/europe-west4-а/node-7",  # noqa: RUF001 - a Cyrillic letter
        "aws:///europe-west4-a/i-1",
    ],
)
def test_any_other_text_is_no_provider_id(text: str) -> None:
    with pytest.raises(Denied) as caught:
        parse_provider_id(text)
    assert caught.value.reason is Reason.PROVIDER_ID_INVALID


@given(st.text(max_size=80))
def test_any_text_is_a_place_with_one_spelling_or_denied(text: str) -> None:
    with suppress(Denied):
        assert parse_provider_id("gce://" + text).provider_id == "gce://" + text


# The policy


def test_an_empty_section_lets_nobody_in() -> None:
    policy = parse_policy({})
    assert policy.projects == frozenset()
    assert policy.protocol.selection == PcrSelection(Alg.SHA256, (0, 7))


def test_a_whole_section_is_read() -> None:
    policy = parse_policy(
        {
            "projects": ["fleet-project", "example.com:old-one"],
            "zones": ["europe-west4-a"],
            "regions": ["us-central1"],
            "labels": {"capg-cluster-blue": "owned", "empty": ""},
            "serviceAccounts": ["nodes@fleet-project.iam.gserviceaccount.com"],
            "requireSecureBoot": True,
            "requireIntegrityMonitoring": True,
            "pcrs": {"selection": [4], "values": {"4": ["00" * 32]}},
            "eventLog": "Require",
        }
    )
    assert policy.projects == {"fleet-project", "example.com:old-one"}
    assert (policy.zones, policy.regions) == ({"europe-west4-a"}, {"us-central1"})
    assert policy.labels == {"capg-cluster-blue": "owned", "empty": ""}
    assert policy.service_accounts == {"nodes@fleet-project.iam.gserviceaccount.com"}
    assert policy.secure_boot
    assert policy.integrity_monitoring
    assert policy.protocol.allowed_pcrs == {4: {bytes(32)}}
    assert policy.protocol.event_log_required


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"project": ["fleet-project"]}, "did you mean 'projects'"),
        ({"trustOnFirstUse": True}, "spec.gcp"),
        ({"endorsementKeys": []}, "spec.gcp"),
        ({"endpoint": "https://elsewhere"}, "spec.gcp"),
        ({"projects": "fleet-project"}, "spec.gcp.projects: an array"),
        ({"projects": ["*"]}, "spec.gcp.projects: project IDs"),
        ({"projects": [7]}, "spec.gcp.projects"),
        ({"zones": []}, "spec.gcp.zones: at least one"),
        ({"zones": ["europe-west4"]}, "spec.gcp.zones"),
        ({"regions": ["europe-west4-a"]}, "spec.gcp.regions"),
        ({"regions": []}, "spec.gcp.regions"),
        ({"labels": {"A": "b"}}, "spec.gcp.labels"),
        ({"labels": {"a": "Owned"}}, "lower case 'a': 'Owned'"),
        ({"labels": {"a": None}}, "spec.gcp.labels"),
        ({"labels": ["a"]}, "spec.gcp.labels: an object"),
        ({"serviceAccounts": []}, "spec.gcp.serviceAccounts"),
        ({"serviceAccounts": ["default"]}, "spec.gcp.serviceAccounts"),
        ({"requireSecureBoot": "yes"}, "spec.gcp.requireSecureBoot"),
        ({"requireIntegrityMonitoring": 1}, "spec.gcp.requireIntegrityMonitoring"),
        ({"pcrs": {"selection": []}}, "spec.gcp.pcrs.selection"),
        ({"pcrs": {"bank": "sha1"}}, "spec.gcp.pcrs.bank"),
        ({"eventLog": "Maybe"}, "spec.gcp.eventLog"),
    ],
)
def test_a_wrong_policy_is_refused_naming_the_field(settings: dict[str, JsonValue], words: str) -> None:
    with pytest.raises(Denied) as caught:
        parse_policy(settings)
    assert caught.value.reason is Reason.POLICY_INVALID
    assert words in f"{caught.value.expected} {caught.value.got}"


# The platform


def test_without_settings_the_documented_endpoint_is_asked() -> None:
    assert parse_platform({}) == GcpPlatform(compute="https://compute.googleapis.com")


def test_the_endpoint_keeps_its_port_and_loses_its_slash() -> None:
    read = parse_platform({"endpoints": {"compute": "https://[::1]:8443/"}, "proxy": "http://proxy.example:3128"})
    assert (read.compute, read.proxy) == ("https://[::1]:8443", "http://proxy.example:3128")


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://compute.googleapis.com",
        "https://user@compute.googleapis.com",
        "https://compute.googleapis.com/compute/v1",
        "https://compute.googleapis.com?x",
        "https://",
        "https://compute.googleapis.com:port",
        "https://compute.googleapis.com:",
        "https://compute.googleapis.com:0",
        "https://[::1",
        "compute.googleapis.com",
        "",
        7,
    ],
)
def test_an_endpoint_is_an_https_origin_and_nothing_else(endpoint: JsonValue) -> None:
    with pytest.raises(Denied) as caught:
        parse_platform({"endpoints": {"compute": endpoint}})
    assert caught.value.reason is Reason.POLICY_INVALID


@pytest.mark.parametrize(
    "settings",
    [
        {"endpoint": {}},
        {"endpoints": {"storage": "https://x"}},
        {"proxy": "https://proxy.example"},
        {"caBundle": ""},
        {"caBundle": "/nowhere/ca.pem"},
        {"credentialsFile": "/nowhere/key.json"},
        {"credentialsFile": "\0"},
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, JsonValue]) -> None:
    with pytest.raises(Denied) as caught:
        parse_platform(settings)
    assert caught.value.reason is Reason.POLICY_INVALID


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(Denied, match=r"got '/nowhere/ca\.pem': No such file or directory"):
        parse_platform({"caBundle": "/nowhere/ca.pem"})


def test_a_bundle_that_holds_no_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(Denied):
        parse_platform({"caBundle": str(tmp_path / "ca.pem")})


def test_comments_of_a_bundle_may_be_in_any_language(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes("# Főtanúsítvány\n".encode() + Authority.root().pem.encode())
    assert trust(parse_platform({"caBundle": str(tmp_path / "ca.pem")})).get_ca_certs()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ({"type": "service_account"}, CredentialsKind.KEY),
        ({"type": "external_account", "credential_source": {"file": "/token"}}, CredentialsKind.FEDERATION),
        ({"type": "external_account", "credential_source": {"environment_id": "aws1"}}, CredentialsKind.AWS),
    ],
)
def test_the_kinds_of_credentials_are_told_apart(content: JsonValue, kind: CredentialsKind) -> None:
    assert credentials_kind(json.dumps(content).encode())[0] is kind


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b"{}",
        b'{"type":"authorized_user"}',
        b'{"type":"external_account","credential_source":{"executable":{"command":"/bin/sh"}}}',
        b'{"type":"impersonated_service_account"}',
    ],
)
def test_any_other_file_is_no_credentials(content: bytes) -> None:
    with pytest.raises(Denied) as caught:
        credentials_kind(content)
    assert caught.value.reason is Reason.POLICY_INVALID
