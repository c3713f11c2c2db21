"""An issuer's documents beside a real kube-apiserver's, and the rights of their readers."""

from __future__ import annotations

from pathlib import Path
from typing import Final, cast

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from front_kit import Authority

from nodeattest_controller import manifests
from nodeattest_identity.issuer.documents import CONFIGURATION_PATH, JWKS_PATH, documents
from nodeattest_identity.issuer.keys import read_pem
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.control_plane import start_real

ISSUER: Final = "https://issuer.example/clusters/a&b"
JWKS_URI: Final = "https://elsewhere.example/keys"
JWKS_TYPE: Final = {"Accept": "application/jwk-set+json"}
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
P256: Final = ec.SECP256R1()


def public(key: PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def private(key: PrivateKey, form: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def rsa_key(exponent: int = 65537) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(exponent, 2048)


@pytest.mark.conformance
def test_both_documents_equal_kube_apiservers_byte_for_byte(assets: Path, tmp_path: Path) -> None:
    contents = [
        public(ec.generate_private_key(ec.SECP521R1())) + b"a comment\n" + public(ec.generate_private_key(P256)),
        public(ec.generate_private_key(ec.SECP384R1())) + public(rsa_key()),
        public(rsa_key(3)),
        Authority().pem,
        private(rsa_key(), PrivateFormat.TraditionalOpenSSL),
        private(rsa_key(), PrivateFormat.PKCS8),
        b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
        + private(ec.generate_private_key(P256), PrivateFormat.TraditionalOpenSSL),
    ]
    flags = [f"--service-account-jwks-uri={JWKS_URI}"]
    for number, content in enumerate(contents):
        file = tmp_path / f"{9 - number}.pem"
        file.write_bytes(content)
        flags.append(f"--service-account-key-file={file}")
    with start_real(tmp_path / "plane", assets, name="issuer-oracle", flags=flags, issuer=ISSUER) as plane:
        account = plane.pki.account_public_key.read_bytes()
        made = documents(ISSUER, JWKS_URI, [key for each in (account, *contents) for key in read_pem(each)])
        assert made.configuration == plane.client().send("GET", CONFIGURATION_PATH)[1]
        assert made.jwks == plane.client().send("GET", JWKS_PATH, headers=JWKS_TYPE)[1]
    assert len(made.keys) == 10
    assert {key.alg for key in made.keys} == {"RS256", "ES256", "ES384", "ES512"}


URLS: Final = sorted(f"{path}{slash}" for path in (CONFIGURATION_PATH, JWKS_PATH) for slash in ("", "/"))


def shipped(name: str) -> tuple[JsonMap, JsonMap]:
    """Return a role of manifests/workload-issuer and its binding."""
    made = cast("list[JsonMap]", manifests.objects("workload-issuer"))
    role, binding = (each for each in made if text_at(each, "metadata", "name") == name)
    return role, binding


def test_the_role_has_kubernetes_own_name_and_its_four_urls() -> None:
    role, binding = shipped("system:service-account-issuer-discovery")
    assert role["rules"] == [{"nonResourceURLs": URLS, "verbs": ["get"]}]
    assert binding["subjects"] == [
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:serviceaccounts"}
    ]
    assert role["metadata"] == binding["metadata"]


def test_the_controller_reads_both_documents_and_may_nothing_else() -> None:
    role, binding = shipped("nodeattest:issuer-reader")
    assert role["rules"] == [{"nonResourceURLs": [CONFIGURATION_PATH, JWKS_PATH], "verbs": ["get"]}]
    account = {"kind": "ServiceAccount", "name": "node-attestation-controller", "namespace": "kube-system"}
    assert binding["subjects"] == [account]
