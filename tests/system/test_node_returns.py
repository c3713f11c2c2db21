"""Nodes that come back after their certificate ended, after a cleared TPM, after a move; and a clone that does not.

Certificates are short because the cluster's CA certificate ends soon; nothing of the product knows of it.
"""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from operator_commands import collection_of, moved, rejoin_token, reset
from polling import SECONDS, eventually
from short_authority import shorten_certificates
from world import Agent, Controller, World

from nodeattest_parsing.objects import moment
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.swtpm import SoftwareTpm

pytestmark = pytest.mark.swtpm
SHORT = 20
"""Seconds that a certificate lasts here."""


@pytest.fixture(autouse=True)
def controller(world: World) -> Iterator[Controller]:
    world.set_policy(authorizedAttestors=["tpm"])
    with ExitStack() as stack:
        stack.callback(world.reset_authority)
        running = stack.enter_context(world.controller("--leader-elect", "false", log="returns.log"))
        world.await_service(running)
        yield running


def joined(world: World, name: str, seconds: int = SHORT) -> tuple[Agent, SoftwareTpm, fleet.Machine]:
    """Let a machine with a TPM of its own join with a short certificate."""
    tpm = world.tpm(name)
    machine = world.machine(name, tpm=tpm)
    shorten_certificates(world, seconds)
    agent = world.agent(name, "tpm", tcti=tpm.tcti)
    done = agent.join(world.token())
    assert done.returncode == 0, done.stderr
    return agent, tpm, machine


def status(agent: Agent) -> JsonMap:
    return cast("JsonMap", json.loads(agent.run("status", "--json", *agent.files()).stdout))


def outlive(world: World, agent: Agent) -> None:
    """Wait until the certificate has ended."""
    eventually(lambda: status(agent)["state"] == "none", what="the end of the certificate")
    world.reset_authority()


def keys(world: World, name: str, field: str = "issued") -> list[str]:
    return [text_at(entry, "spki") for entry in maps_at(world.ledger(name), "spec", field)]


def test_a_node_that_was_off_too_long_rejoins_by_a_token_that_no_other_machine_can_use(world: World) -> None:
    agent, _, _ = joined(world, "sleeper")
    pins = map_at(world.ledger("sleeper"), "spec", "fingerprints")
    other = world.tpm("thief")
    world.machine("thief", tpm=other)
    outlive(world, agent)

    token = rejoin_token(world, "sleeper")
    stolen = world.agent("thief", "tpm", tcti=other.tcti).join(token)
    assert stolen.returncode != 0
    assert "TokenNotThisMachines" in stolen.stderr
    assert not world.ledger("thief")

    back = agent.join(token)
    assert back.returncode == 0, back.stderr
    assert status(agent)["state"] == "valid"
    assert len(set(keys(world, "sleeper"))) == 2
    assert map_at(world.ledger("sleeper"), "spec", "fingerprints") == pins


def clear(tpm: SoftwareTpm) -> None:
    """TPM2_Clear by the platform's owner, as firmware does."""
    tss: Any = importlib.import_module("tpm2_pytss")  # it has no types
    with tss.ESAPI(tpm.tcti) as esys:
        esys.clear(tss.ESYS_TR.LOCKOUT)


def test_a_machine_whose_tpm_was_cleared_comes_back_by_a_reset_and_not_without(world: World) -> None:
    tpm = world.tpm("cleared")
    for _ in range(2):  # resetCount grows with each power cycle, and is zero after a clear
        tpm.stop()
        tpm.start()
    agent, _, _ = joined(world, "cleared")
    pins = map_at(world.ledger("cleared"), "spec", "fingerprints")
    outlive(world, agent)
    clear(tpm)

    refused = agent.join(rejoin_token(world, "cleared"))
    assert refused.returncode != 0
    assert "TPMClockReversed" in refused.stderr
    assert "machines reset" in refused.stderr

    reset(world, "cleared", "firmware update cleared the TPM")
    back = agent.join(rejoin_token(world, "cleared"))
    assert back.returncode == 0, back.stderr
    spec = world.ledger("cleared")["spec"]
    assert map_at(spec, "fingerprints") == pins  # primary keys outlive a clear
    assert map_at(spec, "boot")["resetCount"] == 0
    assert len(keys(world, "cleared")) == len(keys(world, "cleared", "retiredKeys")) == 1
    assert len(list(maps_at(spec, "resets"))) == 1


def renew(world: World, agent: Agent) -> None:
    """Call the plugin as client-go does, at the renewal moment."""
    due = moment(text_at(map_at(status(agent), "certificate"), "renewAt"))
    assert due is not None
    left = (due - datetime.now(UTC)).total_seconds()
    eventually(lambda: datetime.now(UTC) > due, what="the renewal moment", seconds=max(left, 0.0) + SECONDS)
    ca = base64.b64encode(world.workload.ca_certificate.read_bytes()).decode()
    cluster = {"server": agent.server, "certificate-authority-data": ca}
    spec = {"cluster": cluster, "interactive": False}
    info = {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "spec": spec}
    said = agent.run("credential", *agent.files(), exec_info=json.dumps(info) + "\n")
    assert said.returncode == 0, said.stderr


def test_a_ledger_survives_a_move_to_another_management_cluster_and_the_node_renews(
    world: World, controller: Controller
) -> None:
    agent, _, machine = joined(world, "mover", 40)
    issued_at = datetime.now(UTC)
    due = moment(text_at(map_at(status(agent), "certificate"), "renewAt"))
    ends = moment(text_at(map_at(status(agent), "certificate"), "notAfter"))
    assert due is not None
    assert ends is not None
    life = (ends - issued_at).total_seconds()
    assert 0.5 * life - 2 < (due - issued_at).total_seconds() < 0.7 * life + 2  # not of the life from notBefore

    controller.kill()
    before = world.ledger("mover")
    live = world.admin.get(f"{collection_of(machine.machine)}/mover")
    after = moved(world, live, machine.infrastructure, before)
    assert text_at(after, "metadata", "uid") != text_at(before, "metadata", "uid")
    controller.start()
    renew(world, agent)
    eventually(lambda: len(keys(world, "mover")) == 2, what="the renewal")
    spec, old = world.ledger("mover")["spec"], before["spec"]
    assert map_at(spec, "fingerprints") == map_at(old, "fingerprints")
    assert next(maps_at(spec, "issued")) == next(maps_at(old, "issued"))
    assert len(set(keys(world, "mover"))) == 2
    users = [text_at(one, "spec", "username") for one in world.requests_of("mover")]
    assert users.count("system:node:mover") == 2  # both rounds, by the node's own certificate
