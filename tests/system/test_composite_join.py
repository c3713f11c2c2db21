"""Machines with two proofs join with both and with nothing less: real agents, a real controller, software TPMs."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from world import NAMESPACE, Agent, Controller, World

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at

pytestmark = pytest.mark.swtpm
BOTH = "cluster.x-k8s.io/kube-apiserver-client-kubelet-composite"


@pytest.fixture(scope="module")
def controller(world: World) -> Iterator[Controller]:
    world.set_policy(authorizedAttestors=["composite"], composite={"anyOf": [{"allOf": ["tpm", "challenge"]}]})
    with world.controller("--leader-elect", "false", log="composite.log") as running:
        world.await_service(running)
        yield running


def enrolled(world: World, name: str) -> Agent:
    """Make a machine with a TPM that the platform knows, and a secret of its own."""
    tpm, secret = world.tpm(name), secrets.token_hex(32).encode()
    world.machine(name, tpm=tpm, addresses=[("Hostname", name)])
    body: JsonMap = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{name}-attestation"},
        "data": {"secret": base64.b64encode(secret).decode()},
    }
    world.admin.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", body)
    path = world.directory / f"{name}.secret"
    path.touch(mode=0o600)
    path.write_bytes(secret)
    return world.agent(name, "composite", **{"tpm.tcti": tpm.tcti, "challenge.secretFile": str(path)})


def denials(world: World, node: str) -> set[str]:
    return {reason for request in world.requests_of(node) if (reason := world.denial(request))}


@pytest.mark.usefixtures("controller")
def test_a_machine_with_both_proofs_joins_and_renews_and_its_pins_are_told_apart(world: World) -> None:
    agent = enrolled(world, "double-0")
    joined = agent.join(world.token())
    assert joined.returncode == 0, joined.stderr
    ledger = world.ledger("double-0")
    assert set(map_at(ledger, "spec", "fingerprints")) == {"tpm.ek", "tpm.ak", "challenge.secret"}
    assert text_at(ledger, "spec", "provider") == "composite"
    assert text_at(ledger, "spec", "signerName") == BOTH
    assert map_at(ledger, "spec", "boot")
    renewed = agent.join(world.token(), "--renew")
    assert renewed.returncode == 0, renewed.stderr


@pytest.mark.usefixtures("controller")
@pytest.mark.parametrize(
    ("own", "borrowed", "reason"),
    [("tpm", "challenge.secretFile", "ProofInvalid"), ("secret", "tpm.tcti", "EndorsementKeyUntrusted")],
)
def test_the_proofs_of_two_machines_are_none_of_either(world: World, own: str, borrowed: str, reason: str) -> None:
    victim, thief = enrolled(world, f"victim-{own}"), enrolled(world, f"thief-{own}")
    mixed = replace(
        victim,
        directory=Path(f"{victim.directory}-mixed"),
        settings={**victim.settings, borrowed: thief.settings[borrowed]},
    )
    assert mixed.join(world.token()).returncode != 0
    assert denials(world, victim.node_name) - {"Superseded"} == {reason}
    assert not world.ledger(victim.node_name)
    assert victim.join(world.token()).returncode == 0
