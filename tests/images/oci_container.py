"""The image as a root file system, and containers of it that run as a Pod's container would (runc, host network).

Needs only the sandbox's wheel, so tests/e2e/day-one takes this file along.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, maps_at, text_at
from nodeattest_sandbox.client import Client

_NAMESPACES: Final = ("pid", "ipc", "uts", "mount")
"""The network is the machine's: API servers of tests listen on loopback."""
_NAMESPACE: Final = "nodeattest-system"
_ACCOUNT: Final = f"/api/v1/namespaces/{_NAMESPACE}/serviceaccounts/node-attestation-controller"
_MEBIBYTE: Final = 1024 * 1024


def account_files(client: Client, ca_certificate: Path, folder: Path) -> tuple[Path, str]:
    """Write what kubelet mounts for the Pod's ServiceAccount; returns the mount."""
    asked: JsonMap = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = text_at(client.create(f"{_ACCOUNT}/token", asked), "status", "token")
    folder.mkdir(mode=0o755)
    for name, content in {"token": token, "namespace": _NAMESPACE, "ca.crt": ca_certificate.read_text()}.items():
        (folder / name).write_text(content)
        (folder / name).chmod(0o644)
    return folder, "/var/run/secrets/kubernetes.io/serviceaccount"


def digest_of(archive: Path) -> str:
    """Return the digest of the one manifest of an OCI archive."""
    with tarfile.open(archive) as packed:
        index = packed.extractfile("index.json")
        assert index is not None
        [reference] = maps_at(cast("JsonMap", json.load(index)), "manifests")
        return text_at(reference, "digest")


def unpack(archive: Path, target: Path) -> JsonMap:
    """Unpack an OCI archive as its manifest says, each digest compared; returns the image's configuration."""
    with tarfile.open(archive) as packed:

        def blob(descriptor: JsonMap) -> bytes:
            digest = text_at(descriptor, "digest").removeprefix("sha256:")
            opened = packed.extractfile(f"blobs/sha256/{digest}")
            assert opened is not None
            content = opened.read()
            assert hashlib.sha256(content).hexdigest() == digest
            assert len(content) == descriptor["size"]
            return content

        index = packed.extractfile("index.json")
        assert index is not None
        [reference] = maps_at(cast("JsonMap", json.load(index)), "manifests")
        manifest = cast("JsonMap", json.loads(blob(reference)))
        target.mkdir()
        for number, layer in enumerate(maps_at(manifest, "layers")):
            file = target.with_suffix(f".{number}.tar.gz")
            file.write_bytes(blob(layer))
            subprocess.run(["/usr/bin/tar", "-xzf", file, "-C", target], check=True)
            file.unlink()
        return cast("JsonMap", json.loads(blob(map_at(manifest, "config"))))


@dataclass(frozen=True)
class Container:
    """One container of the image, by the container's part of a Pod's specification."""

    bundle: Path
    root: Path
    image: JsonMap
    """The image's configuration."""
    pod: JsonMap
    """``spec`` of the Pod; its first container is run."""
    environment: Sequence[str] = ()
    mounts: Sequence[tuple[Path, str]] = ()
    """Folder of this machine, read only, and where it is in the container."""

    @property
    def name(self) -> str:
        """Its name among runc's containers."""
        return f"nodeattest-{os.getpid()}-{self.bundle.name}"

    def command(self, words: Sequence[str]) -> list[str]:
        """Write runc's configuration and return the command that runs these words in the container."""
        self.bundle.mkdir(exist_ok=True)
        (self.bundle / "config.json").write_text(json.dumps(self._specification(words)))
        return ["runc", "--root", str(self.bundle / "state"), "run", "--bundle", str(self.bundle), self.name]

    def deployed(self, *flags: str) -> list[str]:
        """Return the command that runs what the Pod runs, with more flags; of a repeated flag the last one counts."""
        [shipped, *_] = maps_at(self.pod, "containers")
        words = [*cast("list[str]", shipped["command"]), *cast("list[str]", shipped["args"])]
        return self.command([*(word.replace("$(POD_NAMESPACE)", _NAMESPACE) for word in words), *flags])

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run words to their end."""
        return subprocess.run(self.command(words), capture_output=True, text=True, timeout=120, check=False)

    def remove(self) -> None:
        """Kill what still runs."""
        command = ["runc", "--root", str(self.bundle / "state"), "delete", "--force", self.name]
        subprocess.run(command, capture_output=True, check=False)

    def _specification(self, words: Sequence[str]) -> JsonMap:
        [container, *_] = maps_at(self.pod, "containers")
        context, security = map_at(self.pod, "securityContext"), map_at(container, "securityContext")
        assert map_at(security, "capabilities") == {"drop": ["ALL"]}
        config = map_at(self.image, "config")
        given = [str(one) for one in cast("list[JsonValue]", config["Env"])]
        nothing: list[JsonValue] = []
        sets = ("bounding", "effective", "inheritable", "permitted", "ambient")
        return {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": context["runAsUser"], "gid": context["runAsGroup"]},
                "args": [*words],
                "env": [*given, *self.environment],
                "cwd": "/",
                "noNewPrivileges": not security["allowPrivilegeEscalation"],
                "capabilities": dict.fromkeys(sets, nothing),
            },
            "root": {"path": str(self.root), "readonly": security["readOnlyRootFilesystem"]},
            "mounts": [*self._mounts()],
            "linux": {
                "cgroupsPath": f"/{self.name}",
                "resources": {"memory": {"limit": _memory_limit(container)}},
                "namespaces": [{"type": one} for one in _NAMESPACES],
            },
        }

    def _mounts(self) -> list[JsonMap]:
        options = ["nosuid", "nodev", "noexec"]
        found: list[JsonMap] = [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": [*options]},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
        ]
        volumes = {text_at(one, "name"): one.get("emptyDir") for one in maps_at(self.pod, "volumes")}
        for mount in maps_at(next(iter(maps_at(self.pod, "containers"))), "volumeMounts"):
            volume = volumes[text_at(mount, "name")]
            if volume is None:  # a Secret, which ``mounts`` has
                continue
            size = text_at(volume, "sizeLimit").removesuffix("i").lower()
            wanted: list[JsonValue] = [*options, "mode=1777", f"size={size}"]
            found.append({"destination": mount["mountPath"], "type": "tmpfs", "source": "tmpfs", "options": wanted})
        for source, destination in self.mounts:
            found.append(
                {"destination": destination, "type": "bind", "source": str(source), "options": ["rbind", "ro"]}
            )
        return found


def _memory_limit(container: JsonMap) -> int:
    limit = text_at(map_at(map_at(container, "resources"), "limits"), "memory")
    return int(limit.removesuffix("Mi")) * _MEBIBYTE
