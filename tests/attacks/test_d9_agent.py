"""D9: the agent of a node that discovered its cluster: strangers in a server's place, and what it remembers."""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import pytest
from agent_cluster import FakeApi, challenge_then_sign
from agent_machine import Discoverer, Done, give_kubelet_configuration, other_server, publish
from catalogue import Row, Verdict, attacks
from lying_servers import Ca
from polling import eventually


@dataclass(frozen=True)
class Scene:
    """A node that has joined, its cluster's server, and another server of the cluster."""

    node: Discoverer
    api: FakeApi
    other: FakeApi


Attack = Callable[[Scene], Done]


@pytest.fixture
def scene(tmp_path: Path) -> Generator[Scene]:
    authority = Ca()
    with FakeApi(authority) as api, other_server(authority) as other:
        for one in (api, other):
            one.on_create = challenge_then_sign
            publish(one)
        publish(other, server=api.url)
        node = Discoverer(tmp_path, api)
        node.attests()
        done = node.join("--discovery-server", other.endpoint)
        assert done.returncode == 0, done.stderr
        yield Scene(node, api, other)


def strangers_at_a_renewal(scene: Scene) -> Done:
    info, before = scene.node.called, scene.node.file("credential")
    scene.api.shown.clear()
    scene.api.requests.clear()
    scene.api.stand_under(Ca("stranger"))
    scene.node.make_due()
    due = scene.node.file("credential")
    assert due != before
    done = scene.node.run(info=info)
    eventually(lambda: scene.node.file("credential") != due, seconds=30)
    assert scene.api.requests == []
    assert scene.other.posts() == 2
    return done


def two_readings(scene: Scene) -> Done:
    head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
    give_kubelet_configuration(scene.api, head + "failSwapOn: no\nmaxPods: 0100\n")
    files = ["--kubelet-config", str(scene.node.folder / "kubelet.yaml"), "--kubelet-ca-file"]
    done = scene.node.join(*files, str(scene.node.folder / "ca.crt"))
    assert not scene.node.folder.joinpath("kubelet.yaml").exists()
    return Done(done.args, done.returncode, "", done.stderr)


def moved(called: Callable[[Scene], str]) -> Attack:
    def attack(scene: Scene) -> Done:
        for one in (scene.api, scene.other):
            publish(one, server=scene.other.url)
        assert scene.node.do("refresh").returncode == 0
        assert scene.node.run(info=scene.node.called).returncode == 0
        return scene.node.run(info=called(scene))

    return attack


def under_another_ca(scene: Scene) -> str:
    ca = base64.b64encode(Ca("stranger").pem).decode()
    return scene.node.info(**{"server": scene.api.url, "certificate-authority-data": ca})


CASES: dict[str, Attack] = {
    "D9-76": strangers_at_a_renewal,
    "D9-77": two_readings,
    "D9-78": moved(lambda scene: scene.node.info(server="https://10.0.0.9:6443")),
    "D9-79": moved(under_another_ca),
}


@pytest.mark.parametrize(("row", "attack"), attacks(CASES))
def test_a_node_that_follows_its_cluster_follows_nobody_else(scene: Scene, row: Row, attack: Attack) -> None:
    done = attack(scene)
    if row.expected.verdict is Verdict.DENY:
        assert done.returncode != 0
        assert done.stdout == ""
        assert f"{row.expected.reason}:" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert "PRIVATE KEY" in done.stdout
