"""A cluster's life under Cluster API's managers, step after step; each test goes on where the one before it ended.

Real: etcd, kube-apiserver, kube-controller-manager, kubeadm, kubelet, Cluster API's managers, swtpm, the agent, and the
controller with the rights of the shipped manifests.
"""

from __future__ import annotations

import base64
import re
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from auto_approval_kit import file_in_tree
from capi_world import BLUE, GREEN, NAMESPACE, POLICIES, CapiWorld
from filing_requests import Wanted, file_request
from fleet_objects import cluster, deployment, health_check, policy, pool, topology
from kinds import (
    CLUSTER,
    CONFIG,
    CONFIG_TEMPLATE,
    CONTROL_PLANE,
    CONTROL_PLANE_TEMPLATE,
    DEPLOYMENT,
    MACHINE,
    POOL,
    Kind,
    Object,
    has_condition,
    name_of,
)
from world import World

from nodeattest_controller.controllers.bootstrap_config.render import ATTESTOR_ANNOTATION
from nodeattest_controller.model.kubeadm_config import SECRET_FILE
from nodeattest_controller.model.webhook_configuration import LABEL, label_command
from nodeattest_sandbox.apiserver.jsonvalue import text_at
from nodeattest_sandbox.client import ApiRefusal

pytestmark = [pytest.mark.conformance, pytest.mark.swtpm, pytest.mark.timeout(1800)]

IN_TREE: Final = "kubernetes.io/kube-apiserver-client-kubelet"
"""The signer that kube-controller-manager serves."""
WORKERS: Final = "workers"
SECRET_HOLDERS: Final = "secret-holders"
VICTIM: Final = "victim"


def apply(world: CapiWorld, objects: list[tuple[Kind, Object]]) -> None:
    for kind, value in objects:
        world.management.create(kind, value)


def token_of(config: Object) -> str:
    found: Any = config["spec"].get("joinConfiguration", {}).get("discovery", {}).get("bootstrapToken", {})
    return str(found.get("token", ""))


@contextmanager
def thief(world: CapiWorld) -> Generator[list[str]]:
    """Ask the in-tree signer for a victim's certificate with every worker's token, from its first moment on; yields
    the token of each request.
    """
    asked: list[str] = []
    over = threading.Event()

    def steal() -> None:
        while not over.wait(0.05):
            for token in filter(None, map(token_of, world.management.list(CONFIG))):
                plane = world.infrastructure.planes[BLUE]
                with suppress(ApiRefusal):  # newer servers refuse by an admission policy
                    file_in_tree(plane.client(plane.token_kubeconfig(token)), VICTIM)
                asked.append(token)

    thread = threading.Thread(target=steal, daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        over.set()
        thread.join(20)


def joined(world: CapiWorld, machines: int = 1, deployment: str = WORKERS) -> list[Object] | None:
    """Return the workers where so many there are, each a Node and attested."""
    found = world.management.workers(deployment=deployment)
    ready = [one for one in found if one.get("status", {}).get("nodeRef") and has_condition(one, "NodeAttested")]
    return found if len(ready) == len(found) == machines else None


def test_a_cluster_is_born_under_attack_and_its_worker_joins_attested(world: CapiWorld, kubernetes: str) -> None:
    world.management.create(POLICIES, policy("metal", "tpm", BLUE))
    apply(world, cluster(BLUE, kubernetes))
    apply(world, deployment(WORKERS, BLUE, kubernetes))
    with thief(world) as asked:
        (worker,) = world.eventually(lambda: joined(world), "an attested worker", 600)
    assert asked
    in_tree = [one for one in world.requests() if text_at(one, "spec", "signerName") == IN_TREE]
    assert not [one for one in in_tree if text_at(one, "status", "certificate")]
    node = world.nodes()[worker["status"]["nodeRef"]["name"]]
    assert node["spec"]["providerID"] == worker["spec"]["providerID"]
    assert world.management.ledger_names() >= {name_of(node)}
    token = token_of(cast("Object", world.management.get(CONFIG, name_of(worker))))
    folders = ("/etc/kubernetes", "/etc/systemd", "/var/lib", "/var/log")
    held = world.infrastructure.machines[name_of(worker)].run("grep", "-rlF", token, *folders)
    assert held.stdout.split() == ["/var/lib/kubelet-authenticator/bootstrap-token"]


def test_the_doors_are_closed_and_the_policy_is_ready(world: CapiWorld) -> None:
    def closed() -> bool:
        return has_condition(cast("Object", world.management.get(CLUSTER, BLUE)), "InTreeApprovalBlocked")

    world.eventually(closed, "the end of the automatic approval")
    assert has_condition(cast("Object", world.management.get(POLICIES, "metal")), "Ready")


def replicas(world: CapiWorld, count: int) -> None:
    world.management.patch(DEPLOYMENT, WORKERS, spec={"replicas": count})


def gone(world: CapiWorld, machine: Object) -> bool:
    """Tell whether a machine has left nothing behind: no Machine, no Node, no ledger."""
    name = name_of(machine)
    left = world.management.get(MACHINE, name) or name in world.nodes() or name in world.management.ledger_names()
    return not left


def renew(world: CapiWorld, machine: Object, *flags: str, provider: str = "tpm") -> subprocess.CompletedProcess[str]:
    """Attest anew on the machine, whose token is long gone."""
    return world.infrastructure.machines[name_of(machine)].attest_anew(*flags, provider=provider)


def minutes_left(world: CapiWorld, token: str) -> float | None:
    """Say how long a bootstrap token is good; None where it is gone."""
    path = f"/api/v1/namespaces/kube-system/secrets/bootstrap-token-{token[:6]}"
    found = cast("Object | None", world.workload().find(path))
    if found is None:
        return None
    until = datetime.fromisoformat(base64.b64decode(found["data"]["expiration"]).decode())
    return (until - datetime.now(UTC)).total_seconds() / 60


def test_a_token_that_served_is_near_its_end(world: CapiWorld) -> None:
    (worker,) = world.management.workers(deployment=WORKERS)
    token = token_of(cast("Object", world.management.get(CONFIG, name_of(worker))))
    world.eventually(lambda: (minutes_left(world, token) or 0) <= 5, "the nearing end of the worker's token")


def test_a_rollout_replaces_the_machine_and_what_attested_it(world: CapiWorld) -> None:
    (old,) = world.management.workers(deployment=WORKERS)
    world.management.patch(
        DEPLOYMENT,
        WORKERS,
        spec={"rollout": {"after": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")}},
    )
    world.eventually(lambda: gone(world, old), "the end of the machine that is replaced")
    (new,) = world.eventually(lambda: joined(world), "the new machine")
    assert name_of(new) != name_of(old)


def test_scaling_down_leaves_nothing_of_the_machine(world: CapiWorld) -> None:
    replicas(world, 2)
    world.eventually(lambda: joined(world, 2), "the second worker")
    victim, *_ = world.management.workers(deployment=WORKERS)
    annotations = {"cluster.x-k8s.io/delete-machine": "yes"}
    world.management.patch(MACHINE, name_of(victim), metadata={"annotations": annotations})
    replicas(world, 1)
    world.eventually(lambda: gone(world, victim), "the end of the machine")
    assert joined(world)


def test_a_health_check_deletes_no_machine_for_what_a_thief_of_its_token_asks(world: CapiWorld) -> None:
    apply(world, [health_check(BLUE, "NodeAttested", "False")])
    before = {name_of(one) for one in world.management.workers()}
    replicas(world, 2)

    def newcomer() -> tuple[str, str] | None:
        found = [one for one in world.management.list(CONFIG) if "deployment" in one["metadata"]["labels"]]
        made_now = [one for one in found if name_of(one) not in before and token_of(one)]
        return (name_of(made_now[0]), token_of(made_now[0])) if made_now else None

    name, token = world.eventually(newcomer, "the new machine's token")
    plane = world.infrastructure.planes[BLUE]
    there = cast("World", SimpleNamespace(workload=plane, workload_admin=plane.client()))
    claimed = Wanted(node=name, provider_id=f"process://{name}", provider="tpm")
    claim = file_request(there, claimed, token=plane.await_token(token))
    world.eventually(lambda: claim.state().startswith("Denied:"), "the refusal of the thief")
    after = world.eventually(lambda: joined(world, 2), "the new machine")
    assert {name_of(one) for one in after} == before | {name}


def test_a_health_check_replaces_a_machine_whose_renewal_is_refused(world: CapiWorld) -> None:
    worker, *_ = world.management.workers(deployment=WORKERS)
    other = world.infrastructure.spare_tpm("other")
    refused = renew(world, worker, "--tcti", other.tcti)
    assert refused.returncode != 0, refused.stderr
    world.eventually(lambda: gone(world, worker), f"the end of the machine: {refused.stderr}")
    world.eventually(lambda: joined(world, 2), "its replacement")


def test_machines_of_a_pool_join_as_machines_do(world: CapiWorld, kubernetes: str) -> None:
    apply(world, pool("pool", BLUE, kubernetes))

    def there() -> bool:
        found = [one for one in world.management.workers() if name_of(one).startswith("pool-")]
        return bool(found) and all(has_condition(one, "NodeAttested") for one in found)

    world.eventually(there, "the pool's machine")
    world.eventually(lambda: "pool-0" in world.nodes(), "the pool's Node")
    world.management.delete(POOL, "pool")
    world.eventually(lambda: "pool-0" not in world.management.ledger_names(), "the end of the pool's machine")


def test_the_bootstrap_data_brings_each_machine_the_secret_that_the_controller_created(
    world: CapiWorld, kubernetes: str
) -> None:
    management = world.management
    management.patch(CLUSTER, BLUE, metadata={"annotations": {ATTESTOR_ANNOTATION: "tpm"}})
    attestors = ["tpm", "challenge"]
    management.patch(POLICIES, "metal", spec={"authorizedAttestors": attestors, "challenge": {"createSecrets": True}})
    apply(world, deployment(SECRET_HOLDERS, BLUE, kubernetes, {ATTESTOR_ANNOTATION: "challenge"}))
    (worker,) = world.eventually(lambda: joined(world, deployment=SECRET_HOLDERS), "the machine with a secret")
    name = f"{name_of(worker)}-attestation-challenge"
    secret = cast("Object", management.admin.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}"))
    assert secret["type"] == "attestation.cluster.x-k8s.io/challenge"
    value = base64.b64decode(secret["data"]["secret"]).decode("latin-1")
    config = cast("Object", management.get(CONFIG, name_of(worker)))
    assert name in str(config)
    assert value not in str(config)


def test_a_move_into_a_namespace_without_the_label_stops_and_goes_on_as_the_page_says(
    world: CapiWorld, kubernetes: str
) -> None:
    apply(world, topology(GREEN, kubernetes)[:-1])  # the class alone
    source, target = world.management, world.add_management("target")
    world.start(target)
    target.admin.patch(f"/api/v1/namespaces/{NAMESPACE}", {"metadata": {"labels": {LABEL: None}}})
    with pytest.raises(AssertionError, match=re.escape(label_command(NAMESPACE))):
        world.managers.move(source.plane, target.plane, NAMESPACE)
    assert source.list(MACHINE)
    assert target.list(MACHINE) == []
    world.kubectl(target.plane, *label_command(NAMESPACE).split()[1:])
    with pytest.raises(AssertionError, match="the following Clusters are paused"):
        world.managers.move(source.plane, target.plane, NAMESPACE)
    world.kubectl(
        source.plane, "patch", "cluster", BLUE, "-n", NAMESPACE, "--type=merge", '-p={"spec":{"paused":false}}'
    )
    paused = "cluster.x-k8s.io/paused"
    world.kubectl(source.plane, "annotate", "cluster", BLUE, "-n", NAMESPACE, f"{paused}=")  # as somebody may have done
    world.kubectl(source.plane, "annotate", "clusters,clusterclasses", "--all", "-n", NAMESPACE, f"{paused}-")
    world.managers.move(source.plane, target.plane, NAMESPACE)
    assert source.list(MACHINE) == []
    world.use(target)


def test_after_a_move_nobody_looks_unjoined_no_token_lives_longer_and_renewals_go_on(world: CapiWorld) -> None:
    workers = world.management.workers(deployment=WORKERS)
    tokens = [token_of(one) for one in world.management.list(CONFIG) if token_of(one)]
    moved = world.eventually(lambda: joined(world, len(workers)), "the machines in their new place")
    assert {name_of(one) for one in moved} == {name_of(one) for one in workers}
    issued = world.management.certificates(name_of(moved[0]))
    renewed = renew(world, moved[0])
    assert renewed.returncode == 0, renewed.stderr
    world.eventually(lambda: world.management.certificates(name_of(moved[0])) > issued, "the renewal in the ledger")
    # The bootstrap provider extends a token while it sees no nodeRef; ours takes that back.
    world.eventually(
        lambda: all((minutes_left(world, token) or 0) <= 5 for token in tokens),
        "the end of what a move gave the tokens",
    )
    (holder,) = world.eventually(lambda: joined(world, deployment=SECRET_HOLDERS), "the machine with a secret")
    renewed = renew(world, holder, "--set", f"secretFile={SECRET_FILE}", provider="challenge")
    assert renewed.returncode == 0, renewed.stderr


def test_what_a_cluster_class_makes_is_rendered_once_and_needs_no_proofs_where_the_policy_says_so(
    world: CapiWorld, kubernetes: str
) -> None:
    world.management.create(POLICIES, policy("open", "insecure", GREEN))
    apply(world, topology(GREEN, kubernetes)[-1:])  # its class has moved
    labels = {"topology.cluster.x-k8s.io/deployment-name": "workers"}

    def there() -> list[Object] | None:
        found = world.management.workers(**labels)
        return found if found and all(has_condition(one, "NodeAttested") for one in found) else None

    (worker,) = world.eventually(there, "the worker")
    world.eventually(lambda: name_of(worker) in world.nodes(GREEN), "its Node")
    (plane,) = [one for one in world.management.list(CONTROL_PLANE) if name_of(one).startswith(GREEN)]
    assert "nodeattest" in str(plane["spec"]["kubeadmConfigSpec"]["preKubeadmCommands"])
    templates = [*world.management.list(CONTROL_PLANE_TEMPLATE), *world.management.list(CONFIG_TEMPLATE)]
    assert "nodeattest" not in str([one["spec"] for one in templates])


def test_dry_runs_of_a_topology_change_nothing_and_are_not_logged(world: CapiWorld) -> None:
    management = world.management
    (plane,) = [one for one in management.list(CONTROL_PLANE) if name_of(one).startswith(GREEN)]
    path = CONTROL_PLANE.path(NAMESPACE, name_of(plane))

    def dry_runs() -> int:
        asked = [one for one in management.plane.requests() if one.verb == "patch" and one.uri.startswith(path)]
        return len([one for one in asked if "dryRun=All" in one.uri and one.code == 200])

    before = dry_runs()
    management.patch(CLUSTER, GREEN, metadata={"labels": {"looked": "again"}})
    world.eventually(lambda: dry_runs() > before + 1, "dry runs of the control plane")
    after = cast("Object", management.get(CONTROL_PLANE, name_of(plane)))
    assert after["metadata"]["generation"] == plane["metadata"]["generation"]
    logged = [one for one in management.controller.events() if one.get("msg") == "bootstrap configuration"]
    assert logged
    assert not [one for one in logged if one.get("dry_run")]
