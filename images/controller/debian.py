"""Debian packages of the image: a lock file with their digests, and their files without maintainer scripts.

Promises: no package is unpacked whose SHA-256 is not the lock's; apt's signatures decide when the lock is written.
Needs no root. Packages come from the mirrors that apt is set up with, so the build runs on Debian 12.
Source: deb(5), deb822(5), apt-get(8).
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Deb", "control_text", "fetch", "files", "read_lock", "write_lock"]

_ARCHIVE_HEADER: Final = 60
"""Bytes before each member of an ar archive."""
_TIMEOUT: Final = 120.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Deb:
    """One line of the lock."""

    name: str
    version: str
    sha256: str


def read_lock(lock: Path) -> list[Deb]:
    """Read ``name version sha256`` of each line that is no comment."""
    lines = [line.split() for line in lock.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [Deb(*words) for words in lines]


def write_lock(lock: Path, names: tuple[str, ...]) -> None:
    """Ask apt for today's versions, which it verified (Debian 12; ``apt-get update`` first)."""
    command = ["apt-cache", "show", "--no-all-versions", *names]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows: dict[str, str] = {}
    for paragraph in said.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        rows[fields["Package"]] = f"{fields['Package']} {fields['Version']} {fields['SHA256']}\n"
    head = "# Written by `make lock-images`: name, version, SHA-256 of Debian 12's packages (amd64).\n"
    lock.write_text(head + "".join(rows[name] for name in sorted(names)), encoding="utf-8")


def fetch(deb: Deb, cache: Path) -> bytes:
    """Return a package, from the cache or apt's mirrors; ``SystemExit`` if it is not the lock's."""
    kept = cache / f"{deb.sha256}.deb"
    if kept.is_file():
        content = kept.read_bytes()
    else:
        with tempfile.TemporaryDirectory() as folder:
            command = ["apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", f"{deb.name}={deb.version}"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
            loaded = list(Path(folder).glob("*.deb"))
            if done.returncode or len(loaded) != 1:
                raise SystemExit(
                    f"{deb.name}: expected version {deb.version} at apt's mirrors, got: {done.stderr.strip()}. Debian "
                    "removes replaced versions: run apt-get update and make lock-images, and review what it changes"
                )
            content = loaded[0].read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != deb.sha256:
        raise SystemExit(f"{deb.name}: expected SHA-256 {deb.sha256}, got {found}; do not use this mirror")
    cache.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(content)
    return content


def files(content: bytes) -> Iterator[tuple[str, tarfile.TarInfo, bytes]]:
    """Yield path, entry and content of each file and symbolic link."""
    with tarfile.open(fileobj=io.BytesIO(_member(content, "data.tar"))) as archive:
        for entry in archive:
            path = entry.name.removeprefix("./").strip("/")
            if entry.issym():
                yield path, entry, b""
            elif entry.isfile() or entry.islnk():
                opened = archive.extractfile(entry)
                yield path, entry, opened.read() if opened else b""


def control_text(content: bytes) -> str:
    """Return the package's control paragraph."""
    with tarfile.open(fileobj=io.BytesIO(_member(content, "control.tar"))) as archive:
        opened = archive.extractfile("./control")
        return opened.read().decode() if opened else ""


def _member(content: bytes, name: str) -> bytes:
    offset = len(b"!<arch>\n")
    while offset < len(content):
        header = content[offset : offset + _ARCHIVE_HEADER]
        size = int(header[48:58])
        start = offset + _ARCHIVE_HEADER
        if header[:16].decode().startswith(name):
            return content[start : start + size]
        offset = start + size + size % 2
    raise ValueError(f"a Debian package has a member {name}")
