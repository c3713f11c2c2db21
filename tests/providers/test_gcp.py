"""A Shielded VM joins beside a Google Cloud that really answers, and what the gcp provider reads.

Each check that refuses has its attack in docs/proof/checks.md; the attacks are in tests/attacks/test_d6_gcp.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from gcp_world import (
    ACCOUNT,
    MACHINE_ID,
    NAME,
    NUMBER,
    PROJECT,
    ZONE,
    instance_of,
    joining,
    node_facts,
    node_request,
    pem_of,
    platform_of,
    rsa_tpm,
    verified,
)
from tpm_world import SoftTpm, parsed
from worlds import Calls, denied_for

from clouds.gcp import GoogleCloud, masked
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.gcp.api.compute import (
    FIELDS,
    Compute,
    ComputeInstance,
    parse_instance,
    parse_instance_identity,
    parse_page,
)
from nodeattest_providers.gcp.attestor import GcpAttestor
from nodeattest_providers.gcp.config import GcpPlatform, parse_platform, read_credentials
from nodeattest_providers.gcp.provider_id import InstanceRef
from nodeattest_providers.gcp.verifier import GcpSigner
from nodeattest_providers.node_interface import JsonObject, JsonValue
from nodeattest_providers.platform import OFFLINE, CallOutcome

OTHER = "other-project"
PLACE = InstanceRef(PROJECT, ZONE, NAME)


def test_a_shielded_vm_joins_and_its_instance_is_pinned(google: GoogleCloud, vtpm: SoftTpm) -> None:
    node = joining(platform_of(google), vtpm).verify()
    assert (node.provider, node.provider_id, node.proven_node_name) == ("gcp", MACHINE_ID, NAME)
    assert node.fingerprints == {"ek": vtpm.fingerprint, "ak": parsed(vtpm.ak_public).name.hex(), "instance": NUMBER}
    assert node.boot is not None


@pytest.mark.parametrize(
    "settings",
    [
        {"zones": ["europe-west4-b"], "regions": ["europe-west4"]},
        {"labels": {"role": "node"}},
        {"serviceAccounts": ["nodes@fleet-project.iam.gserviceaccount.com"]},
        {"requireSecureBoot": True, "requireIntegrityMonitoring": True, "pcrs": {"selection": [0, 7]}},
    ],
)
def test_an_instance_that_the_policy_wants_joins(
    google: GoogleCloud, vtpm: SoftTpm, settings: dict[str, JsonValue]
) -> None:
    account = "nodes@fleet-project.iam.gserviceaccount.com"
    google.add(replace(google.instances[0], labels={"role": "node", "team": "a"}, service_account=account))
    assert joining(platform_of(google), vtpm, {"projects": [PROJECT], **settings}).verify().checks


def test_offline_the_platform_is_not_asked(vtpm: SoftTpm) -> None:
    with pytest.raises(Unavailable) as caught:
        verified(OFFLINE, node_request(vtpm.first()), node_facts())
    assert caught.value.reason is Reason.PLATFORM_UNAVAILABLE
    with pytest.raises(Unavailable):
        asyncio.run(GcpSigner(platform=OFFLINE).addresses(node_facts()))


async def test_the_names_and_addresses_are_those_of_the_instance_now(google: GoogleCloud) -> None:
    google.add(replace(google.instances[0], internal_ip="10.0.0.9", external_ip="198.51.100.4"))
    signer = GcpSigner(platform=platform_of(google))
    assert set(await signer.addresses(node_facts())) == {
        ("InternalIP", "10.0.0.9"),
        ("ExternalIP", "198.51.100.4"),
        ("Hostname", NAME),
        ("InternalDNS", f"{NAME}.{ZONE}.c.{PROJECT}.internal"),
    }
    await signer.aclose()


@pytest.mark.parametrize("name", ["Node-7", "no de", "node/7", ""])
def test_what_is_no_instances_name_makes_no_provider_id(google: GoogleCloud, name: str) -> None:
    odd = instance_of(SoftTpm(), name=name, number=f"5{sum(name.encode())}")
    with pytest.raises(Unavailable):
        GcpAttestor({"metadataEndpoint": google.metadata_endpoint(odd)}).provider_id()


# The Compute API


@pytest.fixture
def settings(google: GoogleCloud) -> GcpPlatform:
    key = google.account(ACCOUNT, project=PROJECT, reads=(PROJECT, OTHER))
    endpoints: dict[str, JsonValue] = {"compute": google.endpoint}
    return parse_platform({"endpoints": endpoints, "caBundle": str(google.ca_file), "credentialsFile": str(key)})


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
async def compute(settings: GcpPlatform, calls: Calls) -> AsyncGenerator[Compute]:
    made = Compute(settings, calls)
    yield made
    await made.aclose()


def fleet(cloud: GoogleCloud, count: int) -> list[InstanceRef]:
    first = cloud.instances[0]
    cloud.instances = [replace(first, name=f"node-{number}", number=str(number)) for number in range(count)]
    return [InstanceRef(PROJECT, ZONE, f"node-{number}") for number in range(count)]


async def test_sixty_machines_at_once_are_one_call(google: GoogleCloud, compute: Compute) -> None:
    places = fleet(google, 60)
    found = await asyncio.gather(*map(compute.instance, places))
    assert [instance and instance.place for instance in found] == places
    assert google.calls == [f"/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances 60"]


class Listening(Compute):
    """Keeps what the API sends."""

    def __init__(self, settings: GcpPlatform) -> None:
        super().__init__(settings, Calls(), page_size=2)
        self.seen: list[bytes] = []

    async def get(self, path: str, parameters: Mapping[str, str]) -> bytes | None:
        data = await super().get(path, parameters)
        self.seen.append(data or b"")
        return data


async def test_pages_are_read_to_their_end_and_hold_no_metadata(google: GoogleCloud, settings: GcpPlatform) -> None:
    assert "bootstrap token" in google.instances[0].user_data
    places, compute = fleet(google, 5), Listening(settings)
    assert all(await asyncio.gather(*map(compute.instance, places)))
    await compute.aclose()
    assert len(compute.seen) == 3
    assert all(b"bootstrap" not in data and b"metadata" not in data for data in compute.seen)


async def test_what_is_not_final_is_asked_for_again(google: GoogleCloud, compute: Compute, vtpm: SoftTpm) -> None:
    google.instances = [instance_of(vtpm, status="STAGING", keys={})]
    booting = await compute.instance(PLACE)
    assert booting is not None
    assert booting.status == "STAGING"
    with pytest.raises(Unavailable):
        await compute.endorsement_keys(booting)
    google.instances = [instance_of(vtpm)]
    instance = await compute.instance(PLACE)
    assert instance is not None
    assert instance.status == "RUNNING"
    assert await compute.endorsement_keys(instance) == {vtpm.fingerprint}


@pytest.mark.parametrize(
    ("switch", "outcome"),
    [
        ("down", CallOutcome.UNREACHABLE),
        ("failing", CallOutcome.FAILED),
        ("throttled", CallOutcome.THROTTLED),
        ("garbled", CallOutcome.FAILED),
    ],
)
async def test_a_project_that_cannot_answer_waits_and_no_other_does(
    google: GoogleCloud, compute: Compute, calls: Calls, switch: str, outcome: CallOutcome
) -> None:
    google.add(replace(google.instances[0], project=OTHER))
    getattr(google.switches, switch).add(PROJECT)
    asked = asyncio.gather(
        compute.instance(PLACE), compute.instance(InstanceRef(OTHER, ZONE, NAME)), return_exceptions=True
    )
    failed, found = await asked
    assert isinstance(failed, Unavailable)
    assert failed.reason is Reason.PLATFORM_UNAVAILABLE
    assert isinstance(found, ComputeInstance)
    assert ("compute", outcome) in calls.seen
    getattr(google.switches, switch).clear()
    assert await compute.instance(PLACE) is not None


async def test_a_project_that_the_controller_may_not_read_waits_with_the_remedy(
    google: GoogleCloud, compute: Compute, calls: Calls
) -> None:
    with pytest.raises(Unavailable) as caught:
        await compute.instance(InstanceRef("not-readable", ZONE, NAME))
    assert "compute.instances.getShieldedInstanceIdentity" in caught.value.remedy
    assert calls.seen[-1] == ("compute", CallOutcome.REFUSED)
    assert google.calls


async def test_a_token_that_the_api_refuses_is_replaced_once(
    google: GoogleCloud, compute: Compute, calls: Calls
) -> None:
    assert await compute.instance(PLACE)
    google.tokens.revoke_all()
    assert await compute.instance(InstanceRef(PROJECT, ZONE, "node-9")) is None
    assert [service for service, _ in calls.seen] == ["oauth", "compute", "compute", "oauth", "compute"]


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
