"""The command's own manners: help, unknown commands, the plugin's name for kubectl."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import click
import pytest

from nodeattest_cli.main import cli, main

BIN = Path(sys.executable).parent


@pytest.mark.parametrize("program", ["nodeattest", "kubectl-nodeattest"])
def test_both_names_are_installed_and_are_the_same_command(program: str) -> None:
    for word in ("version", "--version"):
        done = subprocess.run([str(BIN / program), word], capture_output=True, text=True, timeout=30, check=True)
        assert done.stdout.splitlines()[0] == f"nodeattest {metadata.version('nodeattest')}"


def commands(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        yield command
        if isinstance(command, click.Group):
            yield from commands(command)


def test_every_command_that_help_names_can_be_loaded_and_explains_itself() -> None:
    for command in commands(cli):
        assert command.help
        for option in (part for part in command.params if isinstance(part, click.Option)):
            assert option.help or option.name == "output", f"{command.name} --{option.name}"


def test_help_says_what_each_command_does_installed_ones_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "demo" in shown
    assert "(from " not in shown


@pytest.mark.parametrize("words", [["--help"], ["token", "--help"], ["cluster-info", "--help"], ["token", "generate"]])
def test_what_asks_no_cluster_imports_no_client_of_one(words: list[str]) -> None:
    probe = (
        "import sys; from nodeattest_cli.main import main; main(sys.argv[1:]); "
        "sys.exit(' '.join({'aiohttp', 'kubernetes', 'yaml'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe, *words], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_an_unknown_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demonstrate"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
