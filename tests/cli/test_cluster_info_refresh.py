"""``cluster-info refresh``: a person's kubeconfig follows the cluster it trusts, and nobody else's word."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from lying_servers import QUIET, Ca, LyingServer, config_map, status
from needs import ONLY_ROOT

from nodeattest_cli.main import main
from nodeattest_discovery import clusterinfo

OLD, NEW, EVIL = Ca("old"), Ca("new"), Ca("evil")


class Workstation:
    """A person's kubeconfig, and the servers around."""

    def __init__(self, stack: ExitStack, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self.out, self.err = "", ""
        self._stack, self._capsys = stack, capsys

    def stand(self, ca: Ca) -> LyingServer:
        return self._stack.enter_context(LyingServer(ca.server(), status(404)))

    def publish(self, server: LyingServer, *authorities: Ca, at: LyingServer | None = None) -> None:
        text = clusterinfo.build((at or server).url, b"".join(ca.pem for ca in authorities))
        for one in {server, at or server}:
            one.says = config_map({"kubeconfig": text})

    def write(self, server: LyingServer, *authorities: Ca, **more: str) -> None:
        data = base64.b64encode(b"".join(ca.pem for ca in authorities)).decode()
        cluster = {"certificate-authority-data": data, "server": server.url, **more}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "mine",
            "contexts": [{"name": "mine", "context": {"cluster": "it", "user": "me"}}],
            "clusters": [{"name": "it", "cluster": cluster}, {"name": "other", "cluster": {"server": "https://o:1"}}],
            "users": [{"name": "me", "user": {"exec": {"command": "/must/not/run"}, "token": "SECRET"}}],
        }
        self.path.write_text("# mine\n" + yaml.safe_dump(document))
        self.path.chmod(0o640)

    def document(self) -> dict[str, Any]:
        return cast("dict[str, Any]", yaml.safe_load(self.path.read_text()))

    def bundle(self) -> bytes:
        return base64.b64decode(self.document()["clusters"][0]["cluster"]["certificate-authority-data"])

    def __call__(self, *words: str, code: int = 0) -> str:
        done = main(["cluster-info", "refresh", "--kubeconfig", str(self.path), *words])
        self.out, self.err = self._capsys.readouterr()
        assert done == code, self.err
        return self.out

    def refused(self, *words: str, code: int = 2) -> str:
        before = self.path.read_bytes()
        assert self(*words, code=code) == ""
        assert self.path.read_bytes() == before
        assert self.err.count("\n") == 1
        return self.err


@pytest.fixture
def workstation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Workstation]:
    with ExitStack() as stack:
        yield Workstation(stack, tmp_path / "config", capsys)


def test_a_new_ca_is_taken_over_and_nothing_else_changes(workstation: Workstation) -> None:
    server = workstation.stand(OLD)
    workstation.publish(server, OLD, NEW)
    workstation.write(server, OLD)
    before = workstation.document()
    said = workstation()
    assert said.splitlines() == [f"new CA: {NEW.pin}", f"{workstation.path} is written"]
    assert workstation.bundle() == OLD.pem + NEW.pem
    after = workstation.document()
    before["clusters"][0]["cluster"] = after["clusters"][0]["cluster"]
    assert after == before
    assert workstation.path.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in workstation.path.parent.iterdir()] == ["config"]
    assert server.headers <= QUIET


def test_a_dry_run_says_and_does_not(workstation: Workstation) -> None:
    server = workstation.stand(NEW)
    workstation.publish(server, NEW)
    workstation.write(server, OLD, NEW)
    before = workstation.path.read_bytes()
    assert workstation("--dry-run") == f"CA that is no more: {OLD.pin}\n"
    assert workstation.path.read_bytes() == before


def test_a_server_is_taken_over_only_if_that_is_said(workstation: Workstation) -> None:
    server, moved = workstation.stand(OLD), workstation.stand(OLD)
    workstation.publish(server, OLD, at=moved)
    workstation.write(server, OLD, **{"tls-server-name": "127.0.0.1"})
    workstation()
    assert workstation.document()["clusters"][0]["cluster"]["server"] == server.url
    assert "--take-server takes it over" in workstation.err
    assert f"server: {server.url} becomes {moved.url}" in workstation("--take-server")
    cluster = workstation.document()["clusters"][0]["cluster"]
    assert cluster["server"] == moved.url
    assert "tls-server-name" not in cluster


def test_a_file_with_its_ca_beside_it_has_it_inside_afterwards(workstation: Workstation) -> None:
    server = workstation.stand(OLD)
    workstation.publish(server, OLD, NEW)
    workstation.write(server)
    document = workstation.document()
    (workstation.path.parent / "ca.crt").write_bytes(OLD.pem)
    document["clusters"][0]["cluster"] = {"certificate-authority": "ca.crt", "server": server.url}
    workstation.path.write_text(yaml.safe_dump(document))
    workstation()
    assert workstation.bundle() == OLD.pem + NEW.pem
    assert "certificate-authority" not in workstation.document()["clusters"][0]["cluster"]


def test_a_link_stays_a_link(workstation: Workstation, tmp_path: Path) -> None:
    server = workstation.stand(OLD)
    workstation.publish(server, OLD, NEW)
    workstation.write(server, OLD)
    real = tmp_path / "real"
    workstation.path.rename(real)
    workstation.path.symlink_to(real)
    workstation()
    assert workstation.path.is_symlink()
    assert workstation.bundle() == OLD.pem + NEW.pem


@ONLY_ROOT
def test_a_kubeconfig_of_another_user_is_left_to_them(workstation: Workstation) -> None:
    server = workstation.stand(OLD)
    workstation.publish(server, OLD, NEW)
    workstation.write(server, OLD)
    before = workstation.path.read_bytes()
    os.chown(workstation.path, 1234, -1)
    workstation(code=2)
    assert "belongs to another user" in workstation.err
    assert (workstation.path.read_bytes(), workstation.path.stat().st_uid) == (before, 1234)


def test_a_kubeconfig_that_somebody_writes_is_left_alone(workstation: Workstation) -> None:
    server = workstation.stand(OLD)
    workstation.publish(server, OLD, NEW)
    workstation.write(server, OLD)
    Path(f"{workstation.path}.lock").touch()
    before = workstation.path.read_bytes()
    workstation(code=2)
    assert ".lock exists" in workstation.err
    assert workstation.path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"current-context": ""}, "expected current-context"),
        ({"current-context": "no"}, "expected one context 'no', got 0"),
        ({"clusters": []}, "expected one cluster 'it', got 0"),
        ({"clusters": [{"name": "it", "cluster": {"server": "https://h:1"}}]}, "expected CAs of the cluster"),
        (
            {"clusters": [{"name": "it", "cluster": {"server": "https://h:1", "insecure-skip-tls-verify": True}}]},
            "insecure-skip-tls-verify",
        ),
        (
            {"clusters": [{"name": "it", "cluster": {"server": "https://h:1", "certificate-authority-data": "%"}}]},
            "in base64",
        ),
        (
            {"clusters": [{"name": "it", "cluster": {"server": "https://h:1", "certificate-authority-data": "YQ=="}}]},
            "certificates in PEM",
        ),
        (
            {"clusters": [{"name": "it", "cluster": {"server": "https://h:1", "certificate-authority": "nowhere"}}]},
            "No such file",
        ),
    ],
)
def test_a_kubeconfig_without_a_verified_cluster_is_refused(
    workstation: Workstation, change: dict[str, object], says: str
) -> None:
    workstation.write(workstation.stand(OLD), OLD)
    workstation.path.write_text(yaml.safe_dump({**workstation.document(), **change}))
    assert says in workstation.refused()
