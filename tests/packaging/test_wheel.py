"""The built wheel: what ships, what must not, and that the node half works out of it alone."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
ROOMS = ("providers", "kube", "serving", "discovery", "identity", "authenticator", "controller", "sandbox", "cli")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(out), str(TREE)], check=True, capture_output=True)
    [built] = out.glob("nodeattest-*.whl")
    return built


@pytest.fixture(scope="session")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def test_every_room_ships_with_its_types(unpacked: Path) -> None:
    for room in ROOMS:
        assert (unpacked / f"nodeattest_{room}" / "py.typed").exists()


def test_the_rubber_stamp_never_ships(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert not [name for name in names if "/null/" in name or name.startswith("tests/")]


def test_the_manifests_ship_where_the_controller_finds_them(unpacked: Path) -> None:
    code = "from nodeattest_controller import manifests; print(len(manifests.crds()))"
    in_the_tree = [file for file in (TREE / "manifests" / "crd").glob("*.yaml") if file.name != "kustomization.yaml"]
    assert int(run(unpacked, "-c", code)) == len(in_the_tree) > 0


def test_the_commands_are_plain_scripts(unpacked: Path) -> None:
    [scripts] = unpacked.glob("nodeattest-*.data/scripts")
    assert {path.name for path in scripts.iterdir()} == {"kubelet-authenticator", "kubectl-nodeattest"}
    assert (scripts / "kubelet-authenticator").read_text().startswith("#!python\n")


def test_the_node_half_imports_nothing_of_the_controllers(unpacked: Path) -> None:
    code = (
        "import sys; from nodeattest_authenticator.commands import cli, join;"
        "heavy = {'kubernetes', 'aiohttp', 'click', 'rich', 'yaml', 'prometheus_client', 'nodeattest_kube',"
        " 'nodeattest_controller', 'pyasn1'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert run(unpacked, "-c", code).strip() == "[]"


def test_the_node_command_runs_out_of_the_wheel(unpacked: Path) -> None:
    [script] = unpacked.glob("nodeattest-*.data/scripts/kubelet-authenticator")
    assert "evidence" in run(unpacked, str(script), "--help")


def run(unpacked: Path, *arguments: str) -> str:
    environment = {"PYTHONPATH": str(unpacked), "PATH": "/usr/bin:/bin"}
    found = subprocess.run(
        [sys.executable, "-P", *arguments], capture_output=True, text=True, check=True, env=environment
    )
    return found.stdout
