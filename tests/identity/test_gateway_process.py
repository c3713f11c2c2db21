"""``nodeattest addon-auth gateway`` as a process: it says what it lacks, is killed, and goes on with its keys."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from front_ends import NAMESPACE, PROGRAM
from front_kit import LOOPBACK, Authority
from gateway_kit import ask
from issuer_server import kubeconfig
from polling import eventually

from nodeattest_cli.main import main
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import ControlPlane, free_ports, start_sandbox
from nodeattest_sandbox.fleet import create_namespace

CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps"


@dataclass
class Site:
    plane: ControlPlane
    directory: Path
    serving: Authority
    port: int
    health: int

    @property
    def flags(self) -> list[str]:
        return [
            f"--kubeconfig={self.plane.admin_kubeconfig}",
            f"--bind-address={LOOPBACK}:{self.port}",
            f"--health-bind-address={LOOPBACK}:{self.health}",
            f"--tls-cert-file={self.directory / 'gateway.crt'}",
            f"--tls-private-key-file={self.directory / 'gateway.key'}",
            "--issuer=https://gateway.example",
            f"--namespace={NAMESPACE}",
            "--log-format=text",
        ]

    @contextmanager
    def process(self) -> Generator[subprocess.Popen[str]]:
        command = [*PROGRAM, "addon-auth", "gateway", *self.flags]
        running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            yield running
        finally:
            running.kill()
            running.communicate()

    def readyz(self) -> tuple[int, str]:
        """Ask whether it is ready; 0 while nobody listens."""
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self.health}/readyz", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read().decode()
        except OSError:
            return 0, ""

    def kids(self) -> list[str]:
        context = ssl.create_default_context(cadata=self.serving.pem.decode())
        keys = ask(context, self.port, "GET", "/openid/v1/jwks").json["keys"]
        assert isinstance(keys, list)
        return [json.dumps(key) for key in keys]  # pyright: ignore[reportUnknownVariableType]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    serving = Authority("gateway-ca")
    serving.certify(tmp_path, "gateway")
    with start_sandbox(tmp_path / "plane", name="gateway") as plane:
        create_namespace(plane.client(), NAMESPACE)
        yield Site(plane, tmp_path, serving, *free_ports(2))


def front_proxy(data: dict[str, str]) -> JsonMap:
    metadata: JsonMap = {"name": "extension-apiserver-authentication"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {**data}}


def test_it_is_ready_once_it_knows_whom_to_believe_and_goes_on_with_its_keys_after_a_kill(site: Site) -> None:
    admin = site.plane.client()
    data = {
        "client-ca-file": site.plane.ca_certificate.read_text(),
        "requestheader-client-ca-file": site.plane.ca_certificate.read_text(),
        "requestheader-username-headers": '["X-Remote-User"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
    }
    with site.process() as first:
        eventually(lambda: "was not read yet" in site.readyz()[1], "it says what it waits for")
        admin.create(CONFIG_MAPS, front_proxy(data))
        eventually(lambda: "--requestheader-allowed-names" in site.readyz()[1], "it says what would be unsafe")
        admin.replace(
            f"{CONFIG_MAPS}/extension-apiserver-authentication",
            front_proxy({**data, "requestheader-allowed-names": '["front-proxy-client"]'}),
        )
        eventually(lambda: site.readyz() == (200, "ok"), "it is ready")
        before = site.kids()
        assert len(before) == 1
        first.send_signal(signal.SIGKILL)
        first.wait()
    with site.process() as second:
        eventually(lambda: site.readyz() == (200, "ok"), "it is ready again")
        assert site.kids() == before
        second.send_signal(signal.SIGTERM)
        assert second.wait(timeout=120) == 0


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
