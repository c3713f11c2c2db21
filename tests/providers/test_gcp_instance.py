"""What the Compute API may answer: a value, or a refusal that blames the answer."""

from __future__ import annotations

import json

import pytest
from gcp_world import NAME, NUMBER, PROJECT, ZONE, instance_of, pem_of, rsa_tpm
from tpm_world import SoftTpm

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.gcp.api.instance import (
    FIELDS,
    ComputeInstance,
    parse_instance,
    parse_instance_identity,
    parse_page,
)
from nodeattest_providers.gcp.provider_id import InstanceRef
from nodeattest_providers.node_interface import JsonObject, JsonValue
from nodeattest_sandbox.clouds.gcp.instances import masked

PLACE = InstanceRef(PROJECT, ZONE, NAME)
TPM = SoftTpm()


def item(**changes: JsonValue) -> JsonObject:
    made = masked(instance_of(TPM, labels={"a": "b"}, service_account="n@p.example").resource(), _INSIDE)
    assert isinstance(made, dict)
    return {**made, **changes}


_INSIDE = FIELDS.removeprefix("items(").rpartition("),nextPageToken")[0]


def read(**changes: JsonValue) -> ComputeInstance:
    return parse_instance(item(**changes), PLACE)


def test_an_instance_is_read() -> None:
    instance = read()
    assert (instance.number, instance.status, instance.place) == (NUMBER, "RUNNING", PLACE)
    assert instance.labels == {"a": "b"}
    assert instance.service_accounts == {"n@p.example"}
    assert instance.has_vtpm
    assert instance.has_secure_boot
    assert instance.has_integrity_monitoring
    assert ("InternalIP", "10.128.0.2") in instance.addresses


def test_an_instance_without_what_is_optional_has_none_of_it() -> None:
    bare = {key: value for key, value in item().items() if key in {"id", "name", "zone", "status"}}
    instance = parse_instance(bare, PLACE)
    assert not instance.labels
    assert not instance.service_accounts
    assert not any((instance.has_vtpm, instance.has_secure_boot, instance.has_integrity_monitoring))
    assert {kind for kind, _ in instance.addresses} == {"Hostname", "InternalDNS"}


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
    {"id": 4520031799277582759},
    {"id": ""},
    {"id": "12x"},
    {"id": "9" * 21},
    {"status": None},
    {"status": "running"},
    {"status": "RÜNNING"},
    {"name": "node-8"},
    {"name": None},
    {"zone": f"https://www.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}x"},
    {"zone": None},
    {"labels": []},
    {"labels": {"a": 1}},
    {"serviceAccounts": {}},
    {"serviceAccounts": ["x"]},
    {"serviceAccounts": [{}]},
    {"shieldedInstanceConfig": []},
    {"networkInterfaces": "x"},
    {"networkInterfaces": [{"networkIP": "10.0.0.256"}]},
    {"networkInterfaces": [{"networkIP": 7}]},
    {"networkInterfaces": [{"accessConfigs": [{"natIP": "x"}]}]},
    {"hostname": 7},
]


@pytest.mark.parametrize("changes", SPOILT)
def test_an_answer_that_is_wrong_in_one_field_is_not_read(changes: dict[str, JsonValue]) -> None:
    with pytest.raises(Denied) as caught:
        read(**changes)
    assert caught.value.reason is Reason.PLATFORM_DOCUMENT_MALFORMED


@pytest.mark.parametrize("truthy", ["true", 1, [True]])
def test_an_option_is_on_by_true_and_by_nothing_else(truthy: JsonValue) -> None:
    instance = read(shieldedInstanceConfig={"enableVtpm": truthy, "enableSecureBoot": truthy})
    assert not instance.has_vtpm
    assert not instance.has_secure_boot


def test_a_page_is_read_with_its_token() -> None:
    page = parse_page(json.dumps({"items": [item()], "nextPageToken": "more"}).encode())
    assert page.items == (item(),)
    assert page.next_token == "more"
    assert parse_page(b"{}").items == ()


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"items":{}}', b'{"items":[1]}', b'{"nextPageToken":""}'],
)
def test_a_page_that_is_none_is_not_read(data: bytes) -> None:
    with pytest.raises(Denied) as caught:
        parse_page(data)
    assert caught.value.reason is Reason.PLATFORM_DOCUMENT_MALFORMED


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
    with pytest.raises(Denied) as caught:
        parse_instance_identity(json.dumps({"encryptionKey": entry}).encode())
    assert caught.value.reason is Reason.PLATFORM_DOCUMENT_MALFORMED


def test_a_key_of_another_kind_is_not_read() -> None:
    words = "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE="
    ed25519 = f"-----BEGIN PUBLIC KEY-----\n{words}\n-----END PUBLIC KEY-----\n"
    with pytest.raises(Denied):
        parse_instance_identity(json.dumps({"encryptionKey": {"ekPub": ed25519}}).encode())
