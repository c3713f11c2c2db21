"""Certificates, kubeconfigs and JWTs that the tests of discovery's core share."""

from __future__ import annotations

import base64
import copy
import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from nodeattest_discovery.token import BootstrapToken
from nodeattest_parsing.strict_base64 import encode_base64url
from nodeattest_providers.node_interface import JsonObject, JsonValue

NOW: Final = datetime(2026, 11, 21, 12, tzinfo=UTC)
SERVER: Final = "https://10.0.0.1:6443"
KEY: Final = ec.derive_private_key(7, ec.SECP256R1())
OTHER_KEY: Final = ec.derive_private_key(8, ec.SECP256R1())
KEY_PEM: Final = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
HERE: Final = Path(__file__).parent

Spoil = Callable[[JsonObject], object]
"""A change of a kubeconfig, in place."""


def certificate(
    key: CertificateIssuerPrivateKeyTypes = KEY, *, name: str = "cluster-ca", ca: bool | None = True, number: int = 7
) -> x509.Certificate:
    """Make a self-signed certificate; ``ca`` None leaves basic constraints out."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), number)
    builder = builder.not_valid_before(datetime(2026, 1, 1, tzinfo=UTC)).not_valid_after(
        datetime(2036, 1, 1, tzinfo=UTC)
    )
    if ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca, None), critical=True)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm)


def pem(*certificates: x509.Certificate) -> bytes:
    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


CA: Final = certificate()
OTHER_CA: Final = certificate(OTHER_KEY, name="another")


def kubeconfig(ca_pem: bytes = b"", **cluster: JsonValue) -> JsonObject:
    """Make the document of a sound cluster-info, with other members of the cluster."""
    data = base64.b64encode(ca_pem or pem(CA)).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "", "cluster": {"certificate-authority-data": data, "server": SERVER, **cluster}}],
        "contexts": None,
        "current-context": "",
        "users": None,
    }


def written(document: JsonObject) -> str:
    """Write a kubeconfig as JSON, which is YAML."""
    return json.dumps(document)


def spoilt(spoil: Spoil) -> str:
    """Write the sound cluster-info after a change."""
    document = copy.deepcopy(kubeconfig())
    spoil(document)
    return written(document)


def rows_of(document: JsonObject) -> list[JsonValue]:
    """Open ``clusters``."""
    return cast("list[JsonValue]", document["clusters"])


def row_of(document: JsonObject) -> JsonObject:
    """Open ``clusters[0]``."""
    return cast("JsonObject", rows_of(document)[0])


def cluster_of(document: JsonObject) -> JsonObject:
    """Open ``clusters[0].cluster``."""
    return cast("JsonObject", row_of(document)["cluster"])


# JWTs that nobody of ours would write


JWT_NOW: Final = 1_800_000_000
TOKEN: Final = BootstrapToken("abcdef", "0123456789abcdef")
HEADER: Final[dict[str, object]] = {"alg": "HS256", "kid": TOKEN.id, "typ": "JWT"}
CLAIMS: Final[dict[str, object]] = {"sub": TOKEN.id, "iat": JWT_NOW, "exp": JWT_NOW + 60}


def spell(value: object) -> bytes:
    """Write JSON as short as it gets."""
    return json.dumps(value, separators=(",", ":")).encode()


def jwt(
    header: object = HEADER, claims: object = CLAIMS, *, secret: str = TOKEN.secret, digest: str = "sha256"
) -> bytes:
    """Sign any header over any claims; bytes stand as they are."""
    parts = [part if isinstance(part, bytes) else spell(part) for part in (header, claims)]
    signed = ".".join(map(encode_base64url, parts)).encode()
    return signed + b"." + encode_base64url(hmac.digest(secret.encode(), signed, getattr(hashlib, digest))).encode()
