"""An agent that is newer than the controller joins with the newest evidence version that both know."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from filing_requests import Filed
from world import World

from nodeattest_providers import envelope, registry
from nodeattest_providers.identifiers import Purpose
from nodeattest_sandbox.apiserver.jsonvalue import text_at

_MODULE = """
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
    (tmp_path / "skewed_attestation.py").write_text(_MODULE)
    metadata = tmp_path / "skewed-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: skewed\nVersion: 1\n")
    classes = {registry.SIGNERS: "Signer", registry.ATTESTORS: "Attestor"}
    lines = [f"[{group}]\nskewed = skewed_attestation:{name}\n" for group, name in classes.items()]
    (metadata / "entry_points.txt").write_text("".join(lines))
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
