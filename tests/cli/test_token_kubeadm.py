"""``nodeattest token`` beside kubeadm on one API server: the same words, and each takes what the other made."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_info_tool import SECRETS, ClusterInfoTool
from kubernetes_assets import cluster_configuration

from nodeattest_cli.main import main
from nodeattest_discovery.token import generate
from nodeattest_sandbox.apiserver.jsonvalue import map_at
from nodeattest_sandbox.control_plane import ControlPlane, kubeadm

pytestmark = pytest.mark.conformance


class Pair:
    """Both commands, on one control plane that has no tokens at first."""

    def __init__(self, plane: ControlPlane, assets: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.plane = plane
        self.assets = assets
        self._access = ["--kubeconfig", str(plane.admin_kubeconfig)]
        self._capsys = capsys

    def ours(self, *words: str, code: int = 0) -> str:
        done = main(["token", *words, *self._access])
        said = self._capsys.readouterr()
        assert done == code, said.err
        return said.out

    def theirs(self, *words: str, code: int = 0) -> str:
        done = kubeadm(self.assets, "token", *words, *self._access)
        assert done.returncode == code, done.stderr
        return done.stdout

    def data(self, token_id: str) -> dict[str, object]:
        """Read a token's Secret without the time at which it ends."""
        found = map_at(self.plane.client().get(f"{SECRETS}/bootstrap-token-{token_id}"), "data")
        return {key: base64.b64decode(str(value)).decode() for key, value in found.items() if key != "expiration"}


@pytest.fixture
def pair(real_control_plane: ControlPlane, assets: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Pair]:
    tool = ClusterInfoTool(real_control_plane, capsys)
    tool.clear()
    yield Pair(real_control_plane, assets, capsys)
    tool.clear()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--ttl", "0"],
        ["--ttl", "1h30m", "--description", "hi there"],
        ["--usages", "authentication", "--groups", "system:bootstrappers:foo,system:bootstrappers:bar"],
        [
            "--usages",
            "signing,authentication",
            "--groups",
            "system:bootstrappers:foo",
            "--groups=system:bootstrappers:b",
        ],
    ],
)
def test_the_same_words_make_the_same_secret(pair: Pair, words: list[str]) -> None:
    first, second = generate(), generate()
    assert pair.ours("create", first.reveal(), *words) == f"{first.reveal()}\n"
    assert pair.theirs("create", second.reveal(), *words) == f"{second.reveal()}\n"
    ours, theirs = pair.data(first.id), pair.data(second.id)
    for data in (ours, theirs):
        data.pop("token-id")
        data.pop("token-secret")
    assert ours == theirs


def test_the_join_commands_are_the_same(pair: Pair) -> None:
    first, second = generate().reveal(), generate().reveal()
    ours = pair.ours("create", first, "--print-join-command")
    theirs = pair.theirs("create", second, "--print-join-command")
    assert " ".join(ours.split()) == " ".join(theirs.replace(second, first).split())


def test_cluster_info_is_kubeadms_but_for_what_older_ones_write_besides(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = ClusterInfoTool(pair.plane, capsys)
    config = tmp_path / "init.yaml"
    config.write_text(cluster_configuration(pair.assets), encoding="ascii")
    access = ["--kubeconfig", str(pair.plane.admin_kubeconfig), "--config", str(config)]
    done = kubeadm(pair.assets, "init", "phase", "bootstrap-token", *access)
    assert done.returncode == 0, done.stderr
    theirs = tool.kubeconfig()
    assert "says this already" in tool("publish")
    assert tool.kubeconfig() == theirs
    tool.client.delete("/api/v1/namespaces/kube-public/configmaps/cluster-info")
    tool("publish")
    assert tool.kubeconfig() == theirs.replace("preferences: {}\n", "")
