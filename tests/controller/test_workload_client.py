"""What is kept of a workload cluster's requests, and that it can be written back."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from management_kit import tasks

from nodeattest_controller.model.csr_request import RequestState, summarize
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.workload_client import MAX_METADATA, WorkloadClient
from nodeattest_kube.client import ApiClient
from nodeattest_kube.memory_budget import MemoryPool
from nodeattest_providers import envelope, pkcs10
from nodeattest_providers.identifiers import CLIENT_SIGNER_PREFIX, ProviderName
from nodeattest_providers.node_interface import Evidence
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import ControlPlane

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
FAT: dict[str, JsonMap] = {
    "labels": {"labels": {f"tests.example/label-{number}": "x" * 60 for number in range(200)}},
    "owners": {
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "o" * 200, "uid": f"uid-{number}"} for number in range(60)
        ]
    },
    "finalizers": {"finalizers": [f"tests.example/{'f' * 50}-{number}" for number in range(200)]},
}


def workload_of(client: ApiClient, provider: str) -> WorkloadClient:
    return WorkloadClient(
        ClusterKey("ns/c"),
        client,
        has_provider=lambda name: name == provider,
        on_request=lambda _name: None,
        now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        memory=MemoryPool(1 << 30),
    )


@pytest.mark.parametrize("fat", FAT)
async def test_fat_metadata_is_not_kept_and_the_request_can_still_be_ended(
    control_plane: ControlPlane, fat: str
) -> None:
    name = f"fat-{fat}"
    raw = envelope.encode(
        pkcs10.build_csr(ec.generate_private_key(ec.SECP256R1()), name, f"sandbox://{name}"),
        Evidence(ProviderName("insecure"), 1, {}),
    )
    body: JsonMap = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name, **FAT[fat]},
        "spec": {
            "signerName": CLIENT_SIGNER_PREFIX + "insecure",
            "usages": ["digital signature", "client auth"],
            "request": base64.b64encode(raw).decode(),
        },
    }
    control_plane.client().create(CSRS, body)
    async with ApiClient.from_kubeconfig_file(control_plane.admin_kubeconfig) as client:
        workload = workload_of(client, "insecure")
        async with tasks(workload.run()):
            assert await workload.requests.wait_synced(20)
            kept = workload.requests.get(name)
            assert kept is not None
            assert len(str(kept["metadata"])) < MAX_METADATA
            assert "managedFields" not in str(kept)
            ended = summarize(await workload.deny(kept, "Tested", "it was fat"))
            assert ended is not None
            assert ended.state is RequestState.DENIED
