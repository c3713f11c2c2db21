"""``cluster-info show``, ``sign`` and ``verify``: what is signed, by whom, and what a machine would make of it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from cluster_info_tool import ClusterInfoTool
from polling import eventually

from nodeattest_cli.main import main
from nodeattest_discovery import clusterinfo
from nodeattest_discovery import jwt as jws
from nodeattest_discovery.tls import pin_of
from nodeattest_discovery.token import BootstrapToken, generate
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import ControlPlane, controller_manager

UNSAFE = "--discovery-token-unsafe-skip-ca-verification"
"""Seconds until kube-controller-manager must have signed."""


def pin(tool: ClusterInfoTool) -> str:
    (authority,) = clusterinfo.parse(tool.kubeconfig()).ca_certificates
    return str(pin_of(authority))


def shown(tool: ClusterInfoTool, *words: str, code: int = 0) -> JsonMap:
    return json.loads(tool("show", "-o", "json", *words, code=code))


def states(tool: ClusterInfoTool, *words: str, code: int = 0) -> dict[str, str]:
    found = shown(tool, *words, code=code)["signatures"]
    assert isinstance(found, list)
    return {str(one["token"]): str(one["state"]) for one in found if isinstance(one, dict)}


def put(tool: ClusterInfoTool, **data: str | None) -> None:
    tool.client.patch(clusterinfo.PATH, {"data": {key.replace("_", "-"): value for key, value in data.items()}})


def written(path: Path, token: BootstrapToken) -> str:
    path.write_text(token.reveal() + "\n")
    return str(path)


def test_what_is_shown_is_what_machines_will_believe(tool: ClusterInfoTool) -> None:
    token = tool.publish()
    tool("sign")
    assert states(tool) == {token.id: "Valid"}
    found = shown(tool)
    assert found["server"] == tool.plane.server
    assert found["certificateAuthorities"][0]["pin"] == pin(tool)  # type: ignore[index,call-overload]
    said = tool("show")
    assert said.startswith(f"server:     {tool.plane.server}\n")
    assert f"pin:      {pin(tool)}\n" in said
    assert said.endswith(f"signature:  {token.id}  valid\n")
    assert tool("show", "-o", "kubeconfig") == tool.kubeconfig()


def test_every_signature_is_checked_by_itself(tool: ClusterInfoTool) -> None:
    token, other = tool.publish(), generate()
    tool("publish", "--token", other.reveal())
    text = tool.kubeconfig().encode()
    stranger = generate()
    put(
        tool,
        **{
            f"jws-kubeconfig-{token.id}": jws.sign(text + b"\n", token),
            f"jws-kubeconfig-{stranger.id}": jws.sign(text, stranger),
            "jws-kubeconfig-": "x",
        },
    )
    wanted = {token.id: "Invalid", other.id: "Missing", stranger.id: "NoToken", "": "NoToken"}
    assert states(tool, code=1) == wanted


def test_signatures_are_not_checked_where_tokens_cannot_be_read(tool: ClusterInfoTool, tmp_path: Path) -> None:
    token = tool.publish()
    tool("sign")
    file = tmp_path / "cluster-info.json"
    file.write_text(json.dumps(tool.object()))
    assert states(tool, "-f", str(file)) == {token.id: "Unchecked"}


@pytest.mark.parametrize("kubeconfig", ["", "users: [", "kind: Secret\n"])
def test_what_no_machine_can_use_is_shown_as_such(tool: ClusterInfoTool, kubeconfig: str) -> None:
    tool.publish()
    put(tool, kubeconfig=kubeconfig)
    assert tool("show", code=1).startswith("unusable:   expected ")
    assert shown(tool, code=1)["server"] is None


def test_signing_does_what_the_signer_does(tool: ClusterInfoTool) -> None:
    first, second = tool.publish(), generate()
    tool("publish", "--token", second.reveal())
    put(tool, **{"jws-kubeconfig-zzzzzz": "stale", "mine": "kept"})
    assert tool("sign") == f"cluster-info is signed by {', '.join(sorted((first.id, second.id)))}\n"
    text = tool.kubeconfig()
    signatures = {f"jws-kubeconfig-{one.id}": jws.sign(text.encode(), one) for one in (first, second)}
    assert tool.data() == {"kubeconfig": text, "mine": "kept", **signatures}
    before = tool.object()
    tool("sign")
    assert tool.object() == before


def test_one_token_signs_without_any_being_read(tool: ClusterInfoTool, tmp_path: Path) -> None:
    tool.publish()
    token = generate()
    put(tool, **{"jws-kubeconfig-zzzzzz": "theirs"})
    tool("sign", "--token-file", written(tmp_path / "t", token))
    text = tool.kubeconfig()
    assert tool.data()[f"jws-kubeconfig-{token.id}"] == jws.sign(text.encode(), token)
    assert tool.data()["jws-kubeconfig-zzzzzz"] == "theirs"


@pytest.mark.parametrize("form", ["configmap", "kubeconfig"])
def test_signing_offline_prints_the_signed_object(tool: ClusterInfoTool, tmp_path: Path, form: str) -> None:
    tool.publish()
    token = generate()
    file = tmp_path / "in"
    file.write_text(json.dumps(tool.object()) if form == "configmap" else tool.kubeconfig())
    out = tool.run("sign", "-f", str(file), "--token-file", written(tmp_path / "t", token))
    signed = yaml.safe_load(out)
    text = tool.kubeconfig()
    assert signed["data"] == {"kubeconfig": text, f"jws-kubeconfig-{token.id}": jws.sign(text.encode(), token)}
    assert "  kubeconfig: |\n    apiVersion: v1\n" in out


def test_nobody_signs_what_no_machine_may_believe(tool: ClusterInfoTool, tmp_path: Path) -> None:
    token = tool.publish()
    put(tool, kubeconfig=tool.kubeconfig().replace("users: null", "users: [{name: a, user: {token: b}}]"))
    before = tool.object()
    for words in ([], ["--token-file", written(tmp_path / "t", token)]):
        assert tool("sign", *words, code=1) == ""
        assert "no users or credentials" in tool.err
    assert tool.object() == before


def test_a_server_is_verified_as_a_machine_does(tool: ClusterInfoTool, tmp_path: Path) -> None:
    token = tool.publish()
    words = ["--token-file", written(tmp_path / "t", token), "--discovery-token-ca-cert-hash", pin(tool)]
    server = tool.plane.server.removeprefix("https://")
    assert tool.run("verify", server, *words, "--timeout", "4s", code=3) == ""
    assert "ClusterInfoUnsigned" in tool.err
    tool("sign")
    said = tool.run("verify", server, *words)
    assert said.startswith(f"verified at {tool.plane.server}\nserver: {tool.plane.server}\nCA: ")
    assert pin(tool) in said
    assert tool.run("verify", server, *words[:2], "--discovery-token-ca-cert-hash", "sha256:" + "0" * 64, code=1) == ""
    assert "CANotPinned" in tool.err
    assert tool.err.count("\n") == 1
    unpinned = tool.run("verify", server, *words[:2], UNSAFE)
    assert "note: no CA was pinned" in unpinned
    written(tmp_path / "t", BootstrapToken(token.id, "0" * 16))
    assert tool.run("verify", server, *words, code=1) == ""
    assert "ClusterInfoSignatureInvalid" in tool.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "Missing argument 'SERVER...'"),
        (["h:1"], "to do without"),
        (
            ["h:1", "--discovery-token-ca-cert-hash", "x", UNSAFE],
            "to do without",
        ),
        (["h:1", "--discovery-token-ca-cert-hash", "sha256:12"], "64 hexadecimal digits"),
        (["h:1", UNSAFE, "--timeout", "5"], "--timeout: expected a duration"),
        (["h:1", UNSAFE, "--timeout", "0"], "--timeout: expected 1ms to"),
        (["h:1", UNSAFE, "--timeout=-5s"], "--timeout: expected 1ms to"),
        (["h", UNSAFE], "SERVER: expected host:port"),
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


@pytest.mark.conformance
def test_kube_controller_manager_finds_nothing_to_change_in_what_we_signed(
    real_control_plane: ControlPlane, assets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = ClusterInfoTool(real_control_plane, capsys)
    tool.clear()
    try:
        tool.publish()
        tool("sign")
        ours = tool.object()
        with controller_manager(real_control_plane, assets, ["bootstrapsigner"]):
            # The signer signs a later token: it has looked at cluster-info with the first one's signature in it.
            later = tool.publish()
            eventually(lambda: f"jws-kubeconfig-{later.id}" in tool.data(), "the later token's signature")
        theirs = tool.data()
        assert theirs.pop(f"jws-kubeconfig-{later.id}") == jws.sign(tool.kubeconfig().encode(), later)
        assert theirs == ours["data"]
    finally:
        tool.clear()
