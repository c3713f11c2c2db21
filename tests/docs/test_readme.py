"""The README claims nothing that the tree does not hold: tests, files, commands and options exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
README = (TREE / "README.md").read_text()
BIN = Path(sys.prefix) / "bin"
COMMANDS = ("kubelet-authenticator", "node-attestation-controller", "nodeattest")

CLAIMS = re.findall(r"\[(test_[a-z0-9_]+)\]\(([^)]+)\)", README)
LINKS = [target for _, target in re.findall(r"\[([^]]+)\]\(([^)#]+)\)", README) if "://" not in target]


def shown_commands() -> list[list[str]]:
    """Return the command lines of the shell examples that call one of our commands."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL)).replace("\\\n", " ")
    words = [shlex.split(line, comments=True) for line in blocks.splitlines()]
    return [line for line in words if line and line[0] in COMMANDS]


def help_of(*words: str) -> str:
    found = subprocess.run([BIN / words[0], *words[1:], "--help"], capture_output=True, text=True, check=True)
    return found.stdout


@pytest.mark.parametrize(("name", "path"), CLAIMS)
def test_every_row_of_the_table_is_shown_by_a_test_that_exists(name: str, path: str) -> None:
    assert re.search(rf"def {name}\b", (TREE / path).read_text())


def test_the_table_has_its_rows() -> None:
    assert len(CLAIMS) >= 12


@pytest.mark.parametrize("target", sorted(set(LINKS)))
def test_every_link_leads_somewhere(target: str) -> None:
    assert (TREE / target).exists()


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"`make ([a-z]+)`", README)) | set(re.findall(r"^    make ([a-z]+)", README, re.MULTILINE))
    known = set(re.findall(r"^([a-z]+):", (TREE / "Makefile").read_text(), re.MULTILINE))
    assert targets
    assert targets <= known


@pytest.mark.parametrize("line", shown_commands(), ids=" ".join)
def test_every_option_that_is_shown_exists(line: list[str]) -> None:
    words = [line[0]]
    for word in line[1:]:
        if word.startswith("-"):
            break
        words.append(word)
    known = help_of(*words)
    for word in line:
        if word.startswith("-") and len(word) > 1:
            assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", known), f"{words} has no {word}"


def test_the_dependencies_are_those_of_the_wheel() -> None:
    project = (TREE / "pyproject.toml").read_text()
    table = README.partition("## Dependencies")[2]
    for name in ("cryptography", "pyasn1", "tpm2-pytss", "kubernetes", "aiohttp", "click", "rich", "PyYAML"):
        assert f'"{name}>=' in project
        assert name in table
