"""``python -m images.node``: packs the agent for nodes without Python: ``.tar.gz``, ``.deb`` and ``.rpm``.

One commit and its locks give the same bytes: times are the commit's, owners are root. ``packages.txt`` beside them says
which Debian and Python packages are inside.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from images.debian import ARCHITECTURES, CACHE, TREE, Architecture, commit_time, run
from images.node.folder import HOME, build_modules, write_folder
from nodeattest_providers import __version__

_FILES: Final = Path(__file__).parent / "files"
_UNITS: Final = "*.service", "*.timer"
_NAME: Final = "nodeattest-agent"
_SUMMARY: Final = "Attests a Kubernetes node and gives kubelet its credential"
_PURGE: Final = """\
rm -rf /var/lib/kubelet-authenticator /etc/nodeattest /etc/kubernetes/kubelet-authenticator.json
for unit in nodeattest-join.service nodeattest-refresh.timer kubelet-serving-certificate.timer; do
  rm -f /etc/systemd/system/*.wants/$unit
done
"""
"""Until then the units stay enabled: dpkg installs a removed package again as if it upgraded it, so as it was left."""


@dataclass(frozen=True, slots=True)
class Build:
    """What the three formats share."""

    stage: Path
    """A root with the installed files of ``.deb`` and ``.rpm``."""
    name: str
    """The folder below ``/opt/nodeattest``."""
    architecture: Architecture
    epoch: str
    """Seconds since 1970 of the commit; the release number of a package, so that a later build is an upgrade."""
    out: Path

    def script(self, *names: str) -> str:
        """Join parts of the packages' scripts."""
        return "".join((_FILES / name).read_text().replace("@NAME@", self.name) for name in names)


def main() -> None:
    """Write the packages into a folder."""
    parser = argparse.ArgumentParser(prog="python -m images.node", description=__doc__)
    parser.add_argument("--out", type=Path, default=TREE / "dist", help="folder for the packages (%(default)s)")
    parser.add_argument("--cache", type=Path, default=CACHE, help="(%(default)s)")
    parser.add_argument("--architectures", default=",".join(ARCHITECTURES), help="which (%(default)s)")
    parser.add_argument("--formats", default="tar,deb,rpm", help="which (%(default)s)")
    parser.add_argument("--mark", default="", help="a line of packages.txt: makes another version of the same tree")
    options = parser.parse_args()
    os.environ["SOURCE_DATE_EPOCH"] = str(commit_time())
    options.out.mkdir(parents=True, exist_ok=True)

    extra = f"{options.mark}\n" if options.mark else ""
    with tempfile.TemporaryDirectory() as work:
        modules = build_modules(options.cache, Path(work))

        def pack(name: str) -> None:
            architecture, stage = ARCHITECTURES[name], Path(work) / name
            folder = write_folder(architecture, options.cache, modules, stage, extra)
            build = Build(stage, folder, architecture, os.environ["SOURCE_DATE_EPOCH"], options.out)
            _pack(build, options.formats.split(","))

        with ThreadPoolExecutor() as pool:  # most of it is other programs' work
            list(pool.map(pack, options.architectures.split(",")))


def _pack(build: Build, formats: list[str]) -> None:
    packages = build.stage / HOME.lstrip("/") / build.name / "packages.txt"
    shutil.copy(packages, build.out / f"{_NAME}-{build.architecture.debian}.packages.txt")
    if "tar" in formats:
        _tar(build)
    _as_package(build)
    if "deb" in formats:
        _deb(build)
    if "rpm" in formats:
        _rpm(build)


def _tar(build: Build) -> None:
    """Write the tarball: one folder ``nodeattest`` for /opt, with the units inside."""
    home = build.stage / HOME.lstrip("/")
    (home / "current").symlink_to(build.name)
    _write_units(home / "systemd", home / "tmpfiles.d")
    target = build.out / f"{_NAME}-{__version__}-{build.epoch}.{build.architecture.machine}.tar"
    owner = ["--sort=name", f"--mtime=@{build.epoch}", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]
    run("tar", *owner, "-C", home.parent, "-cf", target, home.name)
    with (
        target.open("rb") as plain,
        target.with_suffix(".tar.gz").open("wb") as out,
        gzip.GzipFile(filename="", fileobj=out, mode="wb", compresslevel=6, mtime=0) as packed,
    ):
        shutil.copyfileobj(plain, packed)
    target.unlink()
    for path in (home / "current", home / "systemd", home / "tmpfiles.d"):
        path.unlink() if path.is_symlink() else shutil.rmtree(path)


def _as_package(build: Build) -> None:
    """Turn the stage into what a package manager installs; its script makes the folder that runs out of ``package``."""
    home = build.stage / HOME.lstrip("/")
    (home / build.name).rename(home / "package")
    usr = build.stage / "usr"
    _write_units(usr / "lib" / "systemd" / "system", usr / "lib" / "tmpfiles.d")
    (usr / "bin").mkdir()
    (usr / "bin" / "kubelet-authenticator").symlink_to(f"{HOME}/current/bin/kubelet-authenticator")
    doc = usr / "share" / "doc" / _NAME
    doc.mkdir(parents=True)
    shutil.copy(TREE / "LICENSE", doc / "copyright")
    for path in (build.stage, *build.stage.rglob("*")):
        os.utime(path, (int(build.epoch), int(build.epoch)), follow_symlinks=False)


def _write_units(units: Path, tmpfiles: Path) -> None:
    hardening = (_FILES / "hardening.conf").read_text()
    units.mkdir(parents=True)
    tmpfiles.mkdir(parents=True)
    for source in sorted(path for pattern in _UNITS for path in _FILES.glob(pattern)):
        (units / source.name).write_text(source.read_text().replace("@HARDENING@\n", hardening))
    shutil.copy(_FILES / "nodeattest.conf", tmpfiles)


def _deb(build: Build) -> None:
    control = build.stage / "DEBIAN"
    control.mkdir()
    size = sum(path.lstat().st_size for path in build.stage.rglob("*") if path.is_file()) // 1024
    fields = {
        "Package": _NAME,
        "Version": f"{__version__}-{build.epoch}",
        "Architecture": build.architecture.debian,
        "Maintainer": "The nodeattest authors <nobody@localhost>",
        "Installed-Size": str(size),
        "Section": "admin",
        "Priority": "optional",
        "Description": f"{_SUMMARY}\n Self-contained: brings its own Python, C library and TPM software stack.",
    }
    (control / "control").write_text("".join(f"{name}: {value}\n" for name, value in fields.items()))
    first = f'if [ -z "$2" ]; then\n{build.script("first.sh")}fi\n'
    scripts = {
        "postinst": f'[ "$1" = configure ] || exit 0\n{build.script("installed.sh")}{first}',
        "prerm": f'[ "$1" = remove ] || exit 0\n{build.script("removed.sh")}',
        "postrm": f'[ "$1" = purge ] || exit 0\n{_PURGE}rmdir {HOME} 2>/dev/null || true\n',
    }
    for name, text in scripts.items():
        (control / name).write_text(f"#!/bin/sh\nset -e\n{text}")
        (control / name).chmod(0o755)
    target = build.out / f"{_NAME}_{__version__}-{build.epoch}_{build.architecture.debian}.deb"
    # One thread: the bytes of xz depend on how many there are.
    compression = ["-Zxz", "-z2", "--threads-max=1"]
    run("dpkg-deb", "--root-owner-group", *compression, "--build", build.stage, target)
    shutil.rmtree(control)


def _rpm(build: Build) -> None:
    first = f'if [ "$1" = 1 ]; then\n{build.script("first.sh")}fi\n'
    spec = f"""\
%global debug_package %{{nil}}
%global __os_install_post %{{nil}}
%global _build_id_links none
%global use_source_date_epoch_as_buildtime 1
%global clamp_mtime_to_source_date_epoch 1
%global _buildhost localhost
%global _binary_payload w2.xzdio
Name: {_NAME}
Version: {__version__}
Release: {build.epoch}
Summary: {_SUMMARY}
License: Apache-2.0
AutoReqProv: no
%description
Self-contained: brings its own Python, C library and TPM software stack.
%install
cp -a {build.stage}/. %{{buildroot}}
%post
set -e
{build.script("installed.sh")}{first}
%preun
[ "$1" = 0 ] || exit 0
{build.script("disabled.sh", "removed.sh")}
%files
%defattr(-,root,root)
{HOME}
/usr/bin/kubelet-authenticator
/usr/lib/systemd/system/*
/usr/lib/tmpfiles.d/*
/usr/share/doc/{_NAME}
"""
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "agent.spec").write_text(spec)
        target = ["--target", f"{build.architecture.machine}-linux", "--define", f"_topdir {work}"]
        run("rpmbuild", "-bb", "--quiet", *target, Path(work) / "agent.spec")
        [built] = (Path(work) / "RPMS").rglob("*.rpm")
        shutil.move(built, build.out / f"{_NAME}-{__version__}-{build.epoch}.{build.architecture.machine}.rpm")


if __name__ == "__main__":
    main()
