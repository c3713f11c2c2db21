"""``nodeattest issuer serve``: as a program, and what is set wrong as one line."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from nodeattest_cli.main import main

FILE = "--service-account-key-file=a"
ISSUER = "--service-account-issuer=https://issuer.example"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder."""
    monkeypatch.chdir(tmp_path)


def key_file(directory: Path) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    file = directory / "sa.key"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return f"--service-account-key-file={file}"


def test_it_serves_until_it_is_asked_to_end(tmp_path: Path) -> None:
    words = ["issuer", "serve", key_file(tmp_path), ISSUER, "--bind-address=127.0.0.1:0"]
    with subprocess.Popen([sys.executable, "-m", "nodeattest_cli.main", *words], stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline().decode()
            port = re.search(r"on port (\d+)", line)
            assert port is not None, line
            with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/openid/v1/jwks", timeout=60) as answer:
                (key,) = json.load(answer)["keys"]
            assert sorted(key) == ["alg", "crv", "kid", "kty", "use", "x", "y"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([ISSUER], "expected one source of keys"),
        ([ISSUER, FILE, "--kubeconfig=b"], "got none or several"),
        ([ISSUER, "--in-cluster", "--kubeconfig=b"], "got none or several"),
        ([FILE], "expected --service-account-issuer"),
        ([FILE, "--service-account-issuer=http://a.example"], "expected the https URL"),
        ([FILE, ISSUER, ISSUER], "got two under"),
        (
            ["--service-account-key-file=none.pem", ISSUER],
            "none.pem: expected a readable file with keys, got",
        ),
        (
            [FILE, ISSUER, "--service-account-jwks-uri=keys"],
            "expected the https URL of a key set",
        ),
        (["--clusters-base-url=https://a.example", "--in-cluster", ISSUER], "--clusters-base-url: expected"),
        (
            ["--clusters-base-url=https://a.example", "--in-cluster", "--allowed-addresses=10.0.0.0/8,loopback"],
            "--allowed-addresses: expected IP addresses and networks such as 127.0.0.0/8, got: 'loopback'",
        ),
        (["--clusters-base-url=https://a.example?x", "--in-cluster"], "expected the https URL of an issuer"),
        (["--kubeconfig=none", ISSUER], "none"),
        ([FILE, ISSUER, "--bind-address=:8443"], "expected --tls-cert-file"),
        ([FILE, ISSUER, "--tls-cert-file=a"], "together, got one of them"),
        ([FILE, ISSUER, "--max-age=-1"], "--max-age: expected 0"),
        ([FILE, ISSUER, "--max-stale=5"], "--max-stale: expected at least"),
        ([FILE, ISSUER, "--period=nan"], "expected a number, got nan"),
        (
            [FILE, ISSUER, "--health-bind-address=x"],
            "--health-bind-address: expected host:port",
        ),
    ],
)
def test_a_wrong_setting_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    if not any(word.startswith("--bind-address") for word in words):
        words = [*words, "--bind-address=127.0.0.1:0"]
    assert main(["issuer", "serve", *words]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("nodeattest: ")]
    assert said in line
