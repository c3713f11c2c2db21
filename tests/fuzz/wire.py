"""Targets of the wire format: envelope, PEM, DER, PKCS#10, signed documents, JSON, evidence and challenges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from fuzz.target import attempt, authority, evidence_target, require, target, text_of, text_target
from nodeattest_providers import canonical_json, cms, der, envelope, node_interface, pem, provider_id_template
from nodeattest_providers.challenge import protocol as challenge_protocol
from nodeattest_providers.composite import protocol as composite_protocol
from nodeattest_providers.der import NotDer, Tag
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import ProviderName, Purpose
from nodeattest_providers.node_interface import Evidence, JsonObject, NodeCsr
from nodeattest_providers.pkcs10 import parse_csr, parse_kubelet_serving
from nodeattest_providers.tpm import protocol as tpm_protocol

_TPM: Final = ProviderName("tpm")
_CMS_CONTENT: Final = b'{"vmId":"02aab8a4-74ef-476e-8182-f6d2ba4166a6"}'
"""What the authority signed in the seeds."""


def _for_each_purpose(data: bytes) -> list[tuple[NodeCsr, Evidence]]:
    found: list[tuple[NodeCsr, Evidence]] = []
    attempt(lambda request: found.append(envelope.decode(request)), data)
    attempt(lambda request: found.append(envelope.decode(request, purpose=Purpose.SERVING)), data)
    return found


@target("envelope", _for_each_purpose, max_len=8192)
def _envelope(found: list[tuple[NodeCsr, Evidence]], data: bytes) -> bool:
    for csr, evidence in found:
        require(envelope.encode(csr.der, evidence) == data, "decoding, then encoding gives the same bytes")
    return bool(found)


@target("pem", lambda data: pem.decode(data, envelope.LABELS), max_len=8192)
def _pem(contents: Sequence[bytes], data: bytes) -> None:
    require(pem.encode(zip(envelope.LABELS, contents, strict=True)) == data, "decoding, then encoding gives the same")


@target("csr", lambda data: data)
def _csr(data: bytes, _data: bytes) -> bool:
    def client(request: bytes) -> None:
        csr = parse_csr(request)
        require(csr.der == request and not csr.dns_names and not csr.ip_addresses, "the bytes, without names")

    def serving(request: bytes) -> None:
        csr = parse_csr(request, purpose=Purpose.SERVING)
        require(csr.der == request and bool(csr.provider_id), "the bytes, with a provider ID")
        require(bool(csr.dns_names or csr.ip_addresses), "a serving request has a name")

    def kubelet(request: bytes) -> None:
        csr = parse_kubelet_serving(request)
        require(bool(csr.dns_names or csr.ip_addresses), "a serving request has a name")

    return sum(attempt(each, data) for each in (client, serving, kubelet)) > 0


@target("der", lambda data: data, max_len=512)
def _der(data: bytes, _data: bytes) -> bool:
    contents: list[Callable[[], bytes]] = [
        lambda kind=kind: b"".join(der.elements(data, kind, at_most=8))
        for kind in (Tag.SEQUENCE, Tag.SET, Tag.ATTRIBUTES)
    ]
    contents += [lambda kind=kind: der.octets(data, kind) for kind in (Tag.OCTET_STRING, Tag.UTF8_STRING, Tag.DNS_NAME)]
    contents += [lambda: der.bit_string(data)]
    accepted = False
    for read in (*contents, lambda: der.integer(data), lambda: der.oid(data)):
        try:
            found = read()
        except NotDer:
            continue
        require(not isinstance(found, bytes) or data.endswith(found), "the content, and nothing after it")
        accepted = True
    return accepted


@target("cms", cms.parse)
def _cms(read: cms.SignedData, data: bytes) -> None:
    require(read.content in data, "the content as it stands there")
    for certificate in (authority(), *read.certificates):
        read.signer.is_named_by(certificate)
        # The seeds' signer signed this content only; what a document embeds may have signed anything.
        signed = read.signed_by(certificate)
        require(not signed or certificate != authority() or read.content == _CMS_CONTENT, "what was signed")


@target("canonical", canonical_json.loads)
def _canonical(value: JsonObject, data: bytes) -> None:
    require(canonical_json.dumps(value) == data, "one spelling of a value")


@target("provider-id-template", text_of, max_len=256)
def _provider_id_template(text: str, _data: bytes) -> bool:
    is_word, is_template = (
        attempt(provider_id_template.unquote, text),
        attempt(provider_id_template.check_template, text),
    )
    if is_template:
        filled = provider_id_template.fill(text, lambda _: "1")
        require(not {"{", "}"} & set(filled), "every brace is a source's")
    return is_word or is_template


evidence_target("challenge-evidence", challenge_protocol.parse_evidence, max_len=1024)
evidence_target("composite-evidence", composite_protocol.parse_evidence)
evidence_target("tpm-evidence", tpm_protocol.parse_evidence)
for _name, _kind, _size in (
    ("challenge-challenge", challenge_protocol.Challenge, 1024),
    ("composite-challenge", composite_protocol.CompositeChallenge, 2048),
    ("tpm-challenge", tpm_protocol.Challenge, 2048),
):
    text_target(_name, _kind.parse, _kind.to_text, Reason.EVIDENCE_MALFORMED, max_len=_size)  # pyright: ignore[reportArgumentType] - each kind writes its own
text_target(
    "versions",
    lambda text: node_interface.parse_versions(text, _TPM),
    lambda versions: node_interface.versions_to_text(_TPM, versions),
    Reason.EVIDENCE_VERSION_UNSUPPORTED,
    max_len=256,
)
