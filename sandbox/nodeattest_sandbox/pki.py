"""The certificates of one control plane: its CA, the server, its users.

Promises: ECDSA P-256 throughout; keys are readable by their owner only; the CA key stays with the caller, who signs
with it in the tests. A control plane found on disk is used again.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import os
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME: Final = timedelta(days=365)
_BACKDATE: Final = timedelta(minutes=5)


def builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey | rsa.RSAPublicKey
) -> x509.CertificateBuilder:
    """Begin a certificate that is valid from a little ago for a year."""
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _BACKDATE,
        not_valid_after=now + LIFETIME,
    )


def usage(*, signing: bool) -> x509.KeyUsage:
    """Make the key usage of an authority (``signing``) or of a server or user."""
    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=signing, crl_sign=signing, encipher_only=False, decipher_only=False,
    )  # fmt: skip


_SERVER_NAMES: Final = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)


@dataclass(frozen=True, slots=True)
class ClusterPki:
    """The files of one control plane's PKI in ``directory``."""

    directory: Path

    @classmethod
    def make(cls, directory: Path, name: str) -> ClusterPki:
        """Make CA, server certificate and service-account key, unless they are there already."""
        pki = cls(directory)
        if pki.ca_key.exists():
            return pki
        directory.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        _write(pki.ca_certificate, _pem(certify_ca(f"{name}-ca", key)))
        _write(pki.server_key, _private_pem(server_key := ec.generate_private_key(ec.SECP256R1())))
        _write(pki.ca_key, _private_pem(key))
        extensions = _server_extensions(_SERVER_NAMES)
        _write(pki.server_certificate, _pem(pki._certify(server_key.public_key(), "kube-apiserver", (), extensions)))
        account_key = rsa.generate_private_key(65537, 2048)  # kube-apiserver signs tokens with RS256.
        _write(pki.account_key, _private_pem(account_key))
        _write(pki.account_public_key, _public_pem(account_key.public_key()))
        return pki

    @property
    def ca_certificate(self) -> Path:
        """The cluster CA."""
        return self.directory / "ca.crt"

    @property
    def ca_key(self) -> Path:
        """The key of the cluster CA."""
        return self.directory / "ca.key"

    @property
    def server_certificate(self) -> Path:
        """The API server's certificate."""
        return self.directory / "apiserver.crt"

    @property
    def server_key(self) -> Path:
        """The API server's key."""
        return self.directory / "apiserver.key"

    @property
    def account_key(self) -> Path:
        """The key that signs service-account tokens."""
        return self.directory / "sa.key"

    @property
    def account_public_key(self) -> Path:
        """Its public half."""
        return self.directory / "sa.pub"

    def client_kubeconfig(self, path: Path, server: str, user: str, groups: Sequence[str]) -> Path:
        """Write a kubeconfig (JSON, which is YAML) with a fresh certificate for the user."""
        key = ec.generate_private_key(ec.SECP256R1())
        usage = [x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])]
        certificate = self._certify(key.public_key(), user, groups, usage)
        credential = {
            "client-certificate-data": _base64(_pem(certificate)),
            "client-key-data": _base64(_private_pem(key)),
        }
        _write(path, json.dumps(self._kubeconfig(server, user, credential), indent=1).encode())
        return path

    def files(self, name: str, hosts: Sequence[str] = ()) -> tuple[Path, Path]:
        """Write certificate and key of a client, or of a server with these DNS names."""
        key = ec.generate_private_key(ec.SECP256R1())
        client = [x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])]
        certificate = self._certify(key.public_key(), name, (), _server_extensions(hosts) if hosts else client)
        paths = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        _write(paths[0], _pem(certificate))
        _write(paths[1], _private_pem(key))
        return paths

    def token_kubeconfig(self, path: Path, server: str, token: str) -> Path:
        """Write a kubeconfig that carries a bearer token; an empty one makes it anonymous."""
        _write(
            path, json.dumps(self._kubeconfig(server, "token", {"token": token} if token else {}), indent=1).encode()
        )
        return path

    def _kubeconfig(self, server: str, user: str, credential: dict[str, str]) -> dict[str, object]:
        cluster = {"server": server, "certificate-authority-data": _base64(self.ca_certificate.read_bytes())}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "default", "cluster": cluster}],
            "users": [{"name": user, "user": credential}],
            "contexts": [{"name": "default", "context": {"cluster": "default", "user": user}}],
            "current-context": "default",
        }

    def _certify(
        self, key: ec.EllipticCurvePublicKey, name: str, groups: Sequence[str], extensions: Sequence[x509.ExtensionType]
    ) -> x509.Certificate:
        ca = x509.load_pem_x509_certificate(self.ca_certificate.read_bytes())
        ca_key = serialization.load_pem_private_key(self.ca_key.read_bytes(), None)
        if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
            raise TypeError(f"the CA key is not an ECDSA key: {self.ca_key}")
        organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, name)])
        unsigned = builder(subject, ca.subject, key).add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        unsigned = unsigned.add_extension(usage(signing=False), critical=True)
        # Python 3.13 and later refuse a server's certificate without it; kubeadm's have it.
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        unsigned = unsigned.add_extension(authority, critical=False)
        for extension in extensions:
            unsigned = unsigned.add_extension(extension, critical=False)
        return unsigned.sign(ca_key, hashes.SHA256())


def server_tls(directory: Path, name: str, hosts: Sequence[str] = _SERVER_NAMES) -> tuple[Path, ssl.SSLContext]:
    """Make a CA and a server on loopback with these DNS names; return the CA's file and the server's context."""
    pki = ClusterPki.make(directory, name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pki.files(f"{name}-server", hosts))
    return pki.ca_certificate, context


def _server_extensions(hosts: Sequence[str]) -> list[x509.ExtensionType]:
    names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts]
    names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    return [x509.SubjectAlternativeName(names), x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])]


def certify_ca(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name | None = None,
    issuer_key: ec.EllipticCurvePrivateKey | None = None,
) -> x509.Certificate:
    """Make the certificate of a CA, which signs itself where no issuer is given."""
    subject, signing_key = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), issuer_key or key
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key())
    ca = builder(subject, issuer or subject, key.public_key())
    ca = ca.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    ca = ca.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    ca = ca.add_extension(authority, critical=False).add_extension(usage(signing=True), critical=True)
    return ca.sign(signing_key, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _public_pem(key: rsa.RSAPublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _write(path: Path, data: bytes) -> None:
    """Write a private file that appears whole: another thread may read the one that was there before."""
    descriptor, name = tempfile.mkstemp(dir=path.parent)  # 0600
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    Path(name).replace(path)
