"""Packs the agent for nodes without Python: ``.tar.gz``, ``.deb`` and ``.rpm``, for machines with this one's processor.

One commit and one set of Debian packages give the same bytes: times are the commit's, owners are root. ``packages.txt``
beside them says which Debian and Python packages are inside.
"""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node_base import TREE, base, command
from node_folder import HOME, version, write_folder

_FILES: Final = Path(__file__).parent / "files"
_UNITS: Final = "*.service", "*.timer"
_NAME: Final = "nodeattest-agent"
_SUMMARY: Final = "Attests a Kubernetes node and gives kubelet its credential"
_DEBIAN: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_PURGE: Final = """\
rm -rf /var/lib/kubelet-authenticator /etc/nodeattest /etc/kubernetes/kubelet-authenticator.json
for unit in nodeattest-join.service nodeattest-refresh.timer kubelet-serving-certificate.service; do
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
    epoch: str
    """Seconds since 1970 of the commit; the release number of a package, so that a later build is an upgrade."""
    out: Path

    def script(self, *names: str) -> str:
        """Join parts of the packages' scripts."""
        return "".join((_FILES / name).read_text().replace("@NAME@", self.name) for name in names)


def main() -> None:
    """Write the packages into a folder."""
    parser = argparse.ArgumentParser(description="Packs the agent for nodes without Python.")
    parser.add_argument("--out", type=Path, default=TREE / "dist", help="folder for the packages (dist)")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nodeattest"
    parser.add_argument("--cache", type=Path, default=cache, help="keeps Debian's parts for a day (%(default)s)")
    parser.add_argument("--formats", default="tar,deb,rpm", help="which (%(default)s)")
    parser.add_argument("--mark", default="", help="a line of packages.txt: makes another version of the same tree")
    options = parser.parse_args()
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or command("git", "-C", TREE, "log", "-1", "--format=%ct").strip()
    os.environ["SOURCE_DATE_EPOCH"] = epoch
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        stage = Path(work) / "stage"
        name = write_folder(base(options.cache), stage, f"{options.mark}\n" if options.mark else "")
        shutil.copy(stage / HOME.lstrip("/") / name / "packages.txt", options.out / f"{_NAME}.packages.txt")
        build = Build(stage, name, epoch, options.out)
        formats = options.formats.split(",")
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
    target = build.out / f"{_NAME}-{version()}-{build.epoch}.{platform.machine()}.tar"
    owner = ["--sort=name", f"--mtime=@{build.epoch}", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]
    command("tar", *owner, "-C", home.parent, "-cf", target, home.name)
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
    architecture = _DEBIAN[platform.machine()]
    fields = {
        "Package": _NAME,
        "Version": f"{version()}-{build.epoch}",
        "Architecture": architecture,
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
    target = build.out / f"{_NAME}_{version()}-{build.epoch}_{architecture}.deb"
    environment = {**os.environ, "DPKG_DEB_THREADS_MAX": "1"}
    command("dpkg-deb", "--root-owner-group", "-Zxz", "-z2", "--build", build.stage, target, env=environment)
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
Version: {version()}
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
        command("rpmbuild", "-bb", "--quiet", "--define", f"_topdir {work}", Path(work) / "agent.spec")
        [built] = (Path(work) / "RPMS").rglob("*.rpm")
        shutil.move(built, build.out / f"{_NAME}-{version()}-{build.epoch}.{platform.machine()}.rpm")


if __name__ == "__main__":
    main()
