"""What the gcp provider reads: provider IDs, settings, answers of the Compute API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gcp_world import NAME, PROJECT, ZONE, instance_of, pem_of, rsa_tpm
from tpm_world import SoftTpm
from worlds import denied_for

from clouds.gcp import masked
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.gcp.api.compute import (
    FIELDS,
    ComputeInstance,
    parse_instance,
    parse_instance_identity,
    parse_page,
)
from nodeattest_providers.gcp.config import parse_platform, read_credentials
from nodeattest_providers.gcp.provider_id import InstanceRef
from nodeattest_providers.node_interface import JsonObject, JsonValue

# Provider IDs


# The policy


# The platform


def test_a_bundle_that_holds_no_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(Denied):
        parse_platform({"caBundle": str(tmp_path / "ca.pem")})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[" * 100_000,
        b'{"type":"authorized_user"}',
        b'{"type":"external_account","credential_source":{"executable":{"command":"/bin/sh"}}}',
    ],
)
def test_any_other_file_is_no_credentials(content: bytes) -> None:
    with denied_for(Reason.POLICY_INVALID):
        read_credentials(content)


PLACE = InstanceRef(PROJECT, ZONE, NAME)
TPM = SoftTpm()


def item(**changes: JsonValue) -> JsonObject:
    made = masked(instance_of(TPM, labels={"a": "b"}, service_account="n@p.example").resource(), _INSIDE)
    assert isinstance(made, dict)
    return {**made, **changes}


_INSIDE = FIELDS.removeprefix("items(").rpartition("),nextPageToken")[0]


def read(**changes: JsonValue) -> ComputeInstance:
    return parse_instance(item(**changes), PLACE)


def test_every_interface_counts_with_its_addresses_of_both_families() -> None:
    interfaces: JsonValue = [
        {"networkIP": "10.0.0.2", "accessConfigs": [{"natIP": "198.51.100.1"}, {}]},
        {"networkIP": "10.1.0.2", "ipv6Address": "FD20:0::1", "ipv6AccessType": "INTERNAL"},
        {"ipv6AccessType": "EXTERNAL", "ipv6AccessConfigs": [{"externalIpv6": "2001:db8::7"}]},
    ]
    found = read(networkInterfaces=interfaces, hostname="node-7.example.com").addresses
    assert found == (
        ("InternalIP", "10.0.0.2"),
        ("ExternalIP", "198.51.100.1"),
        ("InternalIP", "10.1.0.2"),
        ("InternalIP", "fd20::1"),
        ("ExternalIP", "2001:db8::7"),
        ("Hostname", NAME),
        ("Hostname", "node-7.example.com"),
        ("InternalDNS", f"{NAME}.{ZONE}.c.{PROJECT}.internal"),
    )


def test_a_project_of_an_old_domain_has_no_internal_name_that_we_know() -> None:
    place = InstanceRef("example.com:old-one", ZONE, NAME)
    assert "InternalDNS" not in {kind for kind, _ in parse_instance(item(), place).addresses}


SPOILT: list[dict[str, JsonValue]] = [
    {"id": "12x"},
    {"status": None},
    {"name": "node-8"},
    {"zone": f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}x"},
    {"labels": {"a": 1}},
    {"serviceAccounts": {}},
    {"shieldedInstanceConfig": []},
    {"networkInterfaces": [{"networkIP": "10.0.0.256"}]},
    {"hostname": 7},
]


@pytest.mark.parametrize("changes", SPOILT)
def test_an_answer_that_is_wrong_in_one_field_is_not_read(changes: dict[str, JsonValue]) -> None:
    with denied_for(Reason.PLATFORM_DOCUMENT_MALFORMED):
        read(**changes)


@pytest.mark.parametrize("truthy", ["true", 1, [True]])
def test_an_option_is_on_by_true_and_by_nothing_else(truthy: JsonValue) -> None:
    instance = read(shieldedInstanceConfig={"enableVtpm": truthy, "enableSecureBoot": truthy})
    assert not instance.has_vtpm
    assert not instance.has_secure_boot


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"[" * 100_000, b'{"items":{}}', b'{"nextPageToken":""}'],
)
def test_a_page_that_is_none_is_not_read(data: bytes) -> None:
    with denied_for(Reason.PLATFORM_DOCUMENT_MALFORMED):
        parse_page(data)


def test_only_endorsement_keys_are_read_of_an_identity() -> None:
    one, other = rsa_tpm(), SoftTpm()
    identity = {
        "kind": "compute#shieldedInstanceIdentity",
        "encryptionKey": {"ekPub": pem_of(one.ek), "ekCert": "-----BEGIN CERTIFICATE-----"},
        "signingKey": {"ekPub": pem_of(other.ek)},
        "eccP256SigningKey": {"ekPub": pem_of(other.ek)},
        "eccP256EncryptionKey": {"ekPub": ""},
    }
    assert parse_instance_identity(json.dumps(identity).encode()) == {one.fingerprint}
    assert parse_instance_identity(b"{}") == frozenset()


@pytest.mark.parametrize(
    "entry",
    [[], {"ekPub": 7}, {"ekPub": "none"}, {"ekPub": "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----"}],
)
def test_an_identity_whose_key_is_none_is_not_read(entry: JsonValue) -> None:
    with denied_for(Reason.PLATFORM_DOCUMENT_MALFORMED):
        parse_instance_identity(json.dumps({"encryptionKey": entry}).encode())
