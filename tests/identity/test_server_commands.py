"""``issuer serve`` and ``addon-auth gateway|sidecar`` as processes; and what is set wrong is one line."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
import requests
from front_ends import NAMESPACE, PROGRAM, front_proxy_config, started
from front_kit import LOOPBACK, Authority
from issuer_server import jwks_of, kubeconfig
from polling import eventually
from proxy_kit import exchange, request, upstream
from token_kit import claims, elliptic, header, pem, token

from nodeattest_cli.main import main
from nodeattest_sandbox.child_process import free_ports
from nodeattest_sandbox.control_plane import start_sandbox
from nodeattest_sandbox.fleet import create_namespace

CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps"
GATEWAY = "https://gateway.example"
SERVE = ("issuer serve", "--bind-address=127.0.0.1:0", "--issuer-base=https://issuer.example", "--dir=.")
SIDECAR = ("addon-auth sidecar", "--upstream=127.0.0.1:8080", "--audience=apps/a")
RIGHT = (*SIDECAR, "--plain-http", f"--issuer={GATEWAY}")
FORWARD = (
    *("addon-auth gateway", "--kubeconfig=kubeconfig", "--bind-address=127.0.0.1:0", "--tls-cert-file=server.crt"),
    *("--tls-private-key-file=server.key", f"--issuer={GATEWAY}", "--namespace=a"),
)
FRONT = ("discovery serve", *FORWARD[1:5])
WRONG: list[tuple[tuple[str, ...], str]] = [
    ((*SERVE, "--dir=none"), "--dir: expected a folder, got none at none"),
    ((*SERVE, "--issuer-base=http://a.example"), "--issuer-base: expected the https URL of an issuer"),
    ((*SERVE, "--bind-address=:8443"), "expected --tls-cert-file"),
    ((*SERVE, "--tls-cert-file=a"), "together, got one of them"),
    ((*SERVE, "--max-age=-1"), "--max-age: expected 0"),
    ((*SERVE, "--health-bind-address=x"), "--health-bind-address: expected host:port"),
    ((*RIGHT, "--upstream=10.0.0.1:80"), "--upstream: expected 127.0.0.1:port or [::1]:port, got 10.0.0.1:80"),
    ((*RIGHT, "--upstream=localhost:80"), "expected 127.0.0.1:port"),
    ((*SIDECAR, "--plain-http"), "Missing option '--issuer'"),
    ((*RIGHT, "--tls-cert-file=a"), "--tls-cert-file, --plain-http: expected one of the two"),
    ((*SIDECAR, f"--issuer={GATEWAY}"), "--tls-cert-file, --plain-http: expected one of the two"),
    ((*SIDECAR, f"--issuer={GATEWAY}", "--tls-cert-file=a"), "expected --tls-private-key-file beside it"),
    ((*RIGHT, "--open-path=/a/../b"), "'--open-path': expected a path of plain segments"),
    ((*RIGHT, "--max-request-duration=0"), "'--max-request-duration': 0.0 is not in the range"),
    ((*RIGHT, "--jwks-file=nowhere"), "--jwks-file: nowhere: expected a readable file with keys"),
    ((*RIGHT, "--issuer=http://gateway.example"), "--issuer: "),
    ((*SIDECAR[:2], "--plain-http", f"--issuer={GATEWAY}"), "kubeconfig"),
    ((*FORWARD, "--issuer=http://gateway.example"), "--issuer"),
    ((*FORWARD, "--bind-address=everywhere"), "--bind-address"),
    ((*FORWARD, "--tls-cert-file=/nowhere/tls.crt"), "/nowhere/tls.crt"),
    ((*FORWARD, "--backend-ca-file=/nowhere/ca.crt"), "--backend-ca-file"),
    ((*FORWARD, "--key-period=0.1"), "--key-period"),
    ((*FORWARD, "--kubeconfig=/nowhere/kubeconfig"), "/nowhere/kubeconfig"),
    ((*FORWARD, "--user-rate=0"), "--user-rate"),
    ((*FRONT, "--kubeconfig=/nowhere/kubeconfig"), "/nowhere/kubeconfig"),
    ((*FRONT, "--bind-address=9443"), "--bind-address: expected host:port, got '9443'"),
    ((*FRONT, "--health-bind-address=x:y"), "--health-bind-address: expected host:port, got 'x:y'"),
    ((*FRONT, "--tls-cert-file=/nowhere/tls.crt"), "expected a certificate in PEM and its key, got No such file"),
    ((*FRONT, "--tls-cert-file=kubeconfig"), "got something else, or the key of another certificate"),
    ((*FRONT, "--max-stale=5"), "expected at least 120 s, got 5"),
    ((*FRONT, "--max-stale=nan"), "expected a number, got nan"),
    ((*FRONT, "--client-rate=0"), "'--client-rate': 0.0 is not in the range"),
    ((*FRONT, "--token-burst=-1"), "'--token-burst': -1 is not in the range"),
]


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_a_wrong_setting_is_one_line(
    words: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    Authority().certify(tmp_path)
    (tmp_path / "kubeconfig").write_bytes(kubeconfig("https://127.0.0.1:1", b""))
    assert main([*words[0].split(), *words[1:]]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("nodeattest: ")]
    assert said in line


@asynccontextmanager
async def serving(*words: str) -> AsyncGenerator[tuple[int, int]]:
    """Run a server until SIGTERM, at which it ends in order; gives its ports."""
    command = (*PROGRAM, *words, "--bind-address=127.0.0.1:0", "--health-bind-address=127.0.0.1:0", "--log-format=text")
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            line = ""
            while "serving on port" not in line:
                line = (await process.stderr.readline()).decode()
                assert line
        found = re.search(r"on port (\d+), health on (\d+)", line)
        assert found is not None
        yield int(found[1]), int(found[2])
    finally:
        process.send_signal(signal.SIGTERM)
        log = await process.stderr.read()
    assert await process.wait() == 0
    assert b"eyJ" not in log


async def test_it_serves_until_it_is_asked_to_end(tmp_path: Path) -> None:
    file = tmp_path / "openid/v1/jwks"
    file.parent.mkdir(parents=True)
    file.write_bytes(jwks_of("https://issuer.example", [elliptic().verifying]))
    async with serving("issuer", "serve", f"--dir={tmp_path}", "--issuer-base=https://issuer.example") as ports:
        assert (await exchange(ports[0], request("/openid/v1/jwks"))).body == file.read_bytes()
        assert (await exchange(ports[0], request("/openid/v1/jwks", "Content-Length: 1") + b"x")).status == 400
        metrics = (await exchange(ports[1], request("/metrics"))).body
    assert b'nodeattest_issuer_requests_total{code="200"} 1.0' in metrics


async def test_a_sidecar_of_key_files_is_ready_serves_and_ends_in_order(tmp_path: Path) -> None:
    file = tmp_path / "keys.pem"
    file.write_bytes(pem(elliptic().verifying))
    said = claims(int(time.time()), GATEWAY, aud="apps/a", sub="alice")
    given = token(elliptic(), header(elliptic()), said).decode()
    async with upstream() as seen:
        words = [*RIGHT[0].split(), *RIGHT[2:], f"--upstream={LOOPBACK}:{seen.port}", f"--jwks-file={file}"]
        async with serving(*words) as (port, health):
            answer = await exchange(port, request("/", f"Authorization: Bearer {given}"))
            assert (answer.status, seen.values("x-authenticated-user")) == (200, ["alice"])
            assert (await exchange(port, request("/"))).status == 401
            assert (await exchange(health, request("/readyz"))).body == b"ok"
            metrics = (await exchange(health, request("/metrics"))).body
            assert b'nodeattest_sidecar_forwarded_total{code="2xx"} 1.0' in metrics


def test_it_is_ready_once_it_knows_whom_to_believe_and_goes_on_with_its_keys_after_a_kill(tmp_path: Path) -> None:
    serving, (port, health) = Authority("gateway-ca"), free_ports(2)
    certificate, key = serving.certify(tmp_path)
    (tmp_path / "ca.crt").write_bytes(serving.pem)

    def readyz() -> str:
        try:
            return requests.get(f"http://{LOOPBACK}:{health}/readyz", timeout=60).text
        except requests.ConnectionError:
            return ""

    def kids() -> bytes:
        url = f"https://{LOOPBACK}:{port}/openid/v1/jwks"
        return requests.get(url, verify=str(tmp_path / "ca.crt"), timeout=60).content

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
        eventually(lambda: "was not read yet" in readyz(), "it says what it waits for")
        config = front_proxy_config(plane)
        admin.create(CONFIG_MAPS, config | {"data": {**config["data"], "requestheader-allowed-names": "[]"}})  # type: ignore[dict-item]
        eventually(lambda: "--requestheader-allowed-names" in readyz(), "it says what would be unsafe")
        admin.replace(f"{CONFIG_MAPS}/extension-apiserver-authentication", config)
        eventually(lambda: readyz() == "ok", "it is ready")
        before = kids()
        os.kill(first.pid(), signal.SIGKILL)
        first.stop()
        started(stack, "second", command, tmp_path)
        eventually(lambda: readyz() == "ok", "it is ready again")
        assert kids() == before
        assert before.count(b"kid") == 1
