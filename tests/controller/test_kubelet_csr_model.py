"""Kubelet's own serving request as an object: what kubelet files is read, what breaks a rule is denied."""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_controller.model.certificate_authority import SubjectAltNames
from nodeattest_controller.model.kubelet_csr import (
    MAX_BASE64,
    KubeletServingRequest,
    parse_kubelet_request,
    requesting_node,
)
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason


def kubelets(node: str = "node-0") -> bytes:
    subject = [(NameOID.ORGANIZATION_NAME, "system:nodes"), (NameOID.COMMON_NAME, f"system:node:{node}")]
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(kind, value) for kind, value in subject])
    )
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(node)]), critical=False)
    key = ec.generate_private_key(ec.SECP256R1())
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


PEM: Final = kubelets()
GROUPS: Final[list[JsonValue]] = ["system:nodes", "system:authenticated"]


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def csr_object(**spec: JsonValue) -> JsonObject:
    return {
        "metadata": {"name": "csr-x", "uid": "u", "creationTimestamp": "2026-01-02T03:04:05Z"},
        "spec": {
            "signerName": "kubernetes.io/kubelet-serving",
            "username": "system:node:node-0",
            "groups": GROUPS,
            "usages": ["digital signature", "server auth"],
            "request": b64(PEM),
            **spec,
        },
    }


@pytest.mark.parametrize("usages", [["digital signature", "server auth"], ["key encipherment", "server auth"]])
def test_what_kubelet_files_is_read(usages: list[JsonValue]) -> None:
    wanted: list[JsonValue] = list(dict.fromkeys(["digital signature", *usages]))
    request = parse_kubelet_request(csr_object(usages=wanted))
    assert (request.node_name, request.names) == ("node-0", SubjectAltNames(("node-0",), ()))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"username": "system:node:node-1"}, Reason.REQUESTER_NOT_ALLOWED),
        ({"username": "system:node:"}, Reason.REQUESTER_NOT_ALLOWED),
        ({"username": "node-0"}, Reason.REQUESTER_NOT_ALLOWED),
        ({"username": "system:bootstrap:abcdef"}, Reason.REQUESTER_NOT_ALLOWED),
        ({"groups": ["system:authenticated"]}, Reason.REQUESTER_NOT_ALLOWED),
        ({"usages": ["digital signature", "client auth"]}, Reason.USAGES_NOT_ALLOWED),
        ({"usages": ["digital signature", "server auth", "client auth"]}, Reason.USAGES_NOT_ALLOWED),
        ({"usages": ["server auth"]}, Reason.USAGES_NOT_ALLOWED),
        ({"usages": []}, Reason.USAGES_NOT_ALLOWED),
        ({"request": b64(kubelets("node-1"))}, Reason.REQUESTER_NOT_ALLOWED),
        ({"request": b64(PEM + PEM)}, Reason.CSR_MALFORMED),
        ({"request": b64(b"\n" + PEM)}, Reason.CSR_MALFORMED),
        ({"request": b64(PEM + b"\n")}, Reason.CSR_MALFORMED),
        ({"request": b64(PEM.replace(b"\n", b"\r\n"))}, Reason.CSR_MALFORMED),
        ({"request": b64(PEM.replace(b"CERTIFICATE REQUEST", b"NEW CERTIFICATE REQUEST"))}, Reason.CSR_MALFORMED),
        ({"request": b64(PEM.replace(b"REQUEST-----\n", b"REQUEST-----\nA: b\n\n", 1))}, Reason.CSR_MALFORMED),
        ({"request": "%"}, Reason.CSR_MALFORMED),
        ({"request": ""}, Reason.CSR_MALFORMED),
        ({"request": "A" * (MAX_BASE64 + 4)}, Reason.CSR_MALFORMED),
    ],
)
def test_what_kubelet_would_not_file_is_denied(spec: dict[str, JsonValue], reason: Reason) -> None:
    with pytest.raises(Denied) as refused:
        parse_kubelet_request(csr_object(**spec))
    assert refused.value.reason is reason


def test_a_request_without_a_time_is_denied() -> None:
    with pytest.raises(Denied) as refused:
        parse_kubelet_request({**csr_object(), "metadata": {"name": "csr-x"}})
    assert refused.value.reason is Reason.CSR_MALFORMED


def test_only_a_nodes_request_names_a_node() -> None:
    assert requesting_node(csr_object()) == "node-0"
    assert requesting_node(csr_object(username="somebody")) == ""


@given(st.dictionaries(st.sampled_from(["username", "groups", "usages", "request"]), st.text() | st.none(), max_size=4))
def test_any_object_gives_kubelets_request_or_denied(spec: dict[str, JsonValue]) -> None:
    with suppress(Denied):
        assert isinstance(parse_kubelet_request(csr_object(**spec)), KubeletServingRequest)
