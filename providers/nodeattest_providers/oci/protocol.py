"""What attestor and verifier of ``oci`` exchange: an identity certificate, and a signature by its key over the binding.

The signature is RSASSA-PSS. Oracle's API takes PKCS#1 v1.5 by the same key, so neither serves as the other.
Source: docs/wire-format.md, "oci/v1"; RFC 8017 §8.1; Oracle's SDKs, ``extractTenancyIDFromCertificate``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from nodeattest_providers.canonical_json import Fields, encoded
from nodeattest_providers.certificate_chain import X509_ERRORS, check_readable
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderName, printable
from nodeattest_providers.node_interface import JsonObject, length_prefix

PROVIDER: Final = ProviderName("oci")
VERSION: Final = 1
MAX_CERTIFICATE: Final = 4096
"""Bytes of a certificate in DER; Oracle's have about 1,500."""
MAX_INTERMEDIATES: Final = 4
HASH: Final = SHA256()
PADDING: Final = padding.PSS(padding.MGF1(HASH), 32)
_SIGNATURE: Final = range(256, 512 + 1)
"""Bytes of a signature by RSA keys of 2048 to 4096 bits."""


def message(binding: bytes) -> bytes:
    return length_prefix(b"oci/v1", binding)


@dataclass(frozen=True, slots=True)
class OciEvidence:
    """The evidence block's object."""

    certificate: bytes = field(repr=False)
    intermediates: tuple[bytes, ...] = field(repr=False)
    signature: bytes = field(repr=False)

    def to_json(self) -> JsonObject:
        return encoded(certificate=self.certificate, intermediates=self.intermediates, signature=self.signature)

    @classmethod
    def parse(cls, data: JsonObject) -> OciEvidence:
        fields = Fields.of(data, "oci/v1", ("certificate", "intermediates", "signature"))
        return cls(
            certificate=fields.octets("certificate", 1, MAX_CERTIFICATE),
            intermediates=fields.octets_list("intermediates", MAX_INTERMEDIATES, 1, MAX_CERTIFICATE),
            signature=fields.octets("signature", _SIGNATURE.start, _SIGNATURE.stop - 1),
        )


PREFIX: Final = "oci://"
_INSTANCE: Final = re.compile(r"ocid1\.instance\.oc[0-9]{1,4}\.[-a-z0-9]{1,30}\.[a-z0-9.]{1,160}")


def is_instance(ocid: str) -> bool:
    return _INSTANCE.fullmatch(ocid) is not None


def parse_provider_id(text: str) -> str:
    ocid = text.removeprefix(PREFIX)
    if not text.startswith(PREFIX) or not is_instance(ocid):
        raise Denied(
            Reason.PROVIDER_ID_INVALID,
            expected="oci://ocid1.instance.<realm>.<region>.<unique ID>",
            got=printable(text),
            remedy="compare the Machine's spec.providerID with the instance's OCID",
        )
    return ocid


_NAMES: Final = ("opc-certtype", "opc-instance", "opc-compartment", "opc-tenant")
_RSA_BITS: Final = range(2048, 4097)
_EXPONENT: Final = 65537


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityCertificate:
    """The certificate of one instance; nobody's until its chain is verified."""

    certificate: x509.Certificate
    key: rsa.RSAPublicKey
    instance: str
    """OCIDs."""
    compartment: str
    tenancy: str


def parse_identity_certificate(der: bytes) -> IdentityCertificate:
    """Read a certificate of type ``instance`` with an RSA key; anything else is ``Denied``."""
    try:
        certificate = x509.load_der_x509_certificate(der)
        check_readable(certificate)
        key = certificate.public_key()
        units = [
            str(each.value) for each in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
        ]
    except X509_ERRORS as error:
        raise _malformed(f"{len(der)} bytes that cannot be read ({type(error).__name__})") from None
    named = [unit.partition(":") for unit in units]
    values = {name: value for name, _, value in named if name in _NAMES}
    if sorted(name for name, _, _ in named if name in _NAMES) != sorted(_NAMES):
        raise _malformed("a subject without one of them, or with two")
    if values["opc-certtype"] != "instance" or not is_instance(values["opc-instance"]):
        raise _malformed("a certificate of something else")
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size not in _RSA_BITS or key.public_numbers().e != _EXPONENT:
        raise _malformed("another key than RSA of 2048 to 4096 bits with exponent 65537")
    return IdentityCertificate(
        certificate=certificate,
        key=key,
        instance=values["opc-instance"],
        compartment=values["opc-compartment"],
        tenancy=values["opc-tenant"],
    )


def _malformed(got: str) -> Denied:
    return Denied(
        Reason.PLATFORM_DOCUMENT_MALFORMED,
        expected=f"an instance's identity certificate, whose subject has each of {', '.join(_NAMES)}",
        got=got,
        remedy="send /opc/v2/identity/cert.pem of the metadata service as it is",
    )
