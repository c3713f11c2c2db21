"""Machines of every infrastructure provider join, in the order in which this provider does its work, and renew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from filing_requests import Wanted, ends, file_request
from needs import ONLY_ROOT
from polling import eventually
from provider_world import PROVIDERS, ProviderMachine, ProviderWorld

from nodeattest_sandbox.apiserver.jsonvalue import text_at
from nodeattest_sandbox.control_plane import start_real

pytestmark = [pytest.mark.conformance, pytest.mark.swtpm, ONLY_ROOT]

ATTESTORS: Final = ("tpm", "challenge")
FOREIGN_PROOF: Final = {"tpm": "EndorsementKeyUntrusted", "challenge": "ProofInvalid"}


@pytest.fixture(scope="module")
def world(assets: Path, capi_definitions: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProviderWorld]:
    directory = tmp_path_factory.mktemp("providers")
    with (
        start_real(directory / "management", assets, name="management") as management,
        start_real(directory / "workload", assets, name="workload") as workload,
    ):
        built = ProviderWorld(directory, management, workload, capi_definitions)
        built.require({"authorizedAttestors": list(ATTESTORS)}, observed=False)
        with built.served():
            yield built
        built.close()


@pytest.fixture
def machines(world: ProviderWorld, request: pytest.FixtureRequest) -> Iterator[tuple[ProviderMachine, ProviderMachine]]:
    provider = str(request.param)
    made = [ProviderMachine(world, provider, f"{provider.lower()}-{number}") for number in range(2)]
    for machine in made:
        machine.create()
        machine.step("booting")
    yield made[0], made[1]
    if made[0].guest is not None:
        made[0].guest.stop()


@pytest.mark.parametrize("machines", list(PROVIDERS), indirect=True)
def test_a_machine_joins_by_its_own_token_and_proof_and_renews_when_its_provider_is_done(
    world: ProviderWorld, machines: tuple[ProviderMachine, ProviderMachine]
) -> None:
    machine, other = machines
    attestor = machine.row["attestor"]
    machine.boot()
    assert machine.guest is not None
    if machine.row.get("running"):
        eventually(lambda: world.requests_of(machine.node), "the request that waits")
        other.step("running")
        machine.step("running")
    machine.guest.joins()
    ledger = world.ledger(machine.name)
    assert text_at(ledger, "spec", "nodeName") == machine.node
    assert text_at(ledger, "spec", "providerID") == machine.provider_id
    claim = Wanted(node=machine.node, provider_id=machine.provider_id, provider=attestor)
    assert ends(file_request(world, claim, token=other.token)) == "Denied:TokenNotThisMachines"
    refused = machine.thief(other).join(machine.token)
    assert refused.returncode != 0
    assert FOREIGN_PROOF[attestor] in refused.stderr
    machine.becomes_node()
    machine.guest.renews()
    assert text_at(world.ledger(machine.name), "spec", "providerID") == machine.provider_id
