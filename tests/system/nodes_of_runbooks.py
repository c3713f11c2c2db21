"""Nodes with a TPM that the tests of runbooks bring into a broken state, and what is on record of them."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, cast

from polling import eventually
from world import OWN, Agent, Controller, World

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at
from nodeattest_sandbox.swtpm import SoftwareTpm

SPENT: Final = "gone00.0123456789abcdef"
"""A bootstrap token of the past: a node renews by its own certificate."""


@contextmanager
def serving(world: World, log: str, policy: JsonMap | None = None, *, elected: bool = False) -> Generator[Controller]:
    """Run a controller under a policy that authorizes TPMs, or under this one."""
    world.set_policy(**(policy or {"authorizedAttestors": ["tpm"]}))
    with world.controller(*(() if elected else ("--leader-elect", "false")), log=log) as controller:
        world.await_service(controller)
        yield controller


def joined(
    world: World, name: str, *, tpm: SoftwareTpm | None = None, registered: bool = True, **settings: str
) -> Agent:
    """Let a machine join by a token of its own; one that is not ``registered`` is trusted on first use."""
    tpm = tpm or world.tpm(name)
    world.machine(name, tpm=tpm if registered else None)
    agent = world.agent(name, "tpm", tcti=tpm.tcti, **settings)
    done = agent.join(world.token())
    assert done.returncode == 0, done.stderr
    return agent


def status(agent: Agent) -> JsonMap:
    """Return what the agent says of its certificate."""
    return cast("JsonMap", json.loads(agent.run("status", "--json", *agent.files()).stdout))


def ended(agent: Agent) -> None:
    """Wait until the node's certificate has ended."""
    eventually(lambda: status(agent)["state"] == "none", what="the end of the certificate")


def serials(world: World) -> dict[str, list[str]]:
    """Return the certificates on record, by machine."""
    return {
        text_at(one, "spec", "machineName"): [text_at(entry, "serial") for entry in maps_at(one, "spec", "issued")]
        for one in world.admin.list(f"{OWN}/machineattestations")
    }
