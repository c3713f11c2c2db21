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


class Desk:
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
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    with ExitStack() as stack:
        yield Desk(stack, tmp_path / "config", capsys)


def test_a_new_ca_is_taken_over_and_nothing_else_changes(desk: Desk) -> None:
    server = desk.stand(OLD)
    desk.publish(server, OLD, NEW)
    desk.write(server, OLD)
    before = desk.document()
    said = desk()
    assert said.splitlines() == [f"new CA: {NEW.pin}", f"{desk.path} is written"]
    assert desk.bundle() == OLD.pem + NEW.pem
    after = desk.document()
    before["clusters"][0]["cluster"] = after["clusters"][0]["cluster"]
    assert after == before
    assert desk.path.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in desk.path.parent.iterdir()] == ["config"]
    assert server.headers <= QUIET


def test_nothing_new_leaves_the_file_as_it_is(desk: Desk) -> None:
    server = desk.stand(OLD)
    desk.publish(server, OLD)
    desk.write(server, OLD)
    before = desk.path.read_bytes()
    assert desk() == f"{desk.path} is up to date\n"
    assert desk.path.read_bytes() == before


def test_a_dry_run_says_and_does_not(desk: Desk) -> None:
    server = desk.stand(NEW)
    desk.publish(server, NEW)
    desk.write(server, OLD, NEW)
    before = desk.path.read_bytes()
    assert desk("--dry-run") == f"CA that is no more: {OLD.pin}\n"
    assert desk.path.read_bytes() == before


def test_a_server_is_taken_over_only_if_that_is_said(desk: Desk) -> None:
    server, moved = desk.stand(OLD), desk.stand(OLD)
    desk.publish(server, OLD, at=moved)
    desk.write(server, OLD, **{"tls-server-name": "127.0.0.1"})
    desk()
    assert desk.document()["clusters"][0]["cluster"]["server"] == server.url
    assert "--take-server takes it over" in desk.err
    assert f"server: {server.url} becomes {moved.url}" in desk("--take-server")
    cluster = desk.document()["clusters"][0]["cluster"]
    assert cluster["server"] == moved.url
    assert "tls-server-name" not in cluster


def test_another_way_to_the_cluster_is_asked_where_the_old_one_is_gone(desk: Desk) -> None:
    gone, there = desk.stand(OLD), desk.stand(OLD)
    desk.publish(there, OLD, NEW)
    desk.write(gone, OLD)
    assert "new CA" in desk("--server", there.url, "--take-server")
    assert desk.document()["clusters"][0]["cluster"]["server"] == there.url
    assert not gone.seen


def test_a_file_with_its_ca_beside_it_has_it_inside_afterwards(desk: Desk) -> None:
    server = desk.stand(OLD)
    desk.publish(server, OLD, NEW)
    desk.write(server)
    document = desk.document()
    (desk.path.parent / "ca.crt").write_bytes(OLD.pem)
    document["clusters"][0]["cluster"] = {"certificate-authority": "ca.crt", "server": server.url}
    desk.path.write_text(yaml.safe_dump(document))
    desk()
    assert desk.bundle() == OLD.pem + NEW.pem
    assert "certificate-authority" not in desk.document()["clusters"][0]["cluster"]


def test_a_link_stays_a_link(desk: Desk, tmp_path: Path) -> None:
    server = desk.stand(OLD)
    desk.publish(server, OLD, NEW)
    desk.write(server, OLD)
    real = tmp_path / "real"
    desk.path.rename(real)
    desk.path.symlink_to(real)
    desk()
    assert desk.path.is_symlink()
    assert desk.bundle() == OLD.pem + NEW.pem


@ONLY_ROOT
def test_a_kubeconfig_of_another_user_is_left_to_them(desk: Desk) -> None:
    server = desk.stand(OLD)
    desk.publish(server, OLD, NEW)
    desk.write(server, OLD)
    before = desk.path.read_bytes()
    os.chown(desk.path, 1234, -1)
    desk(code=2)
    assert "belongs to another user" in desk.err
    assert (desk.path.read_bytes(), desk.path.stat().st_uid) == (before, 1234)


def test_whoever_has_no_trusted_ca_changes_nothing(desk: Desk) -> None:
    impostor = desk.stand(EVIL)
    desk.publish(impostor, OLD, EVIL)
    desk.write(impostor, OLD)
    desk.refused(code=3)
    assert impostor.headers <= QUIET


def test_other_cas_only_are_not_believed(desk: Desk) -> None:
    server = desk.stand(OLD)
    desk.publish(server, NEW)
    desk.write(server, OLD)
    assert "at least one of the CAs" in desk.refused(code=1)


def test_a_cluster_that_does_not_tell_is_one_line(desk: Desk) -> None:
    server = desk.stand(OLD)
    server.says = status(403)
    desk.write(server, OLD)
    assert "403" in desk.refused(code=3)


def test_a_kubeconfig_that_somebody_writes_is_left_alone(desk: Desk) -> None:
    server = desk.stand(OLD)
    desk.publish(server, OLD, NEW)
    desk.write(server, OLD)
    Path(f"{desk.path}.lock").touch()
    before = desk.path.read_bytes()
    desk(code=2)
    assert ".lock exists" in desk.err
    assert desk.path.read_bytes() == before


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
def test_a_kubeconfig_without_a_verified_cluster_is_refused(desk: Desk, change: dict[str, object], says: str) -> None:
    desk.write(desk.stand(OLD), OLD)
    desk.path.write_text(yaml.safe_dump({**desk.document(), **change}))
    assert says in desk.refused()


@pytest.mark.parametrize("server", ["10.0.0.1:6443", "http://10.0.0.1:6443", ""])
def test_a_server_that_is_no_url_is_told_by_its_flag(desk: Desk, server: str) -> None:
    desk.write(desk.stand(OLD), OLD)
    assert desk.refused("--server", server) == f"nodeattest: --server: expected https://host:port, got {server!r}\n"
