"""A node's certificate request: made on the node, read in the controller, by one set of rules.

Promises: ``parse_csr`` accepts what ``build_csr`` makes; whatever it is given, it returns a closed record or raises
``Denied``.
Source: docs/wire-format.md, "The certificate request"; pkg/apis/certificates/helpers.go ValidateKubeletClientCSR and
ValidateKubeletServingCSR, made stricter.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ObjectIdentifier

from nodeattest_providers.identifiers import node_name as checked_node_name
from nodeattest_providers.identifiers import provider_id as checked_provider_id
from nodeattest_providers.key_types import PrivateKey
from nodeattest_providers.names import PROVIDER_ID_OID, Purpose
from nodeattest_providers.node_interface import NodeCsr
from nodeattest_providers.subject import kubelet_subject

_UTF8_STRING: Final = b"\x0c"
_SHORT_FORM: Final = 0x80
"""Lengths below it are one byte (X.690 §8.1.3.4)."""


def build_csr(
    private_key: PrivateKey,
    node_name: str,
    provider_id: str,
    *,
    dns_names: Iterable[str] = (),
    ip_addresses: Iterable[str] = (),
    provider_id_oid: str = PROVIDER_ID_OID,
) -> bytes:
    """Make a request in DER; with names or addresses it is one for a serving certificate.

    A client request with an empty provider ID asks the controller for it. ``Denied`` if node name or provider ID are
    not what the controller would accept; ``ValueError`` for an address that is none.
    """
    subject = kubelet_subject(checked_node_name(node_name))
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns_names]
    names += [x509.IPAddress(ip_address(address)) for address in ip_addresses]
    if names or provider_id:
        payload = _utf8_string(checked_provider_id(provider_id))
        extension = x509.UnrecognizedExtension(ObjectIdentifier(provider_id_oid), payload)
        builder = builder.add_extension(extension, critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(private_key, _hash_for(private_key)).public_bytes(Encoding.DER)


def parse_csr(request: bytes, *, purpose: Purpose = Purpose.CLIENT, provider_id_oid: str = PROVIDER_ID_OID) -> NodeCsr:
    """Read a request in DER; anything but the closed structure of docs/wire-format.md is ``Denied``."""
    from nodeattest_providers import pkcs10

    return pkcs10.parse(request, purpose=purpose, provider_id_oid=provider_id_oid)


def _hash_for(private_key: PrivateKey) -> SHA256 | SHA384:
    is_p384 = isinstance(private_key, EllipticCurvePrivateKey) and isinstance(private_key.curve, SECP384R1)
    return SHA384() if is_p384 else SHA256()


def _utf8_string(text: str) -> bytes:
    """Encode a DER UTF8String (X.690 §8.1.3, §8.23)."""
    content = text.encode()
    size = len(content)
    if size < _SHORT_FORM:
        return _UTF8_STRING + bytes([size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return _UTF8_STRING + bytes([_SHORT_FORM | len(length)]) + length + content
