"""What a release consists of: one row for each kind of artefact."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from images.controller.build import build_from_tree, created_at
from images.debian import ARCHITECTURES, CACHE, TREE, read_lock
from images.sbom import component, deb_component, pypi_component, write_sbom
from nodeattest_providers import __version__
from tools.release.archive import packed
from tools.release.chart import write_chart
from tools.release.clusterctl import write_provider
from tools.release.requirements import write_requirements

_WHEELS: Final = ("providers", "authenticator", "controller", "cli", "sandbox")


def _wheels(out: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--no-index", "--wheel-dir", str(out)]
    subprocess.run([*command, *(str(TREE / name) for name in _WHEELS)], check=True)
    write_requirements(out)


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


def _clusterctl(out: Path) -> None:
    write_provider(out)


def _chart(out: Path) -> None:
    write_chart(out)


def _manifests(out: Path) -> None:
    archive = packed(TREE / "manifests", f"nodeattest-{__version__}/manifests")
    (out / f"nodeattest-manifests-{__version__}.tar").write_bytes(archive)


KINDS: Final[Mapping[str, Callable[[Path], None]]] = MappingProxyType(
    {
        "wheels": _wheels,
        "packages": _packages,
        "image": _image,
        "clusterctl": _clusterctl,
        "chart": _chart,
        "manifests": _manifests,
    }
)
"""Name to what writes the files of this kind into a folder."""
