"""``nodeattest addon-auth sidecar``: what is set wrong is one line; what is set right serves, and ends on SIGTERM."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from proxy_kit import LOOPBACK, exchange, request, upstream
from token_kit import claims, elliptic, header, token

from nodeattest_cli.main import main

ISSUER = "https://gateway.example"
RIGHT = ("--upstream=127.0.0.1:8080", "--plain-http", f"--issuer={ISSUER}", "--audience=apps/a")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((*RIGHT, "--upstream=10.0.0.1:80"), "--upstream: expected 127.0.0.1:port or [::1]:port, got 10.0.0.1:80"),
        ((*RIGHT, "--upstream=localhost:80"), "expected 127.0.0.1:port"),
        ((*RIGHT, "--token-review"), "--issuer, --token-review: expected one of the two"),
        (("--upstream=127.0.0.1:1", "--plain-http"), "--issuer, --token-review: expected one of the two"),
        ((*RIGHT, "--tls-cert-file=a"), "--tls-cert-file, --plain-http: expected one of the two"),
        ((RIGHT[0], *RIGHT[2:]), "--tls-cert-file, --plain-http: expected one of the two"),
        ((RIGHT[0], *RIGHT[2:], "--tls-cert-file=a"), "expected --tls-private-key-file beside it"),
        ((*RIGHT, "--open-path=/a/../b"), "'--open-path': expected a path of plain segments"),
        ((*RIGHT, "--max-request-duration=0"), "'--max-request-duration': 0.0 is not in the range"),
        ((*RIGHT, "--jwks-file=nowhere"), "--jwks-file: nowhere: expected a readable file with keys"),
        ((*RIGHT, "--issuer=http://gateway.example"), "--issuer: "),
        ((*RIGHT[:3],), "kubeconfig"),
    ],
)
def test_a_wrong_sidecar_setting_is_one_line(
    flags: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["addon-auth", "sidecar", *flags]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("nodeattest: ")]
    assert said in line


async def test_a_sidecar_of_key_files_is_ready_serves_and_ends_in_order(tmp_path: Path) -> None:
    pem = tmp_path / "keys.pem"
    pem.write_bytes(elliptic().verifying.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    said = claims(int(time.time()), ISSUER) | {"aud": "apps/a", "sub": "alice"}
    given = token(elliptic(), header(elliptic()), said).decode()
    async with upstream() as seen:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "nodeattest_cli.main", "addon-auth", "sidecar", *RIGHT[1:],
            "--bind-address=127.0.0.1:0", f"--upstream={LOOPBACK}:{seen.port}", f"--jwks-file={pem}",
            "--health-bind-address=127.0.0.1:0",
            "--log-format=text", stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stderr is not None
        try:
            async with asyncio.timeout(60):
                line = ""
                while "serving on port" not in line:
                    line = (await process.stderr.readline()).decode()
                    assert line
            found = re.search(r"on port (\d+), health on (\d+)", line)
            assert found is not None
            port, health = int(found.group(1)), int(found.group(2))
            answer = await exchange(port, request("/", f"Authorization: Bearer {given}"))
            assert (answer.status, seen.values("x-authenticated-user")) == (200, ["alice"])
            assert (await exchange(port, request("/"))).status == 401
            assert (await exchange(health, request("/readyz"))).body == b"ok"
            metrics = (await exchange(health, request("/metrics"))).body
            assert b'nodeattest_sidecar_forwarded_total{code="2xx"} 1.0' in metrics
        finally:
            process.send_signal(signal.SIGTERM)
            rest = await process.stderr.read()
        assert await process.wait() == 0
        assert given.encode() not in rest
