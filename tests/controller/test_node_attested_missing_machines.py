"""Machines that are not there yet, or no more, are counted where Nodes are deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path

from node_attested_kit import ledger, machine
from node_attested_site import KEY, Site, prepared
from polling import until

from nodeattest_controller.controllers.node_attested.missing_machines import HELD, MissingMachines
from nodeattest_controller.model.policy import FailureAction
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_kube.client import ApiClient
from nodeattest_providers.errors import Reason
from nodeattest_sandbox.control_plane import start_sandbox
from nodeattest_sandbox.definitions import install_cluster_api

ME = machine()
DELETED = ledger(ME, refused=Reason.PCR_VALUE_NOT_ALLOWED, treated=FailureAction.DELETE_NODE)


async def test_what_cluster_api_has_yet_to_bring_up_and_what_was_deleted_is_counted(tmp_path: Path) -> None:
    now = 0.0
    with start_sandbox(tmp_path, name="management") as plane:
        install_cluster_api(plane.client())
        site = Site(prepared(plane).client(), "v1beta1")
        site.cluster()
        site.machine("known")
        site.create("Machine", "nameless", site.template(), {"phase": "Provisioning"})
        site.pool("pool", "sandbox://pool-0")
        site.client.patch(f"{site.root}/machinepools/pool", {"spec": {"replicas": 3}})
        async with ApiClient.from_kubeconfig_file(plane.admin_kubeconfig) as client:
            management, ready = (
                ManagementCache(client, namespace=None, on_change=lambda _key, _ids: None),
                asyncio.Event(),
            )
            task = asyncio.create_task(management.run(ready))
            await asyncio.wait_for(ready.wait(), 60)
            # MachinePools are a feature gate of Cluster API, and ``ready`` does not wait for them.
            await until(lambda: management.object_at("machinepools", "fleet", "pool") is not None)
            absent = MissingMachines(KEY, management, lambda: now)
            assert await absent.count([(ME, ledger(ME, treated=FailureAction.TAINT))]) == 3
            assert await absent.count([]) == 3  # a tainted one that is gone holds no place
            assert await absent.count([(ME, DELETED)]) == 3
            assert await absent.count([]) == 4
            assert await absent.count([(ME, DELETED)]) == 3
            now = HELD
            assert await absent.count([]) == 3
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
