"""The cheap checks on a CertificateSigningRequest object."""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_controller.model.csr_request import parse_request, summarize
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import envelope, pkcs10
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import CLIENT_SIGNER_PREFIX, NodeName, ProviderID, ProviderName
from nodeattest_providers.node_interface import Evidence

DER: Final = pkcs10.build_csr(ec.generate_private_key(ec.SECP256R1()), NodeName("node-0"), ProviderID("x://1"))
TOKEN_GROUPS: Final[list[JsonValue]] = ["system:bootstrappers", "system:authenticated"]


RAW = envelope.encode(DER, Evidence(ProviderName("insecure"), 1, {}))


def csr_object(**spec: JsonValue) -> JsonObject:
    return {
        "metadata": {
            "name": "r",
            "uid": "u",
            "resourceVersion": "5",
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "annotations": {"attestation.cluster.x-k8s.io/challenge": "forged"},
        },
        "spec": {
            "signerName": CLIENT_SIGNER_PREFIX + "insecure",
            "username": "system:bootstrap:abcdef",
            "groups": TOKEN_GROUPS,
            "usages": ["digital signature", "client auth"],
            "request": base64.b64encode(RAW).decode(),
            **spec,
        },
    }


def test_a_good_request_becomes_a_value() -> None:
    request = parse_request(csr_object())
    assert (request.csr.node_name, request.csr.provider_id) == ("node-0", "x://1")
    assert request.created.isoformat() == "2026-01-02T03:04:05+00:00"
    assert request.expiration_seconds is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(field=st.sampled_from(["signerName", "username", "groups", "usages", "request"]), value=json_values)
def test_any_value_in_any_field_gives_a_value_or_denied(field: str, value: JsonValue) -> None:
    body = csr_object(**{field: value})
    summarize(body)
    with suppress(Denied):
        parse_request(body)


@given(whole=st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), json_values))
def test_any_object_gives_a_value_or_denied(whole: JsonObject) -> None:
    summarize(whole)
    with pytest.raises(Denied):
        parse_request(whole)
