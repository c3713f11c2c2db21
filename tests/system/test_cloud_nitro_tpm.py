"""EC2 instances with NitroTPM: EC2 names their endorsement key, RSA or P-384, and their TPM joins by it alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from aws_fleet import AwsFleet, authorized_fleet
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from world import Agent, Controller, World

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at
from nodeattest_sandbox.clouds.aws.cloud import ACCOUNT, Instance, KeyType, SandboxAws
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
