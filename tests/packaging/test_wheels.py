"""The built wheels: what each holds, what must not ship, and that each works with the wheels that it needs alone."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import nodeattest_providers
from nodeattest_providers.registry import BUILT_IN
from tools.release.artefacts import SETS, write_requirements

TREE = Path(__file__).parents[2]
GIT = shutil.which("git") or "git"
WHEELS = {
    "common": "providers",
    "agent": "authenticator",
    "controller": "controller",
    "cli": "cli",
    "sandbox": "sandbox",
}
"""Wheel to the folder that has its pyproject.toml."""
HOLDS = {
    "common": {"nodeattest_parsing", "nodeattest_providers", "nodeattest_discovery"},
    "agent": {"nodeattest_authenticator"},
    "controller": {
        "nodeattest_controller",
        "nodeattest_kube",
        "nodeattest_serving",
        "nodeattest_identity",
        "nodeattest_discovery/controllers",
        "nodeattest_discovery/front.py",
        "nodeattest_discovery/informers.py",
    },
    "cli": {"nodeattest_cli"},
    "sandbox": {"nodeattest_sandbox", "nodeattest_demo"},
}
"""The packages of each wheel; what is below a package that another wheel names is that wheel's."""
NEEDS = {
    "agent": {"common"},
    "controller": {"common"},
    "cli": {"common", "agent", "controller"},
    "sandbox": {"common", "agent", "controller", "cli"},
}
NOT_SHIPPED = {"nodeattest_providers/null"}


def in_the_tree() -> set[str]:
    """Return every file of every package, as it is named in a wheel."""
    files = subprocess.run([GIT, "ls-files"], cwd=TREE, capture_output=True, text=True, check=True).stdout.split()
    return {found[1] for file in files if (found := re.fullmatch(r"[a-z]+/(nodeattest_[a-z]+/.+)", file))}


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    folders = [str(TREE / folder) for folder in WHEELS.values()]
    subprocess.run([*command, "--wheel-dir", str(out), *folders], check=True, capture_output=True)
    built = {re.match(r"nodeattest_([a-z]+)-", file.name): file for file in out.glob("*.whl")}
    return {name[1]: file for name, file in built.items() if name is not None}


@pytest.fixture(scope="session")
def contents(wheels: dict[str, Path]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as archive:
            found[name] = {file for file in archive.namelist() if not re.match(r"[^/]+\.(dist-info|data)/", file)}
    return found


def unpack(wheels: dict[str, Path], target: Path, *names: str) -> Path:
    for name in names:
        with zipfile.ZipFile(wheels[name]) as archive:
            archive.extractall(target)
    return target


def owner_of(file: str) -> str:
    """Return the wheel whose longest package holds the file."""
    rows = [
        (len(package), wheel)
        for wheel, held in HOLDS.items()
        for package in held
        if f"{file}/".startswith(f"{package}/")
    ]
    return max(rows)[1]


def test_each_wheel_holds_its_packages_and_no_file_is_in_two(contents: dict[str, set[str]]) -> None:
    assert set(contents) == set(WHEELS)
    from_elsewhere = ("nodeattest_controller/manifests/", "nodeattest_cli/denials.md")
    for name, files in contents.items():
        expected = {file for file in in_the_tree() if owner_of(file) == name}
        expected = {file for file in expected if not any(file.startswith(f"{gone}/") for gone in NOT_SHIPPED)}
        assert {file for file in files if not file.startswith(from_elsewhere)} == expected, name
    everything = [file for files in contents.values() for file in files]
    assert len(everything) == len(set(everything))


def test_versions_and_requirements_of_the_wheels_agree_with_the_project() -> None:
    root = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    version = re.search(r'__version__ = "([^"]+)"', (TREE / "providers/nodeattest_providers/__init__.py").read_text())
    assert version is not None
    known = {*root["dependencies"], *(one for extra in root["optional-dependencies"].values() for one in extra)}
    for name, folder in WHEELS.items():
        project = tomllib.loads((TREE / folder / "pyproject.toml").read_text())["project"]
        extras: dict[str, list[str]] = project.get("optional-dependencies", {})
        named = {*project["dependencies"], *(one for extra in extras.values() for one in extra)}
        ours = {one for one in named if one.startswith("nodeattest-")}
        assert {one.partition("==")[2] for one in ours} <= {version[1]}, name
        assert {one.partition("[")[0].partition("==")[0] for one in ours} <= {
            f"nodeattest-{n}" for n in NEEDS.get(name, ())
        }
        assert named - ours <= known, name


BROUGHT = {
    "azure": "azure-identity",
    "botocore": "boto3",
    "google": "google-auth",
    "yaml": "pyyaml",
    "multidict": "aiohttp",
    "yarl": "aiohttp",
}
"""By what a module imports: the requirement that brings it, where the names differ."""


def test_a_wheel_requires_every_library_that_its_modules_import() -> None:
    required: dict[str, set[str]] = {}
    imported: dict[str, set[str]] = {name: set() for name in WHEELS}
    for name, folder in WHEELS.items():
        project = tomllib.loads((TREE / folder / "pyproject.toml").read_text())["project"]
        extras: dict[str, list[str]] = project.get("optional-dependencies", {})
        named = [*project["dependencies"], *(one for extra in extras.values() for one in extra)]
        required[name] = {re.split(r"[\[<>=]", one)[0].lower() for one in named}
    for path in TREE.glob("*/nodeattest_*/**/*.py"):
        owner = imported[owner_of(path.relative_to(TREE).as_posix().partition("/")[2])]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            owner |= {name.partition(".")[0] for name in names}
    for name, modules in imported.items():
        others = {
            one
            for one in modules - sys.stdlib_module_names - {"_typeshed"}
            if one and not one.startswith("nodeattest_")
        }
        libraries = {BROUGHT.get(one, one.replace("_", "-")) for one in others}
        assert libraries <= required[name].union(*(required[other] for other in NEEDS.get(name, ()))), name


def test_the_entry_points_of_the_wheels_are_those_of_the_project() -> None:
    root = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    parts = [tomllib.loads((TREE / folder / "pyproject.toml").read_text())["project"] for folder in WHEELS.values()]
    for table in ("entry-points", "scripts"):
        merged = {key: value for part in parts for key, value in part.get(table, {}).items()}
        assert merged == root[table]


PROGRAMS = {"node-attestation-controller": "signer", "nodeattest": "signer", "kubelet-authenticator": "attestor"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_command_says_its_version_its_commit_and_the_evidence_that_it_speaks(program: str) -> None:
    words = [Path(sys.executable).parent / program, "--version"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    verb = "sends" if PROGRAMS[program] == "attestor" else "accepts"
    assert said[0] == f"{program} {nodeattest_providers.__version__}"
    assert said[1] == f"commit: {described_commit()} (checkout)"
    assert said[2].startswith(f"{verb} evidence: aws/v1,azure/v1,")
    assert {one.partition("/")[0] for one in said[2].rpartition(" ")[2].split(",")} == set(BUILT_IN)


def described_commit() -> str:
    words = [GIT, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    return subprocess.run(words, cwd=TREE, capture_output=True, text=True, check=True).stdout.strip()


def test_the_agent_runs_out_of_two_wheels_without_a_heavy_library(wheels: dict[str, Path], tmp_path: Path) -> None:
    unpacked = unpack(wheels, tmp_path, "common", "agent")
    [script] = unpacked.glob("nodeattest_agent-*.data/scripts/kubelet-authenticator")
    assert "evidence" in run(unpacked, str(script), "--help")
    code = (
        "import pkgutil, sys, nodeattest_authenticator as agent;"
        "[__import__(m.name) for m in pkgutil.walk_packages(agent.__path__, 'nodeattest_authenticator.')];"
        "heavy = {'kubernetes', 'aiohttp', 'click', 'prometheus_client', 'nodeattest_kube', 'nodeattest_cli',"
        " 'nodeattest_controller'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert run(unpacked, "-c", code).strip() == "[]"


@pytest.mark.parametrize("name", ["controller", "cli"])
def test_every_module_of_a_wheel_imports_with_the_wheels_that_it_needs(
    wheels: dict[str, Path], contents: dict[str, set[str]], tmp_path: Path, name: str
) -> None:
    unpacked = unpack(wheels, tmp_path, name, *NEEDS[name])
    names = sorted(
        file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for file in contents[name]
        if file.endswith(".py") and not file.endswith("__main__.py")
    )
    code = (
        f"import importlib, sys; [importlib.import_module(name) for name in {names!r}];"
        "ours = {name: module.__file__ for name, module in sys.modules.items() if name.startswith('nodeattest_')};"
        f"print([name for name, file in ours.items() if file and not file.startswith({str(unpacked)!r})])"
    )
    assert run(unpacked, "-c", code).strip() == "[]"


@pytest.fixture
def release(wheels: dict[str, Path], tmp_path: Path) -> Path:
    """The wheels with their requirements files."""
    folder = tmp_path / "release"
    folder.mkdir()
    for wheel in wheels.values():
        shutil.copy(wheel, folder)
    write_requirements(folder)
    return folder


def install(release: Path, which: str, target: Path) -> subprocess.CompletedProcess[str]:
    """Install a requirements file from somewhere else, by pip, third parties' packages from the index."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    command += ["--target", str(target), "--requirement", str(release / f"requirements-{which}.txt")]
    return subprocess.run(command, cwd=target.parent, capture_output=True, text=True, check=False)


def test_pip_installs_a_command_by_the_hashes_of_its_requirements_file(release: Path, tmp_path: Path) -> None:
    done = install(release, "agent", tmp_path / "installed")
    assert done.returncode == 0, done.stderr
    said = run(tmp_path / "installed", str(tmp_path / "installed/bin/kubelet-authenticator"), "--version")
    assert said.splitlines()[1] == f"commit: {described_commit()}"


def test_pip_refuses_a_wheel_that_is_not_the_release_s(release: Path, tmp_path: Path) -> None:
    [wheel] = release.glob("nodeattest_agent-*.whl")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("nodeattest_authenticator/more.py", "")
    done = install(release, "agent", tmp_path / "installed")
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert "nodeattest" in done.stderr


def test_a_requirements_file_has_every_locked_package_of_its_set_with_hashes_and_no_other_version(
    release: Path,
) -> None:
    lock = (TREE / "requirements.lock").read_text()
    brings = {"agent": "boto3", "cli": "obstore", "controller": "google-auth", "sandbox": "click"}
    for which in SETS:
        text = (release / f"requirements-{which}.txt").read_text()
        entries = re.findall(
            r"^([a-z0-9.-]+)==(\S+)[^\n]*((?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?)+)$", text, re.MULTILINE
        )
        lines = [line for line in text.splitlines() if not line.startswith(("#", "--", " "))]
        assert len(entries) == len(lines)
        assert brings[which] in {name for name, _, _ in entries}
        for name, version, hashes in entries:
            assert name.startswith("nodeattest-") or f"{name}=={version}" in lock
            assert name.startswith("nodeattest-") or hashes in lock


def run(unpacked: Path, *arguments: str) -> str:
    environment = {"PYTHONPATH": str(unpacked), "PATH": "/usr/bin:/bin"}
    found = subprocess.run(
        [sys.executable, "-P", *arguments], capture_output=True, text=True, check=False, env=environment
    )
    assert found.returncode == 0, found.stderr
    return found.stdout
