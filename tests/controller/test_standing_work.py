"""The controller ``standing`` where a right is missing: it says so, and does not ask again and again."""

from __future__ import annotations

import asyncio
from pathlib import Path

from standing_site import KEY, Site, at_work, prepared, until

from nodeattest_controller.controllers.node_attested.reconciler import REFUSED_IN_A_ROW
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import start_sandbox
from nodeattest_sandbox.definitions import install_cluster_api

RBAC = "/apis/rbac.authorization.k8s.io/v1"
USER = "reader"
EVENTS = "/api/v1/namespaces/fleet/events"


def allow(client: Client, name: str, *rules: JsonMap) -> None:
    role: JsonMap = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                     "metadata": {"name": name}, "rules": [*rules]}  # fmt: skip
    client.create(f"{RBAC}/clusterroles", role)
    binding: JsonMap = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "User", "name": USER, "apiGroup": "rbac.authorization.k8s.io"}],
    }
    client.create(f"{RBAC}/clusterrolebindings", binding)


async def test_a_status_that_may_not_be_written_is_told_once_and_not_asked_for_again_and_again(tmp_path: Path) -> None:
    with start_sandbox(tmp_path, name="management") as plane:
        install_cluster_api(plane.client())
        site = Site(prepared(plane).client(), "v1beta2")
        site.cluster()
        for number in range(20):
            site.machine(f"m-{number}")
        reads: JsonMap = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}
        tells: JsonMap = {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}
        allow(plane.client(), "reader", reads, tells)
        async with at_work(plane, plane.client_kubeconfig(USER)):
            await until(lambda: bool(site.client.list(EVENTS)), "the Event")
            for number in range(3):  # what wakes it, again and again
                site.client.patch(f"{site.root}/machines/m-0", {"metadata": {"labels": {"n": str(number)}}})
                await asyncio.sleep(1.2)
        asked = [one for one in plane.requests() if one.verb == "patch" and one.code == 403]
        [event] = site.client.list(EVENTS)
    assert len(asked) == REFUSED_IN_A_ROW
    assert len({one.name for one in asked}) == len(asked)
    assert text_at(event, "reason") == "StandingForbidden"
    assert "manifests/rbac" in text_at(event, "message")
    assert text_at(event, "involvedObject", "name") == KEY.rpartition("/")[2]


async def test_one_object_that_is_refused_silences_no_other(tmp_path: Path) -> None:
    with start_sandbox(tmp_path, name="management") as plane:
        install_cluster_api(plane.client())
        site = Site(prepared(plane).client(), "v1beta2")
        site.cluster()
        for number in range(6):
            site.machine(f"m-{number}")
        reads: JsonMap = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}
        tells: JsonMap = {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}
        shows: JsonMap = {"apiGroups": ["cluster.x-k8s.io"], "resources": ["machines/status"], "verbs": ["patch"],
                          "resourceNames": [f"m-{number}" for number in range(2, 6)]}  # fmt: skip
        allow(plane.client(), "reader", reads, tells, shows)
        async with at_work(plane, plane.client_kubeconfig(USER)):
            await until(lambda: all(site.conditions("machines", f"m-{n}") for n in range(2, 6)), "the conditions")
            for number in range(3):  # what wakes it, again and again
                site.client.patch(f"{site.root}/machines/m-0", {"metadata": {"labels": {"n": str(number)}}})
                await asyncio.sleep(1.2)
        refused = [one.name for one in plane.requests() if one.verb == "patch" and one.code == 403]
    assert sorted(refused) == ["m-0", "m-1"]  # each once
