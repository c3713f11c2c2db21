"""A node's certificate request: made on the node, read in the controller into a closed record, or ``Denied``.

An accepted request holds nothing ambiguous and nothing that is ignored. No list is read beyond its bound.
Source: RFC 2986 §4; docs/wire-format.md, "The certificate request"; kubernetes pkg/apis/certificates/helpers.go, made
stricter; where Go's crypto/x509 and cryptography differ.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable
from contextlib import contextmanager
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
_MAX_EXTENSIONS: Final = 3
"""One more than any request may have, so that a refusal can still distinguish the wrong one from the missing one."""

_KEPT: Final = 256
"""Records kept, of 4 MiB at most: a join in two steps shows the same bytes three times. Refusals are never kept."""
_VERSION_1: Final = bytes.fromhex("020100")
"""INTEGER 0 (RFC 2986 §4.1), which DER spells in one way."""
_NO_ATTRIBUTES: Final = bytes.fromhex("a000")
"""An empty set of attributes (RFC 2986 §4.1), which DER spells in one way."""
_COMMON_NAME: Final[Oid] = (2, 5, 4, 3)
_ORGANIZATION: Final[Oid] = (2, 5, 4, 10)
_EXTENSION_REQUEST: Final[Oid] = (1, 2, 840, 113549, 1, 9, 14)
_SUBJECT_ALT_NAME: Final[Oid] = (2, 5, 29, 17)

_REMEDY: Final = "make the request as docs/wire-format.md says; kubelet-authenticator does"


def parse_kubelet_serving(request: bytes) -> NodeCsr:
    """Read kubelet's own request for a serving certificate: the rules of ``parse_csr``, but no provider ID.

    DNS names are returned in lower case: kubelet copies its Node's addresses, and clouds write some with capitals.
    Source of what kubelet sends: kubernetes pkg/kubelet/certificate/kubelet.go and Go's x509.CreateCertificateRequest.
    """
    return _parse(request, (_SUBJECT_ALT_NAME,), any_case=True)


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
    provider = tuple(int(arc) for arc in provider_id_oid.split("."))
    return _parse(request, (provider, _SUBJECT_ALT_NAME) if purpose is Purpose.SERVING else (provider,))


def _parse(request: bytes, extensions: tuple[Oid, ...], *, any_case: bool = False) -> NodeCsr:
    """Read a request that has exactly these extensions; one without names may have none."""
    if len(request) > MAX_SIZE:  # 1
        raise _denied(Reason.CSR_MALFORMED, f"at most {MAX_SIZE} bytes", f"{len(request)} bytes")
    with _denying(Reason.CSR_MALFORMED, "a CertificationRequest in DER"):
        info, algorithm, signature = der.elements(request, Tag.SEQUENCE, at_most=3)
        version, subject, spki, attributes = der.elements(info, Tag.SEQUENCE, at_most=4)
        if version != _VERSION_1:
            raise NotDer("another version")
        der.bit_string(signature)  # its content is verified below, by a library that overlooks its unused bits
    node_name = _subject(subject)  # 2
    requested_id, dns_names, addresses = ProviderID(""), (), ()
    if _SUBJECT_ALT_NAME in extensions or attributes != _NO_ATTRIBUTES:
        for kind, value in _extensions(attributes, extensions).items():  # 3, 4
            if kind == _SUBJECT_ALT_NAME:  # 5
                dns_names, addresses = _subject_alt_name(value, any_case)
            else:
                with _denying(Reason.PROVIDER_ID_INVALID, "one DER UTF8String"):
                    text = der.octets(value, Tag.UTF8_STRING).decode()
                requested_id = check_provider_id(text)
    check_public_key(spki)  # 6
    check_signature_algorithm(spki, algorithm)
    _verify_signature(request, spki)  # 7
    return NodeCsr(request, node_name, requested_id, spki, dns_names, addresses)


def _subject(subject: bytes) -> NodeName:
    with _denying(Reason.SUBJECT_NOT_ALLOWED, "one CN and one O, each alone in its RDN"):
        values: dict[Oid, str] = {}
        rdns = der.elements(subject, Tag.SEQUENCE, at_most=2)
        for rdn in rdns:
            (attribute,) = der.elements(rdn, Tag.SET, at_most=1)
            kind, value = der.elements(attribute, Tag.SEQUENCE, at_most=2)
            # The other three kinds of DirectoryString have more than one reading.
            tag = Tag.PRINTABLE_STRING if der.tag_of(value) == Tag.PRINTABLE_STRING else Tag.UTF8_STRING
            values[der.oid(kind)] = der.octets(value, tag).decode("utf-8" if tag is Tag.UTF8_STRING else "ascii")
        if len(rdns) != len(values) or values.keys() != {_COMMON_NAME, _ORGANIZATION}:
            raise NotDer("other attributes")
    organization, user = values[_ORGANIZATION], values[_COMMON_NAME]
    if organization != NODES_GROUP:
        raise _denied(Reason.SUBJECT_NOT_ALLOWED, f"O={NODES_GROUP}", printable(organization))
    if not user.startswith(NODE_USER_PREFIX):
        raise _denied(Reason.SUBJECT_NOT_ALLOWED, f"CN={NODE_USER_PREFIX}<node name>", printable(user))
    return check_node_name(user.removeprefix(NODE_USER_PREFIX))


def _extensions(attributes: bytes, expected: tuple[Oid, ...]) -> dict[Oid, bytes]:
    """Return the values of the expected extensions of the one extensionRequest; there may be no others.

    A second extensionRequest would be merged by Go and unseen by others. ``critical FALSE`` is the default, which DER
    does not write.
    """
    with _denying(Reason.EXTENSION_NOT_ALLOWED, "one extensionRequest attribute with one value"):
        (attribute,) = der.elements(attributes, Tag.ATTRIBUTES, at_most=1)
        kind, values = der.elements(attribute, Tag.SEQUENCE, at_most=2)
        (value,) = der.elements(values, Tag.SET, at_most=1)
        if der.oid(kind) != _EXTENSION_REQUEST:
            raise NotDer("another attribute")
        extensions = der.elements(value, Tag.SEQUENCE, at_most=_MAX_EXTENSIONS)
    found: dict[Oid, bytes] = {}
    with _denying(Reason.EXTENSION_NOT_ALLOWED, "non-critical extensions in DER"):
        for extension in extensions:
            kind, value = der.elements(extension, Tag.SEQUENCE, at_most=2)
            found[der.oid(kind)] = der.octets(value, Tag.OCTET_STRING)
    if expected[0] not in found and expected[0] != _SUBJECT_ALT_NAME:
        raise _denied(Reason.PROVIDER_ID_INVALID, "the provider ID extension", "none")
    if len(extensions) != len(expected) or found.keys() != set(expected):
        names = " and ".join(".".join(map(str, kind)) for kind in expected)
        got = f"{len(extensions)} extensions"
        raise _denied(Reason.EXTENSION_NOT_ALLOWED, f"exactly the extensions {names}", got)
    return found


def _subject_alt_name(value: bytes, any_case: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
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
        raise _denied(reason, expected, str(error) if isinstance(error, NotDer) else "another structure") from None


def _denied(reason: Reason, expected: str, got: str) -> Denied:
    return Denied(reason, expected=expected, got=got, remedy=_REMEDY)


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
    from cryptography.hazmat import asn1

    builder = x509.CertificateSigningRequestBuilder().subject_name(kubelet_subject(check_node_name(node_name)))
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns_names]
    names += [x509.IPAddress(ip_address(address)) for address in ip_addresses]
    if names or provider_id:
        payload = asn1.encode_der(check_provider_id(provider_id))
        extension = x509.UnrecognizedExtension(ObjectIdentifier(provider_id_oid), payload)
        builder = builder.add_extension(extension, critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    is_p384 = isinstance(private_key, EllipticCurvePrivateKey) and isinstance(private_key.curve, SECP384R1)
    return builder.sign(private_key, SHA384() if is_p384 else SHA256()).public_bytes(Encoding.DER)
