"""client-go's own exec credential client, as kubelet uses it, with a kubeconfig as ``join`` writes it.

``tests/servers/oracles/execcredential`` is the client. That requests do not stall during renewals:
``tests/system/test_client_go.py``.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import pytest
from agent_cluster import challenge_then_sign
from agent_machine import COMMAND, NODE, Machine
from needs import kubernetes_program
from polling import eventually

from nodeattest_authenticator.formats import client_go

pytestmark = pytest.mark.conformance

PATH: Final = f"/api/v1/nodes/{NODE}"
LIFETIME: Final = 24
"""Seconds that the first certificate is valid; its renewal is due after half of them or later."""


@dataclass(frozen=True)
class ClientGo:
    """A running client."""

    machine: Machine
    requests: IO[str]
    responses: IO[str]
    log: Path

    def get(self, *, reconnects: bool = False) -> Any:
        """Get the Node; returns status, error and the plugin's runs by exit code."""
        self.requests.write(f"{'reconnect ' if reconnects else ''}{PATH}\n")
        self.requests.flush()
        return json.loads(self.responses.readline())

    def serial(self) -> str:
        """Return the serial number of the certificate that the newest request presented."""
        return [serial for path, serial in self.machine.api.presented if path == PATH][-1]


@pytest.fixture
def client(machine: Machine) -> Generator[ClientGo]:
    """A client with a kubeconfig as ``join`` writes it; the plugin runs at its first request."""
    machine.api.readable[PATH] = {"kind": "Node"}
    path, log = machine.folder / "kubelet.conf", machine.folder / "client.log"
    places = {"config": str(machine.config), "cache_dir": str(machine.cache)}
    path.write_bytes(client_go.render_kubeconfig(machine.settings.cluster, command=str(COMMAND), **places))
    command = [kubernetes_program("oracle-execcredential"), path]
    pipe = subprocess.PIPE
    with log.open("wb") as errors, subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        yield ClientGo(machine, run.stdin, run.stdout, log)
        run.kill()


def test_a_certificate_is_reused_until_it_expires_and_new_connections_present_the_next(
    machine: Machine, client: ClientGo
) -> None:
    machine.challenged()
    machine.api.on_create = partial(challenge_then_sign, lasts=LIFETIME)
    begin = time.time()
    assert client.get() == {"status": 200, "error": "", "runs": {"0": 1}}
    machine.api.on_create = challenge_then_sign
    first, connections = client.serial(), machine.api.connections
    assert client.get(reconnects=True)["runs"] == {"0": 1}
    assert (client.serial(), machine.api.connections) == (first, connections + 1)
    second_run: list[float] = []

    def is_rotated() -> bool:
        answer = client.get()
        assert answer["status"] == 200, answer
        assert set(answer["runs"]) == {"0"}
        if answer["runs"]["0"] > 1:
            second_run.append(time.time())
        return client.serial() != first

    eventually(is_rotated, what="the next certificate")
    assert second_run[0] - begin > LIFETIME / 3
    # One run starts the renewal in the background, and one fetches its result.
    rotated = client.serial()
    assert client.get(reconnects=True)["runs"]["0"] <= 3
    assert client.serial() == rotated
    assert machine.api.posts() == 4


def test_a_denial_and_its_remedy_reach_the_log_until_the_agent_is_configured_anew(
    machine: Machine, client: ClientGo
) -> None:
    machine.api.on_create = lambda api, name: api.deny(name, "EndorsementKeyUntrusted", "register the key")
    for runs in (1, 2):
        denied = client.get()
        assert denied["status"] == 0
        assert f"executable {COMMAND} failed with exit code 1" in denied["error"]
        assert denied["runs"] == {"1": runs}
    said = client.log.read_text().splitlines()
    assert ["EndorsementKeyUntrusted" in line and "register the key" in line for line in said] == [True, True]
    assert machine.api.posts() == 1
    machine.api.on_create = lambda api, name: api.sign(name)
    machine.prepare(providerID={"value": "sandbox://machine-1"})
    assert client.get() == {"status": 200, "error": "", "runs": {"0": 1, "1": 2}}
