"""Builds root file system, layers and archive; the layers of Debian and of third parties' wheels are cached.

Promises: the same commit and the same locks give the same digest. Modules are compiled, and layers compressed, by the
image's own interpreter, so neither depends on the Python that runs this.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from images.controller import contents
from images.controller.debian import control_text, fetch, files, read_lock
from images.controller.oci import Layer, layer_tar, write_archive
from images.controller.requirements import locked_lines, needed
from images.controller.sbom import write_sbom
from nodeattest_providers import __version__
from nodeattest_providers.build_commit import of_checkout

__all__ = ["CACHE", "DEBIAN_LOCK", "NAME", "TREE", "Built", "build", "build_from_tree", "commit_time", "created_at"]

NAME: Final = "node-attestation-controller"
TREE: Final = Path(__file__).parents[2]
DEBIAN_LOCK: Final = Path(__file__).with_name("debian-amd64.lock")
CACHE: Final = TREE / ".cache" / "images"
PYTHON_LOCK: Final = TREE / "requirements.lock"
_TITLE: Final = "nodeattest: node-attestation-controller and nodeattest"
_TRUST: Final = "etc/ssl/certs/ca-certificates.crt"
_PLATFORMS: Final = ("manylinux2014_x86_64", *(f"manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)))
"""Debian 12 has glibc 2.36."""
_CACHED: Final = ("debian", "wheels-layer")
"""Layers below ours; files of a folder of the cache."""
_COMPRESS: Final = (
    "import gzip, sys;"
    "out = gzip.GzipFile('', 'wb', 9, sys.stdout.buffer, 0); out.write(sys.stdin.buffer.read()); out.close()"
)


@dataclass(frozen=True, slots=True)
class Built:
    """What a build wrote."""

    archive: Path
    sbom: Path
    digest: str


def commit_time() -> int:
    """Return SOURCE_DATE_EPOCH, or the time of the commit: seconds since 1970."""
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(epoch)
    command = ["git", "log", "-1", "--format=%ct"]
    return int(subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=True).stdout)


def created_at() -> str:
    """Return the time of the commit as bills of materials and images say it."""
    return datetime.fromtimestamp(commit_time(), UTC).isoformat().replace("+00:00", "Z")


def build_from_tree(out: Path, cache: Path) -> Built:
    """Build our wheels from this tree, and the image of them."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-build-isolation", "--no-index", "--wheel-dir", folder]
        subprocess.run([*command, *(str(TREE / name) for name in contents.OWN_WHEELS.values())], check=True)
        wheels = sorted(Path(folder).glob("*.whl"))
        return build(wheels=wheels, version=__version__, commit=of_checkout(), out=out, cache=cache)


def build(*, wheels: list[Path], version: str, commit: str, out: Path, cache: Path) -> Built:
    """Build the image of our wheels into ``out``."""
    own = [wheel for wheel in wheels if wheel.name.split("-")[0].removeprefix("nodeattest_") in contents.OWN_WHEELS]
    lines = locked_lines(PYTHON_LOCK, needed(own, contents.ROOT, contents.EXTRAS).others)
    below = _cached_layers(cache, lines)
    root = below / "root"
    with tempfile.TemporaryDirectory() as folder:
        application = _application(root, Path(folder), own)
    created = created_at()
    layers = [Layer((below / f"{name}.gz").read_bytes(), (below / f"{name}.id").read_text()) for name in _CACHED]
    archive = out / f"{NAME}-{version}-linux-amd64.oci.tar"
    out.mkdir(parents=True, exist_ok=True)
    digest = write_archive(
        archive,
        layers=[*layers, application],
        config=_config(version, commit),
        created=created,
        annotations=_labels(version, commit),
        names={"org.opencontainers.image.ref.name": version, "io.containerd.image.name": f"{NAME}:{version}"},
    )
    sbom = archive.with_name(f"{NAME}-{version}-linux-amd64.cdx.json")
    everything = [*own, *(below / "wheels").glob("*.whl")]
    debs = read_lock(DEBIAN_LOCK)
    write_sbom(sbom, name=NAME, version=version, digest=digest, created=created, debs=debs, wheels=everything)
    return Built(archive, sbom, digest)


def _application(root: Path, folder: Path, wheels: list[Path]) -> Layer:
    for wheel in wheels:
        _unpack_wheel(wheel, folder)
    for command, module in contents.COMMANDS.items():
        script = f"#!/usr/bin/python{contents.PYTHON} -IB\nimport sys\nfrom {module} import main\nsys.exit(main())\n"
        _write(folder / "usr/local/bin" / command, script.encode(), 0o755)
    _compile(root, folder)
    return _compressed(root, layer_tar(folder))


def _cached_layers(cache: Path, lines: str) -> Path:
    """Return the folder with the lower layers and their root file system; made once for each pair of locks."""
    parts = [DEBIAN_LOCK.read_bytes(), lines.encode(), *(file.read_bytes() for file in _sources())]
    key = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]
    done = cache / key
    if not done.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            making = Path(folder) / key
            _make_layers(making, cache / "debs", lines)
            making.rename(done)
    return done


def _make_layers(making: Path, debs: Path, lines: str) -> None:
    root, third = making / "root", making / "third"
    _unpack_debian(root, debs)
    _compile(root, root)
    _keep(making, "debian", _compressed(root, layer_tar(root, {"tmp": 0o1777})))
    _download(lines, making / "wheels")
    for wheel in sorted((making / "wheels").glob("*.whl")):
        _unpack_wheel(wheel, third)
    _compile(root, third)
    _keep(making, "wheels-layer", _compressed(root, layer_tar(third)))
    shutil.rmtree(third)


def _sources() -> list[Path]:
    return sorted(Path(__file__).parent.glob("*.py"))


def _keep(folder: Path, name: str, layer: Layer) -> None:
    (folder / f"{name}.gz").write_bytes(layer.blob)
    (folder / f"{name}.id").write_text(layer.diff_id)


def _unpack_debian(root: Path, cache: Path) -> None:
    trust: list[bytes] = []
    for deb in read_lock(DEBIAN_LOCK):
        content = fetch(deb, cache)
        _write(root / "var/lib/dpkg/status.d" / deb.name, control_text(content).encode(), 0o644)
        for path, entry, data in files(content):
            if not contents.DEBIAN_FILES.fullmatch(path) or contents.is_left_out(path):
                continue
            if path.startswith("usr/share/ca-certificates/"):
                trust.append(data)
            elif entry.issym():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).symlink_to(entry.linkname)
            else:
                _write(root / path, data, entry.mode)
    _write(root / _TRUST, b"".join(trust), 0o644)
    for name, text in contents.SYSTEM_FILES.items():
        _write(root / name, text.encode(), 0o644)
    for folder in ("tmp", "proc", "sys", "dev", "etc", "run"):
        (root / folder).mkdir(exist_ok=True)


def _download(lines: str, target: Path) -> None:
    target.mkdir(parents=True)
    wanted = target.parent / "requirements.txt"
    wanted.write_text(lines, encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--only-binary=:all:", "--implementation=cp", f"--python-version={contents.PYTHON}"]
    command += [
        "--abi=cp311",
        "--abi=abi3",
        "--abi=none",
        *(f"--platform={one}" for one in _PLATFORMS),
        "--dest",
        str(target),
        "-r",
        str(wanted),
    ]
    subprocess.run(command, check=True)


def _unpack_wheel(wheel: Path, root: Path) -> None:
    """Unpack packages and metadata; commands of third parties and data are left out."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            parts = name.split("/")
            if parts[0].endswith(".data"):
                if parts[1] not in {"purelib", "platlib"}:
                    continue
                parts = parts[2:]
            path = f"{contents.SITE_PACKAGES}/{'/'.join(parts)}"
            if not name.endswith("/") and not contents.is_left_out(path):
                _write(root / path, archive.read(name), 0o644)


def _compile(root: Path, target: Path) -> None:
    """Compile all modules below a folder; the interpreter never looks at sources' times, and needs to write nothing."""
    words = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(target), "-p", "/"]
    _interpreter(root, [*words, str(target / "usr")])


def _compressed(root: Path, packed: bytes) -> Layer:
    return Layer(_interpreter(root, ["-c", _COMPRESS], packed), f"sha256:{hashlib.sha256(packed).hexdigest()}")


def _interpreter(root: Path, words: Iterable[str], given: bytes = b"") -> bytes:
    """Run the image's Python by the image's own loader and libraries, without a chroot."""
    libraries = [root / "lib/x86_64-linux-gnu", root / "usr/lib/x86_64-linux-gnu"]
    python = root / f"usr/bin/python{contents.PYTHON}"
    command = [str(libraries[0] / "ld-linux-x86-64.so.2"), "--library-path", ":".join(map(str, libraries))]
    command += ["--argv0", str(python), str(python), "-B", "-s", "-S", *words]
    environment = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
    return subprocess.run(command, input=given, env=environment, stdout=subprocess.PIPE, check=True).stdout


def _write(path: Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755 if mode & 0o100 else 0o644)


def _config(version: str, commit: str) -> dict[str, object]:
    return {
        "User": f"{contents.USER}:{contents.USER}",
        "Env": ["PATH=/usr/local/bin:/usr/bin", "LANG=C.UTF-8", f"SSL_CERT_FILE=/{_TRUST}"],
        "Entrypoint": [f"/usr/local/bin/{NAME}"],
        "Labels": _labels(version, commit),
    }


def _labels(version: str, commit: str) -> dict[str, str]:
    named = {"title": _TITLE, "version": version, "revision": commit, "licenses": "Apache-2.0"}
    return {f"org.opencontainers.image.{name}": value for name, value in named.items()}
