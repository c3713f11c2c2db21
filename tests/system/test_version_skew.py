"""Agents and controllers that know different versions of the evidence, on the sandbox and on a real kube-apiserver."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from filing_requests import Filed
from world import World

from nodeattest_providers import envelope, registry
from nodeattest_providers.identifiers import ProviderName, Purpose, signer_for
from nodeattest_sandbox.apiserver.jsonvalue import text_at

PACKAGES = ("old", "new")
KEY = "the key of the tests of skew"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The provider's package as it was and as it is, each installed in a folder of its own."""
    found: dict[str, Path] = {}
    for age in PACKAGES:
        found[age] = folder = tmp_path_factory.mktemp(age)
        shutil.copy(Path(__file__).parent / "skewed_attestation.py", folder)
        metadata = folder / "skewed-1.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: skewed\nVersion: 1\n")
        classes = {registry.SIGNERS: "Signer", registry.ATTESTORS: "Attestor"}
        lines = [f"[{group}]\nskewed = skewed_attestation:{age.title()}{kind}\n" for group, kind in classes.items()]
        (metadata / "entry_points.txt").write_text("".join(lines))
    return found


@pytest.fixture(scope="module", params=PACKAGES)
def controller_of(request: pytest.FixtureRequest, world: World, packages: dict[str, Path]) -> Iterator[str]:
    """A controller with the old or the new package."""
    age = str(request.param)
    world.set_policy(authorizedAttestors=["skewed"], providers={"skewed": {"key": KEY}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(packages[age]))
        with world.controller("--leader-elect", "false", log=f"skew-{age}.log") as running:
            world.await_service(running)
            yield age


def versions_of(world: World, node: str, purpose: Purpose = Purpose.CLIENT) -> list[tuple[str, str]]:
    """The evidence blocks of a node's requests and how these ended, oldest first."""
    signer = signer_for(ProviderName("skewed"), purpose)
    requests = [one for one in world.requests_of(node) if text_at(one, "spec", "signerName") == signer]
    requests.sort(key=lambda one: int(text_at(one, "metadata", "resourceVersion")))
    raw = [base64.b64decode(text_at(one, "spec", "request")) for one in requests]
    evidence = [envelope.decode(one, purpose=purpose)[1] for one in raw]
    ends = [Filed(world, text_at(one, "metadata", "name")).state() for one in requests]
    return [(f"{one.provider}/v{one.version}", end) for one, end in zip(evidence, ends, strict=True)]


JOINS = {
    ("old", "old"): [("skewed/v1", "issued")],
    ("old", "new"): [("skewed/v2", "Denied:EvidenceVersionUnsupported"), ("skewed/v1", "issued")],
    ("new", "old"): [("skewed/v1", "issued")],
    ("new", "new"): [("skewed/v2", "issued")],
}


@pytest.mark.parametrize("agent_of", PACKAGES)
def test_old_and_new_join_each_other_in_the_newest_version_that_both_know(
    world: World, controller_of: str, agent_of: str, packages: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = f"{agent_of}-at-{controller_of}"
    world.machine(node)
    monkeypatch.setenv("PYTHONPATH", str(packages[agent_of]))
    joined = world.agent(node, "skewed", key=KEY).join(world.token())
    assert joined.returncode == 0, joined.stderr
    assert versions_of(world, node) == JOINS[controller_of, agent_of]
    told = "got with evidence skewed/v1, because the controller refused skewed/v2; upgrade the controller"
    assert (told in joined.stderr) == ((controller_of, agent_of) == ("old", "new"))
