"""README and docs claim nothing that the tree does not hold: tests, files, commands and options exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from nodeattest_cli.documents import read_objects
from nodeattest_cli.policies import problems

TREE = Path(__file__).parents[2]
README = (TREE / "README.md").read_text()
BIN = Path(sys.prefix) / "bin"
COMMANDS = ("kubelet-authenticator", "node-attestation-controller", "nodeattest")

CLAIMS = re.findall(r"\[(test_[a-z0-9_]+)\]\(([^)]+)\)", README)
PAGES = [TREE / "README.md", *sorted((TREE / "docs").rglob("*.md"))]


def links() -> list[tuple[Path, str]]:
    """Return every page's relative links, without the section."""
    found = ((page, re.findall(r"\[[^]]+\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())) for page in PAGES)
    return sorted({(page, target) for page, targets in found for target in targets if "://" not in target})


def shown_commands() -> list[list[str]]:
    """Return the command lines of the shell examples that call one of our commands."""
    blocks = "\n".join(
        block for page in PAGES for block in re.findall(r"```(?:ba)?sh\n(.*?)```", page.read_text(), re.DOTALL)
    )
    lines = [line.strip().removeprefix("$ ") for line in blocks.replace("\\\n", " ").splitlines()]
    calls = [shlex.split(line, comments=True) for line in lines if line.partition(" ")[0] in COMMANDS]
    return [list(each) for each in sorted({tuple(call) for call in calls})]


def policies() -> list[str]:
    """Return every page's example policies."""
    blocks = (one for page in PAGES for one in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL))
    return [block for block in blocks if "kind: NodeAttestationPolicy\n" in block]


def help_of(*words: str) -> str:
    found = subprocess.run([BIN / words[0], *words[1:], "--help"], capture_output=True, text=True, check=True)
    return found.stdout


@pytest.mark.parametrize(("name", "path"), CLAIMS)
def test_every_row_of_the_table_is_shown_by_a_test_that_exists(name: str, path: str) -> None:
    assert re.search(rf"def {name}\b", (TREE / path).read_text())


def test_the_table_has_its_rows() -> None:
    assert len(CLAIMS) >= 12


@pytest.mark.parametrize(("page", "target"), links(), ids=str)
def test_every_link_of_every_page_leads_somewhere(page: Path, target: str) -> None:
    assert (page.parent / target).exists()


@pytest.mark.parametrize("policy", policies())
def test_every_policy_that_is_shown_is_valid_but_for_its_keys(policy: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(re.sub("sha256:(<64 digits>|0{64})", f"sha256:{'0f' * 32}", policy))
    (document,) = read_objects(str(file))
    assert [one for one in problems(document) if "endorsementCAs: PEM certificates" not in one] == []


def test_there_are_policies_of_every_provider_with_a_page() -> None:
    assert len(policies()) >= len(list((TREE / "docs/providers").glob("*.md")))


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
