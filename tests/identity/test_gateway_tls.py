"""The gateway's TLS: which certificates of clients count, and a serving certificate that is replaced."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from front_kit import LOOPBACK, Authority
from gateway_kit import certify

from nodeattest_identity.addon.gateway.front_proxy import FrontProxyTrust, GatewayTls
from nodeattest_sandbox.pki import builder, usage


@dataclass
class Site:
    directory: Path
    serving: Authority = field(default_factory=lambda: Authority("gateway-ca"))
    now: float = 0.0
    port: int = 0

    def __post_init__(self) -> None:
        certificate, key = certify(self.serving, self.directory, "gateway", hosts=("localhost",))
        self.tls = GatewayTls(certificate, key, clock=lambda: self.now)

    def set_trust(self, *ders: bytes) -> None:
        self.tls.set_trust(FrontProxyTrust(authorities=ders, allowed_names=frozenset(), has_uid=False))

    async def name(self, certificate: tuple[Path, Path] | None, *, version: ssl.TLSVersion | None = None) -> str:
        """Connect and return how the gateway calls us."""
        context = ssl.create_default_context(cadata=self.serving.pem.decode())
        if version is not None:
            context.maximum_version = version
        if certificate is not None:
            context.load_cert_chain(*certificate)
        try:
            reader, writer = await asyncio.open_connection(LOOPBACK, self.port, ssl=context)
        except OSError:
            return "no connection"
        try:
            told = await reader.read()
        except OSError:
            told = b""
        finally:
            writer.close()
        return told.decode() or "no connection"

    async def serial(self) -> int:
        """Connect and return the serial number of what the gateway shows."""
        context = ssl.create_default_context(cadata=self.serving.pem.decode())
        _, writer = await asyncio.open_connection(LOOPBACK, self.port, ssl=context)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return x509.load_der_x509_certificate(shown).serial_number


@asynccontextmanager
async def running(site: Site) -> AsyncGenerator[Site]:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(repr(site.tls.common_name(writer.transport)).encode())
        writer.close()

    server = await asyncio.start_server(answer, LOOPBACK, 0, ssl=site.tls.context)
    site.port = int(server.sockets[0].getsockname()[1])
    async with server:
        yield site


def der(authority: Authority) -> bytes:
    return authority.certificate.public_bytes(Encoding.DER)


def with_names(authority: Authority, directory: Path, *names: str) -> tuple[Path, Path]:
    """Certify a client that has several common names, or none."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "o"),
            *(x509.NameAttribute(NameOID.COMMON_NAME, n) for n in names),
        ]
    )
    made = builder(subject, authority.name, key.public_key()).add_extension(usage(signing=False), critical=True)
    made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
    certificate, private = directory / "odd.crt", directory / "odd.key"
    certificate.write_bytes(made.sign(authority.key, hashes.SHA256()).public_bytes(Encoding.PEM))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return certificate, private


async def test_a_certificate_counts_by_its_ca_and_its_purpose(tmp_path: Path) -> None:
    front, other = Authority("front-proxy-ca"), Authority("front-proxy-ca")
    async with running(Site(tmp_path)) as site:
        site.set_trust(der(front))
        assert await site.name(None) == "None"
        right = certify(front, tmp_path / "a", "front-proxy-client", client=True)
        assert await site.name(right) == "'front-proxy-client'"
        for wrong in (
            certify(other, tmp_path / "b", "front-proxy-client", client=True),
            certify(front, tmp_path / "c", "front-proxy-client", hosts=("localhost",)),
        ):
            assert await site.name(wrong) == "no connection"
        site.tls.set_trust(None)
        assert await site.name(right) == "no connection"


@pytest.mark.parametrize("names", [(), ("front-proxy-client", "admin")])
async def test_a_certificate_with_no_name_or_with_two_is_nobodys(tmp_path: Path, names: tuple[str, ...]) -> None:
    front = Authority("front-proxy-ca")
    async with running(Site(tmp_path)) as site:
        site.set_trust(der(front))
        assert await site.name(with_names(front, tmp_path, *names)) == "None"


async def test_nothing_older_than_tls_1_3_is_spoken(tmp_path: Path) -> None:
    async with running(Site(tmp_path)) as site:
        assert await site.name(None, version=ssl.TLSVersion.TLSv1_2) == "no connection"
