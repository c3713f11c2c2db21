"""The envelope and its smallest parts: PEM, canonical JSON, versions, names of first requests, provider IDs."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from counted_calls import calls
from cryptography.hazmat.primitives.asymmetric import ec
from worlds import denied_for

from nodeattest_providers import canonical_json, envelope, pem
from nodeattest_providers.canonical_json import Fields, b64encode
from nodeattest_providers.challenge import protocol as challenge
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ANNOTATION_SUPPORTED_VERSIONS, ProviderName, Purpose
from nodeattest_providers.node_interface import (
    MAX_VERSIONS,
    Evidence,
    JsonObject,
    NodeCsr,
    check_supported,
    parse_versions,
    versions_to_text,
)
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.provider_id_template import check_template, fill, has_sources, unquote
from nodeattest_providers.tpm import protocol as tpm

KEY = ec.generate_private_key(ec.SECP256R1())
CSR = build_csr(KEY, "n-0", "x://y")
EVIDENCE = Evidence(ProviderName("tpm"), 1, {"phase": 1, "ek": "AAE"})
GOOD = envelope.encode(CSR, EVIDENCE)


def _with(*, provider: bytes = b"tpm/v1", data: bytes = b"{}", csr: bytes = CSR) -> bytes:
    return pem.encode(zip(envelope.LABELS, (csr, provider, data), strict=True))


TAMPERED: dict[str, tuple[bytes, Reason]] = {
    "empty": (b"", Reason.ENVELOPE_MALFORMED),
    "version 0": (_with(provider=b"tpm/v0"), Reason.ENVELOPE_MALFORMED),
    "a name of 64 characters": (_with(provider=b"x" * 64 + b"/v1"), Reason.ENVELOPE_MALFORMED),
    "a spoilt request": (_with(csr=CSR[:-1] + bytes([CSR[-1] ^ 1])), Reason.CSR_SIGNATURE_INVALID),
    "trailing DER": (_with(csr=CSR + b"\0"), Reason.CSR_MALFORMED),
}


def _verdict(request: bytes, purpose: Purpose = Purpose.CLIENT) -> tuple[NodeCsr, Evidence] | Denied:
    """The verdict; any exception but Denied goes through and fails the test."""
    try:
        return envelope.decode(request, purpose=purpose)
    except Denied as denied:
        return denied


@pytest.mark.parametrize("row", TAMPERED)
def test_a_tampered_envelope_is_denied(row: str) -> None:
    request, reason = TAMPERED[row]
    verdict = _verdict(request)
    assert isinstance(verdict, Denied)
    assert verdict.reason is reason


@pytest.mark.parametrize(
    "evidence",
    [
        Evidence(ProviderName("TPM"), 1, {}),
        Evidence(ProviderName("tpm"), 0, {}),
        Evidence(ProviderName("tpm/v1"), 1, {}),
        Evidence(ProviderName("tpm"), 1, {"log": "x" * envelope.MAX_SIZE}),
        Evidence(ProviderName("tpm"), 1, {"n": 2**63}),
        Evidence(ProviderName("tpm"), 1, {"s": "\ud800"}),
    ],
)
def test_what_would_be_denied_is_not_encoded(evidence: Evidence) -> None:
    with pytest.raises(ValueError):
        envelope.encode(CSR, evidence)


LABELS = ("ONE", "TWO WORDS")
ONE = pem.encode([("ONE", b"first" * 20)])


@pytest.mark.parametrize("piece", [b"-----BEGIN ONE-----\n", b"-----END ONE-----\n", ONE, b"\n", b"-"])
def test_a_large_text_is_denied_in_as_many_calls_as_a_small_one(piece: bytes) -> None:
    def decode(size: int) -> None:
        with pytest.raises(Denied):
            pem.decode(texts[size], LABELS)

    # A search in the large one that is quadratic would not end.
    texts = {size: b"-----BEGIN ONE-----\n" + piece * (size // len(piece)) for size in (1 << 10, 1 << 24)}
    assert calls(lambda: decode(1 << 24)) == calls(lambda: decode(1 << 10))


TPM = ProviderName("tpm")


@pytest.mark.parametrize(
    ("versions", "text"),
    [
        ((1,), "tpm/v1"),
        ((2, 1), "tpm/v2,tpm/v1"),
        ((1, 10, 9, 9), "tpm/v10,tpm/v9,tpm/v1"),
        (range(1, 100), ",".join(f"tpm/v{number}" for number in range(99, 83, -1))),
    ],
)
def test_versions_are_written_newest_first_and_at_most_sixteen(versions: tuple[int, ...], text: str) -> None:
    assert versions_to_text(TPM, versions) == text
    assert parse_versions(text, TPM) == tuple(sorted(set(versions), reverse=True))[:MAX_VERSIONS]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tpm/v1,tpm/v2",
        "tpm/v1,tpm/v1",
        "tpm/v2, tpm/v1",
        "tpm/v01",
        "tpm/v10000",
        "tpm/v\u0661",
        "TPM/v1",
        "challenge/v1",
        "tpm/v2,challenge/v1",
    ],
)
def test_any_other_text_is_denied(text: str) -> None:
    with denied_for(Reason.EVIDENCE_VERSION_UNSUPPORTED) as denied:
        parse_versions(text, TPM)
    assert denied.value.got == f"another text of {len(text)} characters"


UID = "7f3c1a52-4b1e-4a3e-9d0c-1f2e3d4c5b6a"
REST: dict[str, JsonObject] = {
    "challenge": {"phase": 2, "mac": b64encode(bytes(32))},
    "tpm": {
        "phase": 2,
        "mac": b64encode(bytes(32)),
        "quote": b64encode(b"quote"),
        "signature": b64encode(b"signature"),
        "pcrs": [],
    },
}
PARSERS: dict[str, Callable[[JsonObject], object]] = {
    "challenge": challenge.parse_evidence,
    "tpm": tpm.parse_evidence,
}


@pytest.mark.parametrize("provider", PARSERS)
@pytest.mark.parametrize(
    ("name", "uid"),
    [
        *((name, UID) for name in ("", "a/b", "a b", "a\n", "a" * 254)),
        *(("nodeattest-0a1b2c3d", uid) for uid in ("", "a/b", "a\n", "a b", "a" * 65)),
    ],
)
def test_a_reference_to_a_first_request_that_no_api_server_has_is_denied(provider: str, name: str, uid: str) -> None:
    with denied_for(Reason.EVIDENCE_MALFORMED):
        PARSERS[provider]({**REST[provider], "first": {"name": name, "uid": uid}})


def test_a_version_that_is_not_accepted_is_denied_with_those_that_are() -> None:
    with denied_for(Reason.EVIDENCE_VERSION_UNSUPPORTED) as denied:
        check_supported(Evidence(ProviderName("tpm"), 3, {}), (1, 2))
    assert denied.value.annotations == {ANNOTATION_SUPPORTED_VERSIONS: "tpm/v2,tpm/v1"}


def _array(unit: bytes, times: int) -> bytes:
    return b'{"a":[' + b",".join([unit] * times) + b"]}"


@pytest.mark.parametrize("unit", [b"1", b"[]", b"{}", b'""', b"null", b"true"])
def test_the_number_of_values_is_bounded_both_ways(unit: bytes) -> None:
    most = canonical_json.loads(_array(unit, canonical_json.MAX_VALUES - 2))
    assert canonical_json.dumps(most) == _array(unit, canonical_json.MAX_VALUES - 2)
    with pytest.raises(Denied, match="more than 4096 values"):
        canonical_json.loads(_array(unit, canonical_json.MAX_VALUES - 1))
    with pytest.raises(ValueError, match="more than 4096 values"):
        canonical_json.dumps(json.loads(_array(unit, canonical_json.MAX_VALUES - 1)))


def test_strings_are_escaped_as_rfc_8785_does() -> None:
    value: JsonObject = {"a": '\b\t\n\f\r\x0b\x1f\x7f"\\/é€😀'}
    assert canonical_json.dumps(value) == rb"""{"a":"\b\t\n\f\r\u000b\u001f""" + b"\x7f" + r'\"\\/é€😀"}'.encode()


_SCHEMA = "test/v1"


def _fields(text: str, required: set[str], optional: set[str] | None = None) -> Fields:
    return Fields.of(json.loads(text), _SCHEMA, required, optional or set())


def test_a_closed_schema_gives_typed_values() -> None:
    fields = _fields(
        '{"i":3,"is":[1,2],"o":"AAE","os":["AA",""],"t":"x","n":{"a":1},"ns":[{"a":2}]}',
        {"i", "is", "o", "os", "t", "n", "ns"},
        {"absent"},
    )
    assert fields.integer("i", 3, 3) == 3
    assert fields.integers("is", 2, 1, 2) == (1, 2)
    assert fields.octets("o", 2, 2) == b"\x00\x01"
    assert fields.octets_list("os", 2, 0, 1) == (b"\x00", b"")
    assert fields.text("t", 1, 1) == "x"
    assert fields.nested("n", {"a"}).integer("a", 0, 9) == 1
    assert "absent" not in fields
    assert "i" in fields


def _refuses(read: Callable[[], object]) -> bool:
    try:
        read()
    except Denied:
        return True
    return False


@pytest.mark.parametrize(
    "text", ["true", "null", "[]", "{}", "7", "0", '""', '"xxxx"', '"AAAAAA"', '["AA","AA"]', "[8]", '["é"]', "[true]"]
)
def test_a_value_of_the_wrong_type_or_size_is_denied(text: str) -> None:
    fields = _fields(f'{{"a":{text}}}', {"a"})
    refused = sum(
        _refuses(read)
        for read in (
            lambda: fields.integer("a", 1, 6),
            lambda: fields.integers("a", 1, 1, 6),
            lambda: fields.octets("a", 1, 2),
            lambda: fields.octets_list("a", 1, 1, 2),
            lambda: fields.text("a", 1, 3),
            lambda: fields.nested("a", {"b"}),
            lambda: fields.flag("a"),
        )
    )
    allowed = {"[]": 2, "true": 1}.get(text, 0)  # an empty array is an array of anything
    assert refused == 7 - allowed


UUID = "875fd7a2-0e42-4ba6-8e3c-0c3a0a6a2a4f"


@pytest.mark.parametrize(
    ("written", "word"),
    [
        ("metal://rack-1/7", "metal://rack-1/7"),
        (f"openstack:///'{UUID}'", f"openstack:///{UUID}"),
        (f'"proxmox://{UUID}"', f"proxmox://{UUID}"),
        ("a'b c'd", "ab cd"),
        ("a'\"'b", 'a"b'),
    ],
)
def test_quotes_are_removed_as_systemd_does(written: str, word: str) -> None:
    assert unquote(written) == word


@pytest.mark.parametrize("written", ["a b", " ", "'a", 'a"', r"a\'b", "a\\"])
def test_what_is_not_one_whole_word_is_denied(written: str) -> None:
    with denied_for(Reason.PROVIDER_ID_INVALID):
        unquote(written)


@pytest.mark.parametrize(
    "template",
    [
        "metal://7",
        "{hostname}",
        "metal3://{cloud-init:ds.meta_data.providerid}",
        "docker:////{hostname}-{cloud-init:v1.instance_id}",
    ],
)
def test_a_template_of_known_sources_is_accepted(template: str) -> None:
    check_template(template)
    assert has_sources(template) == ("{" in template)


@pytest.mark.parametrize(
    "template",
    [
        "",
        "a\0",
        "{dmi:chassis_serial}",
        "{dmi:../../../etc/shadow}",
        "{cloud-init:a..b}",
        "{hostname",
        "{{hostname}}",
        "x://CI_MISSING_JINJA_VAR/uuid",
        "{machine.metadata.name}",
    ],
)
def test_any_other_template_is_denied(template: str) -> None:
    with denied_for(Reason.PROVIDER_ID_INVALID):
        check_template(template)


def test_each_source_is_asked_once_and_its_value_is_not_read_again() -> None:
    assert fill(
        "a{hostname}b{dmi:product_uuid}", {"hostname": "{dmi:product_uuid}", "dmi:product_uuid": "1"}.__getitem__
    ) == ("a{dmi:product_uuid}b1")
