"""``nodeattest addon-auth gateway`` as a process: it says what it lacks, and what is set wrong is one line."""

from __future__ import annotations

import os
import signal
import ssl
from contextlib import ExitStack
from pathlib import Path

import pytest
from front_ends import NAMESPACE, PROGRAM, front_proxy_config, started
from front_kit import LOOPBACK, Authority
from gateway_kit import ask
from issuer_server import kubeconfig
from polling import eventually

from nodeattest_cli.main import main
from nodeattest_sandbox.control_plane import free_ports, start_sandbox
from nodeattest_sandbox.fleet import create_namespace

CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps"


def test_it_is_ready_once_it_knows_whom_to_believe_and_goes_on_with_its_keys_after_a_kill(tmp_path: Path) -> None:
    serving, (port, health) = Authority("gateway-ca"), free_ports(2)
    certificate, key = serving.certify(tmp_path)
    (tmp_path / "ca.crt").write_bytes(serving.pem)
    tls = ssl.create_default_context(cafile=tmp_path / "ca.crt")

    def says(words: str) -> bool:
        try:
            return words in ask(None, health, "GET", "/readyz").body.decode()
        except OSError:
            return False

    def kids() -> bytes:
        return ask(tls, port, "GET", "/openid/v1/jwks").body

    with ExitStack() as stack:
        plane = stack.enter_context(start_sandbox(tmp_path / "plane", name="gateway"))
        admin = plane.client()
        create_namespace(admin, NAMESPACE)
        command = [
            *(*PROGRAM, "addon-auth", "gateway", f"--kubeconfig={plane.admin_kubeconfig}", f"--namespace={NAMESPACE}"),
            *(f"--bind-address={LOOPBACK}:{port}", f"--health-bind-address={LOOPBACK}:{health}"),
            *(f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}", "--issuer=https://gateway.example"),
        ]
        first = started(stack, "first", command, tmp_path)
        eventually(lambda: says("was not read yet"), "it says what it waits for")
        config = front_proxy_config(plane)
        admin.create(CONFIG_MAPS, config | {"data": {**config["data"], "requestheader-allowed-names": "[]"}})  # type: ignore[dict-item]
        eventually(lambda: says("--requestheader-allowed-names"), "it says what would be unsafe")
        admin.replace(f"{CONFIG_MAPS}/extension-apiserver-authentication", config)
        eventually(lambda: says("ok"), "it is ready")
        before = kids()
        os.kill(first.pid(), signal.SIGKILL)
        first.stop()
        started(stack, "second", command, tmp_path)
        eventually(lambda: says("ok"), "it is ready again")
        assert kids() == before
        assert before.count(b"kid") == 1


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--issuer", "http://gateway.example", "--issuer"),
        ("--bind-address", "everywhere", "--bind-address"),
        ("--tls-cert-file", "/nowhere/tls.crt", "/nowhere/tls.crt"),
        ("--backend-ca-file", "/nowhere/ca.crt", "--backend-ca-file"),
        ("--key-period", "0.1", "--key-period"),
        ("--kubeconfig", "/nowhere/kubeconfig", "/nowhere/kubeconfig"),
        ("--user-rate", "0", "--user-rate"),
    ],
)
def test_a_wrong_setting_is_one_line_and_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, value: str, said: str
) -> None:
    certificate, key = Authority("gateway-ca").certify(tmp_path)
    file = tmp_path / "kubeconfig"
    file.write_bytes(kubeconfig("https://127.0.0.1:1", b""))
    flags = {
        "--kubeconfig": str(file),
        "--bind-address": f"{LOOPBACK}:0",
        "--tls-cert-file": str(certificate),
        "--tls-private-key-file": str(key),
        "--issuer": "https://gateway.example",
        "--namespace": NAMESPACE,
        flag: value,
    }
    words = [word for name, given in flags.items() for word in (name, given)]
    assert main(["addon-auth", "gateway", *words]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
