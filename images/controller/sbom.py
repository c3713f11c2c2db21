"""The image's bill of materials in CycloneDX 1.5 JSON: each Debian package and each wheel, with purl and SHA-256.

Source: https://cyclonedx.org/docs/1.5/json/, https://github.com/package-url/purl-spec.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from images.controller.debian import Deb
from images.controller.requirements import metadata_of

__all__ = ["write_sbom"]

_SERIALS: Final = uuid.UUID("1f0a8f5e-6c57-5e4b-9d63-2f6a4a6f1c11")
"""Namespace of serial numbers: the same image has the same one."""


def write_sbom(
    target: Path, *, name: str, version: str, digest: str, created: str, debs: Sequence[Deb], wheels: Iterable[Path]
) -> None:
    """Write the bill of materials of an image with this digest."""
    components = [_debian(deb) for deb in debs] + [_wheel(wheel) for wheel in sorted(wheels)]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_SERIALS, digest)}",
        "version": 1,
        "metadata": {
            "timestamp": created,
            "component": {
                "type": "container",
                "bom-ref": f"pkg:oci/{name}@{quote(digest)}",
                "name": name,
                "version": version,
                "purl": f"pkg:oci/{name}@{quote(digest)}?arch=amd64&tag={version}",
            },
        },
        "components": components,
    }
    target.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _debian(deb: Deb) -> dict[str, object]:
    purl = f"pkg:deb/debian/{quote(deb.name)}@{quote(deb.version, safe='')}?arch=amd64&distro=debian-12"
    return _component(deb.name, deb.version, purl, deb.sha256)


def _wheel(wheel: Path) -> dict[str, object]:
    read = metadata_of(wheel)
    name, version = read["Name"], read["Version"]
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{quote(version)}"
    found = _component(name, version, purl, hashlib.sha256(wheel.read_bytes()).hexdigest())
    licence = read.get("License-Expression")
    return {**found, "licenses": [{"expression": licence}]} if licence else found


def _component(name: str, version: str, purl: str, sha256: str) -> dict[str, object]:
    hashes = [{"alg": "SHA-256", "content": sha256}]
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, "hashes": hashes}
