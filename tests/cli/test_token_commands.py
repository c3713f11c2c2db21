"""``nodeattest token create`` on an API server: what it prints, writes and refuses; and the same beside kubeadm."""

from __future__ import annotations

import argparse
import io
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from attested_fleet import Tool

from nodeattest_authenticator.commands import flags
from nodeattest_discovery.token import generate
from nodeattest_parsing.objects import moment
from nodeattest_sandbox.control_plane import kubeadm

TOKEN = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")


def test_a_token_is_made_with_kubeadms_defaults_and_a_warning(tool: Tool) -> None:
    printed = tool("token", "create").rstrip("\n")
    assert TOKEN.fullmatch(printed)
    data = tool.token(printed[:6])
    ends = moment(data.pop("expiration"))
    assert ends is not None
    assert abs(ends - datetime.now(UTC) - timedelta(hours=24)) < timedelta(seconds=30)
    assert data == {
        "token-id": printed[:6],
        "token-secret": printed[7:],
        "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
    }
    assert tool.err.count("authenticates") == 1
    assert printed[7:] not in tool.err


def test_for_ever_is_said_and_an_id_is_given_once(tool: Tool) -> None:
    tool("token", "create", "aaaaaa.0123456789abcdef", "--ttl", "0", "--description", "hi there")
    assert "expiration" not in tool.token("aaaaaa")
    assert tool.token("aaaaaa")["description"] == "hi there"
    assert "for ever" in tool.err
    said = tool.refuse("token", "create", "aaaaaa.0123456789abcdee", code=1)
    assert 'a token with id "aaaaaa" already exists' in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["AAAAAA.0123456789abcdef"], "six, a dot, and sixteen"),
        (["ffffff.0123456789abcde"], "6 and 15 characters"),
        (["ffffff.0123456789abcdef\n"], "17 characters"),
        (["--ttl=-300ms"], "--ttl: expected a duration"),
        (["--print-join-command", "--provider", "a; reboot"], "a name such as tpm"),
        (["--provider", "tpm"], "--print-join-command"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_is_written(tool: Tool, words: list[str], says: str) -> None:
    assert says in tool.refuse("token", "create", *words)


def test_a_token_need_not_stand_in_the_process_list(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("dddddd.0123456789abcdef\n")
    assert tool("token", "create", "--token-file", str(file)) == "dddddd.0123456789abcdef\n"
    for words, content in ((["-"], b"eeeeee.0123456789abcdef\n"), (["--token-file", "-"], b"ffffff.0123456789abcdef")):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        assert tool("token", "create", *words).encode().rstrip() == content.rstrip()
    assert "got both" in tool.refuse("token", "create", "gggggg.0123456789abcdef", "--token-file", str(file))
    for content, says in (("", "got nothing"), ("hhhhhh.0123456789abcdef" + " " * 1024, "more than 1024 bytes")):
        file.write_text(content)
        assert says in tool.refuse("token", "create", "--token-file", str(file))


def test_the_agents_join_command_pins_and_is_what_the_agent_reads(tool: Tool) -> None:
    made = tool("token", "create", "--print-join-command", "--provider", "tpm")
    host = tool.plane.server.removeprefix("https://")
    assert re.fullmatch(
        rf"kubelet-authenticator join {re.escape(host)} --token {TOKEN.pattern} "
        r"--discovery-token-ca-cert-hash sha256:[0-9a-f]{64} --provider tpm\n",
        made,
    )
    parser = argparse.ArgumentParser()
    flags.describe_cluster(parser)
    way, token = flags.read_cluster(parser.parse_args(made.split()[2:-2]))
    assert isinstance(way, flags.ByToken)
    assert way.pins
    assert token is not None
    assert token.reveal() in made


@pytest.mark.conformance
@pytest.mark.parametrize("words", [[], ["--ttl", "0"], ["--ttl", "1h30m", "--description", "hi there"]])
def test_the_same_words_make_the_same_secret(real_tool: Tool, assets: Path, words: list[str]) -> None:
    made: list[tuple[str, dict[str, str]]] = []
    for ours in (True, False):
        token = generate()
        arguments = ["token", "create", token.reveal(), "--print-join-command", *words]
        access = ["--kubeconfig", str(real_tool.plane.admin_kubeconfig)]
        printed = real_tool(*arguments) if ours else kubeadm(assets, *arguments, *access).stdout
        data = real_tool.token(token.id)
        for name in ("token-id", "token-secret", "expiration"):
            data.pop(name, "")
        made.append((" ".join(printed.replace(token.reveal(), "TOKEN").split()), data))
    assert made[0] == made[1]
