"""Builds the OCI image of the controller and the commands beside it, one archive for each architecture.

The same commit and the same locks give the same digests. Modules are compiled, and layers compressed, by Debian 13's
interpreter, so neither depends on the Python that runs this. Layers of Debian and of third parties are cached.
Source: https://github.com/opencontainers/image-spec, image-layout.md, manifest.md, config.md, layer.md.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

from images.debian import (
    ARCHITECTURES,
    CACHE,
    PYTHON,
    TREE,
    Architecture,
    cached,
    commit_time,
    debian,
    interpreter,
    read_lock,
    write_lock,
)
from images.requirements import (
    PYTHON_LOCK,
    build_wheels,
    component,
    deb_component,
    download,
    environment,
    locked_lines,
    needed,
    wheel_component,
    write_sbom,
)
from nodeattest_providers import __version__
from nodeattest_providers.version import of_checkout

NAME: Final = "node-attestation-controller"
_TITLE: Final = "nodeattest: node-attestation-controller and nodeattest"
_TRUST: Final = "etc/ssl/certs/ca-certificates.crt"
_CACHED: Final = ("debian", "wheels-layer")
"""Layers below ours; files of a folder of the cache."""
_COMPRESS: Final = (
    "import gzip, sys;"
    "out = gzip.GzipFile('', 'wb', 9, sys.stdout.buffer, 0); out.write(sys.stdin.buffer.read()); out.close()"
)


USER: Final = 65532
"""User and group, as the manifests have them."""
SITE_PACKAGES: Final = f"usr/local/lib/python{PYTHON}/dist-packages"

DEBIAN_FILES: Final = re.compile(
    r"""
    lib(64)? | usr/lib(64)?/ld-linux[^/]+            # links to usr/lib and to the loader
    | usr/lib/\w+-linux-gnu/[^/]+\.so[^/]*           # shared libraries; not gconv
    | usr/bin/python3\.13
    | usr/lib/python3\.13/.+
    | usr/lib/os-release | etc/os-release | etc/debian_version
    | usr/share/doc/[^/]+/copyright
    | usr/share/ca-certificates/mozilla/[^/]+\.crt   # joined into one file
    """,
    re.VERBOSE,
)
"""Paths that are taken from Debian packages."""
LEFT_OUT: Final = (
    (r"usr/lib/python3\.13/(_pyrepl|pydoc_data|idlelib|turtledemo|ensurepip|tkinter|venv)/.*", "for people"),
    (r"usr/lib/python3\.13/(sitecustomize|turtle|antigravity|this)\.py", "for people"),
    (r"usr/lib/python3\.13/lib-dynload/(_sqlite3|_dbm|_gdbm|_curses|_curses_panel|readline|_uuid)\..*", "others"),
    (r"usr/lib/python3\.13/lib-dynload/(_xxtestfuzz|xxlimited.*|_test.*|_ctypes_test)\..*", "tests"),
    (r".*/botocore/data/(?!ec2/|sts/)[^/]+/.*", "services that no verifier calls"),
    (r".*/boto3/examples/.*", "examples"),
    (r".*\.(c|h|pxd|pyx|pyi|a)", "sources of extension modules, types"),
    (r".*/direct_url\.json", "names the folder of the build"),
)
"""Paths that are left out of packages and wheels, as regular expressions, and why."""

OWN_WHEELS: Final = {"common": "providers", "agent": "authenticator", "controller": "controller", "cli": "cli"}
"""``nodeattest-<name>`` and its folder. cli has the commands of issuer, discovery and add-ons, and needs agent."""
ROOT: Final = "nodeattest-cli"
"""The wheel that needs all of them."""
EXTRAS: Final = frozenset({"aws", "azure", "gcp", "store"})
"""Every provider that a policy can name."""

COMMANDS: Final = {
    "node-attestation-controller": "nodeattest_controller.main",
    "nodeattest": "nodeattest_cli.main",
}
"""Command to the module whose ``main`` it runs."""

SYSTEM_FILES: Final = {
    "etc/passwd": "root:x:0:0:root:/nonexistent:/sbin/nologin\n"
    f"nonroot:x:{USER}:{USER}:nonroot:/nonexistent:/sbin/nologin\n",
    "etc/group": f"root:x:0:\nnonroot:x:{USER}:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",  # glibc's own default asks DNS first
}

_LEFT_OUT: Final = re.compile("|".join(f"(?:{pattern})" for pattern, _ in LEFT_OUT))


@dataclass(frozen=True, slots=True)
class Built:
    """What a build wrote."""

    archive: Path
    sbom: Path
    digest: str


def created_at() -> str:
    """Return the time of the commit as bills of materials and images say it."""
    return datetime.fromtimestamp(commit_time(), UTC).isoformat().replace("+00:00", "Z")


def build_from_tree(out: Path, cache: Path) -> list[Built]:
    """Build our wheels from this tree, and the images of them."""
    with tempfile.TemporaryDirectory() as folder:
        build_wheels(Path(folder), OWN_WHEELS.values())
        wheels = sorted(Path(folder).glob("*.whl"))
        return build(wheels=wheels, version=__version__, commit=of_checkout(), out=out, cache=cache)


def build(*, wheels: list[Path], version: str, commit: str, out: Path, cache: Path) -> list[Built]:
    """Build the images of our wheels into ``out``, one for each architecture."""
    own = [wheel for wheel in wheels if wheel.name.split("-")[0].removeprefix("nodeattest_") in OWN_WHEELS]
    out.mkdir(parents=True, exist_ok=True)
    application = _application(own, cache)  # no architecture is in it
    created = created_at()

    def built(architecture: Architecture) -> Built:
        target = [environment(f"{PYTHON}.0", machine=architecture.machine)]
        lines = locked_lines(PYTHON_LOCK, needed(own, ROOT, EXTRAS, target).others)
        below = _cached_layers(architecture, cache, lines)
        layers = [Layer((below / f"{name}.gz").read_bytes(), (below / f"{name}.id").read_text()) for name in _CACHED]
        archive = out / f"{NAME}-{version}-linux-{architecture.debian}.oci.tar"
        digest = write_archive(
            archive,
            architecture=architecture.debian,
            layers=[*layers, application],
            config=_config(version, commit),
            created=created,
            annotations=_labels(version, commit),
            names={"org.opencontainers.image.ref.name": version, "io.containerd.image.name": f"{NAME}:{version}"},
        )
        sbom = out / f"{NAME}-{version}-linux-{architecture.debian}.cdx.json"
        purl = f"pkg:oci/{NAME}@{quote(digest)}?arch={architecture.debian}&tag={version}"
        components = [deb_component(deb, architecture) for deb in read_lock(architecture)]
        components += map(wheel_component, sorted([*own, *(below / "wheels").glob("*.whl")]))
        write_sbom(sbom, component(NAME, version, purl, "container"), created, components)
        return Built(archive, sbom, digest)

    with ThreadPoolExecutor() as pool:  # most of it is other programs' work
        return list(pool.map(built, ARCHITECTURES.values()))


def _application(wheels: list[Path], cache: Path) -> Layer:
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        for wheel in wheels:
            _unpack_wheel(wheel, folder)
        for command, module in COMMANDS.items():
            script = f"#!/usr/bin/python{PYTHON} -IB\nimport sys\nfrom {module} import main\nsys.exit(main())\n"
            _write(folder / "usr/local/bin" / command, script.encode(), 0o755)
        return _layer(folder, cache)


def _cached_layers(architecture: Architecture, cache: Path, lines: str) -> Path:
    """Return the folder with the lower layers and the third parties' wheels; made once for each pair of locks."""

    def make(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as work:
            root, third = Path(work) / "root", Path(work) / "third"
            _unpack_debian(debian(architecture, cache), root)
            _keep(folder, "debian", _layer(root, cache, {"tmp": 0o1777}))
            for wheel in download(lines, architecture, folder / "wheels"):
                _unpack_wheel(wheel, third)
            _keep(folder, "wheels-layer", _layer(third, cache))

    recipe = architecture.lock.read_bytes() + lines.encode()
    return cached(cache, f"layers-{architecture.debian}", recipe, make)


def _keep(folder: Path, name: str, layer: Layer) -> None:
    (folder / f"{name}.gz").write_bytes(layer.blob)
    (folder / f"{name}.id").write_text(layer.diff_id)


def is_wanted(path: str) -> bool:
    """Tell whether a path of a Debian package is in the image."""
    return DEBIAN_FILES.fullmatch(path) is not None and not is_left_out(path)


def is_left_out(path: str) -> bool:
    """Tell whether a path of the image is left out."""
    return _LEFT_OUT.fullmatch(path) is not None


def _unpack_debian(unpacked: Path, root: Path) -> None:
    """Copy the wanted files of the packages; scanners read the control paragraphs."""
    for control in (unpacked / "control").iterdir():
        _write(root / "var/lib/dpkg/status.d" / control.name, control.read_bytes(), 0o644)
    trust: list[bytes] = []
    for path in sorted((unpacked / "root").rglob("*")):
        name = path.relative_to(unpacked / "root").as_posix()
        if (path.is_dir() and not path.is_symlink()) or not is_wanted(name):
            continue
        if name.endswith(".crt"):
            trust.append(path.read_bytes())
        elif path.is_symlink():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).symlink_to(path.readlink())
        else:
            _write(root / name, path.read_bytes(), path.stat().st_mode)
    _write(root / _TRUST, b"".join(trust), 0o644)
    for name, text in SYSTEM_FILES.items():
        _write(root / name, text.encode(), 0o644)
    for folder in ("tmp", "proc", "sys", "dev", "etc", "run"):
        (root / folder).mkdir(exist_ok=True)


def _unpack_wheel(wheel: Path, root: Path) -> None:
    """Unpack packages and metadata; commands of third parties and data are left out."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            parts = name.split("/")
            if parts[0].endswith(".data"):
                if parts[1] not in {"purelib", "platlib"}:
                    continue
                parts = parts[2:]
            path = f"{SITE_PACKAGES}/{'/'.join(parts)}"
            if not name.endswith("/") and not is_left_out(path):
                _write(root / path, archive.read(name), 0o644)


def _layer(folder: Path, cache: Path, modes: Mapping[str, int] | None = None) -> Layer:
    """Compile the modules and pack; the interpreter never looks at sources' times, and needs to write nothing."""
    words = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", folder, "-p", "/", folder / "usr"]
    interpreter(cache, *words)
    packed = plain_tar(folder, modes)
    return Layer(interpreter(cache, "-c", _COMPRESS, given=packed), f"sha256:{hashlib.sha256(packed).hexdigest()}")


def _write(path: Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o755 if mode & 0o100 else 0o644)


def _config(version: str, commit: str) -> dict[str, object]:
    return {
        "User": f"{USER}:{USER}",
        "Env": ["PATH=/usr/local/bin:/usr/bin", "LANG=C.UTF-8", f"SSL_CERT_FILE=/{_TRUST}"],
        "Entrypoint": [f"/usr/local/bin/{NAME}"],
        "Labels": _labels(version, commit),
    }


def _labels(version: str, commit: str) -> dict[str, str]:
    named = {"title": _TITLE, "version": version, "revision": commit, "licenses": "Apache-2.0"}
    return {f"org.opencontainers.image.{name}": value for name, value in named.items()}


# The archive

JsonObject = Mapping[str, object]
_IMAGE: Final = "application/vnd.oci.image"


@dataclass(frozen=True, slots=True)
class Layer:
    """A compressed layer."""

    blob: bytes
    diff_id: str
    """``sha256:…`` of the tar file before compression."""


def plain_tar(root: Path, modes: Mapping[str, int] | None = None, *, prefix: str = "") -> bytes:
    """Pack a folder without times and owners; a mode is 0644 or 0755, but for ``modes`` of some folders."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            entry = tarfile.TarInfo(prefix + path.relative_to(root).as_posix())
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
        "history": [{"created": created, "created_by": "images/controller"} for _ in layers],
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


def main() -> None:
    """Build, or renew the locks."""
    parser = argparse.ArgumentParser(prog="python -m images.controller", description=__doc__)
    parser.add_argument("action", nargs="?", choices=("build", "lock"), default="build")
    parser.add_argument("--out", type=Path, default=TREE / "dist", help="folder for archives and SBOMs (%(default)s)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="(%(default)s)")
    options = parser.parse_args()
    if options.action == "lock":
        for architecture in ARCHITECTURES.values():
            write_lock(architecture)
        return
    for built in build_from_tree(options.out, options.cache):
        print(f"{built.archive}\n{built.sbom}\n{built.digest}")


if __name__ == "__main__":
    main()
