"""What is kept of a workload cluster's requests, that it can be written back, and what wakes a request."""

from __future__ import annotations

import base64
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from builders import make_request
from fake_api import FakeApi
from management_kit import tasks
from polling import others_run, until

from nodeattest_controller.model.csr_request import RequestState, summarize
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.workload_client import MAX_METADATA, WorkloadClient
from nodeattest_kube.errors import Conflict
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


def client_of(api: FakeApi, on_request: Callable[[str], None] = lambda _name: None) -> WorkloadClient:
    return WorkloadClient(
        ClusterKey("ns/c"),
        api,
        has_provider=lambda _name: True,
        on_request=on_request,
        now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        memory=MemoryPool(1 << 30),
    )


def file_request(api: FakeApi, name: str, metadata: JsonObject) -> None:
    spec: JsonObject = {"signerName": make_request().signer_name, "request": base64.b64encode(b"evidence").decode()}
    api.put(f"{CSRS}/{name}", {"kind": "CertificateSigningRequest", "metadata": metadata, "spec": spec})


class SlowAnswers(FakeApi):
    """Shows a write in the watch, and perhaps another's after it, before it is answered or refused."""

    is_overtaken = refuses = False

    async def merge_patch(self, path: str, body: JsonObject) -> JsonObject:
        written = await super().merge_patch(path, body)
        if self.is_overtaken:
            self.put(path, {**self.objects[path], "status": {}})
        await others_run()
        if self.refuses:
            raise Conflict(409, "Conflict", "another version")
        return written


@pytest.mark.parametrize("server", [FakeApi, SlowAnswers])
async def test_a_request_is_woken_by_others_writes_and_not_by_our_own(server: type[FakeApi]) -> None:
    api, woken = server(), list[str]()
    file_request(api, "r", {})
    workload = client_of(api, woken.append)
    async with tasks(workload.run()):
        assert await workload.requests.wait_synced(20)
        woken.clear()
        kept = workload.requests.get("r")
        assert kept is not None
        await workload.publish_annotations(kept, {"a": "b"})
        await until(lambda: workload.requests.get("r") != kept)
        assert woken == []
        if isinstance(api, SlowAnswers):
            for api.is_overtaken, api.refuses in ((True, False), (True, True)):
                with suppress(Conflict):
                    await workload.publish_annotations(api.objects[f"{CSRS}/r"], {"a": "c"})
                assert woken == ["r"]
                woken.clear()
        api.put(f"{CSRS}/r", {**api.objects[f"{CSRS}/r"], "status": {}})
        await until(lambda: woken == ["r"])


async def test_a_write_reaches_only_the_version_that_was_evaluated() -> None:
    api = FakeApi()
    file_request(api, "r", {})
    workload, evaluated = client_of(api), api.objects[f"{CSRS}/r"]
    api.put(f"{CSRS}/r", {**evaluated, "status": {}})
    for write in (
        workload.publish_annotations(evaluated, {"a": "b"}),
        workload.approve(evaluated, "Attested", ""),
        workload.publish_certificate(evaluated, "PEM"),
    ):
        with pytest.raises(Conflict):
            await write


@pytest.mark.parametrize("fat", FAT)
async def test_fat_metadata_is_not_kept_and_the_request_can_still_be_ended(fat: str) -> None:
    api = FakeApi()
    file_request(api, "fat", FAT[fat])
    workload = client_of(api)
    async with tasks(workload.run()):
        assert await workload.requests.wait_synced(20)
        kept = workload.requests.get("fat")
        assert kept is not None
        assert len(str(metadata(kept))) < MAX_METADATA
        assert FAT[fat].keys().isdisjoint(metadata(kept))
        ended = summarize(await workload.deny(kept, "Tested", "it was fat"))
    assert ended is not None
    assert ended.state is RequestState.DENIED
