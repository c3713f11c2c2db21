"""The command's own manners: help, unknown commands, the plugin's name for kubectl."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import click
import pytest

from nodeattest_cli.connection import role_for
from nodeattest_cli.main import cli, main

BIN = Path(sys.executable).parent


@pytest.mark.parametrize("program", ["nodeattest", "kubectl-nodeattest"])
def test_both_names_are_installed_and_are_the_same_command(program: str) -> None:
    for word in ("version", "--version"):
        done = subprocess.run([str(BIN / program), word], capture_output=True, text=True, timeout=120, check=True)
        assert done.stdout.splitlines()[0] == f"nodeattest {metadata.version('nodeattest')}"


def commands(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        assert command is not None, name
        yield command
        if isinstance(command, click.Group):
            yield from commands(command)


def test_every_command_that_help_names_can_be_loaded_and_explains_itself() -> None:
    for command in commands(cli):
        assert command.help
        for option in (part for part in command.params if isinstance(part, click.Option)):
            assert option.help or option.name == "output", f"{command.name} --{option.name}"


@pytest.mark.parametrize("words", [["--help"], ["token", "--help"], ["cluster-info", "--help"]])
def test_what_asks_no_cluster_imports_no_client_of_one(words: list[str]) -> None:
    probe = (
        "import sys; from nodeattest_cli.main import main; main(sys.argv[1:]); "
        "sys.exit(' '.join({'aiohttp', 'kubernetes', 'yaml'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    ("words", "near"), [(["demoo"], "demo"), (["machines", "lst"], "list"), (["policy", "chek"], "check")]
)
def test_an_unknown_command_is_answered_with_the_nearest(
    words: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err == f"nodeattest: No such command {words[-1]!r}. Did you mean {near!r}?\n"


@pytest.mark.parametrize("package", ["botocore.session", "yaml"])
def test_a_package_that_is_missing_is_one_line(package: str, tmp_path: Path) -> None:
    code = tmp_path / "nodeattest_policy_probe.py"
    code.write_text(f"import click\n\n\n@click.command()\ndef probe() -> None:\n    import {package}\n")
    info = tmp_path / "probe-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: probe\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[nodeattest.commands]\nprobe = nodeattest_policy_probe:probe\n")
    hidden = f"import sys; sys.modules[{package.partition('.')[0]!r}] = None; from nodeattest_cli.main import main; "
    done = subprocess.run(
        [sys.executable, "-c", f"{hidden}sys.exit(main(['probe']))"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    said = f"nodeattest: the Python package {package.partition('.')[0]} is not installed; install requirements-cli.txt"
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1
    assert done.stderr.count("\n") == 1


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
