"""The shipped rights are what the controller needs and nothing more: shown by a run that has no others, on record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from auto_approval_kit import make_bindings
from filing_requests import Wanted, ends, file_request
from polling import eventually
from rights import MANAGEMENT, WORKLOAD, Right, apply, groups_of, rights_of, unused, workload_folders
from world import CLUSTER, NAMESPACE, OWN, World, built_world

from nodeattest_controller.settings import CONTROLLERS
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import AuditEntry, ControlPlane, StartControlPlane

RUN = tuple(name for name in CONTROLLERS if not name.startswith("bootstrap-config"))
"""Every controller but the webhook, whose API server calls it and not the other way round."""


@dataclass(frozen=True)
class Recorded:
    """What was asked by the two accounts, and with which result."""

    world: World
    log: str
    management: tuple[AuditEntry, ...]
    workload: tuple[AuditEntry, ...]


ALIAS = {MANAGEMENT: "management-controller", WORKLOAD: "workload-controller"}


def kubeconfig_of(plane: ControlPlane, user: str) -> Path:
    return plane.client_kubeconfig(ALIAS[user])


@pytest.fixture(scope="module")
def recorded(start_control_plane: StartControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Let everything that a controller does happen once, with the shipped rights alone."""
    with built_world(start_control_plane, tmp_path_factory.mktemp("rights"), World, "rights-") as world:
        apply(world.admin, ["rbac"], ALIAS[MANAGEMENT])
        apply(world.workload_admin, workload_folders(), ALIAS[WORKLOAD])
        world.route_workload(kubeconfig_of(world.workload, WORKLOAD).read_bytes())
        furnish(world)
        flags = ("--controllers", ",".join(RUN), "--inventory", "ClusterAPI,MachineRecords", *issuer_flags(world))
        kubeconfig = kubeconfig_of(world.management, MANAGEMENT)
        with world.controller(*flags, kubeconfig=kubeconfig, log="rights.log") as controller:
            world.await_service(controller)
            live(world)
            assert controller.terminate() == 0
        eventually(lambda: made(world.management, MANAGEMENT, "watch", "clusters"), what="the watches' end, on record")
        log = controller.log()
        yield Recorded(
            world,
            log,
            tuple(one for one in world.management.requests() if one.user == ALIAS[MANAGEMENT]),
            tuple(one for one in world.workload.requests() if one.user == ALIAS[WORKLOAD]),
        )


def issuer_flags(world: World) -> tuple[str, str]:
    """Say where issuers' documents go; what this run's API server says of itself is another matter."""
    place, config = world.directory / "issuers", world.directory / "issuers.yaml"
    place.mkdir()
    config.write_text(
        "apiVersion: config.nodeattest.x-k8s.io/v1alpha1\nkind: NodeAttestationControllerConfiguration\n"
        f"issuerBase: https://issuers.example\nissuerPlace: dir:{place}\n"
    )
    return ("--config", str(config))


POLICY: JsonMap = {"tokenBinding": "Preferred", "serving": {"kubelet": "Approve"}}


def furnish(world: World) -> None:
    """Make what each controller has something to do about."""
    world.set_policy(authorizedAttestors=["insecure"], **POLICY)
    for name in ("one", "two"):
        world.machine(name, **({"tpm": world.tpm(name)} if name == "two" else {}))
    place = {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "DevCluster"}
    world.admin.create(
        f"/apis/{place['apiVersion']}/namespaces/{NAMESPACE}/devclusters", {**place, "metadata": {"name": CLUSTER}}
    )
    world.admin.patch(
        f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/clusters/{CLUSTER}",
        {"spec": {"infrastructureRef": {**place, "name": CLUSTER}}},
    )
    fleet.create_machine_pool(world.admin, "pool", cluster=world.cluster, provider_ids=["sandbox://pool-0"])
    record: JsonMap = {"clusterName": "c1", "providerID": "sandbox://recorded", "nodeName": "recorded"}
    head: JsonMap = {"apiVersion": "attestation.cluster.x-k8s.io/v1alpha1", "kind": "MachineRecord"}
    world.admin.create(f"{OWN}/machinerecords", {**head, "metadata": {"name": "recorded"}, "spec": record})
    make_bindings(world, real=False)
    fleet.create_bootstrap_token(
        world.workload_admin, "ended1.0123456789abcdef", expiration=datetime(2020, 1, 1, tzinfo=UTC)
    )
    kubeconfig = world.workload.admin_kubeconfig.read_text()
    world.workload_admin.patch(
        "/api/v1/namespaces/kube-public/configmaps/cluster-info", {"data": {"kubeconfig": kubeconfig}}
    )


def live(world: World) -> None:
    """Join, be refused, be refused as kubelet, whose requests are read whole, join by two steps, renew."""
    assert ends(file_request(world, Wanted(node="one"))) == "issued"
    assert ends(file_request(world, Wanted(node="one"))).startswith("Denied:")
    assert ends(file_request(world, Wanted(node="recorded"))) == "issued"
    assert ends(file_request(world, Wanted(node="pool-0"))) == "Denied:NodeNameMismatch"
    kubelet = world.workload.client_kubeconfig("system:node:one", ["system:nodes"])
    signer, usages = "kubernetes.io/kubelet-serving", ["digital signature", "server auth"]
    own = file_request(world, Wanted(node="one"), kubeconfig=kubelet, signerName=signer, usages=[*usages])
    assert ends(own).startswith("Denied:")
    world.set_policy(authorizedAttestors=["tpm"], **POLICY)
    agent = world.agent("two", "tpm", tcti=world.tpm("two").tcti)
    for flags in ((), ("--renew",)):
        eventually(lambda flags=flags: agent.join(world.token(), *flags).returncode == 0, seconds=90, what="the join")
    for verb, resource in (("update", "configmaps"), ("delete", "secrets"), ("delete", "clusterrolebindings")):
        eventually(lambda what=(verb, resource): made(world.workload, WORKLOAD, *what), seconds=60, what=resource)
    configuration = "/.well-known/openid-configuration"
    eventually(
        lambda: [one for one in world.workload.requests() if one.uri == configuration], seconds=60, what="issuer"
    )
    for verb, resource in (("update", "leases"), ("patch", "clusters"), ("patch", "devclusters")):
        eventually(lambda what=(verb, resource): made(world.management, MANAGEMENT, *what), seconds=60, what=resource)


def made(plane: ControlPlane, user: str, verb: str, resource: str) -> list[AuditEntry]:
    return [one for one in plane.requests() if (one.user, one.verb, one.resource) == (ALIAS[user], verb, resource)]


@pytest.mark.swtpm
def test_nothing_that_the_controller_asks_for_is_forbidden_to_it(recorded: Recorded) -> None:
    made = (*recorded.management, *recorded.workload)
    refused = [f"{one.verb} {one.uri}" for one in made if one.code == 403 and one.uri != REFUSED_BY_ADMISSION]
    assert sorted(set(refused)) == []
    assert len(recorded.management) > 20
    assert len(recorded.workload) > 10


REFUSED_BY_ADMISSION = "/apis/certificates.k8s.io/v1/certificatesigningrequests?dryRun=All"
"""Hardening's check of its own admission policy, which is in force when this is refused."""
VIRTUAL = frozenset({"approve", "sign", "bind", "escalate", "impersonate"})
"""Verbs that no request has: the API server asks for them while it admits another."""


def test_no_right_is_there_that_nothing_uses(recorded: Recorded) -> None:
    unexplained: list[str] = []
    for account, folders, requests in (
        (MANAGEMENT, ["rbac"], recorded.management),
        (WORKLOAD, workload_folders(), recorded.workload),
    ):
        left = {right for right in unused(rights_of(account, folders), requests) if right.verb not in VIRTUAL}
        unexplained += sorted(str(right) for right in left if reason_for(right) is None)
    assert not unexplained, "; ".join(unexplained)


def reason_for(right: Right) -> str | None:
    """Say why a right is given that this run did not use."""
    if right.group.startswith("infrastructure.") and right.resource.endswith("clusters/status"):
        return "the signers' names, on other providers' kinds than this run's DevCluster"
    return next((why for words, why in REASONS.items() if str(right).startswith(words)), None)


REASONS = {
    "update secrets. node-attestation-challenge-keys": "the keys are rotated once a day",
    "get machineattestations": "a write that another replica overtook is judged on a ledger read anew",
    "patch machineattestations/status.": "when a request that names a machine on record is refused",
    "get clusters.": "a condition that another overtook is written to the object read anew",
    "get machines.": "as for clusters",
    "get machinepools.": "as for clusters",
    "get clusterrecords.": "as for clusters",
    "get nodeattestationpolicies.": "as for clusters",
    "patch clusterrecords/status.": "conditions as on a Cluster; this run has none of its own",
    "patch machinepools/status.": "a pool is told of when one of its instances has joined",
    "get *.infrastructure": "an object is listed and watched; a patch of InfraCluster's status reads it anew",
    "delete clusterrolebindings.rbac.authorization.k8s.io kubeadm:node-autoapprove-certificate-rotation": (
        "deleted when every Node is in the ledger"
    ),
    "patch clusterroles.rbac.authorization.k8s.io system:certificates.k8s.io": "when the block is made",
    "get clusterroles.rbac.authorization.k8s.io system:certificates.k8s.io": "as the patch, and when a cluster is left",
    "update validatingadmissionpolic": "where somebody changed it",
    "delete validatingadmissionpolic": "when the policy goes or says Audit",
    "patch nodes.": "policy's onFailure: taints and cordons",
    "delete nodes.": "policy's onFailure: DeleteNode",
    "get nodes.": "looked at before a node is touched",
    "patch secrets. in kube-system": "the bootstrap token of a Machine is prolonged while the Machine is not ready",
    "get configmaps. cluster-info": "a signature that another write overtook is made anew",
    "get clusterrolebindings.": "read where a listed one was not enough",
}
"""Why the run above did not use a right: by the beginning of the right, as ``Right`` spells it."""


@pytest.mark.parametrize(
    ("verb", "group", "resource", "name"),
    [
        ("approve", "certificates.k8s.io", "signers", "kubernetes.io/kube-apiserver-client-kubelet"),
        ("sign", "certificates.k8s.io", "signers", "kubernetes.io/kube-apiserver-client-kubelet"),
        ("approve", "certificates.k8s.io", "signers", "kubernetes.io/kube-apiserver-client"),
        ("sign", "certificates.k8s.io", "signers", "kubernetes.io/kubelet-serving"),
        ("bind", "rbac.authorization.k8s.io", "clusterroles", "cluster-admin"),
        ("escalate", "rbac.authorization.k8s.io", "clusterroles", ""),
        ("impersonate", "", "users", "system:admin"),
        ("impersonate", "", "serviceaccounts", ""),
        ("impersonate", "", "groups", "system:masters"),
        ("*", "*", "*", ""),
    ],
)
def test_no_in_tree_signer_and_no_other_identity_is_within_reach(
    recorded: Recorded, verb: str, group: str, resource: str, name: str
) -> None:
    world = recorded.world
    for plane, user in ((world.management, MANAGEMENT), (world.workload, WORKLOAD)):
        attributes: JsonMap = {"verb": verb, "group": group, "resource": resource, "name": name}
        asked: JsonMap = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "groups": [*groups_of(user)], "resourceAttributes": attributes},
        }
        answer = plane.client().create("/apis/authorization.k8s.io/v1/subjectaccessreviews", asked)
        assert answer["status"] == {**answer["status"], "allowed": False}, user  # pyright: ignore[reportGeneralTypeIssues,reportOptionalMemberAccess] - a mapping
