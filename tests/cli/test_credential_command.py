"""``users[].user.exec`` of an operator's own kubeconfig: run for the CLI, as kubectl does, and in one line refused."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import cast

import pytest
import yaml

from nodeattest_cli.credential_command import run_credential_command
from nodeattest_cli.main import main
from nodeattest_kube.errors import KubeconfigError
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.kubeconfig import read_kubeconfig
from nodeattest_sandbox.control_plane import ControlPlane

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


def run(folder: Path, command: object = "./plugin", **more: object) -> JsonObject:
    settings = cast("JsonObject", {"apiVersion": V1, "command": command, **more})
    return run_credential_command(folder, settings, {"server": "https://10.0.0.1:6443"})


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
    assert main(["token", "list", "--kubeconfig", str(kubeconfig)]) == 0
    told = json.loads((tmp_path / "info").read_text())
    assert told["spec"]["cluster"]["server"] == admin.server
    plugin(tmp_path, {"token": "another"})
    assert main(["token", "list", "--kubeconfig", str(kubeconfig)]) == 3
    assert "401" in capsys.readouterr().err


def test_a_token_replaces_what_else_the_file_has(tmp_path: Path) -> None:
    plugin(tmp_path, {"token": "t0ken"})
    user = {"exec": {"apiVersion": V1, "command": "./plugin"}, "tokenFile": "absent"}
    kubeconfig = written(tmp_path, {"server": "https://10.0.0.1:6443"}, user)
    endpoint = read_kubeconfig(kubeconfig, run_command=run_credential_command)
    assert endpoint.token == "t0ken"
    assert endpoint.token_file is None
    with pytest.raises(KubeconfigError, match="never run"):
        read_kubeconfig(kubeconfig)


@pytest.mark.parametrize("status", [{}, {"token": ""}, {"clientKeyData": "k"}, {"token": 5}], ids=str)
def test_an_answer_without_a_credential_is_refused(tmp_path: Path, status: JsonObject) -> None:
    user = {"exec": {"apiVersion": V1, "command": "./plugin"}}
    kubeconfig = written(tmp_path, {"server": "https://10.0.0.1:6443"}, user)
    plugin(tmp_path, status)
    with pytest.raises(KubeconfigError):
        read_kubeconfig(kubeconfig, run_command=run_credential_command)


def test_a_command_that_fails_is_told_in_one_line(tmp_path: Path) -> None:
    plugin(tmp_path, {}, then='printf "log in\\n\\033[31mfirst" >&2; exit 3')
    with pytest.raises(KubeconfigError) as refused:
        run(tmp_path)
    assert "returned 3. log in  [31mfirst" in str(refused.value)


def test_a_program_that_is_absent_is_told_with_its_hint(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=r"no-such-program-9 on the PATH.*get it at example\.com"):
        run(tmp_path, "no-such-program-9", installHint="get it at example.com")


@pytest.mark.parametrize("output", ["", "5", "[]", "{}", '{"apiVersion": "v2", "kind": "E", "status": {}}', "\\377"])
def test_other_output_is_refused(tmp_path: Path, output: str) -> None:
    (tmp_path / "plugin").write_text(f"#!/bin/sh\nprintf '{output}'\n")
    (tmp_path / "plugin").chmod(0o755)
    with pytest.raises(KubeconfigError, match="run the command alone"):
        run(tmp_path)


@pytest.mark.parametrize("status", [None, "text", []], ids=str)
def test_a_status_that_is_no_object_is_refused(tmp_path: Path, status: object) -> None:
    plugin(tmp_path, status)
    with pytest.raises(KubeconfigError, match="with a status"):
        run(tmp_path)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"command": ""}, "command"),
        ({"command": ["sh"]}, "command"),
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "set it to client.authentication.k8s.io/v1beta1 if"),
        ({"args": "one"}, "args"),
        ({"args": [5]}, "args"),
        ({"env": [{"name": "A"}]}, "env"),
        ({"env": {"A": "b"}}, "env"),
        ({"env": ["A=b"]}, "env"),
    ],
    ids=str,
)
def test_settings_of_another_type_run_nothing(tmp_path: Path, fields: JsonObject, says: str) -> None:
    plugin(tmp_path, {"token": "t"})
    with pytest.raises(KubeconfigError, match=says):
        run(tmp_path, **{"command": "./plugin", **fields})
    assert not (tmp_path / "info").exists()
