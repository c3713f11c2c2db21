"""The management cluster's caches, on the sandbox's API server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nodeattest_controller.manifests import crds
from nodeattest_controller.model.machine_view import ContractReference
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube.client import ApiClient
from nodeattest_providers.errors import Unavailable
from nodeattest_sandbox.control_plane import start_sandbox
from nodeattest_sandbox.definitions import install_cluster_api, install_definitions

JOINS = 20
KIND = ContractReference("infrastructure.cluster.x-k8s.io", "DevMachine", "not-there-yet")


async def test_a_burst_of_joins_watches_an_infrastructure_kind_once(tmp_path: Path) -> None:
    with start_sandbox(tmp_path, name="management") as plane:
        install_cluster_api(plane.client())
        install_definitions(plane.client(), crds())
        before = len(plane.requests())
        async with ApiClient.from_kubeconfig_file(plane.admin_kubeconfig) as client:
            management = ManagementCache(client, namespace=None, on_change=lambda _cluster, _machines: None)
            ready = asyncio.Event()
            running = asyncio.create_task(management.run(ready))
            await asyncio.wait_for(ready.wait(), 60)
            for _ in range(2):
                asked = [management.platforms.get(KIND, "default") for _ in range(JOINS)]
                answers = await asyncio.gather(*asked, return_exceptions=True)
                assert all(isinstance(answer, Unavailable) for answer in answers), answers
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        asked_for = [entry.verb for entry in plane.requests()[before:] if entry.resource == "devmachines"]
    assert asked_for.count("list") == 1
