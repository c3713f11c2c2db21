"""Which lines of requirements.lock a set of our wheels needs, their wheels for Debian 13, and bills of materials.

The requirements of a third party's package are read from its installed metadata, which has the lock's version.
Source: https://packaging.python.org/en/latest/specifications/core-metadata/, https://cyclonedx.org/docs/1.5/json/,
https://github.com/package-url/purl-spec.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from email.message import Message
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from packaging.requirements import Requirement

from images.debian import PYTHON, TREE, Architecture, Deb, run

PYTHON_LOCK: Final = TREE / "requirements.lock"
_GLIBC: Final = range(41, 16, -1)
"""Minor versions: of Debian 13 down to that of manylinux2014."""
_OURS: Final = "nodeattest-"
_SERIALS: Final = uuid.UUID("1f0a8f5e-6c57-5e4b-9d63-2f6a4a6f1c11")
"""Namespace of serial numbers: the same content has the same one."""


def environment(python: str, system: str = "Linux", machine: str = "x86_64") -> Mapping[str, str]:
    """Return the values of markers for CPython of a full version, on Linux or Darwin."""
    return {
        "implementation_name": "cpython",
        "implementation_version": python,
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": system,
        "python_full_version": python,
        "python_version": python.rpartition(".")[0],
        "sys_platform": system.lower(),
    }


class Needed(NamedTuple):
    """Normalized names of distributions."""

    ours: frozenset[str]
    others: frozenset[str]


def metadata_of(wheel: Path) -> Message:
    """Return the metadata's fields of a wheel; ``Requires-Dist`` may be there several times (``get_all``)."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [one for one in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", one)]
        return HeaderParser().parsestr(archive.read(name).decode())


def needed(
    wheels: Iterable[Path],
    root: str,
    extras: frozenset[str],
    environments: Iterable[Mapping[str, str]],
) -> Needed:
    """Name what ``root``, one of our wheels, needs with these extras in any of the environments."""
    everywhere = list(environments)
    ours = {_normalized(read["Name"]): read for read in map(metadata_of, wheels)}
    waiting = [(root, extras)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, wanted = one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        mine = ours.get(name)
        lines = mine.get_all("Requires-Dist") if mine is not None else metadata.requires(name)
        for requirement in map(Requirement, lines or []):
            marker = requirement.marker
            if marker is None or any(
                marker.evaluate({**environment, "extra": extra})
                for environment in everywhere
                for extra in wanted or {""}
            ):
                waiting.append((_normalized(requirement.name), frozenset(requirement.extras)))
    names = frozenset(name for name, _ in seen)
    ours = frozenset(name for name in names if name.startswith(_OURS))
    return Needed(ours, names - ours)


def locked_lines(lock: Path, names: frozenset[str]) -> str:
    """Return the lock's entries for these names, with their hashes; ``SystemExit`` if one is missing."""
    text = re.sub(r"^#.*\n", "", lock.read_text(encoding="utf-8"), flags=re.MULTILINE)
    entries = [entry.strip() for entry in re.split(r"\n(?=[a-zA-Z0-9])", text) if entry.strip()]
    found = {_normalized(re.split(r"[=\[; ]", entry, maxsplit=1)[0]): entry for entry in entries}
    if missing := sorted(names - found.keys()):
        raise SystemExit(f"{lock.name}: expected entries for {', '.join(missing)}; run make lock")
    return "".join(f"{found[name]}\n" for name in sorted(names))


def build_wheels(out: Path, projects: Iterable[str]) -> None:
    """Build wheels of ours from this tree."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    folders = [TREE / name for name in projects]
    run(*command, "--no-build-isolation", "--no-index", "--wheel-dir", out, *folders)


def download(lines: str, architecture: Architecture, target: Path) -> list[Path]:
    """Download the wheels of these lines, whichever machine asks; pip checks the hashes."""
    target.mkdir()
    wanted = target / "requirements.txt"
    wanted.write_text(lines, encoding="utf-8")
    command = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}"]
    platforms = [f"manylinux_2_{minor}_{architecture.machine}" for minor in _GLIBC]
    command += [f"--platform={one}" for one in (*platforms, f"manylinux2014_{architecture.machine}")]
    run(sys.executable, "-m", "pip", *command, "--dest", target, "--requirement", wanted)
    wanted.unlink()
    return sorted(target.glob("*.whl"))


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def deb_component(deb: Deb, architecture: Architecture) -> dict[str, object]:
    """Describe a Debian package."""
    version = quote(deb.version, safe="")
    purl = f"pkg:deb/debian/{quote(deb.name)}@{version}?arch={architecture.debian}&distro=debian-13"
    return {**component(deb.name, deb.version, purl), "hashes": [{"alg": "SHA-256", "content": deb.sha256}]}


def wheel_component(wheel: Path) -> dict[str, object]:
    """Describe a Python package."""
    fields, digest = metadata_of(wheel), hashlib.sha256(wheel.read_bytes()).hexdigest()
    described = pypi_component(fields["Name"], fields["Version"])
    licence = fields.get("License-Expression")
    licences = {"licenses": [{"expression": licence}]} if licence else {}
    return {**described, "hashes": [{"alg": "SHA-256", "content": digest}], **licences}


def pypi_component(name: str, version: str) -> dict[str, object]:
    """Describe a Python package of which no wheel is at hand."""
    return component(name, version, f"pkg:pypi/{name.lower().replace('_', '-')}@{quote(version)}")


def component(name: str, version: str, purl: str, kind: str = "library") -> dict[str, object]:
    """Describe anything by its package URL."""
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


def write_sbom(target: Path, about: dict[str, object], created: str, components: Iterable[dict[str, object]]) -> None:
    """Write the bill of materials of ``about``; ``created`` is in RFC 3339."""
    held: Sequence[dict[str, object]] = list(components)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_SERIALS, json.dumps([about, created, held]))}",
        "version": 1,
        "metadata": {"timestamp": created, "component": about},
        "components": held,
    }
    target.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
