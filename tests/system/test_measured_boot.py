"""Measured boot from end to end: a log explains the quote, its values make a policy, another boot is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from world import CLUSTER, NAMESPACE, Agent, World

from nodeattest_cli.main import main
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at
from nodeattest_sandbox.firmware import boot, crypto_agile_log, typical_boot

pytestmark = pytest.mark.swtpm

SELECTION = (0, 4, 7, 8)
GOOD, OTHER = "vmlinuz-1 ro", "vmlinuz-1 ro init=/bin/sh"


def booted(world: World, name: str, kernel: str) -> Agent:
    """Power a machine on; its firmware measures and logs, its agent knows where the log is."""
    tpm, measured = world.tpm(name), typical_boot(kernel)
    boot(tpm.tcti, measured)
    log = world.directory / f"{name}.log"
    log.write_bytes(crypto_agile_log(measured))
    world.machine(name, tpm=tpm)
    return world.agent(name, "tpm", tcti=tpm.tcti, eventLog=str(log))


def denials(world: World, node: str) -> set[str]:
    return {world.denial(request) for request in world.requests_of(node)}


def refused(world: World, agent: Agent, reason: str) -> None:
    assert agent.join(world.token()).returncode != 0
    assert reason in denials(world, agent.node_name)
    assert not world.ledger(agent.node_name)


def test_a_boot_is_explained_by_its_log_then_learned_and_another_is_refused(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.set_policy(authorizedAttestors=["tpm"], tpm={"eventLog": "Require", "pcrs": {"selection": [*SELECTION]}})
    with world.controller("--leader-elect", "false", log="controller-measured-1.log") as controller:
        world.await_service(controller)
        joined = booted(world, "measured-0", GOOD).join(world.token())
        assert joined.returncode == 0, joined.stderr
        lying = booted(world, "measured-1", OTHER)
        Path(lying.settings["eventLog"]).write_bytes(crypto_agile_log(typical_boot(GOOD)))
        refused(world, lying, "EventLogMismatch")
        without = booted(world, "measured-2", GOOD)
        Path(without.settings["eventLog"]).unlink()
        told = without.join(world.token())
        assert told.returncode != 0
        assert "the policy asks for the event log" in told.stderr
        assert "securityfs" in told.stderr

    assert set(map_at(world.ledger("measured-0"), "spec", "boot", "pcrs")) == {str(pcr) for pcr in SELECTION}
    access = ["--kubeconfig", str(world.management.admin_kubeconfig), "-n", NAMESPACE, "--cluster", CLUSTER]
    assert main(["policy", "learn", "measured-0", *access]) == 0
    learned: JsonMap = yaml.safe_load(capsys.readouterr().out)
    pcrs = map_at(learned, "spec", "tpm", "pcrs")
    assert set(map_at(pcrs, "values")) == {str(pcr) for pcr in SELECTION}
    world.set_policy(authorizedAttestors=["tpm"], tpm={"eventLog": "Require", "pcrs": pcrs})
    with world.controller("--leader-elect", "false", log="controller-measured-2.log") as controller:
        world.await_service(controller)
        same = booted(world, "measured-3", GOOD).join(world.token())
        assert same.returncode == 0, same.stderr
        refused(world, booted(world, "measured-4", OTHER), "PCRValueNotAllowed")
