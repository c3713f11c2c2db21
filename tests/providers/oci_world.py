"""Oracle Cloud on loopback: an identity CA as Oracle's SDKs expect it, and each instance's metadata service."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from worlds import FACTS, KEY, PIN, filed

from clouds.authority import Authority, PublicKey, named, purposes, rsa_key
from clouds.serving import Reply, Request, Serving
from nodeattest_providers.identifiers import ClusterPin, ProviderID, Purpose
from nodeattest_providers.node_interface import Evidence, JsonValue
from nodeattest_providers.oci.protocol import HASH, PADDING, PROVIDER, OciEvidence, message
from nodeattest_providers.oci.verifier import OciSigner
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.platform import Platform
from nodeattest_providers.verifier_interface import Facts, NodeRequest

TENANCY: Final = "ocid1.tenancy.oc1..aaaatenancy"
COMPARTMENT: Final = "ocid1.compartment.oc1..aaaacompartment"
POLICY: Final[Mapping[str, JsonValue]] = {"tenancies": [TENANCY], "compartments": [COMPARTMENT]}


def ocid(name: str) -> str:
    return f"ocid1.instance.oc1.phx.{name}"


def subject(of: str, /, **changes: str | None) -> list[str]:
    """The organizational units of an instance's certificate; a change of None leaves one out."""
    units = {"certtype": "instance", "compartment": COMPARTMENT, "instance": of, "tenant": TENANCY, **changes}
    return [f"opc-{name}:{value}" for name, value in units.items() if value is not None]


def issue(
    authority: Authority,
    units: list[str],
    key: PublicKey,
    *,
    usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH,
    age: timedelta = timedelta(minutes=5),
) -> x509.Certificate:
    """Certify a key for two hours, as Oracle does."""
    begin = datetime.now(UTC) - age
    return authority.issue(named("instance", *units), key, purposes(usage), begin=begin, end=begin + timedelta(hours=2))


@dataclass(kw_only=True)
class Instance:
    """One instance: its OCID and what its metadata service has."""

    ocid: str
    key: rsa.RSAPrivateKey
    certificate: x509.Certificate
    intermediate: x509.Certificate

    @property
    def provider_id(self) -> ProviderID:
        return ProviderID(f"oci://{self.ocid}")

    def documents(self) -> dict[str, bytes]:
        """What it serves below ``/opc/v2/identity/``."""
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        certificates = {"cert.pem": self.certificate, "intermediate.pem": self.intermediate}
        return {"key.pem": key, **{name: one.public_bytes(Encoding.PEM) for name, one in certificates.items()}}

    def evidence(
        self, request: NodeRequest, *, pin: ClusterPin = PIN, key: rsa.RSAPrivateKey | None = None
    ) -> Evidence:
        """Sign as the attestor does, with another key where one is given."""
        signature = (key or self.key).sign(message(request.binding(pin).digest), PADDING, HASH)
        return self.showing(signature)

    def showing(self, signature: bytes) -> Evidence:
        """Show the certificate with any signature."""
        certificates = self.certificate.public_bytes(Encoding.DER), self.intermediate.public_bytes(Encoding.DER)
        made = OciEvidence(certificate=certificates[0], intermediates=certificates[1:], signature=signature)
        return Evidence(PROVIDER, 1, made.to_json())


@dataclass(frozen=True)
class OracleCloud:
    """A region's CA, trusted by ``signer``."""

    directory: Path
    root: Authority = field(default_factory=lambda: Authority.root("PKISVC Identity Root", key=rsa_key()))
    _issuing: list[Authority] = field(default_factory=list[Authority])

    def __post_init__(self) -> None:
        self.bundle.write_text(self.root.pem)
        self._issuing.append(self.root.below("PKISVC Identity Intermediate"))

    @property
    def bundle(self) -> Path:
        return self.directory / "oci-roots.pem"

    @property
    def platform(self) -> dict[str, JsonValue]:
        """``platforms.oci``."""
        return {"trustBundle": str(self.bundle)}

    @property
    def issuing(self) -> Authority:
        return self._issuing[0]

    def launch(self, name: str, units: list[str] | None = None, **how: object) -> Instance:
        """Run an instance, whose certificate may say something else."""
        key = rsa_key()
        names = subject(ocid(name)) if units is None else units
        issued = issue(self.issuing, names, key.public_key(), **how)  # pyright: ignore[reportArgumentType] - the tests name real parameters
        return Instance(ocid=ocid(name), key=key, certificate=issued, intermediate=self.issuing.certificate)

    def signer(self) -> OciSigner:
        return OciSigner(platform=Platform(settings=self.platform))


def request_of(
    instance: Instance, evidence: Evidence | None = None, *, purpose: Purpose = Purpose.CLIENT
) -> NodeRequest:
    """A request of this instance, with its own evidence unless another is given."""
    names = ("n-0",) if purpose is Purpose.SERVING else ()
    csr = build_csr(KEY, "n-0", instance.provider_id, dns_names=names)
    request = filed(Evidence(PROVIDER, 1, {}), csr=csr, purpose=purpose)
    return dataclasses.replace(request, evidence=evidence or instance.evidence(request))


def facts_for(instance: Instance, **policy: JsonValue) -> Facts:
    machine = dataclasses.replace(FACTS.machine, provider_id=instance.provider_id)
    return dataclasses.replace(FACTS, machine=machine, settings={**POLICY, **policy}, verified_at=datetime.now(UTC))


@contextmanager
def metadata_service(instance: Instance, *, rotated: list[Instance] | None = None) -> Generator[str]:
    """Serve an instance's identity; ``rotated``: whose key each next request for one gets instead, once."""
    others = rotated if rotated is not None else []

    def answer(request: Request) -> Reply:
        name = request.path.removeprefix("/opc/v2/identity/")
        told = others.pop() if others and name == "key.pem" else instance
        body = told.documents().get(name) if request.headers.get("authorization") == "Bearer Oracle" else None
        return Reply(404) if body is None else Reply(200, body)

    serving = Serving(answer)
    try:
        yield f"http://127.0.0.1:{serving.port}"
    finally:
        serving.stop()
