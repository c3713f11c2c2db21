"""Manners of every command: help, exit codes, one line for what goes wrong, and nothing that a terminal obeys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import click
import pytest
from attested_fleet import AttestedFleet
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_cli.connection import role_for
from nodeattest_cli.main import cli, main
from nodeattest_cli.output import ExitCode, format_table, to_json
from nodeattest_sandbox.pki import ClusterPki

BIN = Path(sys.executable).parent
DOCS = Path(__file__).parents[2] / "docs"


def leaves(group: click.Group = cli, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, (*words, name))
        else:
            yield (*words, name), command


COMMANDS = dict(leaves())
ASK_A_CLUSTER: dict[tuple[str, ...], tuple[str, ...]] = {
    ("cluster-info", "publish"): (),
    ("cluster-info", "show"): (),
    ("doctor",): (),
    ("evidence", "export"): ("machine/m", "-o", "-"),
    ("explain",): ("csr/c",),
    ("machines", "list"): (),
    ("machines", "reset"): ("m", "--reason", "r"),
    ("machines", "rejoin"): ("m",),
    ("machines", "adopt"): ("--all",),
    ("policy", "learn"): ("--all",),
    ("policy", "simulate"): ("-f", str(Path(__file__).with_name("policy.json"))),
    ("token", "create"): (),
}
SERVE: set[tuple[str, ...]] = {("addon-auth", "gateway"), ("addon-auth", "sidecar"), ("discovery", "serve")}
"""They wait for their API server."""


def python(*words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("program", ["nodeattest", "kubectl-nodeattest"])
def test_both_names_are_installed_and_are_the_same_command(program: str) -> None:
    for word in ("version", "--version"):
        done = subprocess.run([str(BIN / program), word], capture_output=True, text=True, timeout=120, check=True)
        assert done.stdout.splitlines()[0] == f"nodeattest {metadata.version('nodeattest')}"


def test_every_command_that_help_names_can_be_loaded_and_explains_itself() -> None:
    for words, command in COMMANDS.items():
        assert command.help
        for option in (part for part in command.params if isinstance(part, click.Option)):
            assert option.help or option.name == "output", f"{words} --{option.name}"


@pytest.mark.parametrize("words", [["--help"], ["token", "--help"], ["cluster-info", "--help"]])
def test_what_asks_no_cluster_imports_no_client_of_one(words: list[str]) -> None:
    done = python(
        "-c",
        "import sys; from nodeattest_cli.main import main; main(sys.argv[1:]); "
        "sys.exit(' '.join({'aiohttp', 'kubernetes', 'yaml'} & set(sys.modules)) or 0)",
        *words,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("package", ["botocore.session", "yaml"])
def test_a_package_that_is_missing_is_one_line(package: str, tmp_path: Path) -> None:
    code = tmp_path / "nodeattest_policy_probe.py"
    code.write_text(f"import click\n\n\n@click.command()\ndef probe() -> None:\n    import {package}\n")
    info = tmp_path / "probe-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: probe\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[nodeattest.commands]\nprobe = nodeattest_policy_probe:probe\n")
    top = package.partition(".")[0]
    hidden = f"import sys; sys.modules[{top!r}] = None; from nodeattest_cli.main import main; "
    done = python("-c", f"{hidden}sys.exit(main(['probe']))", path=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    said = f"nodeattest: the Python package {top} is not installed; install requirements-cli.txt"
    assert done.stderr.startswith(said)


def test_a_refusal_names_the_role_of_ours_that_allows_it() -> None:
    said = (
        'machineattestations.attestation.cluster.x-k8s.io is forbidden: User "u" cannot list resource '
        '"machineattestations" in API group "attestation.cluster.x-k8s.io" at the cluster scope'
    )
    assert role_for(said) == "the ClusterRole nodeattest:operator (manifests/rbac) allows it: bind it to this user"
    secret = 'secrets "blue-kubeconfig" is forbidden: User "u" cannot get resource "secrets" in API group "" in the'
    assert "blue-kubeconfig to those who are that already" in role_for(secret)
    assert role_for('nodes is forbidden: User "u" cannot delete resource "nodes" in API group ""') == ""
    assert role_for("something else") == ""


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_an_unknown_option_is_usage(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--no-such-option"]) == ExitCode.USAGE
    assert capsys.readouterr().err.count("\n") == 1


def test_every_command_that_asks_a_cluster_is_here() -> None:
    asking = {words for words, command in COMMANDS.items() if any(one.name == "kubeconfig" for one in command.params)}
    assert asking == ASK_A_CLUSTER.keys() | SERVE


@pytest.mark.parametrize("words", ASK_A_CLUSTER, ids=" ".join)
def test_a_server_or_a_kubeconfig_that_is_not_there_is_one_line(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away = ClusterPki.make(tmp_path / "pki", "away").client_kubeconfig(
        tmp_path / "config", "https://127.0.0.1:1", "u", ()
    )
    for kubeconfig, code in ((away, ExitCode.NO_ACCESS), (tmp_path / "none", ExitCode.USAGE)):
        assert main([*words, *ASK_A_CLUSTER[words], "--kubeconfig", str(kubeconfig)]) == code
        error = capsys.readouterr().err
        assert error.startswith("nodeattest: ")
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    "words", [words for words, command in COMMANDS.items() if any(one.name == "cluster" for one in command.params)]
)
def test_a_cluster_that_is_not_there_is_named(
    words: tuple[str, ...], fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, *ASK_A_CLUSTER[words], *fleet.access, "--cluster", "nosuch"]) == ExitCode.REFUSED
    assert "no Cluster or ClusterRecord nosuch in namespace fleet" in capsys.readouterr().err


def test_the_page_has_every_exit_code() -> None:
    page = (DOCS / "commands.md").read_text()
    assert [code for code in ExitCode if f"\n| {code.value} |" not in page] == []


def test_a_full_disk_is_one_line_and_no_traceback() -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "nodeattest_cli.main", "version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("nodeattest: No space left")
    assert done.stderr.count("\n") == 1


def test_a_kubeconfig_may_come_through_a_pipe(
    fleet: AttestedFleet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    content = fleet.plane.admin_kubeconfig.read_bytes()
    writer = threading.Thread(target=pipe.write_bytes, args=(content,), daemon=True)
    writer.start()
    assert main(["token", "create", "--print-join-command", "--kubeconfig", str(pipe)]) == 0
    assert capsys.readouterr().out.startswith("kubeadm join ")
    writer.join(10)
    assert not writer.is_alive()


def test_a_name_in_a_file_forges_no_line_of_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text('{kind: NodeAttestationPolicy, metadata: {name: "a\\nb: valid\\e[2J"}, spec: {}}')
    assert main(["policy", "check", "-f", str(policy)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.startswith(r"a\nb: valid\x1b[2J: ") for line in lines)


def test_a_warning_of_a_command_that_configures_no_logs_is_one_line() -> None:
    done = python(
        "-c",
        "import logging; from nodeattest_cli.main import main; main(['version']); "
        r"logging.getLogger('kube').warning('cannot read: %s', 'x\nforged\x1b[2J'); logging.getLogger().info('no')",
    )
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("WARNING cannot read: x\\nforged\\x1b[2J logger=kube\n")


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=40) | st.integers(), max_size=4), st.none() | st.just(2))
def test_json_is_printable_and_reads_back_as_it_was(value: dict[str, str | int], indent: int | None) -> None:
    written = to_json({**value}, indent=indent)
    assert all(one.isprintable() for one in written.replace("\n", ""))
    assert json.loads(written) == value


@given(st.lists(st.lists(st.text(max_size=8), min_size=2, max_size=2), min_size=1, max_size=4))
def test_a_table_has_one_line_a_row_and_nothing_that_a_terminal_obeys(rows: list[list[str]]) -> None:
    lines = format_table(rows)
    assert len(lines) == len(rows)
    assert all(line.isprintable() for line in lines)


def test_an_error_line_holds_nothing_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["machines", "list", "--kubeconfig", "/none/\x1b]0;forged\x07\u202e"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "\\x1b]0;forged" in said
    assert said.removesuffix("\n").isprintable()
