"""What is kept of a workload cluster's requests, and that it can be written back."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest
from builders import make_request
from fake_api import FakeApi
from management_kit import tasks

from nodeattest_controller.model.csr_request import RequestState, summarize
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.workload_client import MAX_METADATA, WorkloadClient
from nodeattest_kube.store import MemoryPool
from nodeattest_parsing.objects import metadata
from nodeattest_parsing.values import JsonObject

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
FAT: dict[str, JsonObject] = {
    "labels": {"labels": {f"tests.example/label-{number}": "x" * 60 for number in range(200)}},
    "owners": {"ownerReferences": [{"kind": "ConfigMap", "name": "o" * 200, "uid": str(n)} for n in range(60)]},
    "finalizers": {"finalizers": [f"tests.example/{'f' * 50}-{number}" for number in range(200)]},
    "managed fields": {"managedFields": [{"manager": "thief"}]},
}


@pytest.mark.parametrize("fat", FAT)
async def test_fat_metadata_is_not_kept_and_the_request_can_still_be_ended(fat: str) -> None:
    request = make_request()
    spec: JsonObject = {"signerName": request.signer_name, "request": base64.b64encode(b"evidence").decode()}
    api = FakeApi()
    api.put(f"{CSRS}/fat", {"kind": "CertificateSigningRequest", "metadata": FAT[fat], "spec": spec})
    workload = WorkloadClient(
        ClusterKey("ns/c"),
        api,
        has_provider=lambda _name: True,
        on_request=lambda _name: None,
        now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        memory=MemoryPool(1 << 30),
    )
    async with tasks(workload.run()):
        assert await workload.requests.wait_synced(20)
        kept = workload.requests.get("fat")
        assert kept is not None
        assert len(str(metadata(kept))) < MAX_METADATA
        assert FAT[fat].keys().isdisjoint(metadata(kept))
        ended = summarize(await workload.deny(kept, "Tested", "it was fat"))
    assert ended is not None
    assert ended.state is RequestState.DENIED
