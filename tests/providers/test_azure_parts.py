"""What the azure provider reads: names, settings, policies, documents, bundles; and its node half."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_cloud_http import answering, serving
from worlds import PIN, denied_for

from clouds.authority import Authority, constraint
from clouds.azure import SandboxAzure
from nodeattest_providers.azure.attestor import AzureAttestor
from nodeattest_providers.azure.protocol import nonce_for, parse_attested_document, provider_id_of
from nodeattest_providers.certificate_chain import parse_authorities
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import EvidenceBlock, SignerName
from nodeattest_providers.node_interface import Binding
from nodeattest_providers.platform import read_authorities

SUBSCRIPTION = "8d10da13-8125-4ba9-a717-bf7490507b3d"
VM = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/Fleet/providers/Microsoft.Compute/virtualMachines/Worker_1"
INSTANCE = (
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/Fleet/providers/Microsoft.Compute"
    "/virtualMachineScaleSets/Pool/virtualMachines/12"
)
BINDING = Binding(
    EvidenceBlock("azure/v1"), PIN, SignerName("cluster.x-k8s.io/kube-apiserver-client-kubelet-azure"), bytes(32)
)
DOCUMENT = {
    "nonce": "0" * 32,
    "subscriptionId": SUBSCRIPTION.upper(),
    "timeStamp": {"createdOn": "11/30/20 21:19:19 -0000", "expiresOn": "12/01/20 03:19:19 -0000"},
    "vmId": "02AAB8A4-74ef-476e-8182-f6d2ba4166a6",
    "sku": "whatever",
}


# Names


@pytest.mark.parametrize(
    "resource_id",
    ["", VM + "/", VM.replace("subscriptions", "Subscriptions"), VM.replace("Fleet", "a/b"), INSTANCE + "x", VM + "\n"],
)
def test_what_is_no_machine_has_no_provider_id(resource_id: str) -> None:
    assert provider_id_of(resource_id) is None


# Documents


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NaN",
        json.dumps({**DOCUMENT, "vmId": "x"}),
        json.dumps({**DOCUMENT, "nonce": "0" * 65}),
        json.dumps({**DOCUMENT, "timeStamp": {**DOCUMENT["timeStamp"], "createdOn": "13/30/20 21:19:19 -0000"}}),  # type: ignore[dict-item]
        json.dumps({**DOCUMENT, "timeStamp": {**DOCUMENT["timeStamp"], "createdOn": "11/30/20 21:19:19 +0100"}}),  # type: ignore[dict-item]
        json.dumps(DOCUMENT) + " " * 9000,
        json.dumps(DOCUMENT).replace('"createdOn"', '"createdOn":"","createdOn"'),
    ],
)
def test_another_content_is_denied(text: str) -> None:
    with denied_for(Reason.PLATFORM_DOCUMENT_MALFORMED):
        parse_attested_document(text.encode())


# Trust

ROOT = Authority.root("Root")


def test_a_bundle_holds_authorities_only() -> None:
    issuing, leaf = ROOT.below("Issuing"), ROOT.below("leaf", constraint(ca=False))
    assert parse_authorities(issuing.pem + ROOT.pem, "where") == (issuing.certificate, ROOT.certificate)
    for wrong in ("", "text", ROOT.pem + leaf.pem, ROOT.pem * 1025):
        with pytest.raises(Denied, match="where"):
            parse_authorities(wrong, "where")


def test_of_a_bundles_file_no_more_is_read_than_a_bundle_may_have() -> None:
    assert read_authorities(None, "where") is None
    with pytest.raises(Denied, match="where: a file of at most"):
        read_authorities(Path("/dev/zero"), "where")


# The node's half


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"encoding":"pkcs7","signature":"?"}',
        b'{"encoding":"xml","signature":"AAAA"}',
    ],
)
def test_a_service_that_speaks_otherwise_is_told_in_one_line(body: bytes) -> None:
    with serving(answering("200 OK", body)) as port, pytest.raises(Unavailable) as told:
        AzureAttestor({"metadataEndpoint": f"http://127.0.0.1:{port}"}).attest(BINDING)
    assert "Azure's metadata service gave" in told.value.detail
    assert "\n" not in told.value.detail


def test_the_header_and_the_nonce_are_sent_and_no_other_is_taken(azure: SandboxAzure) -> None:
    machine = azure.launch("vm-3")
    other = AzureAttestor({"metadataEndpoint": machine.metadata}).attest(replace(BINDING, csr_sha256=b"\1" * 32))
    body = json.dumps({"encoding": "pkcs7", "signature": _standard(str(other.data["signature"]))}).encode()
    seen: list[bytes] = []
    with serving(answering("200 OK", body), seen=seen) as port, pytest.raises(Unavailable):
        AzureAttestor({"metadataEndpoint": f"http://127.0.0.1:{port}"}).attest(BINDING)
    assert b"Metadata: true" in seen[0]
    assert f"nonce={nonce_for(BINDING.digest)} ".encode() in seen[0]


def _standard(text: str) -> str:
    return text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4)
