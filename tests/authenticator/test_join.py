"""``join`` and ``status``, by the real command."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from agent_cluster import TOKEN, Authority, FakeApi, filed_ids, tells_provider_id
from agent_machine import COMMAND, NODE, Machine
from test_credential import challenge_then_sign

from nodeattest_authenticator.commands.cli import main


class Joiner:
    """An empty machine and the words typed on it."""

    def __init__(self, folder: Path, api: FakeApi) -> None:
        self.folder = folder / "host"
        self.folder.mkdir()
        self.api = api
        self.machine = Machine(self.folder, api)
        self.kubeconfig = self.folder / "etc" / "kubelet.conf"
        folder.joinpath("ca.crt").write_bytes(api.authority.pem)
        folder.joinpath("token").write_text(TOKEN + "\n")
        self.options: dict[str, str | None] = {
            "--server": api.url,
            "--ca-file": str(folder / "ca.crt"),
            "--token-file": str(folder / "token"),
            "--provider": "insecure",
            "--provider-id": "sandbox://machine-0",
            "--node-name": NODE,
            "--kubeconfig": str(self.kubeconfig),
            "--config": str(self.folder / "config.json"),
            "--cache-dir": str(self.folder / "cache"),
            "--timeout": "60",
        }

    def challenged(self) -> None:
        """Use a provider whose certificates are renewed."""
        secret = self.folder / "secret"
        secret.write_bytes(b"s" * 40)
        secret.chmod(0o600)
        self.options |= {"--provider": "challenge", "--set": f"secretFile={secret}"}
        self.api.on_create = challenge_then_sign

    def join(self, *more: str, stdin: str | None = None, **changes: str | None) -> subprocess.CompletedProcess[str]:
        return in_process("join", *self.words(**changes), *more, stdin=stdin or "")

    def words(self, **changes: str | None) -> list[str]:
        options = self.options | {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
        return [word for name, value in options.items() if value is not None for word in (name, value)]

    def files(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.folder)): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()
        }


def status(machine: Machine, *more: str) -> subprocess.CompletedProcess[str]:
    return in_process(*machine.arguments("status", *more)[1:])


def in_process(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command without the 0.2 s of a process of its own."""
    said, complained, before = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()))
    try:
        with redirect_stdout(said), redirect_stderr(complained):
            code = main([str(COMMAND), *words])
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdin = before
    return subprocess.CompletedProcess(words, code, said.getvalue(), complained.getvalue())


@pytest.fixture
def joiner(tmp_path: Path, api: FakeApi) -> Joiner:
    return Joiner(tmp_path, api)


def test_every_file_is_private_and_the_token_stands_in_one_only(joiner: Joiner) -> None:
    joiner.join()
    assert {path.stat().st_mode & 0o777 for path in joiner.folder.rglob("*") if path.is_file()} == {0o600}
    assert [name for name, data in joiner.files().items() if TOKEN.encode() in data] == ["cache/bootstrap-token"]


def test_a_denied_join_leaves_no_kubeconfig_and_the_next_one_asks_at_once(joiner: Joiner) -> None:
    joiner.api.on_create = lambda api, name: api.deny(name, "MachineNotFound", "create the Machine")
    done = joiner.join()
    assert done.returncode == 1
    assert "MachineNotFound" in done.stderr
    assert not joiner.kubeconfig.exists()
    joiner.api.on_create = lambda api, name: api.sign(name)
    assert joiner.join().returncode == 0


def test_a_join_of_a_joined_node_keeps_its_certificate_and_says_how_to_get_another(joiner: Joiner) -> None:
    assert joiner.join().returncode == 0
    again = joiner.join()
    assert again.returncode == 0
    assert "keeps its valid certificate; join --renew" in again.stderr
    assert joiner.api.posts() == 1


def test_a_join_with_renew_attests_anew_with_the_nodes_own_certificate(joiner: Joiner) -> None:
    joiner.challenged()
    assert joiner.join().returncode == 0
    before = joiner.folder.joinpath("cache/credential").read_bytes()
    done = joiner.join("--renew")
    assert done.returncode == 0, done.stderr
    assert joiner.folder.joinpath("cache/credential").read_bytes() != before
    assert joiner.api.posts() == 4
    assert [one["spec"]["username"].split(":")[1] for one in joiner.api.objects.values()] == ["bootstrap"] * 2 + [
        "node"
    ] * 2


def test_join_gets_the_serving_certificate_too_when_asked(joiner: Joiner) -> None:
    joiner.challenged()
    names = ["--serving-ip-address", "10.0.0.7", "--serving-dns-name", "a", "--serving-dns-name", "b"]
    done = joiner.join(*names)
    assert done.returncode == 0, done.stderr
    assert "serving.pem: certificate for a, b, 10.0.0.7, valid until" in done.stdout
    assert joiner.folder.joinpath("cache/serving.pem").exists()
    section = json.loads(joiner.folder.joinpath("config.json").read_bytes())["serving"]
    assert section == {"dnsNames": ["a", "b"], "ipAddresses": ["10.0.0.7"]}


def test_a_kubeconfig_that_join_did_not_write_is_kept(joiner: Joiner) -> None:
    joiner.kubeconfig.parent.mkdir()
    joiner.kubeconfig.write_text("apiVersion: v1\nkind: Config\n")
    done = joiner.join()
    assert done.returncode == 2
    assert "--replace-kubeconfig" in done.stderr
    assert joiner.files() == {"etc/kubelet.conf": b"apiVersion: v1\nkind: Config\n"}
    assert joiner.join("--replace-kubeconfig").returncode == 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"server": "http://127.0.0.1"}, "https://"),
        ({"ca_file": "/nonexistent"}, "No such file"),
        ({"token_file": "/nonexistent"}, "No such file"),
        ({"provider": "tmp"}, "provider"),
        ({"provider_id": "x://'{{ ds.meta_data.uuid }}'"}, "--provider-id"),
        ({"provider_id": "x://${UUID}"}, "without ${"),
        ({"provider_id": "x://{dmi:chassis_serial}"}, "no braces, except as {dmi:product_uuid}"),
        ({"provider_id": "x://1 2"}, "one word"),
        ({"provider_id": "x://'1"}, "each quote closed"),
        ({"timeout": "0"}, "timeoutSeconds"),
        ({"node_name": "Node_0"}, "--node-name: nodeName"),
        ({"provider_id": "a\u200bb"}, "--provider-id: providerID"),
        ({"server": "127.0.0.1:6443"}, "--server: server must be"),
        ({"serving_ip_address": "10.0.0", "provider": "tpm"}, "--serving-ip-address"),
        ({"serving_dns_name": "a"}, "insecure has no serving certificates"),
    ],
)
def test_a_wrong_word_is_named_and_nothing_is_written(joiner: Joiner, changes: dict[str, str], says: str) -> None:
    done = joiner.join(**changes)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not joiner.files()
    assert not joiner.api.requests


@pytest.mark.parametrize(
    ("words", "says"),
    [(["--set", "x"], "KEY=VALUE"), (["--set", "x=1"], "settings"), (["--provider-id-file", "x"], "not allowed with")],
)
def test_wrong_options_are_named(joiner: Joiner, words: list[str], says: str) -> None:
    done = joiner.join(*words)
    assert done.returncode == 2
    assert says in done.stderr


def test_quotes_are_removed_and_the_machine_fills_in_its_part(joiner: Joiner) -> None:
    assert joiner.join(provider_id="kubevirt://'{hostname}'").returncode == 0
    (name,) = joiner.api.objects
    assert joiner.api.envelope(name)[0].provider_id == f"kubevirt://{os.uname().nodename.lower()}"


def test_the_controllers_answer_is_filed_and_kept_for_the_next_join(joiner: Joiner) -> None:
    joiner.api.on_create = tells_provider_id("sandbox://told")
    done = joiner.join(provider_id=None)
    assert done.returncode == 0, done.stderr
    assert filed_ids(joiner.api) == ["", "sandbox://told"]
    assert joiner.join("--renew", provider_id=None).returncode == 0
    assert filed_ids(joiner.api) == ["", "sandbox://told", "sandbox://told"]


@pytest.mark.parametrize("reason", ["ProviderIDMismatch", "TokenNotThisMachines", "MachineNotFound"])
def test_a_stored_answer_is_forgotten_when_a_token_is_denied_with_it(joiner: Joiner, reason: str) -> None:
    joiner.api.on_create = tells_provider_id("sandbox://old")
    assert joiner.join(provider_id=None).returncode == 0
    joiner.machine.cache.joinpath("credential").unlink()
    joiner.api.on_create = tells_provider_id("sandbox://new", then=lambda api, name: api.deny(name, reason))
    assert reason in joiner.join(provider_id=None).stderr
    joiner.api.on_create = tells_provider_id("sandbox://new")
    assert joiner.join(provider_id=None).returncode == 0
    assert filed_ids(joiner.api) == ["", "sandbox://old", "sandbox://old", "", "sandbox://new"]


def test_another_clusters_answer_is_not_used(joiner: Joiner, tmp_path: Path) -> None:
    joiner.api.on_create = tells_provider_id("sandbox://here")
    assert joiner.join(provider_id=None).returncode == 0
    other = Authority("other")
    folder = tmp_path / "other"
    folder.mkdir()
    folder.joinpath("ca.crt").write_bytes(other.pem)
    with FakeApi(folder, other) as api:
        api.on_create = tells_provider_id("sandbox://there")
        done = joiner.join(provider_id=None, server=api.url, ca_file=str(folder / "ca.crt"))
        assert done.returncode == 0, done.stderr
        assert filed_ids(api) == ["", "sandbox://there"]


def test_a_renewal_has_the_answer_while_the_cas_are_replaced(joiner: Joiner, tmp_path: Path) -> None:
    joiner.api.on_create = tells_provider_id("sandbox://told")
    assert joiner.join(provider_id=None).returncode == 0
    tmp_path.joinpath("both.crt").write_bytes(Authority("next").pem + joiner.api.authority.pem)
    assert joiner.join("--renew", provider_id=None, ca_file=str(tmp_path / "both.crt")).returncode == 0
    assert filed_ids(joiner.api)[2:] == ["sandbox://told"]
    assert len(json.loads(joiner.machine.cache.joinpath("provider-id").read_bytes())["caPins"]) == 2


def test_a_certificate_is_not_stored_without_the_answer(joiner: Joiner) -> None:
    joiner.api.on_create = tells_provider_id("sandbox://told")
    joiner.machine.cache.mkdir(mode=0o700)
    joiner.machine.cache.joinpath("provider-id.new").mkdir()  # fails each write as a full disk would
    done = joiner.join(provider_id=None)
    assert (done.returncode, "cannot be stored" in done.stderr) == (0, True)
    assert not joiner.machine.cache.joinpath("credential").exists()
    joiner.machine.cache.joinpath("provider-id.new").rmdir()
    assert joiner.join(provider_id=None).returncode == 0
    assert filed_ids(joiner.api) == ["", "sandbox://told"]
    assert joiner.machine.cache.joinpath("credential").exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"provider_id_file": "/nonexistent"}, "No such file"),
        ({"provider_id_file": os.devnull}, "1 to 1024 characters"),
        ({"provider_id_command": "/nonexistent --key=s3cret"}, "/nonexistent: No such file"),
        ({"provider_id_command": "false"}, "exited with code 1"),
        ({"provider_id_command": "printf '\\377' s3cret"}, "output of printf is not UTF-8"),
        ({"provider_id_command": "echo 'x://{{ ds.meta_data.uuid }}'"}, "without {{"),
        ({"provider_id_command": "echo x://CI_MISSING_JINJA_VAR/uuid"}, "without CI_MISSING_JINJA_VAR"),
        ({"provider_id": "x://{cloud-init:v1.nothing}"}, "/run/cloud-init/instance-data.json"),
    ],
)
def test_a_provider_id_that_cannot_be_had_is_told(joiner: Joiner, changes: dict[str, str], says: str) -> None:
    done = joiner.join(**({"provider_id": None} | changes))
    assert done.returncode in {1, 2}
    assert not joiner.api.posts()
    assert "ProviderIDUnknown" in done.stderr
    assert says in done.stderr
    assert "s3cret" not in done.stderr


def test_status_tells_the_certificate_in_words_and_in_json(machine: Machine) -> None:
    machine.challenged()
    machine.api.on_create = challenge_then_sign
    assert status(machine, "--json").returncode == 1
    machine.run()
    done = status(machine, "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document["state"] == "valid"
    assert document["node"] == NODE
    assert document["signer"] == "cluster.x-k8s.io/kube-apiserver-client-kubelet-challenge"
    assert document["certificate"]["subject"] == f"CN=system:node:{NODE},O=system:nodes"
    assert (
        document["certificate"]["notBefore"] < document["certificate"]["renewAt"] < document["certificate"]["notAfter"]
    )
    assert document["lastFailure"] is None
    assert f"subject: CN=system:node:{NODE},O=system:nodes" in status(machine).stdout


def test_evidence_sends_nothing(machine: Machine) -> None:
    document = json.loads(machine.run("evidence").stdout)
    assert document["provider"] == "insecure/v1"
    assert document["data"] == {}
    assert document["node"] == NODE
    assert not machine.api.requests
