"""README and docs claim nothing that the tree does not hold: tests, files, sections, commands and options exist."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TypeGuard

import pytest

from nodeattest_cli.documents import read_objects
from nodeattest_cli.main import main
from nodeattest_cli.policy.check import problems
from nodeattest_parsing.objects import strings, text

TREE = Path(__file__).parents[2]
BIN = Path(sys.prefix) / "bin"
COMMANDS = ("kubelet-authenticator", "node-attestation-controller", "nodeattest")
README = TREE / "README.md"
DOCS = TREE / "docs"
MANIFESTS = TREE / "manifests"
PAGES = [
    README,
    TREE / "SECURITY.md",
    TREE / "CONTRIBUTING.md",
    *sorted(DOCS.rglob("*.md")),
    *sorted((TREE / "examples").rglob("*.md")),
    MANIFESTS / "README.md",
]
COMPARISON = DOCS / "proposals.md"
MAX_LINE = 120

CLAIM = re.compile(r"\[(test_[a-z0-9_]+)\]\(([^)]+)\)")
LINK = re.compile(r"(?<!!)\[[^]]+\]\(([^)\s]+)\)")
CODE_SPAN = re.compile(r"`[^`\n]+`")
MARK = re.compile("<!-- (tested|not run): (.+) -->")
SHELL_BLOCK = re.compile(r"^ *```(?:ba)?sh\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
GROUPS = {"machines", "policy", "cluster-info", "token", "issuer", "discovery", "addon-auth"}
"""Commands of ``nodeattest`` that have commands of their own."""
BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def anchors_of(page: Path) -> set[str]:
    """Return the sections of a page as GitHub names them in links."""
    titles = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).strip().replace(" ", "-") for title in titles}


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
    """``nodeattest`` in process: it is shown with dozens of command lines."""
    if words[0] == "nodeattest":
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            assert main([*words[1:], "--help"]) == 0
        return shown.getvalue()
    found = subprocess.run([BIN / words[0], *words[1:], "--help"], capture_output=True, text=True, check=True)
    return found.stdout


def test_every_row_of_the_comparison_is_shown_by_a_test_that_exists() -> None:
    claims = CLAIM.findall(COMPARISON.read_text())
    assert len(claims) >= 40
    missing = [
        (name, path) for name, path in claims if not re.search(rf"def {name}\b", (COMPARISON.parent / path).read_text())
    ]
    assert missing == []


def test_every_link_leads_to_a_file_and_a_section() -> None:
    broken: list[str] = []
    for page in PAGES:
        for target in LINK.findall(CODE_SPAN.sub("code", page.read_text())):
            path, _, section = target.partition("#")
            if "://" in target:
                continue
            file = (page.parent / path) if path else page
            if not file.exists() or (section and file.suffix == ".md" and section not in anchors_of(file)):
                broken.append(f"{page.relative_to(TREE)}: {target}")
    assert broken == []


def test_every_page_is_in_the_index() -> None:
    named = set(LINK.findall((DOCS / "README.md").read_text()))
    pages = {str(page.relative_to(DOCS)) for page in PAGES if DOCS in page.parents}
    assert pages - named == {"README.md"}


def test_lines_of_pages_are_short() -> None:
    """Tables, code, headings and comments keep the lines that they need."""
    long = [
        f"{page.relative_to(TREE)}: {line[:60]}"
        for page in [*PAGES, *TREE.glob("*.md"), *(TREE / "tests").rglob("*.md")]
        for line in BLOCK.sub("", page.read_text()).splitlines()
        if len(line) > MAX_LINE and not line.startswith("    ") and not line.lstrip().startswith(("|", "#", "<!--"))
    ]
    assert long == []


def test_every_policy_that_is_shown_is_valid_but_for_its_keys(tmp_path: Path) -> None:
    shown = policies()
    assert len(shown) >= len(list((DOCS / "providers").glob("*.md")))
    for policy in shown:
        file = tmp_path / "policy.yaml"
        file.write_text(re.sub("sha256:(<64 digits>|0{64})", f"sha256:{'0f' * 32}", policy))
        for document in read_objects(str(file)):
            if text(document, "kind") == "NodeAttestationPolicy":
                assert [one for one in problems(document) if "endorsementCAs: PEM certificates" not in one] == [], (
                    policy
                )


def test_no_policy_that_is_shown_trusts_any_tpm_beside_another_attestor(tmp_path: Path) -> None:
    """Whoever has the token of a machine could join by a software TPM, whatever else the machine would prove."""
    for number, policy in enumerate(policies()):
        file = tmp_path / f"{number}.yaml"
        file.write_text(policy)
        for document in read_objects(str(file)):
            first_use = text(document, "kind") == "NodeAttestationPolicy" and "trustOnFirstUse: true" in policy
            assert not (first_use and len(strings(document, "spec", "authorizedAttestors")) > 1), policy


def test_every_bootstrap_configuration_that_is_shown_can_be_rendered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = [block for block in policies() if "kind: Kubeadm" in block]
    assert shown
    for block in shown:
        file = tmp_path / "example.yaml"
        file.write_text(block)
        assert main(["policy", "check", "-f", str(file)]) == 0
        assert "cannot be rendered" not in capsys.readouterr().out


def shell_blocks(text: str) -> list[tuple[re.Match[str] | None, str]]:
    """Return each shell block with its mark: the line above it, or that below the heading of its section or page."""
    found: list[tuple[re.Match[str] | None, str]] = []
    for section in re.split(r"^(?=## )", text, flags=re.MULTILINE):
        headings = (re.match(r"##? .*\n+(<!-- .+ -->)\n(?! *```)", part) for part in (section, text))
        inherited = next((MARK.fullmatch(heading[1]) for heading in headings if heading), None)
        for block in SHELL_BLOCK.finditer(section):
            own = MARK.fullmatch(section[: block.start()].rpartition("\n")[0].rpartition("\n")[2].strip())
            found.append((own or inherited, block[1]))
    return found


def test_every_shell_block_is_run_by_tests_or_says_why_it_cannot_be() -> None:
    """Its mark names the tests that run these commands (with other addresses), or the reason."""
    wrong: list[str] = []
    for page in PAGES:
        for mark, block in shell_blocks(page.read_text()):
            tests = mark[2].split(", ") if mark is not None and mark[1] == "tested" else []
            if mark is None or not all(has_test(*test.partition("::")[::2]) for test in tests):
                wrong.append(f"{page.relative_to(TREE)}: {block[:60]}")
    assert wrong == []


def has_test(path: str, name: str) -> bool:
    return (TREE / path).is_file() and re.search(rf"def {name}\b", (TREE / path).read_text()) is not None


def test_every_make_target_exists() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    targets = set(re.findall(r"`make ([a-z]+)[ `]", text)) | set(re.findall(r"^    make ([a-z]+)", text, re.MULTILINE))
    known = set(re.findall(r"^([a-z]+):", (TREE / "Makefile").read_text(), re.MULTILINE))
    assert targets
    assert targets <= known


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_that_is_shown_exists(command: str) -> None:
    helps: dict[tuple[str, ...], str] = {}
    unknown: list[str] = []
    for line in shown_commands():
        if line[0] != command:
            continue
        words = [line[0]]
        for word in line[1:]:
            if word.startswith("-"):
                break
            words.append(word)
        key = tuple(words)
        known = helps[key] if key in helps else helps.setdefault(key, help_of(*words))
        unknown += [
            f"{' '.join(words)} has no {word}"
            for word in line
            if word.startswith("-") and len(word) > 1 and not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", known)
        ]
    assert unknown == []


SOURCES = ("authenticator", "cli", "controller", "discovery", "identity", "kube", "providers", "serving")
LOG = re.compile(r"\blog(?:s|ged)?\b", re.IGNORECASE)
WORDS = re.compile(r"[a-zA-Z][a-z',-]*(?: [a-zA-Z][a-zA-Z',-]*)+")
OTHER_WORDS = {*COMMANDS, "gcloud", "kubectl", "make", "systemctl"}
"""With which commands begin."""


@cache
def texts_of_programs() -> str:
    """Return every text that stands in the code of the programs."""
    files = [path for folder in SOURCES for path in (TREE / folder).rglob("*.py")]
    found = [node.value for file in files for node in ast.walk(ast.parse(file.read_text())) if is_text(node)]
    return "\n".join(map(str, found))


def is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TREE)))
def test_each_log_line_that_a_page_quotes_is_in_the_code(page: Path) -> None:
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[*-]|\d+\.) )", BLOCK.sub("", page.read_text())):
        if not LOG.search(CODE_SPAN.sub("", paragraph)):
            continue
        spans = [span.strip("`") for span in CODE_SPAN.findall(paragraph)]
        quoted = [span for span in spans if WORDS.fullmatch(span) and span.split()[0] not in OTHER_WORDS]
        assert [span for span in quoted if span not in texts_of_programs()] == []
