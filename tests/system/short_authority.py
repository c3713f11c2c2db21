"""Certificates that end soon, without the product being told that this is a test."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from world import CLUSTER, NAMESPACE, World


def shorten_certificates(world: World, seconds: int) -> None:
    """Let the cluster's CA end soon, hence every certificate that it signs from now on."""
    pki = world.workload.pki
    ca = x509.load_pem_x509_certificate(pki.ca_certificate.read_bytes())
    key = serialization.load_pem_private_key(pki.ca_key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    builder = (
        x509.CertificateBuilder()
        .subject_name(ca.subject)
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(ca.not_valid_before_utc)
        .not_valid_after(datetime.now(UTC) + timedelta(seconds=seconds))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    data = {"tls.crt": base64.b64encode(pem).decode(), "tls.key": base64.b64encode(pki.ca_key.read_bytes()).decode()}
    world.admin.patch(f"/api/v1/namespaces/{NAMESPACE}/secrets/{CLUSTER}-ca", {"data": {**data}})
