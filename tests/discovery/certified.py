"""Certificates of a CA for any subject, names and purpose: what it signs that is no API server's."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier
from lying_servers import Ca

LOOPBACK: Final = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
SERVER: Final = ExtendedKeyUsageOID.SERVER_AUTH
CLIENT: Final = ExtendedKeyUsageOID.CLIENT_AUTH


def certified(
    name: str, *held: x509.GeneralName, group: str | None = None, usage: ObjectIdentifier = SERVER, ca: Ca
) -> bytes:
    """Make a certificate of a CA and its key, in PEM, for a name, an organisation and SANs of choice."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if group is not None:
        subject.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        ca.name, x509.Name(subject), key.public_key(), 4711, now - timedelta(hours=1), now + timedelta(hours=1)
    )
    if held:
        builder = builder.add_extension(x509.SubjectAlternativeName(held), critical=False)
    made = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False).sign(ca.key, hashes.SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return private + made.public_bytes(Encoding.PEM)


def kubelets(ca: Ca, node: str = "worker-1") -> bytes:
    """Make what the signer kubernetes.io/kubelet-serving gives a node."""
    return certified(f"system:node:{node}", LOOPBACK, x509.DNSName(node), group="system:nodes", ca=ca)
