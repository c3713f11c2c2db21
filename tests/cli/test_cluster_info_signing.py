"""``cluster-info show`` and ``verify``: what is signed, by whom, and what a machine would make of it."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from cluster_info_tool import ClusterInfoTool

from nodeattest_cli.main import main
from nodeattest_discovery import clusterinfo
from nodeattest_discovery.pins import pin_of
from nodeattest_discovery.token import BootstrapToken, generate

UNSAFE = "--discovery-token-unsafe-skip-ca-verification"


def pin(tool: ClusterInfoTool) -> str:
    (authority,) = clusterinfo.parse(tool.kubeconfig()).ca_certificates
    return str(pin_of(authority))


def written(path: Path, token: BootstrapToken) -> str:
    path.write_text(token.reveal() + "\n")
    return str(path)


def test_what_is_shown_is_what_machines_will_believe(tool: ClusterInfoTool) -> None:
    token = tool.publish()
    assert f"signature:  {token.id}  missing" in tool("show", code=1)
    tool.sign(token)
    said = tool("show")
    assert said.startswith(f"server:     {tool.plane.server}\n")
    assert f"pin:      {pin(tool)}\n" in said
    assert said.endswith(f"signature:  {token.id}  valid\n")
    assert tool("show", "-o", "kubeconfig") == tool.kubeconfig()


def test_every_signature_is_checked_by_itself(tool: ClusterInfoTool) -> None:
    token, stranger = tool.publish(), generate()
    tool.sign(token, tool.kubeconfig() + "\n")
    tool.sign(stranger)
    said = tool("show", code=1)
    assert f"{token.id}  invalid" in said
    assert f"{stranger.id}  no token signs by this id" in said


@pytest.mark.parametrize("kubeconfig", ["", "users: [", "kind: Secret\n"])
def test_what_no_machine_can_use_is_shown_as_such(tool: ClusterInfoTool, kubeconfig: str) -> None:
    tool.publish()
    tool.put(kubeconfig=kubeconfig)
    assert tool("show", code=1).startswith("unusable:   expected ")


def test_a_server_is_verified_as_a_machine_does(tool: ClusterInfoTool, tmp_path: Path) -> None:
    token = tool.publish()
    words = ["--token-file", written(tmp_path / "t", token), "--discovery-token-ca-cert-hash", pin(tool)]
    server = tool.plane.server.removeprefix("https://")
    assert tool.run("verify", server, *words, "--timeout", "4s", code=3) == ""
    assert "ClusterInfoUnsigned" in tool.err
    tool.sign(token)
    said = tool.run("verify", server, *words)
    assert said.startswith(f"verified at {tool.plane.server}\nserver: {tool.plane.server}\nCA: ")
    assert pin(tool) in said
    assert tool.run("verify", server, *words[:2], "--discovery-token-ca-cert-hash", "sha256:" + "0" * 64, code=1) == ""
    assert "CANotPinned" in tool.err
    assert "note: no CA was pinned" in tool.run("verify", server, *words[:2], UNSAFE)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["h:1"], "to do without"),
        (["h:1", "--discovery-token-ca-cert-hash", "sha256:12"], "64 hexadecimal digits"),
        (["h:1", UNSAFE, "--timeout", "0"], "--timeout: expected 1ms to"),
        (["h:1", "http://h:1", UNSAFE], "SERVER: expected host:port"),
    ],
)
def test_what_was_asked_wrongly_is_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"abcdef.0123456789abcdef")))
    assert main(["cluster-info", "verify", *words, "--token-file", "-"]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert (said.out, said.err.count("\n")) == ("", 1)
