"""The sandbox cloud's own certificate authority: no cluster's, and no system's."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from nodeattest_sandbox.certificates import builder, usage
from nodeattest_sandbox.child_process import LOOPBACK

__all__ = ["make_authority", "serving_context"]


def make_authority(directory: Path) -> tuple[Path, ssl.SSLContext]:
    """Make a CA and a server certificate for loopback; return the CA's file and the server's context."""
    directory.mkdir(parents=True, exist_ok=True)
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nodeattest sandbox Google Cloud CA")])
    constraints = x509.BasicConstraints(ca=True, path_length=0)
    ca = builder(name, name, ca_key.public_key()).add_extension(constraints, critical=True)
    ca = ca.add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
    ca_certificate = ca.add_extension(usage(signing=True), critical=True).sign(ca_key, hashes.SHA256())
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOOPBACK))])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "compute.sandbox")])
    server = builder(subject, name, key.public_key()).add_extension(address, critical=False)
    server_certificate = server.add_extension(issuer, critical=False).sign(ca_key, hashes.SHA256())
    ca_file, chain = directory / "cloud-ca.pem", directory / "cloud-server.pem"
    ca_file.write_bytes(ca_certificate.public_bytes(Encoding.PEM))
    chain.touch(mode=0o600)
    chain.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + server_certificate.public_bytes(Encoding.PEM)
    )
    return ca_file, serving_context(chain)


def serving_context(chain: Path) -> ssl.SSLContext:
    """Load a server's key and certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    return context
