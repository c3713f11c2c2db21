"""Providers of others: found by entry points, in newer versions, and in a controller that a third party runs."""

from __future__ import annotations

import base64
import secrets
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from filing_requests import Filed
from polling import eventually
from world import World

from clouds.serving import Reply, Request, Serving
from nodeattest_providers import envelope, registry
from nodeattest_providers.identifiers import Purpose
from nodeattest_sandbox.apiserver.jsonvalue import maps_at, text_at


def install(folder: Path, name: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Lay a distribution out as an installer would; its modules are the folder's."""
    metadata = folder / f"{name.replace('-', '_')}-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    lines = [f"[{group}]\n{key} = {kind}\n" for group, classes in groups.items() for key, kind in classes.items()]
    (metadata / "entry_points.txt").write_text("".join(lines))


# A provider whose agent is newer than the controller

SKEWED = """
from nodeattest_providers.insecure.attestor import InsecureAttestor
from nodeattest_providers.insecure.verifier import InsecureSigner

class OldAttestor(InsecureAttestor):
    provider = "skewed"

class Attestor(OldAttestor):
    versions = (2, 1)
    def in_version(self, version):
        return self if version == 2 else OldAttestor({})

class Signer(InsecureSigner):
    provider = "skewed"
"""


def test_an_agent_whose_newest_evidence_version_the_controller_does_not_know_joins_with_an_older_one(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "skewed.py").write_text(SKEWED)
    classes = {registry.SIGNERS: {"skewed": "skewed:Signer"}, registry.ATTESTORS: {"skewed": "skewed:Attestor"}}
    install(tmp_path, "skewed", classes)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    world.set_policy(authorizedAttestors=["skewed"])
    world.machine("skewed")
    with world.controller("--leader-elect", "false", log="skew.log") as running:
        world.await_service(running)
        joined = world.agent("skewed", "skewed").join(world.token())
    assert joined.returncode == 0, joined.stderr
    assert "evidence skewed/v1, because the controller refused skewed/v2" in joined.stderr
    states: dict[int, str] = {}
    for request in world.requests_of("skewed"):
        raw = base64.b64decode(text_at(request, "spec", "request"))
        evidence = envelope.decode(raw, purpose=Purpose.CLIENT)[1]
        states[evidence.version] = Filed(world, text_at(request, "metadata", "name")).state()
    assert states == {2: "Denied:EvidenceVersionUnsupported", 1: "issued"}


# The example of an infrastructure provider that runs the controller itself

EXAMPLE = Path(__file__).parents[2] / "examples" / "contoso_cloud"
CONFIG = """\
apiVersion: config.nodeattest.x-k8s.io/v1alpha1
kind: NodeAttestationControllerConfiguration
kubeconfig: {kubeconfig}
healthBindAddress: 127.0.0.1:0
metricsBindAddress: "0"
allowedAddresses: [127.0.0.0/8]
"""


@contextmanager
def contoso_cloud() -> Generator[str]:
    """Serve Contoso's API, and the metadata service of each instance, which gives tickets for that instance."""
    tickets: dict[str, str] = {}

    def answer(request: Request) -> Reply:
        kind, _, what = request.path.strip("/").partition("/")
        if kind == "tickets":
            return Reply(200, tickets[what].encode()) if what in tickets else Reply(404)
        ticket = secrets.token_hex(32)
        tickets[ticket] = f"sandbox://{kind} {what.removeprefix('ticket/')} "
        return Reply(200, ticket.encode())

    serving = Serving(answer)
    try:
        yield f"http://127.0.0.1:{serving.port}"
    finally:
        serving.stop()


@contextmanager
def contoso_controller(world: World, cloud: str) -> Generator[Path]:
    config, log = world.directory / "contoso.yaml", world.directory / "contoso.log"
    config.write_text(CONFIG.format(kubeconfig=world.management.admin_kubeconfig))
    command = [sys.executable, EXAMPLE / "contoso_cloud_controller.py", "--config", config, "--api", cloud]
    with log.open("wb") as stream, subprocess.Popen(command, stdout=stream, stderr=stream) as process:
        try:
            eventually(lambda: '"connected"' in log.read_text(), seconds=60, what="the connection")
            yield log
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_a_node_joins_through_a_controller_that_its_infrastructure_provider_runs(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install(tmp_path, project["name"], project["entry-points"])
    for module in EXAMPLE.glob("*.py"):
        shutil.copy(module, tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    world.set_policy(authorizedAttestors=["contosocloud"])
    for name in ("i-1", "i-2"):
        world.machine(name)
    with contoso_cloud() as cloud, contoso_controller(world, cloud) as log:
        joined = world.agent("i-1", "contosocloud", metadata=f"{cloud}/i-1").join(world.token())
        assert joined.returncode == 0, joined.stderr
        [entry] = maps_at(world.ledger("i-1"), "spec", "issued")
        assert text_at(entry, "serial")
        thief = world.agent("i-2", "contosocloud", metadata=f"{cloud}/i-1")
        assert thief.join(world.token()).returncode != 0
        eventually(lambda: "ProofInvalid" in log.read_text(), what="the log of the refusal")
