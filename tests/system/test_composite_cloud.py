"""Instances that must prove themselves by their TPM and by their cloud: with both they join, with one they do not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from world import EK_ANNOTATION, Agent, World

from nodeattest_demo.machines import MachineSpec
from nodeattest_demo.platforms import AwsDemoPlatform
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import map_at

pytestmark = pytest.mark.swtpm


@dataclass(frozen=True, slots=True)
class Scene:
    """A cloud on loopback, and a controller that asks it."""

    world: World
    platform: AwsDemoPlatform

    def instance(self, name: str) -> tuple[MachineSpec, Agent]:
        """Run an instance with a TPM that the platform names, and make its Machine."""
        made, tpm = self.platform.create_machine(0), self.world.tpm(name)
        fleet.create_machine(
            self.world.admin,
            name,
            cluster=self.world.cluster,
            provider_id=made.identity.provider_id,
            addresses=made.addresses,
            infrastructure_annotations={EK_ANNOTATION: tpm.endorsement_fingerprint()},
        )
        settings = {f"aws.{key}": value for key, value in made.attestor.settings.items()}
        agent = self.world.agent(
            made.identity.node,
            "composite",
            directory=name,
            provider_id=made.identity.provider_id,
            **{"tpm.tcti": tpm.tcti, **settings},
        )
        return made, agent


@pytest.fixture(scope="module")
def scene(world: World) -> Iterator[Scene]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as monkeypatch:
        platform = AwsDemoPlatform(world.directory, stack)
        for name, value in platform.environment.items():
            monkeypatch.setenv(name, value)
        sections = {"authorizedAttestors": ["composite"], "composite": {"allOf": ["aws", "tpm"]}, **platform.policy}
        world.set_policy(**sections)  # pyright: ignore[reportArgumentType] - the ground writes JSON
        config = world.directory / "clouds.yaml"
        head = {"apiVersion": "config.nodeattest.x-k8s.io/v1alpha1", "kind": "NodeAttestationControllerConfiguration"}
        config.write_text(json.dumps({**head, "platforms": platform.platforms}))
        flags = ("--config", str(config), "--leader-elect", "false")
        with world.controller(*flags, log="clouds.log") as running:
            world.await_service(running)
            yield Scene(world, platform)


def denials(world: World, node: str) -> set[str]:
    return {reason for request in world.requests_of(node) if (reason := world.denial(request))} - {"Superseded"}


def test_an_instance_with_both_proofs_joins_and_its_cloud_tells_the_provider_id(scene: Scene) -> None:
    made, agent = scene.instance("cloud-0")
    token = scene.world.token()
    agent.directory.mkdir(parents=True)
    (agent.directory / "token").write_text(token)
    (agent.directory / "token").chmod(0o600)
    words = ["join", "--server", agent.server, "--ca-file", str(agent.ca_file), "--provider", "composite"]
    words += ["--token-file", str(agent.directory / "token"), "--node-name", agent.node_name]
    words += ["--kubeconfig", str(agent.kubeconfig), *agent.files()]
    for key, value in agent.settings.items():
        words += ["--set", f"{key}={value}"]
    joined = agent.run(*words)
    assert joined.returncode == 0, joined.stderr
    pins = map_at(scene.world.ledger("cloud-0"), "spec", "fingerprints")
    assert set(pins) == {"aws.instance", "tpm.ek", "tpm.ak"}
    assert str(pins["aws.instance"]).endswith(made.identity.provider_id.rpartition("/")[2])


@pytest.mark.parametrize(
    ("stolen", "reason"), [("aws.metadataEndpoint", "EndorsementKeyUntrusted"), ("tpm.tcti", "Platform")]
)
def test_one_instances_tpm_and_anothers_cloud_are_none_of_either(scene: Scene, stolen: str, reason: str) -> None:
    _, victim = scene.instance(f"cloud-victim-{stolen.partition('.')[0]}")
    _, thief = scene.instance(f"cloud-thief-{stolen.partition('.')[0]}")
    mixed = replace(
        thief,
        directory=Path(f"{thief.directory}-mixed"),
        node_name=victim.node_name,
        provider_id=victim.provider_id,
        settings={**thief.settings, stolen: victim.settings[stolen]},
    )
    assert mixed.join(scene.world.token()).returncode != 0
    [said] = denials(scene.world, victim.node_name)
    assert said.startswith(reason)
