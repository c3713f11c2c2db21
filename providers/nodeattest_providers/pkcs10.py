"""A node's certificate request: made on the node, read in the controller into a closed record, or ``Denied``.

What passes has nothing that another parser could read otherwise or that nobody reads: each RDN, attribute, value and
extension is counted, each element is DER, and the set of what may be there is closed. No list is read beyond the length
that it may have.
Source: RFC 2986 §4; docs/wire-format.md, "The certificate request"; kubernetes pkg/apis/certificates/helpers.go
(ValidateKubeletClientCSR, ValidateKubeletServingCSR), made stricter; where Go's crypto/x509 and cryptography differ.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID, ObjectIdentifier

from nodeattest_providers import der
from nodeattest_providers.der import NotDer, Oid, Tag
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import (
    NODE_USER_PREFIX,
    NODES_GROUP,
    PROVIDER_ID_OID,
    NodeName,
    ProviderID,
    Purpose,
    is_dns_name,
    printable,
)
from nodeattest_providers.identifiers import node_name as check_node_name
from nodeattest_providers.identifiers import provider_id as check_provider_id
from nodeattest_providers.keys import PrivateKey, check_public_key, check_signature_algorithm
from nodeattest_providers.node_interface import NodeCsr

# cryptography warns when it reads a subject longer than the 64 characters of X.520, as those of long node names are.
warnings.filterwarnings("ignore", "Attribute's length must be", UserWarning)


def kubelet_subject(node_name: NodeName) -> x509.Name:
    """Build O and CN for a node.

    A node name may have 253 characters, more than X.520's ub-common-name of 64: Kubernetes' own certificates exceed it
    too, and its API server reads them; the library would rather warn.
    """
    organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, NODES_GROUP)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        common_name = x509.NameAttribute(NameOID.COMMON_NAME, NODE_USER_PREFIX + node_name, _validate=False)
    return x509.Name([organization, common_name])


MAX_SIZE: Final = 16 * 1024
"""Bytes of the whole request; RSA-4096 with the longest provider ID needs 6 KiB, ``MAX_NAMES`` names 8 KiB more."""
MAX_NAMES: Final = 32
"""DNS names and addresses in a serving request."""
_MAX_EXTENSIONS: Final = 3
"""One more than any request may have, so that a refusal can still distinguish the wrong one from the missing one."""

_KEPT: Final = 256
"""Records kept, of 4 MiB at most: a join in two steps shows the same bytes three times. Refusals are never kept."""
_VERSION_1: Final = bytes.fromhex("020100")
"""INTEGER 0 (RFC 2986 §4.1), which DER spells in one way."""
_NO_ATTRIBUTES: Final = bytes.fromhex("a000")
"""An empty set of attributes (RFC 2986 §4.1), which DER spells in one way."""
_NO_PROVIDER_ID: Final = ProviderID("")
_COMMON_NAME: Final[Oid] = (2, 5, 4, 3)
_ORGANIZATION: Final[Oid] = (2, 5, 4, 10)
_EXTENSION_REQUEST: Final[Oid] = (1, 2, 840, 113549, 1, 9, 14)
_SUBJECT_ALT_NAME: Final[Oid] = (2, 5, 29, 17)

_REMEDY: Final = "make the request as docs/wire-format.md says; kubelet-authenticator does"


@dataclass(frozen=True, slots=True)
class _Parts:
    """CertificationRequest taken apart; every field is DER that is not yet opened."""

    subject: bytes
    spki: bytes
    attributes: bytes
    signature_algorithm: bytes


@dataclass(frozen=True, slots=True)
class KubeletCsr:
    """What kubelet's own request for a serving certificate holds."""

    node_name: NodeName
    """CN without ``system:node:``."""
    spki: bytes
    """SubjectPublicKeyInfo in DER."""
    dns_names: tuple[str, ...]
    """In lower case."""
    ip_addresses: tuple[str, ...]
    """Normalised text form."""


def parse_kubelet_serving(request: bytes) -> KubeletCsr:
    """Read kubelet's own request for a serving certificate: the rules of ``parse_csr``, but no provider ID.

    DNS names are returned in lower case: kubelet copies its Node's addresses, and clouds write some with capitals.
    Source of what kubelet sends: kubernetes pkg/kubelet/certificate/kubelet.go and Go's x509.CreateCertificateRequest.
    """
    parts = _open(request)  # 1
    name = _subject(parts.subject)  # 2
    (names,) = _extensions(_extension_request(parts.attributes), (_SUBJECT_ALT_NAME,))  # 3, 4
    dns_names, addresses = _subject_alt_name(names, any_case=True)  # 5
    check_public_key(parts.spki)  # 6
    check_signature_algorithm(parts.spki, parts.signature_algorithm)  # 6
    _verify_signature(request, parts.spki)  # 7
    return KubeletCsr(name, parts.spki, dns_names, addresses)


@lru_cache(maxsize=_KEPT)
def parse_csr(request: bytes, *, purpose: Purpose = Purpose.CLIENT, provider_id_oid: str = PROVIDER_ID_OID) -> NodeCsr:
    """Read a node's certificate request; anything but the closed structure of docs/wire-format.md is ``Denied``.

    1. At most ``MAX_SIZE`` bytes; a CertificationRequest of version 1 (RFC 2986 §4).
    2. The subject is one CN ``system:node:<name>`` and one O ``system:nodes``, each alone in its RDN.
    3. One attribute, extensionRequest, with one value. A client request may have no attribute: it has no provider ID.
    4. Its extensions are the provider ID once, non-critical; in a serving request also one subjectAltName.
    5. The provider ID is one UTF8String; the subjectAltName holds dNSName and iPAddress only, at least one.
    6. Key and signature algorithm are in the closed lists; this is decided before any costly work on them.
    7. The request is signed by its own key.
    """
    parts = _open(request)  # 1
    name = _subject(parts.subject)  # 2
    requested_id, dns_names, addresses = _NO_PROVIDER_ID, (), ()
    if purpose is Purpose.SERVING or parts.attributes != _NO_ATTRIBUTES:  # 3
        extensions = _extensions(_extension_request(parts.attributes), _closed_set(purpose, provider_id_oid))  # 3, 4
        requested_id = _provider_id(extensions[0])  # 5
        dns_names, addresses = _subject_alt_name(extensions[1]) if purpose is Purpose.SERVING else ((), ())  # 5
    check_public_key(parts.spki)  # 6
    check_signature_algorithm(parts.spki, parts.signature_algorithm)  # 6
    _verify_signature(request, parts.spki)  # 7
    return NodeCsr(request, name, requested_id, parts.spki, dns_names, addresses)


def _open(request: bytes) -> _Parts:
    if len(request) > MAX_SIZE:
        raise _malformed(f"at most {MAX_SIZE} bytes", f"{len(request)} bytes")
    with _denying(Reason.CSR_MALFORMED, "a CertificationRequest in DER"):
        info, algorithm, signature = der.elements(request, Tag.SEQUENCE, at_most=3)
        version, subject, spki, attributes = der.elements(info, Tag.SEQUENCE, at_most=4)
        if version != _VERSION_1:
            raise NotDer("another version")
        der.bit_string(signature)  # its content is verified below, by a library that overlooks its unused bits
    return _Parts(subject, spki, attributes, algorithm)


def _subject(subject: bytes) -> NodeName:
    """Read the node's name out of a subject that holds nothing else."""
    with _denying(Reason.SUBJECT_NOT_ALLOWED, "one CN and one O, each alone in its RDN"):
        values: dict[Oid, str] = {}
        rdns = der.elements(subject, Tag.SEQUENCE, at_most=2)
        for rdn in rdns:
            (attribute,) = der.elements(rdn, Tag.SET, at_most=1)
            kind, value = der.elements(attribute, Tag.SEQUENCE, at_most=2)
            values[der.oid(kind)] = _directory_string(value)
        if len(rdns) != len(values) or values.keys() != {_COMMON_NAME, _ORGANIZATION}:
            raise NotDer("other attributes")
    if values[_ORGANIZATION] != NODES_GROUP:
        raise _subject_denied(f"O={NODES_GROUP}", printable(values[_ORGANIZATION]))
    if not values[_COMMON_NAME].startswith(NODE_USER_PREFIX):
        raise _subject_denied(f"CN={NODE_USER_PREFIX}<node name>", printable(values[_COMMON_NAME]))
    return check_node_name(values[_COMMON_NAME].removeprefix(NODE_USER_PREFIX))


def _directory_string(value: bytes) -> str:
    """Read UTF8String or PrintableString; the other three kinds of DirectoryString have more than one reading."""
    match der.tag_of(value):
        case Tag.UTF8_STRING:
            return der.octets(value, Tag.UTF8_STRING).decode()
        case Tag.PRINTABLE_STRING:
            return der.octets(value, Tag.PRINTABLE_STRING).decode("ascii")
        case _:
            raise NotDer("another kind of string")


def _extension_request(attributes: bytes) -> tuple[bytes, ...]:
    """Return the extensions of the one extensionRequest; a second one would be merged by Go and unseen by others."""
    with _denying(Reason.EXTENSION_NOT_ALLOWED, "one extensionRequest attribute with one value"):
        (attribute,) = der.elements(attributes, Tag.ATTRIBUTES, at_most=1)
        kind, values = der.elements(attribute, Tag.SEQUENCE, at_most=2)
        (value,) = der.elements(values, Tag.SET, at_most=1)
        if der.oid(kind) != _EXTENSION_REQUEST:
            raise NotDer("another attribute")
        return der.elements(value, Tag.SEQUENCE, at_most=_MAX_EXTENSIONS)


def _closed_set(purpose: Purpose, provider_id_oid: str) -> tuple[Oid, ...]:
    """List the extensions that must be there, and that are all that may."""
    provider = tuple(int(arc) for arc in provider_id_oid.split("."))
    return (provider, _SUBJECT_ALT_NAME) if purpose is Purpose.SERVING else (provider,)


def _extensions(extensions: tuple[bytes, ...], expected: tuple[Oid, ...]) -> tuple[bytes, ...]:
    """Return the values of the expected extensions, in the order of ``expected``."""
    values: dict[Oid, bytes] = {}
    for extension in extensions:
        with _denying(Reason.EXTENSION_NOT_ALLOWED, "non-critical extensions in DER"):
            kind, value = der.elements(
                extension, Tag.SEQUENCE, at_most=2
            )  # critical FALSE is the default, not written in DER
            values[der.oid(kind)] = der.octets(value, Tag.OCTET_STRING)
    if expected[0] not in values and expected[0] != _SUBJECT_ALT_NAME:
        raise _provider_id_denied("the provider ID extension", "none")
    if len(extensions) != len(expected) or values.keys() != set(expected):
        names = " and ".join(".".join(map(str, kind)) for kind in expected)
        raise Denied(
            Reason.EXTENSION_NOT_ALLOWED,
            expected=f"exactly the extensions {names}",
            got=f"{len(extensions)} extensions",
            remedy=_REMEDY,
        )
    return tuple(values[kind] for kind in expected)


def _provider_id(value: bytes) -> ProviderID:
    with _denying(Reason.PROVIDER_ID_INVALID, "one DER UTF8String"):
        text = der.octets(value, Tag.UTF8_STRING).decode()
    return check_provider_id(text)


def _subject_alt_name(value: bytes, *, any_case: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read DNS names and addresses, each kind in the order of the request, and each once."""
    with _denying(Reason.EXTENSION_NOT_ALLOWED, "dNSName and iPAddress only"):
        names = der.elements(value, Tag.SEQUENCE, at_most=MAX_NAMES)
        if not names or len(set(names)) != len(names):
            raise NotDer("none, or one of them twice")
        dns = [name for name in names if der.tag_of(name) == Tag.DNS_NAME]
        addresses = [name for name in names if der.tag_of(name) != Tag.DNS_NAME]
        return tuple(dict.fromkeys(_dns_name(name, any_case) for name in dns)), tuple(map(_address, addresses))


def _dns_name(name: bytes, any_case: bool) -> str:
    text = der.octets(name, Tag.DNS_NAME).decode("ascii")
    text = text.lower() if any_case else text
    if not is_dns_name(text):
        raise NotDer("no DNS name in lower case")
    return text


def _address(name: bytes) -> str:
    address = ip_address(der.octets(name, Tag.IP_ADDRESS))
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        raise NotDer("an IPv4 address in another spelling")  # Go takes both for the same address
    return str(address)


def _verify_signature(request: bytes, spki: bytes) -> None:
    try:
        csr = x509.load_der_x509_csr(request)
        same_key = csr.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) == spki
        valid = same_key and csr.is_signature_valid
    except (ValueError, UnsupportedAlgorithm):  # a point off its curve, a signature that is not DER
        valid = False
    if not valid:
        raise Denied(
            Reason.CSR_SIGNATURE_INVALID,
            expected="a signature by the request's own key",
            got="another signature",
            remedy="sign the request with the key that it asks a certificate for",
        )


@contextmanager
def _denying(reason: Reason, expected: str) -> Generator[None]:
    """Turn bytes of another structure, and another number of elements than unpacked, into ``Denied``."""
    try:
        yield
    except ValueError as error:  # NotDer, UnicodeDecodeError, unpacking
        got = str(error) if isinstance(error, NotDer) else "another structure"
        raise Denied(reason, expected=expected, got=got, remedy=_REMEDY) from None


def _malformed(expected: str, got: str) -> Denied:
    return Denied(Reason.CSR_MALFORMED, expected=expected, got=got, remedy=_REMEDY)


def _subject_denied(expected: str, got: str) -> Denied:
    return Denied(Reason.SUBJECT_NOT_ALLOWED, expected=expected, got=got, remedy=_REMEDY)


def _provider_id_denied(expected: str, got: str) -> Denied:
    return Denied(Reason.PROVIDER_ID_INVALID, expected=expected, got=got, remedy=_REMEDY)


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
    subject = kubelet_subject(check_node_name(node_name))
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns_names]
    names += [x509.IPAddress(ip_address(address)) for address in ip_addresses]
    if names or provider_id:
        payload = _utf8_string(check_provider_id(provider_id))
        extension = x509.UnrecognizedExtension(ObjectIdentifier(provider_id_oid), payload)
        builder = builder.add_extension(extension, critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(private_key, _hash_for(private_key)).public_bytes(Encoding.DER)


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
