"""The controller's image: what is in it, that it is built again to the same digest, and a node that joins by it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, cast
from urllib.parse import quote, urlsplit

import pytest
from needs import lacks, released
from oci_container import Container, account_files, digest_of, unpack
from polling import eventually
from rights import apply
from world import LOOPBACK_FLAGS, Controller, World, built_world

from images import controller as contents
from images.controller import build_from_tree
from images.debian import CACHE, debian, native, read_lock
from nodeattest_controller import manifests
from nodeattest_providers import __version__
from nodeattest_providers.version import of_checkout
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.control_plane import start_real

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(600)]


def needs_runc() -> None:
    """End a test where no container can be started."""
    if shutil.which("runc") is None:
        lacks("runc is not installed: tools/system-packages images")
    if os.geteuid() != 0:
        lacks("root, for a container like a kubelet's")


class ImageController(Controller):
    """The controller in a container, with the words of its Deployment."""

    def __init__(self, container: Container, log: Path, flags: Sequence[str]) -> None:
        super().__init__(Path(), log, flags)
        self._container = container

    def command(self) -> list[str]:
        """Run the Deployment's command and arguments."""
        return self._container.deployed(*self._flags)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._container.remove()


@dataclass(frozen=True)
class Image:
    """A built image."""

    archive: Path
    sbom: JsonMap
    digest: str
    root: Path
    config: JsonMap

    @property
    def architecture(self) -> str:
        return text_at(self.config, "architecture")

    def files(self) -> set[str]:
        return {path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if not path.is_dir()}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    """Return the images of the release, or build them, by their architecture."""
    folder = tmp_path_factory.mktemp("image")
    archives = released("node-attestation-controller-*.oci.tar")
    if not archives:
        built = build_from_tree(folder / "dist", CACHE)
        archives = [one.archive for one in built]
        assert [digest_of(archive) for archive in archives] == [one.digest for one in built]
    return {image.architecture: image for image in (unpacked(archive, folder) for archive in archives)}


def unpacked(archive: Path, folder: Path) -> Image:
    root = folder / archive.name.removesuffix(".oci.tar")
    config = unpack(archive, root)
    sbom = archive.with_name(f"{root.name}.cdx.json")
    return Image(archive, json.loads(sbom.read_text()), digest_of(archive), root, config)


@pytest.fixture(scope="module")
def image(images: dict[str, Image]) -> Image:
    """The image for this machine."""
    return images[native().debian]


def pod_of(folder: str) -> JsonMap:
    [deployment] = [one for one in manifests.objects(folder) if one["kind"] == "Deployment"]
    return map_at(cast("JsonMap", deployment), "spec", "template", "spec")


def container(image: Image, folder: Path, **more: object) -> Container:
    needs_runc()
    return Container(folder, image.root, image.config, pod_of("manager"), **more)  # pyright: ignore[reportArgumentType] - fields of Container


def test_the_same_commit_gives_the_same_digest(images: dict[str, Image], tmp_path: Path) -> None:
    assert {built.digest for built in build_from_tree(tmp_path, CACHE)} == {image.digest for image in images.values()}


def test_a_cached_package_with_another_hash_is_downloaded_again(tmp_path: Path) -> None:
    debian(native(), CACHE)
    shutil.copytree(CACHE / "debs", tmp_path / "debs")
    package = next(deb for deb in read_lock(native()) if deb.name == "base-files")
    file = tmp_path / "debs" / f"{package.sha256}.deb"
    file.write_bytes(b"tampered")
    debian(native(), tmp_path)
    assert hashlib.sha256(file.read_bytes()).hexdigest() == package.sha256


def test_the_image_has_one_interpreter_no_shell_and_no_file_with_special_rights(image: Image) -> None:
    programs = {path for path in image.files() if (image.root / path).stat().st_mode & 0o111 and ".so" not in path}
    assert {path for path in programs if "/lib/" not in path} == {
        "usr/bin/python3.13",
        *(f"usr/local/bin/{name}" for name in contents.COMMANDS),
    }
    assert not [path for path in image.root.rglob("*") if path.stat(follow_symlinks=False).st_mode & 0o6000]
    assert not [path for path in image.files() if re.search(r"(^|/)(sh|bash|dash|busybox|apt|dpkg|pip|perl)$", path)]


def test_the_image_says_user_version_and_commit(image: Image) -> None:
    config = map_at(image.config, "config")
    assert config["User"] == f"{contents.USER}:{contents.USER}"
    labels = map_at(config, "Labels")
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.revision"] == of_checkout()


def test_the_bill_of_materials_is_what_the_image_has(image: Image) -> None:
    described = text_at(map_at(image.sbom, "metadata", "component"), "purl")
    assert described.startswith(f"pkg:oci/node-attestation-controller@{quote(image.digest)}?")
    purls = {text_at(one, "purl") for one in maps_at(image.sbom, "components")}
    debs = {path.name for path in (image.root / "var/lib/dpkg/status.d").iterdir()}
    assert debs == {deb.name for deb in read_lock(native())}
    assert {purl.split("/")[2].split("@")[0] for purl in purls if purl.startswith("pkg:deb/")} == debs
    wheels = {path.name for path in (image.root / contents.SITE_PACKAGES).glob("*.dist-info")}
    named = {re.sub(r"[-_.]+", "-", path.removesuffix(".dist-info")).lower() for path in wheels}
    listed = {purl.removeprefix("pkg:pypi/").replace("@", "-") for purl in purls if purl.startswith("pkg:pypi/")}
    assert {re.sub(r"[-_.]+", "-", one) for one in listed} == named
    assert all(maps_at(one, "hashes") for one in maps_at(image.sbom, "components"))


@pytest.mark.parametrize("folder", ["manager", "addon-gateway", "discovery-front"])
def test_the_image_has_the_commands_that_the_manifests_start(image: Image, tmp_path: Path, folder: str) -> None:
    [shipped, *_] = maps_at(pod_of(folder), "containers")
    assert text_at(shipped, "image").partition(":")[0] == "node-attestation-controller"
    subcommands = [word for word in cast("list[str]", shipped["args"]) if not word.startswith("-")]
    done = container(image, tmp_path / folder).run(*cast("list[str]", shipped["command"]), *subcommands, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    for flag in (word.partition("=")[0] for word in cast("list[str]", shipped["args"]) if word.startswith("-")):
        assert flag in done.stdout


@pytest.fixture(scope="module")
def image_world(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("image-world")
    with built_world(lambda name: start_real(directory / name, assets, name=name), directory) as world:
        apply(world.admin, ["rbac"], "nobody")
        yield world


@pytest.mark.swtpm
def test_a_node_joins_by_the_image_as_the_deployment_runs_it(image: Image, image_world: World, tmp_path: Path) -> None:
    world, server = image_world, urlsplit(image_world.management.server)
    world.set_policy(authorizedAttestors=["tpm"])
    running = container(
        image,
        tmp_path / "controller",
        environment=[f"KUBERNETES_SERVICE_HOST={server.hostname}", f"KUBERNETES_SERVICE_PORT={server.port}"],
        mounts=[account_files(world.admin, world.management.ca_certificate, world.directory / "account")],
    )
    with ImageController(running, world.directory / "image.log", LOOPBACK_FLAGS) as controller:
        world.await_service(controller)
        tpm = world.tpm("image-0")
        world.machine("image-0", tpm=tpm)
        joined = world.agent("image-0", "tpm", tcti=tpm.tcti).join(world.token())
        assert joined.returncode == 0, joined.stderr
        assert text_at(world.ledger("image-0"), "spec", "nodeName") == "image-0"
        [process] = _processes(running)
        assert _ids(process) == {str(contents.USER)}
        assert controller.terminate() == 0
    eventually(lambda: not _processes(running), what="the container's end")


def _processes(running: Container) -> list[int]:
    """Return the processes of a container, as this machine numbers them."""
    command = ["runc", "--root", str(running.bundle / "state"), "ps", "--format", "json", running.name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return cast("list[int]", json.loads(done.stdout)) if done.returncode == 0 else []


def _ids(process: int) -> set[str]:
    """Return the user and group IDs of a process, of all kinds."""
    status = Path(f"/proc/{process}/status").read_text()
    assert re.search(r"^CapEff:\t0+$", status, re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
    return set(" ".join(re.findall(r"^[UG]id:\t(.*)$", status, re.MULTILINE)).split())
