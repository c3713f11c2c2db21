"""Our documents beside those of a real kube-apiserver that was given the same files: not one byte may differ.

The unit goldens are those of Kubernetes' own test, pkg/serviceaccount/openidmetadata_test.go.
"""

from __future__ import annotations

import base64
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
from nodeattest_identity.issuer.keys import read_pem, verifying_key
from nodeattest_sandbox.control_plane import ControlPlane, start_real

ISSUER: Final = "https://issuer.example/clusters/a&b"
JWKS_URI: Final = "https://elsewhere.example/keys"
JWKS_TYPE: Final = {"Accept": "application/jwk-set+json"}
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

# The two public keys of Kubernetes' test, and what it expects of them.
GO_RSA_N: Final = (
    "249XwEo9k4tM8fMxV7zxOhcrP-WvXn917koM5Qr2ZXs4vo26e4ytdlrV0bQ9SlcLpQVSYjIxNfhTZdDt-ecIzshKuv1gKIxbbLQMOuK1eA_4HALyEkFg"
    "mS_tleLJrhc65tKPMGD-pKQ_xhmzRuCG51RoiMgbQxaCyYxGfNLpLAZK9L0Tctv9a0mJmGIYnIOQM4kC1A1I1n3EsXMWmeJUj7OTh_AjjCnMnkgvKT2t"
    "pKxYQ59PgDgU8Ssc7RDSmSkLxnrv-OrN80j6xrw0OjEiB4Ycr0PqfzZcvy8efTtFQ_Jnc4Bp1zUtFXt7-QeevePtQ2EcyELXE0i63T1CujRMWw"
)
GO_EC_X: Final = "H6cuzP8XuD5wal6wf9M6xDljTOPLX2i8uIp_C_ASqiI"
GO_EC_Y: Final = "BlHnikLV9PyEd6gl8k4T_3Wwoh6xd79XLoQTh2PAi1Y"
GO_CONFIGURATION: Final = (
    '{"issuer":"https://issuer.example.com","jwks_uri":"%s","response_types_supported":["id_token"],'
    '"subject_types_supported":["public"],"id_token_signing_alg_values_supported":["ES256","RS256"]}'
)
GO_JWKS: Final = (
    '{"keys":[{"use":"sig","kty":"RSA","kid":"JHJehTTTZlsspKHT-GaJxK7Kd1NQgZJu3fyK6K_QDYU","alg":"RS256",'
    f'"n":"{GO_RSA_N}","e":"AQAB"}},{{"use":"sig","kty":"EC","kid":"SoABiieYuNx4UdqYvZRVeuC6SihxgLrhLy9peHMHpTc",'
    f'"crv":"P-256","alg":"ES256","x":"{GO_EC_X}","y":"{GO_EC_Y}"}}]}}'
)


def number(text: str) -> int:
    return int.from_bytes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


@pytest.mark.parametrize(
    "jwks_uri", ["https://issuer.example.com/openid/v1/jwks", "https://192.0.2.1:80/openid/v1/jwks"]
)
def test_kubernetes_own_vectors_come_out_byte_for_byte(jwks_uri: str) -> None:
    one = rsa.RSAPublicNumbers(65537, number(GO_RSA_N)).public_key()
    other = ec.EllipticCurvePublicNumbers(number(GO_EC_X), number(GO_EC_Y), ec.SECP256R1()).public_key()
    made = documents("https://issuer.example.com", jwks_uri, [verifying_key(one), verifying_key(other)])
    assert made.configuration.decode() == GO_CONFIGURATION % jwks_uri
    assert made.jwks.decode() == GO_JWKS


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
