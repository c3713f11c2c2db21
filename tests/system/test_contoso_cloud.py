"""The example of an infrastructure provider that runs the controller itself: as a process, a node joins through it."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from polling import eventually
from world import World

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
        cloud = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                kind, _, what = self.path.strip("/").partition("/")
                if kind == "tickets":
                    self._answer(cloud.tickets.get(what, ""))
                else:
                    ticket = secrets.token_hex(32)
                    created_for = cloud.machines.get(kind, "")
                    cloud.tickets[ticket] = f"sandbox://{kind} {what.removeprefix('ticket/')} {created_for}"
                    self._answer(ticket)

            def _answer(self, text: str) -> None:
                self.send_response(200 if text else 404)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def serving(self) -> Generator[None]:
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


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
