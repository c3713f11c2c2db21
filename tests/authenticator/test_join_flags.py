"""The words of ``join``: which name one cluster and one token, and which combinations are refused."""

from __future__ import annotations

import os
import shlex

import pytest
from agent_cluster import TOKEN
from agent_machine import Joiner, in_process

from nodeattest_authenticator.commands.cli import parser
from nodeattest_authenticator.commands.flags import provider_settings
from nodeattest_controller.controllers.bootstrap_config import kubeadmconfig
from nodeattest_providers.identifiers import ProviderName

PIN = "sha256:4c98b015c6fbe20a237ba402c10f08a847294b6a06167e36fc2fb1417ce85ebf"
SHORT = "abcdef.0123456789abcde"
HASH = ["--discovery-token-ca-cert-hash", PIN]
SERVER = ["--discovery-server", "127.0.0.1:1"]
FOUND = [*SERVER, *HASH, "--token", TOKEN]
GIVEN = ["--server", "https://127.0.0.1:1", "--ca-file", "CA", "--token", TOKEN]
UNSAFE = "--discovery-token-unsafe-skip-ca-verification"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "no cluster: pass --discovery-server HOST:PORT with --token-file"),
        (["--token", TOKEN], "no cluster:"),
        (["127.0.0.1:1", "--token", TOKEN], "pass --discovery-token-ca-cert-hash or --discovery-token-unsafe"),
        (["127.0.0.1:1", *HASH, "--discovery-file", "f"], "'127.0.0.1:1' and --discovery-file exclude"),
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
        ([*FOUND, "--token-file", "CA"], "--token and --token-file exclude each other"),
        ([*SERVER, *HASH, "--token-file", "/nonexistent"], "/nonexistent: No such file"),
        (["--discovery-file", "-", "--token-file", "-"], "cannot both read standard input"),
        ([*FOUND, UNSAFE], "contradict each other"),
        ([*SERVER, "--discovery-token-ca-cert-hash", "sha512:aa", "--token", TOKEN], "expected sha256: and 64"),
        ([*FOUND, "--discovery-front", "http://a:1"], "--discovery-front: expected host:port"),
        ([*FOUND, "--discovery-timeout", "0"], "--discovery-timeout: expected 1 to 3600"),
        (["--discovery-file", "http://x/y"], "expected an https URL, a path or -, got a URL of scheme 'http'"),
        (["--discovery-file", "/nonexistent"], "/nonexistent: No such file or directory; expected a file, an https"),
        (["--discovery-file", "/"], "Is a directory"),
        (["--discovery-file-allow-credentials"], "--discovery-file-allow-credentials needs --discovery-file"),
        ([*FOUND, "--unheard-of", "x"], "unrecognized arguments: --unheard-of"),
        ([*SERVER, "--token", TOKEN, UNSAFE[:-5]], f"unrecognized arguments: {UNSAFE[:-5]}"),
        ([*FOUND, "--patience", "-1"], "--patience: expected 0 to"),
        ([*FOUND, "--timeout", "0"], "timeoutSeconds"),
        ([*FOUND, "--provider", "tmp"], "provider"),
        ([*FOUND, "--node-name", "Node_0"], "--node-name: nodeName"),
        ([*GIVEN, "--server", "http://127.0.0.1"], "https://"),
        ([*GIVEN, "--server", "127.0.0.1:6443"], "--server: server must be"),
        ([*GIVEN, "--ca-file", "/nonexistent"], "No such file"),
        ([*GIVEN, "--provider-id", "x://'{{ ds.meta_data.uuid }}'"], "--provider-id"),
        ([*GIVEN, "--provider-id", "x://${UUID}"], "without ${"),
        ([*GIVEN, "--provider-id", "x://{dmi:chassis_serial}"], "no braces, except as {dmi:product_uuid}"),
        ([*GIVEN, "--provider-id", "x://1 2"], "one word"),
        ([*GIVEN, "--provider-id", "x://'1"], "each quote closed"),
        ([*GIVEN, "--provider-id", "a\u200bb"], "--provider-id: providerID"),
        ([*GIVEN, "--serving-ip-address", "10.0.0", "--provider", "tpm"], "--serving-ip-address"),
        ([*GIVEN, "--serving-dns-name", "a"], "insecure has no serving certificates"),
        ([*GIVEN, "--set", "x"], "KEY=VALUE"),
        ([*GIVEN, "--set", "x=1"], "settings"),
        ([*GIVEN, "--provider-id-file", "x"], "not allowed with"),
    ],
)
def test_a_wrong_word_or_combination_is_one_message_and_nothing_is_written_or_sent(
    joiner: Joiner, words: list[str], says: str
) -> None:
    places = {"CA": str(joiner.options["--ca-file"])}
    done = joiner.join(*(places.get(word, word) for word in words), server=None, ca_file=None, token_file=None)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert SHORT not in done.stderr
    assert joiner.files() == {}
    assert joiner.api.connections == 0


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("file", "/nonexistent", "No such file"),
        ("file", os.devnull, "1 to 1024 characters"),
        ("command", "/nonexistent --key=s3cret", "/nonexistent: No such file"),
        ("command", "false", "exited with code 1"),
        ("command", "printf '\\377' s3cret", "output of printf is not UTF-8"),
        ("command", "echo 'x://{{ ds.meta_data.uuid }}'", "without {{"),
        ("command", "echo x://CI_MISSING_JINJA_VAR/uuid", "without CI_MISSING_JINJA_VAR"),
    ],
)
def test_a_provider_id_that_cannot_be_had_is_told(joiner: Joiner, option: str, value: str, says: str) -> None:
    done = joiner.join(f"--provider-id-{option}", value, provider_id=None)
    assert done.returncode == 1
    assert not joiner.api.posts()
    assert "ProviderIDUnknown" in done.stderr
    assert says in done.stderr
    assert "s3cret" not in done.stderr


def test_kubeadms_words_may_stand_anywhere() -> None:
    for words in (["127.0.0.1:1", "--token", TOKEN], ["--token", TOKEN, "127.0.0.1:1"]):
        pin = "--discovery-token-ca-cert-hash"
        assert (
            f"{pin}: expected sha256:" in in_process("join", *words, "--provider", "null", pin, "x", "[::1]:2").stderr
        )


def test_a_token_among_the_words_is_warned_of(joiner: Joiner) -> None:
    said = joiner.join("--token", TOKEN, token_file=None).stderr
    assert "--token: every user of this machine can read the command line" in said


PLAN = kubeadmconfig.RenderOptions(
    provider=ProviderName("composite"),
    settings={"tpm": {"tcti": "swtpm:host=127.0.0.1,port=7"}, "name": "it's", "number": 7},
    provider_id_command="dmi 'product uuid'",
)


def rendered() -> list[str]:
    """List the commands that the controller renders."""
    joins = [
        kubeadmconfig.agent_join_command(PLAN, file_format=file_format, may_init=may_init)
        for file_format in ("cloud-config", "ignition")
        for may_init in (True, False)
    ]
    assert all(command.endswith(f" || exit 1 {kubeadmconfig.MARK}") for command in joins)
    files = {file["path"]: str(file["content"]) for file in kubeadmconfig.adopt_files(PLAN)}
    script = files[kubeadmconfig.ADOPT_SCRIPT].splitlines()
    return [*joins, next(line for line in script if line.startswith("kubelet-authenticator"))]


@pytest.mark.parametrize("command", rendered())
def test_the_agent_understands_what_the_controller_renders(command: str) -> None:
    words = shlex.split(command, comments=True)
    if words[1] != "adopt":
        words = words[words.index("join") - 1 : -3]  # up to || exit 1
    options = parser().parse_args(words[1:])
    if options.command == "join":
        assert options.kubeadm_config in {"/run/kubeadm/kubeadm-join-config.yaml", "/etc/kubeadm.yml"}
    assert (options.provider, options.provider_id_command) == ("composite", PLAN.provider_id_command)
    assert provider_settings(options) == dict(PLAN.settings)
