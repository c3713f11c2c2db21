"""README and docs claim nothing that the tree does not hold: tests, files, sections, commands and options exist."""

from __future__ import annotations

import ast
import contextlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final, TypeGuard

import pytest
import yaml

from nodeattest_cli.doctor.findings import CONTRACTS, NEWEST_TESTED, OLDEST, OLDEST_MANAGEMENT
from nodeattest_cli.documents import read_objects
from nodeattest_cli.main import main
from nodeattest_cli.policy.check import problems
from nodeattest_parsing.objects import strings, text
from nodeattest_providers.errors import Reason

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
    """Beside another attestor none trusts any TPM: whoever has a machine's token could join by a software TPM."""
    shown = policies()
    assert len(shown) >= len(list((DOCS / "providers").glob("*.md")))
    file = tmp_path / "policy.yaml"
    for policy in shown:
        file.write_text(re.sub("sha256:(<64 digits>|0{64})", f"sha256:{'0f' * 32}", policy))
        for document in read_objects(str(file)):
            if text(document, "kind") == "NodeAttestationPolicy":
                wrong = [one for one in problems(document) if "endorsementCAs: PEM certificates" not in one]
                assert wrong == [], policy
                attestors = strings(document, "spec", "authorizedAttestors")
                assert len(attestors) == 1 or "trustOnFirstUse: true" not in policy, policy


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


DENIALS = (TREE / "docs" / "denials.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", DENIALS.partition("\n## On the node\n")[0], re.MULTILINE)
ROOMS = ("parsing", "providers", "kube", "serving", "discovery", "identity", "authenticator", "controller", "cli")


def named(files: Iterable[Path]) -> set[Reason]:
    """Return the members that modules name as ``Reason.NAME``, by their syntax trees."""
    names: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Attribute(ast.Name("Reason"), name):
                    names.add(name)
                case _:
                    pass
    return {reason for reason in Reason if reason.name in names}


def test_every_reason_is_explained_once_in_the_order_of_the_code_and_no_other_is() -> None:
    assert [reason for reason, _, _ in ROWS] == list(Reason)


def test_every_reason_is_given_by_code_and_expected_by_a_test() -> None:
    given = named(file for room in ROOMS for file in (TREE / room).rglob("*.py") if file.name != "errors.py")
    tests = TREE / "tests"
    expected = named(file for file in tests.rglob("*.py") if "docs" not in file.parts)
    rows = "".join(file.read_text(encoding="utf-8") for file in (tests / "attacks" / "catalogue").glob("*.toml"))
    expected |= {reason for reason in Reason if re.search(rf'expect = "(deny|wait) {reason}\b', rows)}
    assert (sorted(set(Reason) - given), sorted(given - expected)) == ([], [])


INSTALL: Final = (TREE / "docs" / "install.md").read_text(encoding="utf-8")
TESTED_VERSION: Final = re.compile(r"\b1\.\d\d\.\d+\b")


def row(begins: str) -> list[str]:
    """Return the cells of the first row that begins so."""
    line = next(line for line in INSTALL.splitlines() if line.startswith(f"| {begins}"))
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def versions_of(module: str) -> list[str]:
    """Return the versions in a module's constant ``_VERSIONS``."""
    text = (TREE / module).read_text(encoding="utf-8")
    constant = re.search(r"^_VERSIONS: Final = \((.*)\)$", text, re.MULTILINE)
    assert constant is not None
    return re.findall(r'"(\w+)"', constant[1])


def test_the_tested_versions_of_kubernetes_are_those_of_the_page_of_limits() -> None:
    limits = (TREE / "docs" / "reliability.md").read_text(encoding="utf-8")
    first = limits.partition("\n### What was tested\n")[2].strip().partition("\n\n")[0]
    tested = TESTED_VERSION.findall(row("Kubernetes, workload clusters")[2])
    assert sorted(tested) == sorted(TESTED_VERSION.findall(first))
    minors = sorted(tuple(map(int, version.split(".")[:2])) for version in tested)
    assert (minors[0], minors[-1]) == (OLDEST, NEWEST_TESTED)


def test_what_doctor_compares_with_is_the_table() -> None:
    told = {name: re.findall(r"\b1\.(\d\d)\b", row(f"Kubernetes, {name}")[1]) for name in ("workload", "management")}
    assert told == {"workload": [str(OLDEST[1])], "management": [str(OLDEST_MANAGEMENT[1]), str(OLDEST[1])]}
    assert tuple(re.findall(r"`(v1beta\d)`", row("Cluster API contracts")[1])) == CONTRACTS


def test_contracts_are_those_that_are_rendered_and_released() -> None:
    contracts = [cell.strip("`") for cell in row("part")[1:]]
    metadata = yaml.safe_load((TREE / "manifests" / "metadata.yaml").read_text(encoding="utf-8"))
    assert [one["contract"] for one in metadata["releaseSeries"]] == contracts
    fields = "controller/nodeattest_controller/controllers/bootstrap_config/kubeadmconfig.py"
    assert versions_of(fields) == contracts
