"""The command's own manners: help, unknown commands, the plugin's name for kubectl."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import click
import pytest

from nodeattest_cli.main import cli, main

BIN = Path(sys.executable).parent


@pytest.mark.parametrize("program", ["nodeattest", "kubectl-nodeattest"])
def test_both_names_are_installed_and_are_the_same_command(program: str) -> None:
    done = subprocess.run([str(BIN / program), "version"], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == metadata.version("nodeattest")


def test_every_command_that_help_names_can_be_loaded_and_explains_itself() -> None:
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        assert command.help
        for option in (part for part in command.params if isinstance(part, click.Option)):
            assert option.help or option.name == "output", f"{name} --{option.name}"


def test_help_does_not_import_the_api_client() -> None:
    probe = "import sys; from nodeattest_cli.main import main; main(['--help']); sys.exit('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0
    assert "demo" in done.stdout


def test_an_unknown_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demonstrate"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
