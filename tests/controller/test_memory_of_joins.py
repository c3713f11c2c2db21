"""What a machine that has joined costs in memory: bytes of each kind of object that the controller keeps of it.

Guards, not goals: measured, with a tenth on top. Every object is parsed from text of its own, as an API server's.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID

import pytest
from fake_api import FakeApi
from management_kit import CAPI, management_api

from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_kube.jsontypes import JsonObject, JsonValue, parse_json

BLUE = ClusterKey("fleet/blue")
LABELS: JsonObject = {"cluster.x-k8s.io/cluster-name": "blue"}
SIGNER = "cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm"
OWN = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/fleet/machineattestations"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
FIELDS: JsonValue = [{"manager": "capi", "fieldsV1": {f"f:field-{number}": {} for number in range(30)}}]


class ParsedApi(FakeApi):
    """Gives every reader objects of its own, as an API server's text does."""

    async def pages(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        limit: int = 500,
        *,
        skipped: Callable[[], None] | None = None,
    ) -> AsyncGenerator[JsonObject]:
        async for page in super().pages(path, query, limit, skipped=skipped):
            yield parse_json(json.dumps(page).encode())


def uid(*of: object) -> str:
    return str(UUID(bytes=hashlib.md5(repr(of).encode(), usedforsecurity=False).digest()))


def digest(*of: object) -> str:
    return hashlib.sha256(repr(of).encode()).hexdigest()


def meta(number: int, kind: str, **more: JsonValue) -> JsonObject:
    return {
        "uid": uid(kind, number), "creationTimestamp": "2026-01-02T03:04:05Z", "managedFields": FIELDS,
        "labels": dict(LABELS), **more,
    }  # fmt: skip


def machine(number: int) -> tuple[str, JsonObject]:
    name = f"md-{number}"
    owner: JsonObject = {
        "apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Cluster", "name": "blue", "uid": uid(), "controller": True,
    }  # fmt: skip
    reference = {"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1", "kind": "KubeadmConfig", "name": name}
    infra = {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "DevMachine", "name": name}
    return f"{CAPI}/v1beta2/namespaces/fleet/machines/{name}", {
        "apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine",
        "metadata": meta(number, "machine", ownerReferences=[owner]),
        "spec": {
            "clusterName": "blue", "providerID": f"metal://rack/{number}",
            "bootstrap": {"configRef": {**reference}, "dataSecretName": f"{name}-bootstrap"},
            "infrastructureRef": {**infra},
        },
        "status": {
            "addresses": [{"type": "Hostname", "address": f"worker-{number}"}], "bootstrapReady": True,
            "nodeRef": {"kind": "Node", "name": f"worker-{number}", "uid": uid("node", number)}, "phase": "Running",
            "nodeInfo": {
                "machineID": uid("id", number), "systemUUID": uid("system", number), "bootID": uid("boot", number),
                "kernelVersion": "6.8.0", "osImage": "Ubuntu 24.04", "containerRuntimeVersion": "containerd://2.0.0",
                "kubeletVersion": "v1.33.0", "operatingSystem": "linux", "architecture": "amd64",
            },
            "conditions": [
                {"type": "BootstrapReady", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"},
                {
                    "type": "NodeAttested", "status": "True", "reason": "Attested", "observedGeneration": 1,
                    "message": "by tpm, until 2026-01-16T03:04:05Z", "lastTransitionTime": "2026-01-02T03:04:05Z",
                },
            ],
        },
    }  # fmt: skip


def attestation(number: int) -> tuple[str, JsonObject]:
    owner: JsonObject = {
        "apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "name": f"md-{number}",
        "uid": uid("machine", number),
    }  # fmt: skip
    entry: JsonObject = {
        "requestName": f"nodeattest-{digest('request', number)[:32]}", "requestUID": uid("request", number),
        "firstRequestUID": uid("first", number), "spki": f"sha256:{digest('spki', number)}", "policy": "p",
        "serial": digest("serial", number)[:40], "notBefore": "2026-01-02T02:59:05Z",
        "notAfter": "2026-01-16T03:04:05Z", "issuedAt": "2026-01-02T03:04:05Z",
        "certificate": "-----BEGIN CERTIFICATE-----\n" + digest(number) * 10,
    }  # fmt: skip
    spec: JsonObject = {
        "clusterName": "blue", "providerID": f"metal://rack/{number}", "nodeName": f"worker-{number}",
        "machineName": f"md-{number}", "provider": "tpm", "signerName": SIGNER, "expires": "2026-01-16T03:04:05Z",
        "fingerprints": {"tpm.ak": digest("ak", number), "tpm.ek": f"sha256:{digest('ek', number)}"},
        "issued": [entry],
        "boot": {
            "clock": 1000000, "resetCount": 1, "restartCount": 0, "safe": True, "bank": "sha256",
            "pcrDigest": digest("pcrs"), "pcrs": {"0": "0" * 64, "7": "0" * 64},
        },
        "lastVerdict": {"verdict": "Approved", "reason": "Attested", "time": "2026-01-02T03:04:05Z"},
    }  # fmt: skip
    named = f"blue-{digest('name', number)[:32]}"
    return f"{OWN}/{named}", {"metadata": meta(number, "ledger", ownerReferences=[owner]), "spec": spec}


def secret(number: int) -> tuple[str, JsonObject]:
    data: JsonObject = {"value": "x" * 4096, "format": "Y2xvdWQtY29uZmln"}
    body: JsonObject = {"metadata": meta(number, "secret"), "type": "cluster.x-k8s.io/secret", "data": data}
    return f"/api/v1/namespaces/fleet/secrets/md-{number}-bootstrap", body


def settled_request(number: int) -> tuple[str, JsonObject]:
    done: JsonObject = {
        "type": "Approved", "status": "True", "reason": "Attested", "message": f"recorded as blue-{number}",
        "lastUpdateTime": "2026-01-02T03:04:05Z", "lastTransitionTime": "2026-01-02T03:04:05Z",
    }  # fmt: skip
    spec: JsonObject = {
        "signerName": SIGNER, "request": digest(number) * 40, "username": "system:bootstrap:abcdef",
        "groups": ["system:bootstrappers", "system:authenticated"], "usages": ["digital signature", "client auth"],
    }  # fmt: skip
    status: JsonObject = {"conditions": [done], "certificate": digest("pem", number) * 14}
    name = f"nodeattest-{digest('request', number)[:32]}"
    return f"{CSRS}/{name}", {"metadata": meta(number, "request"), "spec": spec, "status": status}


@asynccontextmanager
async def running(api: ParsedApi) -> AsyncGenerator[ManagementCache]:
    """Follow an API server that is both, for a cluster that is served."""
    management = ManagementCache(api, namespace=None, on_change=lambda _key, _ids: None)
    workload = WorkloadClient(
        BLUE, api, has_provider=lambda name: name == "tpm", on_request=lambda _name: None, now=lambda: datetime.now(UTC)
    )
    ready = asyncio.Event()
    tasks = [asyncio.create_task(management.run(ready)), asyncio.create_task(workload.run())]
    try:
        await asyncio.wait_for(ready.wait(), 60)
        assert await workload.requests.wait_synced(60)
        await management.inventory.load(BLUE)
        yield management
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def bytes_of(objects: list[tuple[str, JsonObject]]) -> int:
    """Return how much more memory there is in use while these objects are followed."""
    api = ParsedApi()
    api.documents |= management_api().documents
    for path, body in objects:
        api.put(path, body)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        async with running(api):
            gc.collect()
            return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("kind", "most"), [(machine, 7_500), (attestation, 8_800), (secret, 1_000), (settled_request, 1_200)]
)
async def test_a_machine_that_has_joined_takes_so_many_bytes(
    kind: Callable[[int], tuple[str, JsonObject]], most: int
) -> None:
    few, many = [await bytes_of([kind(number) for number in range(count)]) for count in (200, 600)]
    assert (many - few) / 400 <= most
