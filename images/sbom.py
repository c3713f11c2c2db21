"""Bills of materials in CycloneDX 1.5 JSON, of the controller's image and of the agent's packages.

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

from images.debian import Architecture, Deb
from images.requirements import metadata_of

_SERIALS: Final = uuid.UUID("1f0a8f5e-6c57-5e4b-9d63-2f6a4a6f1c11")
"""Namespace of serial numbers: the same content has the same one."""


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
