"""The soak bench works, and its verdict can be no."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bench.soak.audit import audit
from fuzz.keys import AUTHORITY_KEY, NOW, authority
from nodeattest_controller.model.certificate_authority import CertificateAuthority, SignedCertificate, sign_certificate
from nodeattest_controller.model.objects import rfc3339
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.names import NodeName

ROOT = Path(__file__).parents[2]
CA = CertificateAuthority(authority(), AUTHORITY_KEY, frozenset())
KEYS = [ec.derive_private_key(number, ec.SECP256R1()) for number in (11, 12)]


def spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def issued(key: int, *, node: str = "a", serial: int = 5) -> SignedCertificate:
    return sign_certificate(
        CA, node_name=NodeName(node), spki=spki(KEYS[key]), lifetime=60, now=NOW, serial=lambda: serial
    )


def csr(certificate: SignedCertificate) -> JsonObject:
    encoded = base64.b64encode(certificate.pem.encode()).decode()
    return {"metadata": {"name": "r"}, "status": {"certificate": encoded}}


def ledger(key: int, certificate: SignedCertificate) -> JsonObject:
    entry: JsonObject = {
        "spki": "sha256:" + hashlib.sha256(spki(KEYS[key])).hexdigest(),
        "serial": certificate.serial,
        "certificate": certificate.pem,
        "notBefore": rfc3339(certificate.not_before),
        "notAfter": rfc3339(certificate.not_after),
        "issuedAt": rfc3339(NOW),
    }
    return {"metadata": {"name": "m"}, "spec": {"issued": [entry]}}


def test_one_certificate_for_one_key_in_request_and_ledger_is_sound() -> None:
    found = audit([csr(issued(0)), csr(issued(1, serial=6)), {"metadata": {"name": "open"}}], [ledger(0, issued(0))])
    assert (found.keys, found.published, found.violations) == (2, 2, ())


@pytest.mark.parametrize(
    ("csrs", "ledgers", "said"),
    [
        ([csr(issued(0)), csr(issued(0, serial=6))], [], "has the serial numbers 5, 6"),
        ([csr(issued(0))], [ledger(0, issued(0, serial=6))], "has the serial numbers 5, 6"),
        ([csr(issued(0)), csr(issued(1))], [], "5 has the keys"),
        ([csr(issued(0)), csr(issued(0, node="b"))], [], "has the nodes system:node:a, system:node:b"),
        ([], [ledger(0, issued(0))], "was signed and never published"),
    ],
    ids=["two serial numbers", "another in the ledger", "one serial for two keys", "two nodes", "never published"],
)
def test_a_key_certified_twice_is_told(csrs: list[JsonObject], ledgers: list[JsonObject], said: str) -> None:
    (violation,) = audit(csrs, ledgers).violations
    assert said in violation


@pytest.mark.swtpm
def test_a_small_soak_loses_no_node_and_signs_nothing_twice() -> None:
    options = ["--nodes", "5", "--minutes", "0.33", "--lifetime", "2m", "--beat", "0.5", "--json"]
    command = [sys.executable, "-m", "bench", "soak", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    told = json.loads(done.stdout)
    figures = {figure["name"]: figure["value"] for figure in told["figures"]}
    assert told["problems"] == []
    assert figures["nodes lost"] == 0
    assert figures["keys certified"] >= 5
    assert figures["requests by nodes"] > 50
    assert "controller killed" in done.stderr
    assert figures["controllers, one after the other"] >= 2
    assert "the API server was frozen" in done.stderr
