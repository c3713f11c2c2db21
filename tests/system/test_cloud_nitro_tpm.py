"""EC2 instances with NitroTPM: EC2 names their endorsement key, RSA or P-384, and their TPM joins by it alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest
from aws_fleet import ROLE, TAGS, AwsFleet, authorized_fleet, platform_calls
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from polling import eventually
from world import Agent, Controller, World

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at
from nodeattest_sandbox.clouds.aws.cloud import ACCOUNT, REGION, Instance, KeyType, SandboxAws
from nodeattest_sandbox.swtpm import EndorsementKind, SoftwareTpm

pytestmark = pytest.mark.swtpm

KINDS: dict[EndorsementKind, KeyType] = {"rsa2048": "rsa-2048", "ecc-p384": "ecc-sec-p384"}
FROM_EC2: JsonMap = {"endorsementKeysFrom": {"ec2": {"accounts": [ACCOUNT]}}}


@dataclass(frozen=True, slots=True)
class Scene:
    """A cloud whose instances have TPMs, and a controller that asks it for their keys."""

    machines: AwsFleet
    controller: Controller

    @property
    def world(self) -> World:
        return self.machines.world

    def nitro(self, name: str) -> tuple[Instance, SoftwareTpm]:
        """Run an instance with NitroTPM, and make its Machine."""
        instance, tpm = self.machines.launch(name), self.world.tpm(name)
        keys: dict[KeyType, bytes] = {
            kind: tpm.endorsement_certificate(own)
            .public_key()
            .public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
            for own, kind in KINDS.items()
        }
        self.machines.cloud.set_tpm(instance, keys)
        return instance, tpm

    def agent(self, instance: Instance, tpm: SoftwareTpm, key: str, *, provider: str = "tpm") -> Agent:
        settings = {"tcti": tpm.tcti, "endorsementKey": key}
        if provider == "composite":
            settings = {f"tpm.{name}": value for name, value in settings.items()}
            settings["aws.metadataEndpoint"] = instance.metadata_endpoint
        return self.world.agent(instance.private_dns, provider, provider_id=instance.provider_id, **settings)

    def told(self) -> int:
        """Count the keys that EC2 told."""
        return self.machines.cloud.calls().get("ec2:GetInstanceTpmEkPub", 0)


@pytest.fixture(scope="module")
def scene(world: World, aws: SandboxAws) -> Iterator[Scene]:
    with authorized_fleet(world, aws) as machines:
        world.set_policy(authorizedAttestors=["tpm"], tpm=FROM_EC2)
        with world.controller(*machines.flags("nitro.json"), log="nitro.log") as running:
            world.await_service(running)
            yield Scene(machines, running)


@pytest.mark.parametrize("kind", KINDS)
def test_an_instance_joins_and_renews_by_the_key_that_ec2_names(scene: Scene, kind: EndorsementKind) -> None:
    name = f"nitro-{kind}"
    instance, tpm = scene.nitro(name)
    agent, before = scene.agent(instance, tpm, kind), scene.told()
    joined = agent.join(scene.world.token())
    assert joined.returncode == 0, joined.stderr
    pins = map_at(scene.world.ledger(name), "spec", "fingerprints")
    assert pins["tpm.ek"] == tpm.endorsement_fingerprint(kind)
    renewed = agent.join(scene.world.token(), "--renew")
    assert renewed.returncode == 0, renewed.stderr
    assert scene.told() == before + 1


@pytest.mark.parametrize("kind", KINDS)
def test_another_instances_tpm_does_not_join_in_its_place(scene: Scene, kind: EndorsementKind) -> None:
    victim, _ = scene.nitro(f"nitro-victim-{kind}")
    _, thief = scene.nitro(f"nitro-thief-{kind}")
    refused = scene.agent(victim, thief, kind).join(scene.world.token())
    assert refused.returncode == 1
    assert "EndorsementKeyUntrusted" in refused.stderr


def test_a_key_of_a_type_that_ec2_does_not_name_is_denied_with_the_agents_setting(scene: Scene) -> None:
    instance, tpm = scene.nitro("nitro-p256")
    refused = scene.agent(instance, tpm, "ecc-p256").join(scene.world.token())
    assert "EndorsementKeyUntrusted" in refused.stderr
    assert "endorsementKey to rsa2048 or ecc-p384" in refused.stderr


def test_an_instance_without_nitrotpm_or_life_is_denied(scene: Scene) -> None:
    bare, tpm = scene.machines.launch("nitro-none"), scene.world.tpm("nitro-none")
    refused = scene.agent(bare, tpm, "rsa2048").join(scene.world.token())
    assert "PlatformConfigurationNotAllowed" in refused.stderr
    ended, tpm = scene.nitro("nitro-ended")
    scene.machines.cloud.terminate(ended)
    refused = scene.agent(ended, tpm, "rsa2048").join(scene.world.token())
    assert "PlatformInstanceNotRunning" in refused.stderr


def test_while_ec2_is_down_the_instance_waits_and_then_joins(scene: Scene) -> None:
    instance, tpm = scene.nitro("nitro-down")
    before = platform_calls(scene.controller).get(("ec2", "failed"), 0)
    scene.machines.cloud.answer("ec2", "down")
    try:
        with ThreadPoolExecutor(1) as pool:
            agent = scene.agent(instance, tpm, "ecc-p384")
            joining = pool.submit(agent.join, scene.world.token(), "--timeout", "150", timeout=180)
            eventually(lambda: platform_calls(scene.controller).get(("ec2", "failed"), 0) > before, what="the call")
            scene.machines.cloud.answer("ec2", "up")
            assert joining.result().returncode == 0, joining.result().stderr
    finally:
        scene.machines.cloud.answer("ec2", "up")


def test_in_a_composite_proof_ec2_names_the_tpms_key_too(scene: Scene) -> None:
    world = scene.world
    aws: JsonMap = {"accounts": [ACCOUNT], "regions": [REGION], "roles": [ROLE], "tags": dict(TAGS)}
    parts: JsonMap = {"allOf": ["aws", "tpm"]}
    world.set_policy(authorizedAttestors=["composite"], composite=parts, aws=aws, tpm=FROM_EC2)
    try:
        instance, tpm = scene.nitro("nitro-both")
        joined = scene.agent(instance, tpm, "ecc-p384", provider="composite").join(world.token())
        assert joined.returncode == 0, joined.stderr
        pins = map_at(world.ledger("nitro-both"), "spec", "fingerprints")
        assert text_at(pins, "tpm.ek") == tpm.endorsement_fingerprint("ecc-p384")
        assert "aws.instance" in pins
        other, foreign = scene.nitro("nitro-half")
        mixed = scene.agent(other, tpm, "ecc-p384", provider="composite")
        refused = replace(mixed, directory=world.directory / "nodes" / "nitro-mixed").join(world.token())
        assert "EndorsementKeyUntrusted" in refused.stderr
        assert foreign.endorsement_fingerprint("ecc-p384") != tpm.endorsement_fingerprint("ecc-p384")
    finally:
        world.set_policy(authorizedAttestors=["tpm"], tpm=FROM_EC2)
