"""Bills of materials in CycloneDX 1.5 JSON, of the image (with SHA-256) and of the agent's packages.

Source: https://cyclonedx.org/docs/1.5/json/, https://github.com/package-url/purl-spec.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from images.controller.requirements import metadata_of
from images.debian import Deb

_SERIALS: Final = uuid.UUID("1f0a8f5e-6c57-5e4b-9d63-2f6a4a6f1c11")
"""Namespace of serial numbers: the same content has the same one."""


def write_sbom(
    target: Path,
    *,
    name: str,
    version: str,
    digest: str,
    created: str,
    architecture: str,
    debs: Sequence[Deb],
    wheels: Iterable[Path],
) -> None:
    """Write the bill of materials of an image with this digest."""
    components = [_debian(deb, architecture) for deb in debs] + [_wheel(wheel) for wheel in sorted(wheels)]
    purl = f"pkg:oci/{name}@{quote(digest)}"
    about = {"type": "container", "bom-ref": purl, "purl": f"{purl}?arch={architecture}&tag={version}"}
    _write(target, digest, {**about, "name": name, "version": version}, created, components)


def write_agent_sbom(target: Path, *, name: str, version: str, created: str, architecture: str, listed: str) -> None:
    """Write the bill of materials of the agent's packages, of the lines of their ``packages.txt``.

    A line is ``NAME VERSION`` of a Debian package, or ``NAME==VERSION`` of a Python package.
    """
    components: list[dict[str, object]] = []
    for line in listed.splitlines():
        package, _, of_pypi = line.partition("==")
        if of_pypi:
            purl = f"pkg:pypi/{package.lower().replace('_', '-')}@{quote(of_pypi)}"
            components.append(_named(package, of_pypi, purl))
        else:
            package, _, of_debian = line.partition(" ")
            purl = f"pkg:deb/debian/{quote(package)}@{quote(of_debian, safe='')}?arch={architecture}&distro=debian-13"
            components.append(_named(package, of_debian, purl))
    purl = f"pkg:generic/{name}@{quote(version)}?arch={architecture}"
    about = {"type": "application", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    _write(target, f"{purl}\n{created}\n{listed}", about, created, components)


def _write(
    target: Path, serial: str, about: Mapping[str, object], created: str, components: list[dict[str, object]]
) -> None:
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_SERIALS, serial)}",
        "version": 1,
        "metadata": {"timestamp": created, "component": about},
        "components": components,
    }
    target.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _debian(deb: Deb, architecture: str) -> dict[str, object]:
    purl = f"pkg:deb/debian/{quote(deb.name)}@{quote(deb.version, safe='')}?arch={architecture}&distro=debian-13"
    return _component(deb.name, deb.version, purl, deb.sha256)


def _wheel(wheel: Path) -> dict[str, object]:
    read = metadata_of(wheel)
    name, version = read["Name"], read["Version"]
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{quote(version)}"
    found = _component(name, version, purl, hashlib.sha256(wheel.read_bytes()).hexdigest())
    licence = read.get("License-Expression")
    return {**found, "licenses": [{"expression": licence}]} if licence else found


def _component(name: str, version: str, purl: str, sha256: str) -> dict[str, object]:
    return {**_named(name, version, purl), "hashes": [{"alg": "SHA-256", "content": sha256}]}


def _named(name: str, version: str, purl: str) -> dict[str, object]:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
