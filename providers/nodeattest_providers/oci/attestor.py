"""The ``oci`` provider's attestor: signs the binding with the instance's own key, which the metadata service gives.

Oracle rotates key and certificate several times a day: those that do not match are read again.
Source: Oracle, "Calling Services from an Instance", "Getting Instance Metadata".
"""

from __future__ import annotations

from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.errors import Denied
from nodeattest_providers.metadata_service import MetadataAttestor
from nodeattest_providers.node_interface import Binding, Evidence, PublishedChallenge
from nodeattest_providers.oci import protocol

_HEADERS: Final = {"Authorization": "Bearer Oracle"}
_IDENTITY: Final = "/opc/v2/identity/"
_ATTEMPTS: Final = 3


class OciAttestor(MetadataAttestor):
    """Makes OCI evidence."""

    provider = protocol.PROVIDER
    service_name = "Oracle Cloud's metadata service"

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        for _ in range(_ATTEMPTS):
            identity, intermediates, key = self._identity(), self._certificates("intermediate.pem"), self._key()
            if key.public_key() == identity.key:
                evidence = protocol.OciEvidence(
                    certificate=identity.certificate.public_bytes(Encoding.DER),
                    intermediates=tuple(each.public_bytes(Encoding.DER) for each in intermediates),
                    signature=key.sign(protocol.message(binding.digest), protocol.PADDING, protocol.HASH),
                )
                return Evidence(protocol.PROVIDER, protocol.VERSION, evidence.to_json())
        raise self._unusable("a key that is not the certificate's")

    def provider_id(self) -> str:
        return protocol.PREFIX + self._identity().instance

    def _identity(self) -> protocol.IdentityCertificate:
        (certificate, *_) = self._certificates("cert.pem")
        try:
            return protocol.parse_identity_certificate(certificate.public_bytes(Encoding.DER))
        except Denied as denied:
            raise self._unusable(denied.got) from None

    def _certificates(self, name: str) -> list[x509.Certificate]:
        try:
            return x509.load_pem_x509_certificates(self._service.get(_IDENTITY + name, _HEADERS))
        except X509_ERRORS:
            raise self._unusable(f"no certificate as {name}") from None

    def _key(self) -> rsa.RSAPrivateKey:
        try:
            key = load_pem_private_key(self._service.get(f"{_IDENTITY}key.pem", _HEADERS), password=None)
        except X509_ERRORS:
            key = None
        if not isinstance(key, rsa.RSAPrivateKey):
            raise self._unusable("no RSA key as key.pem")
        return key
