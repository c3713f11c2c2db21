"""The example of an infrastructure provider that runs the controller itself: as a process, a node joins through it."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from polling import eventually
from world import World

from clouds.serving import Reply, Request, Serving
from nodeattest_sandbox.apiserver.jsonvalue import maps_at, text_at

EXAMPLE = Path(__file__).parents[2] / "examples" / "contoso_cloud"
CONFIG = """\
apiVersion: config.nodeattest.x-k8s.io/v1alpha1
kind: NodeAttestationControllerConfiguration
kubeconfig: {kubeconfig}
healthBindAddress: 127.0.0.1:0
metricsBindAddress: "0"
allowedAddresses: [127.0.0.0/8]
"""


class Contoso:
    """Contoso's cloud: its API, and the metadata service of each instance, which knows who asks."""

    def __init__(self) -> None:
        self.tickets: dict[str, str] = {}
        self.machines: dict[str, str] = {}
        """For which Machine an instance was created, where Contoso knows it."""
        self._serving = Serving(self._answer)
        self.url = f"http://127.0.0.1:{self._serving.port}"

    def _answer(self, request: Request) -> Reply:
        kind, _, what = request.path.strip("/").partition("/")
        if kind == "tickets":
            text = self.tickets.get(what, "")
            return Reply(200, text.encode()) if text else Reply(404)
        ticket = secrets.token_hex(32)
        self.tickets[ticket] = f"sandbox://{kind} {what.removeprefix('ticket/')} {self.machines.get(kind, '')}"
        return Reply(200, ticket.encode())

    @contextmanager
    def serving(self) -> Generator[None]:
        try:
            yield
        finally:
            self._serving.stop()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay the node's half out as an installer would, for processes that are started from here on."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    metadata = tmp_path / "contoso_cloud_controller-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1\n")
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n{name} = {kind}\n" for group, classes in groups for name, kind in classes.items()]
    (metadata / "entry_points.txt").write_text("".join(lines))
    for module in EXAMPLE.glob("*.py"):
        shutil.copy(module, tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@contextmanager
def contoso_controller(world: World, cloud: Contoso) -> Generator[Path]:
    config, log = world.directory / "contoso.yaml", world.directory / "contoso.log"
    config.write_text(CONFIG.format(kubeconfig=world.management.admin_kubeconfig))
    command = [sys.executable, EXAMPLE / "contoso_cloud_controller.py", "--config", config, "--api", cloud.url]
    with log.open("wb") as stream, subprocess.Popen(command, stdout=stream, stderr=stream) as process:
        try:
            eventually(lambda: '"connected"' in log.read_text(), seconds=60, what="the connection")
            yield log
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.usefixtures("installed")
def test_a_node_joins_through_a_controller_that_its_infrastructure_provider_runs(world: World) -> None:
    cloud = Contoso()
    world.set_policy(authorizedAttestors=["contosocloud"])
    world.machine("i-1")
    world.machine("i-2")
    with cloud.serving(), contoso_controller(world, cloud) as log:
        honest = world.agent("i-1", "contosocloud", metadata=f"{cloud.url}/i-1")
        joined = honest.join(world.token())
        assert joined.returncode == 0, joined.stderr
        [entry] = maps_at(world.ledger("i-1"), "spec", "issued")
        assert text_at(entry, "serial")
        # Another instance's metadata service gives tickets for that instance only.
        thief = world.agent("i-2", "contosocloud", metadata=f"{cloud.url}/i-1")
        refused = thief.join(world.token())
        assert refused.returncode != 0
        eventually(lambda: "ProofInvalid" in log.read_text(), what="the log of the refusal")
