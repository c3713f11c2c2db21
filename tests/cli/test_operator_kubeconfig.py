"""An operator's own kubeconfigs: merged, and their command run, as kubectl does, and in one line refused."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest
import yaml

from nodeattest_cli.connection import read_operator_kubeconfig
from nodeattest_cli.main import main
from nodeattest_kube.errors import KubeconfigError
from nodeattest_kube.kubeconfig import ApiEndpoint, read_kubeconfig
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.control_plane import ControlPlane

SERVER = "https://10.0.0.1:6443"
V1 = "client.authentication.k8s.io/v1"
CREDENTIAL = {"apiVersion": V1, "kind": "ExecCredential"}


def plugin(folder: Path, status: object, *, then: str = "") -> Path:
    """Write a program that answers with this status, and keeps what it was told beside itself."""
    file = folder / "plugin"
    answer = json.dumps({**CREDENTIAL, "status": status})
    file.write_text(
        f"#!/bin/sh\nprintf %s \"$KUBERNETES_EXEC_INFO\" > {folder}/info\n{then}\ncat <<'END'\n{answer}\nEND\n"
    )
    file.chmod(0o755)
    return file


def run(folder: Path, **fields: object) -> ApiEndpoint:
    """Read a kubeconfig whose command has these fields."""
    user = {"exec": {"apiVersion": V1, "command": "./plugin", **fields}}
    return read_operator_kubeconfig(str(written(folder, {"server": SERVER}, user)), None)


def written(folder: Path, cluster: object, user: object) -> Path:
    """Write a kubeconfig of one context."""
    document = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
        "users": [{"name": "u", "user": user}],
    }
    (folder / "config").write_text(yaml.safe_dump(document))
    return folder / "config"


def part(folder: Path, name: str, **parts: object) -> Path:
    """Write a part of a kubeconfig into a folder of its own."""
    folder.joinpath(name).mkdir()
    file = folder / name / "config"
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **parts}))
    return file


def test_a_list_of_files_is_merged_as_kubectl_merges_it(tmp_path: Path) -> None:
    def named(cluster: str) -> list[object]:
        return [{"name": "c", "cluster": {"server": f"https://{cluster}:6443", "certificate-authority": "ca.pem"}}]

    def context(name: str, namespace: str) -> dict[str, object]:
        return {"name": name, "context": {"cluster": "c", "user": "u", "namespace": namespace}}

    users = [{"name": "u", "user": {"tokenFile": "token"}}]
    first = part(tmp_path, "first", clusters=named("first"), contexts=None)
    second = part(tmp_path, "second", contexts=[context("x", "second")], **{"current-context": "x"})
    contexts = [context("x", "third"), context("y", "third")]
    third = part(tmp_path, "third", clusters=named("third"), contexts=contexts, users=users, **{"current-context": "y"})
    (tmp_path / "first" / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nfirst")
    (tmp_path / "empty").touch()
    absent, empty = (str(tmp_path / name) for name in ("absent", "empty"))
    listed = os.pathsep.join([absent, empty, str(first), "", str(second), str(third)])
    endpoint = read_operator_kubeconfig(listed, None)
    assert (endpoint.server, endpoint.namespace) == ("https://first:6443", "second")
    assert endpoint.ca_pem == "-----BEGIN CERTIFICATE-----\nfirst"
    assert endpoint.token_file == tmp_path / "third" / "token"
    assert read_operator_kubeconfig(listed, "y").namespace == "third"
    assert list(tmp_path.rglob("*key*")) == []


@pytest.mark.parametrize(
    "document",
    ["", "[", "5", "- a", "clusters: 5", "clusters: [5]", "users: [{user: {}}]", "contexts: [{name: x, context: 5}]"],
)
def test_a_file_that_is_no_kubeconfig_is_refused_in_one_line(
    document: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config").write_text(document)
    assert main(["token", "create", "--kubeconfig", str(tmp_path / "config")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_server_that_is_not_verified_is_refused(tmp_path: Path) -> None:
    kubeconfig = written(tmp_path, {"server": SERVER, "insecure-skip-tls-verify": True}, {"token": "t"})
    with pytest.raises(KubeconfigError, match="insecure-skip-tls-verify"):
        read_operator_kubeconfig(str(kubeconfig), None)


def test_a_command_asks_with_the_credential_that_the_kubeconfigs_command_gives(
    control_plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = read_kubeconfig(control_plane.admin_kubeconfig)
    assert admin.client_certificate_pem is not None
    assert admin.client_key_pem is not None
    assert admin.ca_pem is not None
    pair = (admin.client_certificate_pem.decode(), admin.client_key_pem.decode())
    plugin(tmp_path, dict(zip(("clientCertificateData", "clientKeyData"), pair, strict=True)))
    ca = base64.b64encode(admin.ca_pem.encode()).decode()
    command = {
        "apiVersion": V1,
        "command": "./plugin",
        "provideClusterInfo": True,
        "env": [{"name": "A", "value": "b"}],
    }
    kubeconfig = written(tmp_path, {"server": admin.server, "certificate-authority-data": ca}, {"exec": command})
    assert main(["token", "create", "--kubeconfig", str(kubeconfig)]) == 0
    told = json.loads((tmp_path / "info").read_text())
    assert told["spec"]["cluster"]["server"] == admin.server
    plugin(tmp_path, {"token": "another"})
    assert main(["token", "create", "--kubeconfig", str(kubeconfig)]) == 3
    assert "401" in capsys.readouterr().err


@pytest.mark.parametrize("status", [{}, {"token": ""}, {"clientKeyData": "k"}, {"token": 5}], ids=str)
def test_an_answer_without_a_credential_is_refused(tmp_path: Path, status: JsonObject) -> None:
    plugin(tmp_path, status)
    with pytest.raises(KubeconfigError):
        run(tmp_path)


def test_a_command_that_fails_is_told_in_one_line(tmp_path: Path) -> None:
    plugin(tmp_path, {}, then='printf "log in\\n\\033[31mfirst" >&2; exit 3')
    with pytest.raises(KubeconfigError) as refused:
        run(tmp_path)
    assert "returned 3. log in  [31mfirst" in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"command": "no-such-program-9", "installHint": "get it at example.com"},
            r"no-such-program-9 on the PATH.*get it at example\.com",
        ),
        ({"command": ""}, "command"),
        ({"command": ["sh"]}, "command"),
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "set it to client.authentication.k8s.io/v1beta1 if"),
        ({"args": "one"}, "args"),
        ({"args": [5]}, "expected str"),
        ({"env": [{"name": "A"}]}, "env"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_used_run_nothing(tmp_path: Path, fields: JsonObject, says: str) -> None:
    plugin(tmp_path, {"token": "t"})
    with pytest.raises(KubeconfigError, match=says):
        run(tmp_path, **fields)
    assert not (tmp_path / "info").exists()
