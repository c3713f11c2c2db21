"""An attack for each check of kubelet's own serving request (``controllers.kubelet_serving.checks``).

Nothing is attested here: root on a node asks with the node's certificate for what its machine should not serve.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from attested_rows import change_machine, node_stands, other_machine
from csr_world import CAPI, CREATED, NODE, PROVIDER_ID, OneRound, machine
from csr_world import OWN as OWN_API
from mutants import Ended, Scene
from rows import Row

from nodeattest_controller.controllers.kubelet_serving.checks import KubeletFacts
from nodeattest_controller.model.kubelet_csr import parse_kubelet_request
from nodeattest_controller.model.objects import mapping, rfc3339
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason

__all__ = ["ROWS"]

APPROVES: Final[JsonObject] = {"kubelet": "Approve"}
OWN: Final[list[JsonValue]] = [{"type": "Hostname", "address": NODE}, {"type": "InternalIP", "address": "10.0.0.1"}]


async def asks(scene: Scene, address: str = "10.0.0.1") -> Ended:
    await scene.world.settle()
    scene.world.file_kubelets(address=address)
    return await scene.ended("k-1")


def serves(scene: Scene) -> None:
    """Have the machine joined, its node registered, and the policy approve."""
    scene.world.join_node()
    scene.world.policy(serving=APPROVES)


async def paused(scene: Scene) -> Ended:
    serves(scene)
    path = f"{CAPI}/clusters/blue"
    scene.world.management_api.put(path, {**scene.world.management_api.objects[path], "spec": {"paused": True}})
    return await asks(scene)


async def left_to_others(scene: Scene) -> Ended:
    """The evaluator itself leaves such requests alone, so the list is run here as ``nodeattest explain`` runs it."""
    scene.world.join_node()
    scene.world.policy(serving={"kubelet": "Ignore"})
    await scene.world.settle()
    facts = KubeletFacts(scene.world.facts_of(scene.world.workload), parse_kubelet_request(scene.world.file_kubelets()))
    try:
        await scene.kubelet_list.run(facts)
    except Denied as denied:
        return (scene.ran[-1], denied.reason)
    ended = await scene.ended("k-1")
    return LEFT_ALONE if not scene.world.condition("Approved", "k-1") else ended


LEFT_ALONE: Final = ("the evaluator, which leaves the request alone", "")


async def two_of_the_name(scene: Scene) -> Ended:
    serves(scene)
    other_machine(scene.world, addresses=[{"type": "Hostname", "address": NODE}])
    return await asks(scene)


async def anothers_address(scene: Scene) -> Ended:
    serves(scene)
    other_machine(scene.world, addresses=[{"type": "InternalIP", "address": "10.0.0.1"}])
    return await asks(scene)


async def unlisted_address(scene: Scene) -> Ended:
    serves(scene)
    return await asks(scene, "10.0.0.9")


async def deleted_now(scene: Scene) -> Ended:
    serves(scene)
    await scene.world.settle()
    path = f"{CAPI}/machines/m-1"
    known = scene.world.management_api.objects[path]
    meta: JsonObject = {**mapping(known, "metadata"), "deletionTimestamp": rfc3339(CREATED)}
    scene.world.management_api.objects[path] = {**known, "metadata": meta}
    return await asks(scene)


async def renamed_now(scene: Scene) -> Ended:
    serves(scene)
    await scene.world.settle()
    renamed: list[JsonValue] = [{"type": "Hostname", "address": "worker-9"}, OWN[1]]
    change_machine(scene.world, watched=False, addresses=renamed)
    return await asks(scene)


async def unconfirmed(scene: Scene) -> Ended:
    """The node of a Machine that joined, and to which Cluster API has given no provider ID yet."""
    serves(scene)
    api = scene.world.management_api
    api.put(f"{CAPI}/machines/m-1", machine("m-1", "", addresses=OWN))
    times: JsonObject = {"notBefore": rfc3339(CREATED), "notAfter": rfc3339(CREATED + timedelta(days=1))}
    issued: JsonObject = {**times, "issuedAt": rfc3339(CREATED), "spki": "sha256:0", "serial": "1", "certificate": ""}
    owner: JsonObject = {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "name": "m-1", "uid": "uid-m-1"}
    spec: JsonObject = {"clusterName": "blue", "providerID": PROVIDER_ID, "nodeName": NODE, "provider": "tpm"}
    meta: JsonObject = {"name": "late", "namespace": "fleet", "ownerReferences": [owner]}
    api.put(f"{OWN_API}/machineattestations/late", {"metadata": meta, "spec": {**spec, "issued": [issued]}})
    return await asks(scene)


async def no_node(scene: Scene) -> Ended:
    serves(scene)
    scene.world.workload_api.remove(f"/api/v1/nodes/{NODE}")
    return await asks(scene)


async def anothers_node(scene: Scene) -> Ended:
    serves(scene)
    node_stands(scene.world, "metal://rack-9/9")
    return await asks(scene)


async def endpoint_no_more(scene: Scene) -> Ended:
    """A machine that was one of the control plane, and is one no more when it is read anew, serves the endpoint."""
    serves(scene)
    world = scene.world
    path = f"{CAPI}/clusters/blue"
    spec: JsonObject = {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}}
    world.management_api.put(path, {**world.management_api.objects[path], "spec": spec})
    path = f"{CAPI}/machines/m-1"
    known = world.management_api.objects[path]
    labels: JsonObject = {"cluster.x-k8s.io/control-plane": ""}
    world.management_api.put(path, {**known, "metadata": {**mapping(known, "metadata"), "labels": labels}})
    await world.settle()
    now = world.management_api.objects[path]
    world.management_api.objects[path] = {**now, "metadata": {**mapping(now, "metadata"), "labels": {}}}
    return await asks(scene)


async def address_gone_now(scene: Scene) -> Ended:
    serves(scene)
    await scene.world.settle()
    change_machine(scene.world, watched=False, addresses=OWN[:1])
    return await asks(scene)


def row(
    check: str,
    attack: str,
    reason: Reason,
    run: Callable[[Scene], Awaitable[Ended]],
    *then: tuple[str, str],
    gains: str = "",
    stays: str = "",
) -> Row[Scene]:
    return Row(
        check=f"kubelet: {check}",
        attack=attack,
        reason=reason,
        run=run,
        then=then,
        gains=gains,
        stays=stays,
        stand_in=OneRound,
    )


AT_ONCE: Final = "the fact itself cannot be had, so whichever check asks next refuses; it is first because it is cheap"

ROWS: Final[tuple[Row[Scene], ...]] = (
    row(
        "an active cluster",
        "a request while the Cluster is paused",
        Reason.MACHINE_NOT_READY,
        paused,
        ("kubelet: policy approves", Reason.MACHINE_NOT_READY),
        stays=AT_ONCE,
    ),
    row(
        "policy approves",
        "a request that the policy leaves to another approver",
        Reason.SERVING_NOT_ALLOWED,
        left_to_others,
        LEFT_ALONE,
        stays="`nodeattest explain` runs the list alone, and must say why nothing happens",
    ),
    row(
        "one Machine, alive and ready",
        "a name that two machines claim",
        Reason.MACHINE_AMBIGUOUS,
        two_of_the_name,
        ("kubelet: names of one machine alone", Reason.MACHINE_AMBIGUOUS),
        stays=AT_ONCE,
    ),
    row(
        "names of one machine alone",
        "an address that another machine lists, too",
        Reason.ADDRESS_NOT_ALLOWED,
        anothers_address,
        ("kubelet: names of one machine alone, read now", Reason.ADDRESS_NOT_ALLOWED),
        gains="an approval for another machine's address",
        stays="it costs no read",
    ),
    row(
        "names and addresses on record",
        "an address that the Machine does not list",
        Reason.ADDRESS_NOT_ALLOWED,
        unlisted_address,
        ("kubelet: names and addresses of the Machine", Reason.ADDRESS_NOT_ALLOWED),
        gains="an approval for any address that no machine lists",
        stays="it costs no read",
    ),
    row(
        "the Machine as it is now",
        "a Machine that is being deleted, before the controller's cache has seen it",
        Reason.MACHINE_DELETING,
        deleted_now,
        gains="an approval for a machine on its way out",
    ),
    row(
        "the Machine's node name",
        "a name that the Machine had until now, before the controller's cache has seen the change",
        Reason.NODE_NAME_MISMATCH,
        renamed_now,
        gains="an approval for a name that is not the machine's any more",
    ),
    row(
        "a confirmed provider ID",
        "a node that joined before Cluster API has its Machine's provider ID",
        Reason.MACHINE_NOT_READY,
        unconfirmed,
        gains="an approval for longer than the day that such a node's own certificate lasts",
    ),
    row(
        "a registered Node",
        "a stolen certificate of a node that has not registered",
        Reason.MACHINE_NOT_READY,
        no_node,
        gains="an approval for a node of which nobody can say which machine it is",
    ),
    row(
        "no other node of this name",
        "a Node of the name that has another machine's provider ID",
        Reason.NODE_NAME_TAKEN,
        anothers_node,
        gains="an approval for this machine's addresses, for a node that is another machine",
    ),
    row(
        "names of one machine alone, read now",
        "the control plane's endpoint, by a machine that has just left the control plane",
        Reason.ADDRESS_NOT_ALLOWED,
        endpoint_no_more,
        gains="an approval for the address under which everybody reaches the API server",
    ),
    row(
        "names and addresses of the Machine",
        "an address that the Machine has just lost, before the controller's cache has seen it",
        Reason.ADDRESS_NOT_ALLOWED,
        address_gone_now,
        gains="an approval for an address that may be another machine's by now",
    ),
)
