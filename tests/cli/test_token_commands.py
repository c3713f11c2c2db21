"""``nodeattest token`` on an API server: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import argparse
import base64
import io
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from nodeattest_authenticator.cluster.discover import ByToken
from nodeattest_authenticator.commands import cluster_source
from nodeattest_cli.main import main
from nodeattest_parsing.objects import moment
from nodeattest_sandbox.apiserver.jsonvalue import map_at, text_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane

SECRETS = "/api/v1/namespaces/kube-system/secrets"
DEFAULT_GROUP = "system:bootstrappers:kubeadm:default-node-token"
GOLDEN = (Path(__file__).parent / "kubeadm" / "token-cmds.txt").read_text(encoding="utf-8")
TOKEN = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")


class Tool:
    """The command, on one control plane that has no tokens at first."""

    def __init__(self, plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> None:
        self.plane = plane
        self.client: Client = plane.client()
        self.code, self.out, self.err = 0, "", ""
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run ``nodeattest token …`` and return standard output."""
        self.code = main(["token", *words, "--kubeconfig", str(self.plane.admin_kubeconfig)])
        self.out, self.err = self._capsys.readouterr()
        assert self.code == code, self.err
        return self.out

    def refuse(self, *words: str, code: int = 2) -> str:
        """Run it, see that it wrote nothing, and return what it said."""
        before = self.names()
        assert self(*words, code=code) == ""
        assert self.err.count("\n") == 1
        assert self.names() == before
        return self.err

    def names(self) -> list[str]:
        """Name the token Secrets."""
        found = self.client.list(SECRETS, fieldSelector="type=bootstrap.kubernetes.io/token")
        return sorted(text_at(one, "metadata", "name") for one in found)

    def data(self, token_id: str) -> dict[str, str]:
        """Read a token's Secret."""
        stored = map_at(self.client.get(f"{SECRETS}/bootstrap-token-{token_id}"), "data")
        return {key: base64.b64decode(str(value)).decode() for key, value in stored.items()}

    def clear(self) -> None:
        """Delete every token."""
        for name in self.names():
            self.client.delete(f"{SECRETS}/{name}")


@pytest.fixture
def token(control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> Iterator[Tool]:
    tool = Tool(control_plane, capsys)
    tool.clear()
    yield tool
    tool.clear()


def test_a_token_is_made_with_kubeadms_defaults_and_a_warning(token: Tool) -> None:
    printed = token("create").rstrip("\n")
    assert TOKEN.fullmatch(printed)
    data = token.data(printed[:6])
    ends = moment(data.pop("expiration"))
    assert ends is not None
    assert abs(ends - datetime.now(UTC) - timedelta(hours=24)) < timedelta(seconds=30)
    assert data == {
        "token-id": printed[:6],
        "token-secret": printed[7:],
        "auth-extra-groups": DEFAULT_GROUP,
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
    }
    assert token.err.count("authenticates") == 1
    assert printed[7:] not in token.err


def test_for_ever_is_said_and_not_guessed(token: Tool) -> None:
    token("create", "aaaaaa.0123456789abcdef", "--ttl", "0", "--description", "hi there")
    assert "expiration" not in token.data("aaaaaa")
    assert token.data("aaaaaa")["description"] == "hi there"
    assert "for ever" in token.err
    for ttl in ("-1h", "-300ms"):
        assert "--ttl: expected 0s to" in token.refuse("create", f"--ttl={ttl}")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["AAAAAA.0123456789abcdef"], "six, a dot, and sixteen"),
        (["ffffff.0123456789abcde"], "6 and 15 characters"),
        (["ffffff.0123456789abcdef\n"], "17 characters"),
        (["--usages", "foo,signing"], "expected signing or authentication, got 'foo'"),
        (["--usages", ""], "none"),
        (["--groups", "notvalid"], "system:bootstrappers:"),
        (["--groups", "system:masters"], "system:bootstrappers:"),
        (["--usages", "signing", "--groups", "system:bootstrappers:a"], "no groups"),
        (["--print-join-command", "--provider", "a; reboot"], "a name such as tpm"),
        (["--provider", "tpm"], "--print-join-command"),
    ],
)
def test_what_cannot_be_made_is_refused_before_anything_is_written(token: Tool, words: list[str], says: str) -> None:
    assert says in token.refuse("create", *words)


def test_an_id_is_given_once(token: Tool) -> None:
    token("create", "aaaaaa.0123456789abcdef")
    assert 'a token with id "aaaaaa" already exists' in token.refuse("create", "aaaaaa.0123456789abcdee", code=1)


def test_a_token_need_not_stand_in_the_process_list(
    token: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("dddddd.0123456789abcdef\n")
    assert token("create", "--token-file", str(file)) == "dddddd.0123456789abcdef\n"
    for words, content in ((["-"], b"eeeeee.0123456789abcdef\n"), (["--token-file", "-"], b"ffffff.0123456789abcdef")):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        assert token("create", *words).encode().rstrip() == content.rstrip()
    assert "got both" in token.refuse("create", "gggggg.0123456789abcdef", "--token-file", str(file))
    file.write_text("")
    assert "got nothing" in token.refuse("create", "--token-file", str(file))


def test_the_join_command_is_kubeadms(token: Tool) -> None:
    host = token.plane.server.removeprefix("https://")
    golden = next(line for line in GOLDEN.splitlines() if line.startswith("kubeadm join "))
    ours = token("create", "hhhhhh.0123456789abcdef", "--print-join-command")
    pin = re.search(r"sha256:[0-9a-f]{64}", ours)
    assert pin is not None
    assert ours == re.sub(r"sha256:[0-9a-f]{64}", pin[0], golden).replace("127.0.0.1:26443", host) + "\n"
    assert token.err.count("authenticates") == 1


def test_the_agents_join_command_pins_too(token: Tool) -> None:
    made = token("create", "--print-join-command", "--provider", "tpm")
    host = token.plane.server.removeprefix("https://")
    assert re.fullmatch(
        rf"kubelet-authenticator join {re.escape(host)} --token {TOKEN.pattern} "
        r"--discovery-token-ca-cert-hash sha256:[0-9a-f]{64} --provider tpm\n",
        made,
    )
    parser = argparse.ArgumentParser()
    cluster_source.describe(parser)
    options = parser.parse_args(made.split()[2:-2])
    way = cluster_source.parse(options, read=lambda _: b"").way
    assert isinstance(way, ByToken)
    assert way.pins
    assert way.token.reveal() in made


def test_a_token_that_only_signs_needs_no_words_about_groups_and_no_warning(token: Tool) -> None:
    token("create", "cccccc.0123456789abcdef", "--usages", "signing")
    assert token.err == ""
    assert token.data("cccccc").keys() == {"token-id", "token-secret", "expiration", "usage-bootstrap-signing"}
    token("create", "bbbbbb.0123456789abcdef", "--ttl", "2h", "--usages", "signing", "--groups", "")
    assert "auth-extra-groups" not in token.data("bbbbbb")
