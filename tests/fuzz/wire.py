"""Targets of the wire format: envelope, PEM, DER, PKCS#10, signed documents, JSON, evidence and challenges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fuzz.keys import authority
from fuzz.target import Target, evidence_law, refused, require, text_law
from nodeattest_providers import canonical_json, cms, der, envelope, evidence_versions, pem, provider_id_template
from nodeattest_providers.challenge import protocol as challenge_protocol
from nodeattest_providers.composite import protocol as composite_protocol
from nodeattest_providers.der import NotDer, Tag
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderName, Purpose
from nodeattest_providers.pkcs10 import parse_csr, parse_kubelet_serving
from nodeattest_providers.tpm import protocol as tpm_protocol


def _envelope(data: bytes) -> bool:
    read = [_envelope_for(data, purpose) for purpose in Purpose]
    return any(read)


def _envelope_for(data: bytes, purpose: Purpose) -> bool:
    try:
        csr, evidence = envelope.decode(data, purpose=purpose)
    except Denied as denied:
        return refused(denied)
    require(envelope.encode(csr.der, evidence) == data, "decoding, then encoding gives the same bytes")
    return True


def _pem(data: bytes) -> bool:
    try:
        contents = pem.decode(data, envelope.LABELS)
    except Denied as denied:
        return refused(denied)
    require(pem.encode(zip(envelope.LABELS, contents, strict=True)) == data, "decoding, then encoding gives the same")
    return True


def _csr(data: bytes) -> bool:
    read = [_csr_for(data, purpose) for purpose in Purpose]
    return any([*read, _kubelets_csr(data)])


def _kubelets_csr(data: bytes) -> bool:
    try:
        csr = parse_kubelet_serving(data)
    except Denied as denied:
        return refused(denied)
    require(bool(csr.dns_names or csr.ip_addresses), "a serving request has a name")
    return True


def _csr_for(data: bytes, purpose: Purpose) -> bool:
    try:
        csr = parse_csr(data, purpose=purpose)
    except Denied as denied:
        return refused(denied)
    require(csr.der == data, "the request's own bytes")
    require(bool(csr.provider_id) or purpose is Purpose.CLIENT, "a provider ID in serving requests")
    require((purpose is Purpose.SERVING) == bool(csr.dns_names or csr.ip_addresses), "names in serving requests only")
    return True


def _der(data: bytes) -> bool:
    readers: list[Callable[[], bytes]] = [
        lambda kind=kind: b"".join(der.elements(data, kind, at_most=8))
        for kind in (Tag.SEQUENCE, Tag.SET, Tag.ATTRIBUTES)
    ]
    readers += [lambda kind=kind: der.octets(data, kind) for kind in (Tag.OCTET_STRING, Tag.UTF8_STRING, Tag.DNS_NAME)]
    readers += [lambda: b"\0" + der.bit_string(data)]
    return any([_der_of(data, reader) for reader in readers] + [_der_number(data)])


def _der_of(data: bytes, reader: Callable[[], bytes]) -> bool:
    try:
        content = reader()
    except NotDer:
        return False
    require(data.endswith(content), "the content, and nothing after it")
    return True


def _der_number(data: bytes) -> bool:
    for reader in (der.integer, der.oid):
        try:
            reader(data)
        except NotDer:
            continue
        return True
    return False


def _cms(data: bytes) -> bool:
    try:
        read = cms.parse(data)
    except Denied as denied:
        return refused(denied)
    require(read.content in data, "the content as it stands there")
    for certificate in (authority(), *read.certificates):
        read.signer.is_named_by(certificate)
        # The seeds' signer signed this content only; what a document embeds may have signed anything.
        signed = read.signed_by(certificate)
        require(not signed or certificate != authority() or read.content == CMS_CONTENT, "what was signed")
    return True


def _canonical(data: bytes) -> bool:
    try:
        value = canonical_json.loads(data)
    except Denied as denied:
        return refused(denied)
    require(canonical_json.dumps(value) == data, "one spelling of a value")
    return True


def _provider_id_template(data: bytes) -> bool:
    text = data.decode(errors="surrogateescape")
    read = [_read_text(provider_id_template.unquote, text), _read_text(provider_id_template.check_template, text)]
    if read[1]:
        filled = provider_id_template.fill(text, lambda _: "1")
        require(not {"{", "}"} & set(filled), "every brace is a source's")
    return any(read)


def _read_text(reader: Callable[[str], object], text: str) -> bool:
    try:
        reader(text)
    except Denied as denied:
        return refused(denied)
    return True


CMS_CONTENT: Final = b'{"vmId":"02aab8a4-74ef-476e-8182-f6d2ba4166a6"}'
"""What the authority signed in the seeds."""

VERSIONS: Final = text_law(
    lambda text: evidence_versions.parse(text, ProviderName("tpm")),
    lambda versions: evidence_versions.versions_to_text(ProviderName("tpm"), versions),
    Reason.EVIDENCE_VERSION_UNSUPPORTED,
)

TARGETS: Final = (
    Target("envelope", _envelope, 8192),
    Target("pem", _pem, 8192),
    Target("csr", _csr),
    Target("der", _der, 512),
    Target("cms", _cms),
    Target("canonical", _canonical),
    Target("challenge-evidence", evidence_law(challenge_protocol.parse_evidence), 1024),
    Target(
        "challenge-challenge",
        text_law(challenge_protocol.Challenge.parse, challenge_protocol.Challenge.to_text, Reason.EVIDENCE_MALFORMED),
        1024,
    ),
    Target("composite-evidence", evidence_law(composite_protocol.parse_evidence)),
    Target(
        "composite-challenge",
        text_law(
            composite_protocol.CompositeChallenge.parse,
            composite_protocol.CompositeChallenge.to_text,
            Reason.EVIDENCE_MALFORMED,
        ),
        2048,
    ),
    Target("tpm-evidence", evidence_law(tpm_protocol.parse_evidence)),
    Target("versions", VERSIONS, 256),
    Target("provider-id-template", _provider_id_template, 256),
    Target(
        "tpm-challenge",
        text_law(tpm_protocol.Challenge.parse, tpm_protocol.Challenge.to_text, Reason.EVIDENCE_MALFORMED),
        2048,
    ),
)
