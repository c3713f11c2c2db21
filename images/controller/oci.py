"""OCI archives: layers as tar files of sorted entries without times and owners, one manifest, one index.

Promises: the bytes depend on the content alone.
Source: https://github.com/opencontainers/image-spec, image-layout.md, manifest.md, config.md, layer.md.
"""

from __future__ import annotations

import hashlib
import io
import json
import stat
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

JsonObject = Mapping[str, object]
_IMAGE: Final = "application/vnd.oci.image"
_CREATED_BY: Final = "images/controller"


@dataclass(frozen=True, slots=True)
class Layer:
    """A compressed layer."""

    blob: bytes
    diff_id: str
    """``sha256:…`` of the tar file before compression."""


def layer_tar(root: Path, modes: Mapping[str, int] | None = None) -> bytes:
    """Pack a folder as a layer; a file's mode is 0644 or 0755, but for ``modes`` of some folders."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            entry = tarfile.TarInfo(path.relative_to(root).as_posix())
            if path.is_symlink():
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
                archive.addfile(entry)
            elif path.is_dir():
                entry.type, entry.mode = tarfile.DIRTYPE, (modes or {}).get(entry.name, 0o755)
                archive.addfile(entry)
            else:
                content = path.read_bytes()
                entry.size, entry.mode = len(content), 0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644
                archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def write_archive(
    target: Path,
    *,
    architecture: str,
    layers: Sequence[Layer],
    config: JsonObject,
    created: str,
    annotations: Mapping[str, str],
    names: Mapping[str, str],
) -> str:
    """Write the archive and return the manifest's digest; ``names`` are annotations of the index, for tools."""
    platform = {"architecture": architecture, "os": "linux"}
    described: JsonObject = {
        **platform,
        "created": created,
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created": created, "created_by": _CREATED_BY} for _ in layers],
    }
    blobs: dict[str, bytes] = {}
    manifest: JsonObject = {
        "schemaVersion": 2,
        "mediaType": f"{_IMAGE}.manifest.v1+json",
        "config": _descriptor(blobs, f"{_IMAGE}.config.v1+json", _json(described)),
        "layers": [_descriptor(blobs, f"{_IMAGE}.layer.v1.tar+gzip", layer.blob) for layer in layers],
        "annotations": annotations,
    }
    reference = _descriptor(blobs, f"{_IMAGE}.manifest.v1+json", _json(manifest))
    index: JsonObject = {
        "schemaVersion": 2,
        "mediaType": f"{_IMAGE}.index.v1+json",
        "manifests": [{**reference, "platform": platform, "annotations": names}],
    }
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)}
    files |= {f"blobs/sha256/{digest.removeprefix('sha256:')}": blob for digest, blob in blobs.items()}
    with tarfile.open(target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return str(reference["digest"])


def _descriptor(blobs: dict[str, bytes], media_type: str, blob: bytes) -> dict[str, object]:
    digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
    blobs[digest] = blob
    return {"mediaType": media_type, "digest": digest, "size": len(blob)}


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
