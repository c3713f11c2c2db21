"""Machines of every infrastructure provider join, in the order in which this provider does its work, and renew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import pytest
from cloud_fleets import CLOUDS, CloudInstances, cloud_instances
from kinds import Object
from needs import ONLY_ROOT
from polling import eventually
from provider_world import PROVIDERS, ProviderMachine, ProviderWorld
from world import Agent

from clouds.aws import SandboxAws
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.control_plane import start_real

pytestmark = [pytest.mark.conformance, pytest.mark.swtpm, ONLY_ROOT]

HOST_OBJECTS: Final = ("BareMetalHost", "ByoHost", "Hardware", "HetznerBareMetalHost", "PooledRemoteMachine")
FOREIGN_PROOF: Final = {
    "tpm": "EndorsementKeyUntrusted",
    "challenge": "ProofInvalid",
    "aws": "PlatformInstanceMismatch",
    "azure": "PlatformInstanceMismatch",
    "gcp": "EndorsementKeyUntrusted",
}


@pytest.fixture(scope="module")
def world(assets: Path, capi_definitions: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProviderWorld]:
    directory = tmp_path_factory.mktemp("providers")
    with (
        start_real(directory / "management", assets, name="management") as management,
        start_real(directory / "workload", assets, name="workload") as workload,
    ):
        built = ProviderWorld(directory, management, workload, capi_definitions)
        yield built
        built.close()


@pytest.fixture(scope="module")
def clouds(world: ProviderWorld, aws: SandboxAws) -> Iterator[CloudInstances]:
    with cloud_instances(world, aws, world.directory) as running:
        world.set_policy(authorizedAttestors=["tpm"])
        with world.served(running.platforms()):
            yield running


@pytest.fixture
def machines(
    request: pytest.FixtureRequest, world: ProviderWorld, clouds: CloudInstances
) -> Iterator[tuple[ProviderMachine, ProviderMachine]]:
    """Two machines of a provider: one that will boot, and another one."""
    provider = str(request.param)
    slug = provider.lower().replace(" ", "-")
    one, other = (ProviderMachine(world, clouds, provider, f"{slug}-{number}") for number in range(2))
    world.require(policy(clouds, one, other))
    for machine in (one, other):
        machine.create()
        machine.step("booting")
    yield one, other
    one.stop()


def policy(clouds: CloudInstances, *machines: ProviderMachine) -> JsonMap:
    """Return the policy that all providers share, with what these machines need besides."""
    found: Object = {"authorizedAttestors": ["tpm", "challenge", *CLOUDS], **clouds.sections()}
    found["infrastructure"] = {"hostObjects": list(HOST_OBJECTS)}
    for machine in machines:
        for section, content in machine.row.get("policy", {}).items():
            here = found.setdefault(section, {})
            for key, value in content.items():
                here[key] = [*here.get(key, []), *value] if isinstance(value, list) else value
    return cast("JsonMap", found)


@pytest.mark.parametrize("machines", list(PROVIDERS), indirect=True)
def test_a_machine_joins_by_its_own_token_and_proof_and_renews_when_its_provider_is_done(
    world: ProviderWorld, machines: tuple[ProviderMachine, ProviderMachine]
) -> None:
    machine, other = machines
    machine.boot()
    if machine.row.get("running"):
        eventually(lambda: world.requests_of(machine.node), "the request that waits", state=machine.guest.output)
        other.step("running")
        machine.step("running")
    machine.guest.joins()
    assert text_at(world.ledger(machine.name), "spec", "nodeName") == machine.node
    assert is_expected(machine)
    foreign_token = "TokenNotThisMachines" if other.has_provider_id() else "ProviderIDMismatch"
    assert_refused(other.claimed_by(machine, proofs=other), machine.token, foreign_token)
    foreign_proof = machine.row["expect"].get("foreignProof", FOREIGN_PROOF[machine.attestor])
    assert_refused(other.claimed_by(machine, proofs=machine), other.token, foreign_proof)
    machine.becomes_node()
    machine.guest.renews()
    assert is_expected(machine)


def assert_refused(agent: Agent, token: str, reason: str) -> None:
    done = agent.join(token)
    assert done.returncode != 0
    assert reason in done.stderr, done.stderr


def is_expected(machine: ProviderMachine) -> bool:
    """Tell whether the record's provider ID is the provider's own."""
    prefix, is_free, _ = machine.expected.partition("*")
    return machine.provider_id.startswith(prefix) if is_free else machine.provider_id == machine.expected
