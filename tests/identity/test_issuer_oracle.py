"""Our documents beside those of a real kube-apiserver that was given the same files: not one byte may differ.

The unit goldens are those of Kubernetes' own test, pkg/serviceaccount/openidmetadata_test.go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from nodeattest_identity.issuer.documents import CONFIGURATION_PATH, JWKS_PATH, documents
from nodeattest_identity.issuer.keys import read_pem
from nodeattest_sandbox.control_plane import ControlPlane, start_real

ISSUER: Final = "https://issuer.example/clusters/a&b"
JWKS_URI: Final = "https://elsewhere.example/keys"
JWKS_TYPE: Final = {"Accept": "application/jwk-set+json"}
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def public(key: PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def private(key: PrivateKey, form: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def rsa_key(exponent: int = 65537) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(exponent, 2048)


def certificate(key: rsa.RSAPrivateKey) -> bytes:
    nobody = x509.Name([])
    unsigned = x509.CertificateBuilder().subject_name(nobody).issuer_name(nobody).public_key(key.public_key())
    unsigned = unsigned.serial_number(5).not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
    return (
        unsigned.not_valid_after(datetime(2040, 1, 1, tzinfo=UTC)).sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    )


def short_point(curve: ec.EllipticCurve) -> ec.EllipticCurvePrivateKey:
    """Make a key one of whose coordinates begins with a zero byte, which must stay."""
    while True:
        key = ec.generate_private_key(curve)
        point = key.public_key().public_numbers()
        if min(point.x, point.y).bit_length() <= 8 * ((curve.key_size + 7) // 8 - 1):
            return key


@dataclass(frozen=True)
class Served:
    """A kube-apiserver and the files that it was given, in the order of its flags."""

    plane: ControlPlane
    files: list[Path]

    def get(self, path: str, **headers: str) -> bytes:
        return self.plane.client().send("GET", path, headers=headers or None)[1]


def write_files(directory: Path, account: Path) -> list[Path]:
    p256 = ec.SECP256R1()
    contents = {
        "z-many.pem": public(short_point(ec.SECP521R1())) + b"a comment\n" + public(short_point(p256)),
        "a-more.pem": public(short_point(ec.SECP384R1())) + public(rsa_key()),
        "odd-exponent.pem": public(rsa_key(3)),
        "certificate.pem": certificate(rsa_key()),
        "private-pkcs1.pem": private(rsa_key(), PrivateFormat.TraditionalOpenSSL),
        "private-pkcs8.pem": private(rsa_key(), PrivateFormat.PKCS8),
        "private-sec1.pem": b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
        + private(ec.generate_private_key(p256), PrivateFormat.TraditionalOpenSSL),
    }
    directory.mkdir()
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    return [account, *(directory / name for name in contents)]


@pytest.fixture(scope="module")
def served(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("issuer-oracle")
    files = write_files(directory / "keys", Path("/of/the/control/plane"))[1:]
    flags = [f"--service-account-key-file={file}" for file in files]
    flags += [f"--service-account-jwks-uri={JWKS_URI}"]
    with start_real(directory / "plane", assets, name="issuer-oracle", flags=flags, issuer=ISSUER) as plane:
        yield Served(plane, [plane.pki.account_public_key, *files])


@pytest.mark.conformance
def test_both_documents_equal_kube_apiservers_byte_for_byte(served: Served) -> None:
    made = documents(ISSUER, JWKS_URI, [key for file in served.files for key in read_pem(file.read_bytes())])
    assert made.configuration == served.get(CONFIGURATION_PATH)
    assert made.jwks == served.get(JWKS_PATH, **JWKS_TYPE)
    assert len(made.keys) == 10
    assert {key.alg for key in made.keys} == {"RS256", "ES256", "ES384", "ES512"}
