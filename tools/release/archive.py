"""Archives of a folder that depend on nothing but its files."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path


def packed(folder: Path, name: str, *, compress: bool = False) -> bytes:
    """Return a tar of a folder, which is called ``name`` in it, without times and owners."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o755 if entry.isdir() else 0o644
        return entry

    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(folder, name, filter=plain)
    return gzip.compress(held.getvalue(), mtime=0) if compress else held.getvalue()
