"""What a release consists of: one row for each kind of artefact.

Each of our distributions has a requirements file: our wheels beside it and the locked packages, each with its hashes.
pip takes a file by its hash only, so a package of our name in an index is never installed.
Source: https://pip.pypa.io/en/stable/topics/secure-installs/ (hash-checking mode).
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Mapping
from email.message import Message
from pathlib import Path
from types import MappingProxyType
from typing import Final

from images.controller import build_from_tree, created_at, plain_tar
from images.debian import ARCHITECTURES, CACHE, TREE, read_lock
from images.requirements import (
    PYTHON_LOCK,
    build_wheels,
    component,
    deb_component,
    environment,
    locked_lines,
    metadata_of,
    needed,
    pypi_component,
    write_sbom,
)
from nodeattest_providers import __version__
from tools.release.chart import write_chart
from tools.release.manifests import write_provider

_WHEELS: Final = ("providers", "authenticator", "controller", "cli", "sandbox")
_CLOUDS: Final = frozenset({"aws", "azure", "gcp", "store"})
SETS: Final[Mapping[str, tuple[str, frozenset[str]]]] = MappingProxyType(
    {
        "agent": ("nodeattest-agent", frozenset({"aws"})),
        "cli": ("nodeattest-cli", _CLOUDS),
        "controller": ("nodeattest-controller", _CLOUDS),
        "sandbox": ("nodeattest-sandbox", frozenset[str]()),
    }
)
"""``requirements-NAME.txt`` to a distribution of ours and its extras."""
_PYTHONS: Final = ("3.11.2", "3.12.0", "3.13.0", "3.14.0")
_MACHINES: Final = (("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64"))
_HEAD: Final = """\
# pip install -r {name}: the files beside this one, and packages from your index, each by its hash.
--require-hashes
--only-binary :all:
--find-links .
"""


def _wheels(out: Path) -> None:
    build_wheels(out, _WHEELS)
    write_requirements(out)


def write_requirements(folder: Path, lock: Path = PYTHON_LOCK) -> None:
    """Write a file for each set beside the wheels of a folder."""
    wheels = {read["Name"].lower(): (wheel, read) for wheel in folder.glob("*.whl") for read in [metadata_of(wheel)]}
    everywhere = [environment(python, *machine) for python in _PYTHONS for machine in _MACHINES]
    paths = [wheel for wheel, _ in wheels.values()]
    for which, (root, extras) in SETS.items():
        wanted = needed(paths, root, extras, everywhere)
        lines = [_pinned(wheels[name][0], wheels[name][1]) for name in sorted(wanted.ours)]
        file = folder / f"requirements-{which}.txt"
        text = f"{_HEAD.format(name=file.name)}{''.join(lines)}{locked_lines(lock, wanted.others)}"
        file.write_text(text, encoding="utf-8")


def _pinned(wheel: Path, read: Message) -> str:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"{read['Name']}=={read['Version']} \\\n    --hash=sha256:{digest}\n"


def _image(out: Path) -> None:
    subprocess.run([str(TREE / "tools" / "system-packages"), "images"], check=True)
    build_from_tree(out, CACHE)


def _packages(out: Path) -> None:
    subprocess.run([str(TREE / "tools" / "system-packages"), "packages"], check=True)
    subprocess.run([sys.executable, "-m", "images.node", "--out", str(out.resolve())], cwd=TREE, check=True)
    for name, architecture in ARCHITECTURES.items():
        listed = (out / f"nodeattest-agent-{name}.packages.txt").read_text(encoding="utf-8").split("\n")
        debs = [deb for deb in read_lock(architecture) if f"{deb.name} {deb.version}" in listed]
        components = [deb_component(deb, architecture) for deb in debs]
        components += [pypi_component(*line.split("==")) for line in listed if "==" in line]
        purl = f"pkg:generic/nodeattest-agent@{__version__}?arch={name}"
        about = component("nodeattest-agent", __version__, purl, "application")
        write_sbom(out / f"nodeattest-agent-{__version__}-{name}.cdx.json", about, created_at(), components)


def _manifests(out: Path) -> None:
    archive = plain_tar(TREE / "manifests", prefix=f"nodeattest-{__version__}/manifests/")
    (out / f"nodeattest-manifests-{__version__}.tar").write_bytes(archive)


KINDS: Final[Mapping[str, Callable[[Path], object]]] = MappingProxyType(
    {
        "wheels": _wheels,
        "packages": _packages,
        "image": _image,
        "clusterctl": write_provider,
        "chart": write_chart,
        "manifests": _manifests,
    }
)
"""Name to what writes the files of this kind into a folder."""
