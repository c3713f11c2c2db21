"""The command line: which words name one cluster and one token, what is said of others, what rendering writes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from agent_cluster import TOKEN, FakeApi
from test_join import Joiner, in_process

from nodeattest_authenticator.commands.cli import parser
from nodeattest_authenticator.commands.cli_args import provider_settings
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig import (
    ADOPT_SCRIPT,
    MARK,
    RenderOptions,
    adopt_files,
    agent_join_command,
)
from nodeattest_providers.identifiers import ProviderName

PIN = "sha256:4c98b015c6fbe20a237ba402c10f08a847294b6a06167e36fc2fb1417ce85ebf"
SHORT = "abcdef.0123456789abcde"
HASH = ["--discovery-token-ca-cert-hash", PIN]
SERVER = ["--discovery-server", "127.0.0.1:1"]
UNSAFE = "--discovery-token-unsafe-skip-ca-verification"


@pytest.fixture
def typed(tmp_path: Path, api: FakeApi) -> Joiner:
    """A machine whose cluster has not been named."""
    joiner = Joiner(tmp_path, api)
    for name in ("--server", "--ca-file", "--token-file"):
        joiner.options[name] = None
    return joiner


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no cluster: pass --discovery-server HOST:PORT with --token-file"),
        (["--token", TOKEN], "no cluster:"),
        (["127.0.0.1:1", "--token", TOKEN], "pass --discovery-token-ca-cert-hash or --discovery-token-unsafe"),
        (
            ["127.0.0.1:1", "--token", TOKEN, *HASH, "--discovery-file", "f"],
            "'127.0.0.1:1' and --discovery-file exclude",
        ),
        ([*SERVER, "--server", "https://127.0.0.1:1"], "--server and --discovery-server exclude each other"),
        (["--discovery-file", "f", "--ca-file", "f"], "--ca-file and --discovery-file exclude each other"),
        (["--server", "https://127.0.0.1:1", "--token", TOKEN], "--server needs --ca-file"),
        (["--ca-file", "f", "--token", TOKEN], "--ca-file needs --server"),
        (["--tls-server-name", "kubernetes"], "--tls-server-name needs --server"),
        (["--server", "https://a", "--ca-file", "CA"], "no token: pass --token-file"),
        (["--server", "https://a", "--ca-file", "CA", "--discovery-timeout", "9"], "no effect with --server"),
        (["127.0.0.1", "--token", TOKEN, *HASH], "host:port"),
        (["https://127.0.0.1:1", "--token", TOKEN, *HASH], "HOST:PORT, without https://"),
        (["--token", TOKEN, *HASH], "no server to ask: pass --discovery-server HOST:PORT"),
        ([*SERVER, *HASH], "no token to verify cluster-info: pass --token-file"),
        ([*SERVER, *HASH, "--token", SHORT], "--token: expected a bootstrap token of the form"),
        ([*SERVER, *HASH, "--token", TOKEN.upper()], "expected a bootstrap token of the form"),
        ([*SERVER, *HASH, "--token", TOKEN, "--token-file", "TOKEN"], "--token and --token-file exclude each other"),
        ([*SERVER, *HASH, "--token-file", "/nonexistent"], "/nonexistent: No such file"),
        (["--discovery-file", "-", "--token-file", "-"], "cannot both read standard input"),
        ([*SERVER, *HASH, UNSAFE, "--token", TOKEN], "contradict each other"),
        ([*SERVER, "--discovery-token-ca-cert-hash", "sha512:aa", "--token", TOKEN], "expected sha256: and 64"),
        (
            [*SERVER, *HASH, "--token", TOKEN, "--discovery-front", "http://a:1"],
            "--discovery-front: expected host:port",
        ),
        ([*SERVER, *HASH, "--token", TOKEN, "--discovery-timeout", "0"], "--discovery-timeout: expected 1 to 3600"),
        (["--discovery-file", "http://x/y"], "expected an https URL, a path or -, got a URL of scheme 'http'"),
        (["--discovery-file", "file:///x"], "scheme 'file'"),
        (
            ["--discovery-file", "/nonexistent"],
            "/nonexistent: No such file or directory; expected a file, an https URL",
        ),
        (["--discovery-file", "/"], "Is a directory"),
        (["--discovery-file-allow-credentials"], "--discovery-file-allow-credentials needs --discovery-file"),
        ([*SERVER, *HASH, "--token", TOKEN, "--unheard-of", "x"], "unrecognized arguments: --unheard-of"),
        ([*SERVER, "--token", TOKEN, UNSAFE[:-5]], f"unrecognized arguments: {UNSAFE[:-5]}"),
        ([*SERVER, *HASH, "--token", TOKEN, "--node-name", "Node_0"], "--node-name"),
        ([*SERVER, *HASH, "--token", TOKEN, "--timeout", "0"], "--timeout"),
        ([*SERVER, *HASH, "--token", TOKEN, "--provider", "tmp"], "provider"),
    ],
)
def test_a_wrong_combination_is_one_message_and_nothing_is_written_or_sent(
    typed: Joiner, tmp_path: Path, words: list[str], says: str
) -> None:
    places = {"CA": str(tmp_path / "ca.crt"), "TOKEN": str(tmp_path / "token")}
    done = typed.join(*(places.get(word, word) for word in words))
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert SHORT not in done.stderr
    assert typed.files() == {}
    assert typed.api.connections == 0


def test_kubeadms_words_may_stand_anywhere() -> None:
    for words in (["127.0.0.1:1", "--token", TOKEN], ["--token", TOKEN, "127.0.0.1:1"]):
        done = in_process(
            "join", *words, "--provider", "insecure", "--discovery-token-ca-cert-hash", "x", "[fd00::1]:2"
        )
        assert "--discovery-token-ca-cert-hash: expected sha256:" in done.stderr


def test_a_token_among_the_words_is_warned_of(typed: Joiner) -> None:
    said = typed.join(*SERVER, *HASH, "--token", TOKEN, "--discovery-timeout", "1").stderr
    assert "--token: every user of this machine can read the command line" in said
    assert TOKEN not in said


PLAN = RenderOptions(
    provider=ProviderName("composite"),
    settings={"tpm": {"tcti": "swtpm:host=127.0.0.1,port=7"}, "name": "it's", "number": 7},
    provider_id_command="dmi 'product uuid'",
)


@pytest.mark.parametrize("file_format", ["cloud-config", "ignition"])
@pytest.mark.parametrize("may_init", [True, False])
def test_the_agent_understands_the_rendered_join(file_format: str, may_init: bool) -> None:
    command = agent_join_command(PLAN, file_format=file_format, may_init=may_init)
    assert command.endswith(f" || exit 1 {MARK}")
    words = shlex.split(command, comments=True)[:-3]
    options = parser().parse_args(words[words.index("join") :])
    assert options.kubeadm_config in {"/run/kubeadm/kubeadm-join-config.yaml", "/etc/kubeadm.yml"}
    assert options.provider == "composite"
    assert options.provider_id_command == PLAN.provider_id_command
    assert provider_settings(options) == dict(PLAN.settings)


def test_the_agent_understands_the_rendered_adoption() -> None:
    script = next(str(file["content"]) for file in adopt_files(PLAN) if file["path"] == ADOPT_SCRIPT)
    line = next(line for line in script.splitlines() if line.startswith("kubelet-authenticator"))
    options = parser().parse_args(shlex.split(line)[1:])
    assert (options.command, options.provider) == ("adopt", "composite")
    assert options.provider_id_command == PLAN.provider_id_command
    assert provider_settings(options) == dict(PLAN.settings)
