"""The worst inputs known cost each parser a bounded number of steps: lines run, signatures checked; no times."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

import pytest
import worst_inputs as worst
from counted_calls import lines_run
from cryptography.x509 import load_der_x509_certificate
from cryptography.x509.oid import ExtendedKeyUsageOID

from fuzz import identity
from fuzz.catalogue import TARGETS
from fuzz.target import NOW, authority
from nodeattest_controller.controllers.bootstrap_config import admission_review
from nodeattest_controller.controllers.bootstrap_config.decide import subject_of
from nodeattest_controller.model import policy
from nodeattest_identity.issuer.keys import MAX_SIZE as MAX_KEYS
from nodeattest_identity.issuer.keys import KeysError, read_jwks, read_pem
from nodeattest_kube import answers
from nodeattest_kube.answers import parse_event
from nodeattest_kube.errors import ApiError, KubeconfigError
from nodeattest_kube.kubeconfig import MAX_SELF_CONTAINED, MAX_SELF_CONTAINED_VALUES, parse_kubeconfig
from nodeattest_parsing import strict_json, strict_yaml
from nodeattest_parsing.strict_yaml import Scalars
from nodeattest_parsing.values import JsonObject, JsonValue, ParseError
from nodeattest_providers import canonical_json, cms, pem, pkcs10
from nodeattest_providers.certificate_chain import MAX_SIGNATURES, ChainError, ChainVerifier
from nodeattest_providers.errors import Denied
from nodeattest_providers.pkcs10 import parse_csr
from nodeattest_providers.tpm.boot_state import MAX_EVENTS, parse_event_log, replay
from nodeattest_providers.tpm.protocol import MAX_EVENT_LOG
from nodeattest_providers.tpm.structures import BANK_ALGORITHMS

pytestmark = pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
MANY: Final = 1_000_000
KIB: Final = 1 << 10
EVENT: Final = answers.TENANT.object


Parse = Callable[[bytes], object]
REFUSALS: Final = (ApiError, ChainError, Denied, KeysError, KubeconfigError, ParseError, ValueError)


def read(parse: Parse, data: bytes) -> object:
    try:
        return parse(data)
    except REFUSALS:
        return None


def json_of(data: bytes) -> object:
    return strict_json.parse(data, max_size=MANY, max_depth=32, max_values=4096)


def yaml_of(data: bytes) -> object:
    return strict_yaml.parse_object(data, scalars=Scalars.KUBERNETES, max_depth=16, max_values=4096)


def review(data: bytes) -> object:
    """Read and compare a review, as far as that needs no facts."""
    admission_review.cost(data)
    asked = admission_review.parse(data)
    new, old = (
        subject_of(each, group=asked.group, kind=asked.kind, namespace="", name="")
        for each in (asked.target, asked.before or {})
    )
    if new is None or old is None:
        return None
    return new.changes(old), admission_review.patch(new.whole, new.with_spec({**new.spec, "files": []}))


def event_log(data: bytes) -> object:
    log = parse_event_log(data)
    return [replay(log, bank) for bank in BANK_ALGORITHMS.values() if bank in log.sizes]


def signed_document(data: bytes) -> object:
    document = cms.parse(data)
    return [document.signed_by(certificate) for certificate in document.certificates]


def watch_event(line: bytes) -> object:
    return parse_event(line, "", EVENT.values, None)


def law(name: str) -> Parse:
    """Return the law of a fuzz target: it parses, and compares a little."""
    return TARGETS[name].law


def fields(field: bytes) -> bytes:
    """Write a head of one field, again and again."""
    count = min(61, (32 * KIB - 64) // (len(field) + 6))
    return identity.NAME.encode() + b"\nHost: a\nX-Remote-User: alice\n" + b"\n".join([field] * count)


KUBECONFIG: Final = MAX_SELF_CONTAINED
SEPARATED: Final = 64 * KIB
LEVELS: Final = b"[" * 15 + b"]" * 15 + b","
CSR: Final = pkcs10.MAX_SIZE
ROWS: Final[dict[str, tuple[Parse, int, Callable[[], bytes]]]] = {
    "watch event: lists": (watch_event, 300, lambda: worst.json_lists(EVENT.bytes, most=EVENT.values // 2 - 20)),
    "watch event: text": (watch_event, 300, lambda: worst.filled(b'{"x":"', b"a", b'"}', EVENT.bytes)),
    "watch event: levels": (watch_event, 200, lambda: worst.json_nested(EVENT.bytes)),
    "JSON: lists": (json_of, 100, lambda: worst.json_lists(SEPARATED)),
    "JSON: numbers": (json_of, 71_000, lambda: worst.json_numbers(SEPARATED, {"x": ["@@"]}, most=4000)),
    "JSON: levels": (json_of, 100, lambda: worst.json_nested(SEPARATED)),
    "JSON: escapes": (json_of, 300, lambda: worst.json_escapes(SEPARATED, {"x": "@@"})),
    "YAML: flow": (yaml_of, 3_900_000, lambda: worst.yaml_flow(SEPARATED, 4092)),
    "YAML: keys": (yaml_of, 3_200_000, lambda: worst.yaml_keys(SEPARATED, 4096)),
    "YAML: levels": (
        yaml_of,
        4_100_000,
        lambda: worst.filled(b"a: [", LEVELS, b"]\n", SEPARATED),
    ),
    "YAML: lines": (yaml_of, 4_100_000, lambda: worst.yaml_lines(SEPARATED)),
    "YAML: sexagesimal": (yaml_of, 2_100_000, lambda: worst.filled(b"a: 1", b":59", b"\n", SEPARATED)),
    "YAML: escapes": (yaml_of, 1_700_000, lambda: worst.filled(b'a: "', rb"\u00e9", b'"\n', SEPARATED)),
    "kubeconfig: flow": (parse_kubeconfig, 960_000, lambda: worst.yaml_flow(KUBECONFIG, MAX_SELF_CONTAINED_VALUES - 4)),
    "kubeconfig: lines": (parse_kubeconfig, 4_100_000, lambda: worst.yaml_lines(KUBECONFIG)),
    "review: lists": (review, 220_000, lambda: worst.review_of_lists(admission_review.MAX_BODY)),
    "review: differences": (review, 610_000, lambda: worst.review_of_different_objects(admission_review.MAX_BODY)),
    "review: a long key": (review, 610_000, lambda: worst.review_of_a_long_key(admission_review.MAX_BODY)),
    "PKCS#10: elements": (parse_csr, 100, lambda: worst.filled(b"\x30\x82\x3f\xf0", b"\x30\x00", b"", CSR)),
    "PKCS#10: levels": (parse_csr, 100, lambda: b"\x30\x80" * (CSR // 2)),
    "evidence: numbers": (
        canonical_json.loads,
        150_000,
        lambda: worst.json_numbers(canonical_json.MAX_SIZE, {"x": ["@@"]}, most=canonical_json.MAX_VALUES - 4),
    ),
    "evidence: levels": (canonical_json.loads, 100, lambda: worst.json_nested(canonical_json.MAX_SIZE)),
    "event log: events": (event_log, 260_000, lambda: worst.event_log(MAX_EVENT_LOG, MAX_EVENTS)),
    "PKCS#7: certificates": (
        signed_document,
        5_600,
        lambda: worst.signed_document(worst.looping_chain(7), cms.MAX_SIZE),
    ),
    "PKCS#7: elements": (
        signed_document,
        100,
        lambda: worst.filled(b"\x30\x82\x7f\xf0", b"\x30\x00", b"", cms.MAX_SIZE),
    ),
    "key set: P-521": (read_jwks, 60_000, lambda: worst.jwks("P-521", 128, MAX_KEYS)),
    "key set: RSA": (read_jwks, 100, lambda: worst.jwks("RSA", 1000, MAX_KEYS)),
    "key file: blocks without end": (read_pem, 100, lambda: worst.pem_without_end(MAX_KEYS)),
    "key file: certificates": (
        read_pem,
        100,
        lambda: worst.filled(b"", pem.encode([("CERTIFICATE", worst.looping_chain()[1])]), b"", MAX_KEYS),
    ),
    "discovery token: dots": (law("discovery-authorization"), 100, lambda: b"Bearer " + b"." * (4 * KIB)),
    "gateway: names": (law("gateway-headers"), 1_100, lambda: fields(b"a-" * 120 + b": a")),
    "gateway: groups": (law("gateway-headers"), 23_000, lambda: fields(b"X-Remote-Group: " + b"%C3%A9" * 38)),
    "gateway: percents": (law("gateway-headers"), 300_000, lambda: fields(b"X-Remote-Extra-" + b"%" * 8000 + b": a")),
    "sidecar: long names": (law("addon-request-headers"), 400, lambda: fields(b"sso-" * 2000 + b": a")),
    "sidecar: separators": (law("addon-request-headers"), 500, lambda: fields(b"-" * 8000 + b"x: a")),
    "sidecar: connection": (law("addon-request-headers"), 49_000, lambda: fields(b"Connection: " + b"a," * 4000)),
}
"""A parser, the lines of Python that it runs at most, and one of its worst inputs."""


@pytest.mark.parametrize(("parse", "most", "make"), ROWS.values(), ids=ROWS)
def test_a_worst_input_takes_at_most_so_many_steps(parse: Parse, most: int, make: Callable[[], bytes]) -> None:
    data = make()
    read(parse, data)  # whose modules are imported now, not in the count
    assert lines_run(lambda: read(parse, data)) <= most


BOMBS: Final = (b"[],", b'{"":1},', b"1,", b'"",', b"[" * 300 + b"]" * 300 + b",")


@pytest.mark.parametrize("parse", [canonical_json.loads, json_of], ids=["evidence", "JSON"])
@pytest.mark.parametrize("unit", BOMBS, ids=lambda unit: unit[:7].decode())
def test_a_document_of_far_too_many_values_is_refused_before_it_is_read(
    parse: Callable[[bytes], object], unit: bytes
) -> None:
    bomb = worst.filled(b'{"x":[', unit, b"0]}", canonical_json.MAX_SIZE)
    assert lines_run(lambda: read(parse, bomb)) < 200


def test_separators_in_texts_are_no_values() -> None:
    text = worst.to_json({"x": ",[{" * 20_000, "y": '\\",\\"' * 1000})
    assert json_of(text) == json.loads(text)


def verifier() -> ChainVerifier:
    return ChainVerifier([authority()], NOW, ExtendedKeyUsageOID.CLIENT_AUTH)


def test_a_chain_of_one_name_costs_a_bounded_number_of_signatures() -> None:
    leaf, *between = worst.looping_chain()
    chain = verifier()
    with pytest.raises(ChainError):
        chain.verify(load_der_x509_certificate(leaf), between)
    assert 0 < chain.checked <= MAX_SIGNATURES


def test_an_issuer_with_a_long_exponent_is_refused_without_checking_a_signature() -> None:
    leaf, *between = worst.slow_exponents()
    chain = verifier()
    with pytest.raises(ChainError, match="exponent of more than 31 bits"):
        chain.verify(load_der_x509_certificate(leaf), between)
    assert chain.checked == 0


def test_more_keys_than_an_issuer_has_are_refused_before_they_are_read() -> None:
    assert len(read_jwks(worst.jwks("P-521", 128, MANY))) == 128
    with pytest.raises(KeysError, match="1 to 128 keys"):
        read_jwks(worst.jwks("P-521", 129, MANY))


def test_pem_blocks_that_never_end_are_refused_before_they_are_looked_for() -> None:
    with pytest.raises(KeysError, match="at most 128 PEM blocks"):
        read_pem(worst.pem_without_end(MANY))
    with pytest.raises(KeysError, match="too many dashes"):
        read_pem(b"-----BEGIN PUBLIC KEY-----\n" + b"a-" * (MANY // 2) + b"\n-----END PUBLIC KEY-----\n")


def test_a_policy_of_more_values_than_a_loop_should_read_is_invalid() -> None:
    entries: list[JsonValue] = [
        {"providerID": f"a://{number}", "sha256": "x", "nodeName": "n"} for number in range(10_000)
    ]
    document: JsonObject = {"metadata": {"name": "p"}, "spec": {"tpm": {"endorsementKeys": entries}}}
    assert policy.parse_attestation_policy(document).name == "p"
    assert lines_run(lambda: policy.parse_attestation_policy(document)) < 3 * 40_000, "no call for each value"
    document["spec"] = {"tpm": {"endorsementKeys": entries * 2}}
    with pytest.raises(Denied, match="at most 60000 values"):
        policy.parse_attestation_policy(document)


def test_a_denial_of_a_policy_does_not_grow_with_the_name_that_it_refuses() -> None:
    for spec in ({"=" * MANY: 0}, {"enforcement": "=" * MANY}, {"certificateLifetime": "=" * MANY}):
        with pytest.raises(Denied) as denied:
            policy.parse_attestation_policy({"metadata": {"name": "p"}, "spec": {**spec}})
        assert len(str(denied.value)) < 1024
