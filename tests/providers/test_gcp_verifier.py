"""A Shielded VM joins, and each rule that keeps others out is broken alone, against a cloud that really answers."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
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
    Calls,
    Joining,
    challenge_from,
    cloud_in,
    evaluated,
    instance_of,
    joining,
    node_facts,
    node_request,
    pinned,
    platform_of,
    rsa_tpm,
    verified,
)
from tpm_world import VERSION, SoftTpm, parsed

from nodeattest_providers.errors import ChallengeRequired, Denied, Reason, Unavailable
from nodeattest_providers.gcp.verifier import GcpSigner
from nodeattest_providers.names import NodeName, ProviderID, ProviderName, Purpose, signer_for
from nodeattest_providers.node_interface import Evidence, JsonValue
from nodeattest_providers.platform import OFFLINE, ClosingSigner, Platform
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import ChallengeSigner, PlatformAddresses
from nodeattest_sandbox.clouds.gcp.cloud import GoogleCloud
from nodeattest_sandbox.clouds.gcp.instances import CloudInstance


@pytest.fixture(scope="module")
def tpm() -> SoftTpm:
    return rsa_tpm()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[GoogleCloud]:
    with cloud_in(tmp_path_factory.mktemp("cloud")) as cloud:
        yield cloud


@pytest.fixture
def cloud(running: GoogleCloud, tpm: SoftTpm) -> GoogleCloud:
    running.instances = [instance_of(tpm)]
    return running


@pytest.fixture(scope="module")
def platform(running: GoogleCloud) -> Platform:
    return platform_of(running)


@pytest.fixture
def sound(cloud: GoogleCloud, platform: Platform, tpm: SoftTpm) -> Joining:
    assert cloud.instances
    return joining(platform, tpm)


def changed(cloud: GoogleCloud, **changes: object) -> CloudInstance:
    return cloud.add(replace(cloud.instances[0], **changes))


def test_a_shielded_vm_joins_and_its_instance_is_pinned(sound: Joining, tpm: SoftTpm) -> None:
    node = sound.verify()
    assert node.provider == "gcp"
    assert node.provider_id == MACHINE_ID
    assert node.proven_node_name == NAME
    assert node.fingerprints == {"ek": tpm.fingerprint, "ak": parsed(tpm.ak_public).name.hex(), "instance": NUMBER}
    assert node.boot is not None
    assert all(check.passed for check in node.checks)
    assert {"project", "instance runs", "endorsement key: the instance's", "quote binding"} <= {
        check.name for check in node.checks
    }


def test_a_vm_with_an_elliptic_curve_endorsement_key_joins(cloud: GoogleCloud, platform: Platform) -> None:
    other = SoftTpm()
    cloud.instances = [instance_of(other)]
    assert joining(platform, other).verify().fingerprints["ek"] == other.fingerprint


def test_another_replica_gives_the_same_verdict(sound: Joining) -> None:
    assert sound.verify() == sound.verify()


def test_the_pinned_instance_joins_again(sound: Joining, tpm: SoftTpm) -> None:
    assert sound.verify(ledger=pinned(instance=NUMBER, ek=tpm.fingerprint)).checks


def test_the_signer_is_what_the_controller_asks_for() -> None:
    signer = GcpSigner()
    assert isinstance(signer, ChallengeSigner)
    assert isinstance(signer, PlatformAddresses)
    assert isinstance(signer, ClosingSigner)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": "TERMINATED"}, Reason.PLATFORM_INSTANCE_NOT_RUNNING),
        ({"status": "STOPPING"}, Reason.PLATFORM_INSTANCE_NOT_RUNNING),
        ({"status": "SUSPENDED"}, Reason.PLATFORM_INSTANCE_NOT_RUNNING),
        ({"name": "node-8"}, Reason.PLATFORM_INSTANCE_NOT_FOUND),
        ({"zone": "europe-west4-b"}, Reason.PLATFORM_INSTANCE_NOT_FOUND),
        ({"project": "other-project"}, Reason.PLATFORM_INSTANCE_NOT_FOUND),
        ({"vtpm": False}, Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED),
    ],
)
def test_an_instance_that_cannot_be_the_machine_is_denied(
    cloud: GoogleCloud, platform: Platform, tpm: SoftTpm, changes: dict[str, object], reason: Reason
) -> None:
    cloud.instances = [instance_of(tpm, **changes)]
    assert denied(platform, tpm) is reason


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, Reason.PLATFORM_ACCOUNT_NOT_ALLOWED),
        ({"projects": []}, Reason.PLATFORM_ACCOUNT_NOT_ALLOWED),
        ({"projects": ["other-project"]}, Reason.PLATFORM_ACCOUNT_NOT_ALLOWED),
        ({"zones": ["europe-west4-b"]}, Reason.PLATFORM_REGION_NOT_ALLOWED),
        ({"regions": ["europe-west1"]}, Reason.PLATFORM_REGION_NOT_ALLOWED),
        ({"labels": {"capg-cluster-blue": "owned"}}, Reason.PLATFORM_TAGS_NOT_ALLOWED),
        ({"labels": {"role": "control-plane"}}, Reason.PLATFORM_TAGS_NOT_ALLOWED),
        ({"serviceAccounts": ["other@fleet-project.iam.gserviceaccount.com"]}, Reason.PLATFORM_ROLE_NOT_ALLOWED),
        ({"requireSecureBoot": True}, Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED),
        ({"requireIntegrityMonitoring": True}, Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED),
        ({"project": [PROJECT]}, Reason.POLICY_INVALID),
    ],
)
def test_an_instance_that_the_policy_does_not_want_is_denied(
    cloud: GoogleCloud, platform: Platform, tpm: SoftTpm, settings: dict[str, JsonValue], reason: Reason
) -> None:
    account = "nodes@fleet-project.iam.gserviceaccount.com"
    changed(cloud, labels={"role": "node"}, service_account=account, secure_boot=False, integrity_monitoring=False)
    without = not settings or any(name.startswith("project") for name in settings)
    wanted: dict[str, JsonValue] = {} if without else {"projects": [PROJECT]}
    assert denied(platform, tpm, {**wanted, **settings}) is reason


@pytest.mark.parametrize(
    "settings",
    [
        {"zones": [ZONE]},
        {"regions": ["europe-west4"]},
        {"zones": ["europe-west4-b"], "regions": ["europe-west4"]},
        {"labels": {"role": "node"}},
        {"serviceAccounts": ["nodes@fleet-project.iam.gserviceaccount.com"]},
        {"requireSecureBoot": True, "requireIntegrityMonitoring": True},
        {"pcrs": {"selection": [0, 7]}},
    ],
)
def test_an_instance_that_the_policy_wants_joins(
    cloud: GoogleCloud, platform: Platform, tpm: SoftTpm, settings: dict[str, JsonValue]
) -> None:
    account = "nodes@fleet-project.iam.gserviceaccount.com"
    changed(cloud, labels={"role": "node", "team": "a"}, service_account=account)
    assert joining(platform, tpm, {"projects": [PROJECT], **settings}).verify().checks


def test_an_instance_without_service_account_is_none_of_a_listed_one(
    cloud: GoogleCloud, platform: Platform, tpm: SoftTpm
) -> None:
    assert cloud.instances[0].service_account is None
    assert denied(platform, tpm, {"projects": [PROJECT], "serviceAccounts": [ACCOUNT]}) is (
        Reason.PLATFORM_ROLE_NOT_ALLOWED
    )


def test_an_instance_made_anew_under_the_same_name_is_another(sound: Joining, cloud: GoogleCloud) -> None:
    changed(cloud, number="77")
    with pytest.raises(Denied) as caught:
        sound.verify(ledger=pinned(instance=NUMBER))
    assert caught.value.reason is Reason.PLATFORM_INSTANCE_MISMATCH
    assert sound.verify().fingerprints["instance"] == "77"  # the same vTPM under another number: nobody joined yet


def test_nobody_is_refused_by_an_answer_of_before(cloud: GoogleCloud, platform: Platform, tpm: SoftTpm) -> None:
    made_anew = rsa_tpm()
    now = [100.0]

    async def go() -> None:
        signer = GcpSigner(platform=platform, monotonic=lambda: now[0])
        try:
            with pytest.raises(ChallengeRequired):
                await evaluated(signer, node_request(tpm.first()), node_facts())
            cloud.calls.clear()
            cloud.add(instance_of(made_anew, number="5"))
            now[0] += 3
            with pytest.raises(ChallengeRequired):
                await evaluated(signer, node_request(made_anew.first()), node_facts())
            with pytest.raises(Denied):
                await evaluated(signer, node_request(tpm.first()), node_facts())
        finally:
            await signer.aclose()

    asyncio.run(go())
    assert sum(call.endswith(" 1") for call in cloud.calls) == 1


def test_forged_requests_make_the_cloud_asked_no_more_than_once_in_two_seconds(
    cloud: GoogleCloud, platform: Platform, tpm: SoftTpm
) -> None:
    now, stranger = [100.0], rsa_tpm()

    async def go() -> None:
        signer = GcpSigner(platform=platform, monotonic=lambda: now[0])
        try:
            with pytest.raises(ChallengeRequired):
                await evaluated(signer, node_request(tpm.first()), node_facts())
            cloud.calls.clear()
            for _ in range(20):
                now[0] += 0.2
                with pytest.raises(Denied):
                    await evaluated(signer, node_request(stranger.first()), node_facts())
        finally:
            await signer.aclose()

    asyncio.run(go())
    assert 1 <= sum(call.endswith(" 1") for call in cloud.calls) <= 2


def test_a_vtpm_that_no_instance_has_is_denied(cloud: GoogleCloud, platform: Platform) -> None:
    assert cloud.instances
    assert denied(platform, rsa_tpm()) is Reason.ENDORSEMENT_KEY_UNTRUSTED


def test_another_instances_vtpm_is_denied(cloud: GoogleCloud, platform: Platform) -> None:
    other = rsa_tpm()
    cloud.add(instance_of(other, name="node-8", number="8"))
    assert denied(platform, other) is Reason.ENDORSEMENT_KEY_UNTRUSTED


def test_the_platforms_attestation_key_is_no_endorsement_key(cloud: GoogleCloud, platform: Platform) -> None:
    other = rsa_tpm()
    keys = {**cloud.instances[0].keys, "signingKey": instance_of(other).keys["encryptionKey"]}
    changed(cloud, keys=keys)
    assert denied(platform, other) is Reason.ENDORSEMENT_KEY_UNTRUSTED


def test_a_policy_of_tpm_trusts_no_key_here(cloud: GoogleCloud, platform: Platform, tpm: SoftTpm) -> None:
    assert cloud.instances
    settings: dict[str, JsonValue] = {"projects": [PROJECT], "trustOnFirstUse": True}
    assert denied(platform, tpm, settings) is Reason.POLICY_INVALID


def test_what_the_infrastructure_object_says_of_the_key_does_not_count(cloud: GoogleCloud, platform: Platform) -> None:
    assert cloud.instances
    stranger = rsa_tpm()
    facts = node_facts()
    noted = {"cluster-x-k8s-io/tpm-endorsement-key": stranger.fingerprint}
    machine = replace(facts.machine, endorsement_keys=noted, annotations=noted)
    with pytest.raises(Denied) as caught:
        verified(platform, node_request(stranger.first()), replace(facts, machine=machine))
    assert caught.value.reason is Reason.ENDORSEMENT_KEY_UNTRUSTED


def test_the_first_request_is_evaluated_again_when_it_is_answered(sound: Joining, cloud: GoogleCloud) -> None:
    changed(cloud, keys=instance_of(rsa_tpm()).keys, number="12")
    with pytest.raises(Denied) as caught:
        sound.verify()
    assert caught.value.reason is Reason.ENDORSEMENT_KEY_UNTRUSTED


@pytest.mark.parametrize("provider_id", ["gce://fleet-project/europe-west4-a", "aws:///a/i-1", "metal://rack-1/7"])
def test_a_machine_that_is_no_compute_engine_instance_is_denied(
    platform: Platform, tpm: SoftTpm, provider_id: str
) -> None:
    facts = node_facts()
    machine = replace(facts.machine, provider_id=ProviderID(provider_id))
    with pytest.raises(Denied) as caught:
        verified(platform, node_request(tpm.first()), replace(facts, machine=machine))
    assert caught.value.reason is Reason.PROVIDER_ID_INVALID


# Neither provider's evidence is the other's


def test_tpm_evidence_is_none_of_gcp(sound: Joining) -> None:
    evidence = Evidence(ProviderName("tpm"), VERSION, sound.first.evidence.data)
    with pytest.raises(Denied) as caught:
        verified(sound.platform, replace(sound.first, evidence=evidence), node_facts())
    assert caught.value.reason is Reason.PROVIDER_MISMATCH


def test_an_answer_for_gcp_is_none_for_tpm_even_where_tpm_trusts_the_key(sound: Joining, tpm: SoftTpm) -> None:
    name = signer_for(ProviderName("tpm"), Purpose.CLIENT)
    listed: dict[str, JsonValue] = {"endorsementKeys": [{"providerID": MACHINE_ID, "sha256": tpm.fingerprint}]}

    def as_tpm(data: dict[str, JsonValue]) -> Evidence:
        return Evidence(ProviderName("tpm"), VERSION, data)

    first = replace(sound.first, signer_name=name, evidence=as_tpm(sound.first.evidence.data))
    second = node_request(sound.answer, signer_name=name, evidence=as_tpm(sound.answer.to_json()))
    facts = replace(sound.facts, settings=listed, first_request=first)
    with pytest.raises(Denied) as caught:
        asyncio.run(TpmSigner().verify_client_attestation_data(second, facts))
    assert caught.value.reason is Reason.CHALLENGE_UNKNOWN


@pytest.mark.parametrize("field", ["ekCert", "token", "identityToken", "jwt"])
def test_nothing_but_keys_stands_in_the_first_request(platform: Platform, tpm: SoftTpm, field: str) -> None:
    data = {**tpm.first().to_json(), field: "AAAA"}
    with pytest.raises(Denied) as caught:
        verified(
            platform, node_request(tpm.first(), evidence=Evidence(ProviderName("gcp"), VERSION, data)), node_facts()
        )
    assert caught.value.reason is Reason.EVIDENCE_MALFORMED


# Order and offline


def test_checks_without_a_platform_run_offline(cloud: GoogleCloud, tpm: SoftTpm) -> None:
    calls = Calls()
    platform = platform_of(cloud, calls)
    bad = Evidence(ProviderName("gcp"), VERSION, {"phase": 3})
    with pytest.raises(Denied):
        verified(platform, node_request(tpm.first(), evidence=bad), node_facts())
    with pytest.raises(Denied):
        verified(platform, node_request(tpm.first()), node_facts({}))
    assert calls.seen == []


def test_offline_the_platform_is_not_asked(tpm: SoftTpm) -> None:
    with pytest.raises(Unavailable) as caught:
        verified(OFFLINE, node_request(tpm.first()), node_facts())
    assert caught.value.reason is Reason.PLATFORM_UNAVAILABLE


def test_offline_a_sound_answer_is_not_believed_and_shows_what_holds_without_the_platform(sound: Joining) -> None:
    with pytest.raises(Unavailable) as caught:
        replace(sound, platform=OFFLINE).verify()
    names = [check.name for check in caught.value.checks]
    assert {"project", "same PKCS#10 bytes", "challenge answered in time"} <= set(names)
    assert "endorsement key: the instance's" not in names


def test_offline_an_answer_to_another_request_is_refused_as_it_was(sound: Joining) -> None:
    with pytest.raises(Denied) as caught:
        replace(sound, platform=OFFLINE).verify(first_request=None)
    assert caught.value.reason is Reason.FIRST_REQUEST_MISSING


def test_the_names_and_addresses_are_those_of_the_instance_now(cloud: GoogleCloud, platform: Platform) -> None:
    changed(cloud, internal_ip="10.0.0.9", external_ip="198.51.100.4")

    async def ask() -> tuple[tuple[str, str], ...]:
        signer = GcpSigner(platform=platform)
        try:
            return await signer.addresses(node_facts())
        finally:
            await signer.aclose()

    assert set(asyncio.run(ask())) == {
        ("InternalIP", "10.0.0.9"),
        ("ExternalIP", "198.51.100.4"),
        ("Hostname", NAME),
        ("InternalDNS", f"{NAME}.{ZONE}.c.{PROJECT}.internal"),
    }


def denied(platform: Platform, tpm: SoftTpm, settings: dict[str, JsonValue] | None = None) -> Reason:
    with pytest.raises(Denied) as caught:
        challenge_from(platform, node_request(tpm.first()), node_facts(settings))
    assert caught.value.checks or caught.value.reason is Reason.POLICY_INVALID
    return caught.value.reason


def test_the_proven_name_is_the_instances(sound: Joining) -> None:
    assert sound.verify().proven_node_name == NodeName(NAME)


def test_settings_are_read_when_the_signer_is_made(tmp_path: Path) -> None:
    with pytest.raises(Denied) as caught:
        GcpSigner(platform=Platform(settings={"endpoint": str(tmp_path)}))
    assert caught.value.reason is Reason.POLICY_INVALID
