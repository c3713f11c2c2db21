"""Attacks on the controller's two lists: ``csr.checks`` and ``csr.kubelet_checks``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from catalogue import Expected, Verdict
from controller_scene import (
    ADDRESS,
    AS_NODE,
    CLUSTER,
    GRANTED,
    HOSTNAME,
    MACHINE,
    NODE_REF,
    OTHER,
    SECOND_NODE,
    Attack,
    Scene,
    decision,
    hostname,
    running,
    verifier,
)
from cryptography.hazmat.primitives.asymmetric import ec
from csr_world import CAPI, CREATED, NODE, OWN, PROVIDER_ID, OneRound, TwoRounds, attested
from late_machines import put_machine, put_metal3, serve_metal3

from nodeattest_controller.controllers.csr.kubelet_checks import KubeletFacts
from nodeattest_controller.model.csr_request import parse_kubelet_request
from nodeattest_controller.model.kubeadm_config import bound_group
from nodeattest_parsing.objects import rfc3339, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason
from nodeattest_providers.identifiers import MachineName, NodeName, ProviderID
from nodeattest_providers.node_interface import FirstRequestRef
from nodeattest_providers.verifier_interface import Facts
from nodeattest_sandbox.pki import ClusterPki

REFUSED: Final = Denied(Reason.ENDORSEMENT_KEY_UNTRUSTED, expected="a known key", got="another", remedy="register it")
DELETED: Final[dict[str, JsonValue]] = {"deletionTimestamp": rfc3339(CREATED)}
OTHER_ADDRESS: Final = hostname("10.0.0.9", "InternalIP")


async def elsewhere(_: Facts) -> tuple[tuple[str, str], ...]:
    """Say, as the platform, that the machine has 10.0.0.9 alone."""
    return (("InternalIP", "10.0.0.9"),)


def no_names(_: object) -> dict[ProviderID, NodeName]:
    return {}


def unreadable(_: object) -> None:
    raise Denied(Reason.EVIDENCE_MALFORMED, expected="phase 1 or 2", got="phase 3", remedy="file another")


ELSEWHERE: Final = verifier(tells_addresses=True, addresses=elsewhere)
VERIFIERS: Final[Mapping[str, Callable[[], OneRound]]] = {
    "attested: evidence version and schema": verifier(versions=(2,)),
    "attested: round of the request": verifier(TwoRounds, first_request=unreadable),
    "attested: the Machine's node name": verifier(provable_names=no_names),
    "attested: first request not answered": TwoRounds,
    "attested: first request still pending": TwoRounds,
    "attested: names and addresses of the Machine": ELSEWHERE,
    "attested: one key for one challenge": TwoRounds,
}
"""By the check that is attacked, where the usual one would not do."""


# Attested requests


async def before_its_provider_id(scene: Scene, requested: str) -> Expected:
    """Join for a Machine to which Cluster API has given no provider ID."""
    serve_metal3(scene.world)
    put_machine(scene.world, "m-1", "abcdef", addresses=[HOSTNAME])
    await scene.policy(tokenBinding="Required").world.follow()
    return await scene.file(provider_id=ProviderID(requested))


async def id_of_another_infrastructure_machine(scene: Scene) -> Expected:
    put_metal3(scene.world, "m-2", provider_id="metal3://fleet/rack-1/m-1")
    return await before_its_provider_id(scene, "metal3://fleet/rack-1/m-1")


async def anothers_token(scene: Scene) -> Expected:
    serve_metal3(scene.world)
    put_machine(scene.world, "m-1", "mine00", provider_id=PROVIDER_ID, addresses=[HOSTNAME])
    return await scene.policy(tokenBinding="Required").file()


def never_joined_serves(scene: Scene) -> Awaitable[Expected]:
    scene.policy(serving={"attested": "Sign"}).put_node()
    return scene.change(MACHINE, "status", nodeRef=NODE_REF, addresses=[HOSTNAME, ADDRESS]).serve()


async def answered(scene: Scene, status: JsonObject | None = None) -> FirstRequestRef:
    """File a first request with a status, and an honest answer to it that is not handled yet."""
    await scene.settle()
    filed = scene.world.file("first")
    scene.write("first", status)
    first = FirstRequestRef(name="first", uid=text(filed, "metadata", "uid"))
    scene.world.verifier.answer = attested(first)
    scene.world.file("honest", request=scene.beside("first", {"name": "first", "uid": first.uid}))
    return first


async def first_again(scene: Scene) -> Expected:
    await answered(scene)
    assert await scene.ended("honest") == GRANTED
    scene.world.verifier.answer = ChallengeRequired("a challenge")
    scene.write("first", {}, annotations={})
    return await scene.ended("first")


async def first_decided(scene: Scene) -> Expected:
    await answered(scene, decision("Denied"))
    return await scene.ended("honest")


async def two_keys_for_one_challenge(scene: Scene) -> Expected:
    first = await answered(scene)
    assert await scene.ended("honest") == GRANTED
    scene.world.now = CREATED + timedelta(minutes=11)
    scene.write("first", {})
    return await scene.file(evidence={"name": "first", "uid": first.uid})


async def of_a_pool(scene: Scene) -> Expected:
    pool: JsonObject = {
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "kind": "MachinePool",
        "metadata": {"name": "workers", "namespace": "fleet"},
        "spec": {"clusterName": "blue", "providerIDList": [PROVIDER_ID, OTHER]},
        "status": {"bootstrapReady": True},
    }
    scene.remove(MACHINE).world.management_api.put(f"{CAPI}/machinepools/workers", pool)
    return await scene.answer(proven_node_name=NODE).file(node=SECOND_NODE)


async def beside_a_second(scene: Scene, ek: str, **request: Any) -> Expected:
    """Have a second machine join, and ask with what is the same."""
    scene.put_machine().answer(fingerprints={"ek": ek}, provider_id=OTHER)
    assert await scene.file("honest", node=SECOND_NODE, provider_id=OTHER, **request) == GRANTED
    return await scene.answer().file(**request)


def unproved(scene: Scene) -> Awaitable[Expected]:
    scene.world.verifier.answer = REFUSED
    return scene.file()


def address_taken_meanwhile(scene: Scene) -> None:
    """Give another machine the address while the evidence is verified."""

    async def slow(*_: object) -> object:
        scene.put_machine(addresses=[ADDRESS])
        return scene.world.verifier.answer

    vars(scene.world.verifier)["verify_serving_attestation_data"] = slow


async def approved_by_others(scene: Scene) -> Expected:
    await scene.settle()
    scene.world.file("thief")
    scene.write("thief", decision("Approved"))
    return await scene.ended("thief")


async def joins_again(scene: Scene, minutes: int, **proven: Any) -> Expected:
    """Join, and some minutes later once more with another key."""
    await scene.join()
    scene.world.now = CREATED + timedelta(minutes=minutes)
    return await scene.answer(**proven).file()


async def many_live(scene: Scene) -> Expected:
    await scene.join()
    path = next(path for path in scene.world.management_api.objects if "/machineattestations/" in path)
    ends = rfc3339(CREATED + timedelta(days=7))
    retired: list[JsonValue] = [
        {"spki": f"sha256:{number:064x}", "serial": f"{number:x}", "notAfter": ends} for number in range(512)
    ]
    return await scene.change(path, "spec", retiredKeys=retired).file(**AS_NODE)


def two_policies(scene: Scene) -> Awaitable[Expected]:
    body: JsonObject = {"metadata": {"name": "q", "namespace": "fleet"}, "spec": {"authorizedAttestors": ["tpm"]}}
    scene.world.management_api.put(f"{OWN}/nodeattestationpolicies/q", body)
    return scene.file()


ATTESTED: Final[Mapping[str, Attack]] = {
    "a token of no other machine": lambda s: s.file(groups=["system:bootstrappers", bound_group("fleet/blue", OTHER)]),
    "an active cluster": lambda s: s.change(CLUSTER, "spec", paused=True).file(),
    "one policy": two_policies,
    "attestor authorized": lambda s: s.policy(authorizedAttestors=["challenge"]).file(),
    "evidence version and schema": lambda s: s.file(),
    "attested serving request": lambda s: s.join_and_serve(attested="Refuse"),
    "round of the request": lambda s: s.file(),
    "one Machine, alive and ready": lambda s: s.put_machine(provider_id=PROVIDER_ID).file(),
    "the Machine's provider ID": lambda s: before_its_provider_id(s, "metal3://fleet/rack-1/chosen"),
    "the Machine as it is now": lambda s: s.change(MACHINE, "metadata", watched=False, **DELETED).file(),
    "not bound otherwise": lambda s: s.change(MACHINE, "status", nodeRef=NODE_REF).file(),
    "a joined machine": never_joined_serves,
    "names of one machine alone": lambda s: s.join_and_serve(lambda s: s.put_machine(addresses=[ADDRESS])),
    "names and addresses on record": lambda s: s.join_and_serve(
        lambda s: s.change(MACHINE, "status", addresses=[HOSTNAME, OTHER_ADDRESS])
    ),
    "the Machine's node name": lambda s: s.file(node=NodeName("control-plane-1")),
    "first request not answered": first_again,
    "a token that the machine's bootstrap configuration names": anothers_token,
    "one provider ID for one Machine": id_of_another_infrastructure_machine,
    "first request still pending": first_decided,
    "the provider's verification": unproved,
    "the Machine as proven": lambda s: s.put_machine().answer(proven_machine_name=MachineName("m-2")).file(),
    "the node name as proven": of_a_pool,
    "hardware of no other machine": lambda s: beside_a_second(s, "sha256:ek"),
    "no other node of this name": lambda s: s.put_node("metal://rack-9/9").file(),
    "no takeover of a node": lambda s: s.put_node().file(),
    "adoption of the machine's own node": lambda s: s.file(**AS_NODE),
    "names of one machine alone, read now": lambda s: s.join_and_serve(address_taken_meanwhile),
    "names and addresses of the Machine": lambda s: s.join_and_serve(),
    "approval by this controller": approved_by_others,
    "a key that was never certified": lambda s: beside_a_second(
        s, "sha256:second", key=ec.generate_private_key(ec.SECP256R1())
    ),
    "one key for one challenge": two_keys_for_one_challenge,
    "time between two keys": lambda s: joins_again(s, minutes=1),
    "number of live certificates": many_live,
    "fingerprints as pinned": lambda s: joins_again(s, minutes=11, fingerprints={"ek": "sha256:another"}),
}


# Kubelet's own serving request: root on a node asks with the node's certificate, and nothing is attested


async def left_to_others(scene: Scene) -> Expected:
    """The reconciler leaves such requests alone, so the list is run here as ``nodeattest explain`` runs it."""
    world = scene.policy(serving={"kubelet": "Ignore"}).world
    await world.settle()
    request = parse_kubelet_request(world.file_kubelets())
    try:
        await scene.kubelet_list.run(KubeletFacts(world.facts_of(world.workload), request))
    except Denied as denied:
        return Expected(Verdict.DENY, denied.reason)
    return GRANTED


def unconfirmed(scene: Scene) -> Awaitable[Expected]:
    scene.put_machine("m-1", "", addresses=[HOSTNAME, ADDRESS])
    times: JsonObject = {"notBefore": rfc3339(CREATED), "notAfter": rfc3339(CREATED + timedelta(days=1))}
    issued: JsonObject = {**times, "issuedAt": rfc3339(CREATED), "spki": "sha256:0", "serial": "1", "certificate": ""}
    owner: JsonObject = {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "name": "m-1", "uid": "uid-m-1"}
    spec: JsonObject = {"clusterName": "blue", "providerID": PROVIDER_ID, "nodeName": NODE, "provider": "tpm"}
    body: JsonObject = {
        "metadata": {"name": "late", "namespace": "fleet", "ownerReferences": [owner]},
        "spec": {**spec, "issued": [issued]},
    }
    scene.world.management_api.put(f"{OWN}/machineattestations/late", body)
    return scene.file_kubelets()


def no_node(scene: Scene) -> Awaitable[Expected]:
    scene.world.workload_api.remove(f"/api/v1/nodes/{NODE}")
    return scene.file_kubelets()


def endpoint_no_more(scene: Scene) -> Awaitable[Expected]:
    scene.change(CLUSTER, "spec", controlPlaneEndpoint={"host": "10.0.0.1", "port": 6443})
    scene.change(MACHINE, "metadata", labels={"cluster.x-k8s.io/control-plane": ""})
    return scene.change(MACHINE, "metadata", watched=False, labels={}).file_kubelets()


def listing(*addresses: JsonValue, watched: bool = True) -> Attack:
    """Ask when the Machine lists these addresses."""
    return lambda s: s.change(MACHINE, "status", watched=watched, addresses=[*addresses]).file_kubelets()


KUBELET: Final[Mapping[str, Attack]] = {
    "an active cluster": lambda s: s.change(CLUSTER, "spec", paused=True).file_kubelets(),
    "policy approves": left_to_others,
    "one Machine, alive and ready": lambda s: s.put_machine(addresses=[HOSTNAME]).file_kubelets(),
    "names of one machine alone": lambda s: s.put_machine(addresses=[ADDRESS]).file_kubelets(),
    "names and addresses on record": listing(HOSTNAME, OTHER_ADDRESS),
    "the Machine as it is now": lambda s: s.change(MACHINE, "metadata", watched=False, **DELETED).file_kubelets(),
    "the Machine's node name": listing(hostname("worker-9"), ADDRESS, watched=False),
    "a confirmed provider ID": unconfirmed,
    "a registered Node": no_node,
    "no other node of this name": lambda s: s.put_node("metal://rack-9/9").file_kubelets(),
    "names of one machine alone, read now": endpoint_no_more,
    "names and addresses of the Machine": listing(HOSTNAME, watched=False),
}
"""The machine has joined, its Node is registered, and the policy approves."""


async def outcome(pki: ClusterPki, check: str, without: str) -> tuple[str, str]:
    """Carry out the attack on a check, ``list: name``; return the check that refused, and its reason."""
    part, _, name = check.partition(": ")
    async with running(pki, VERIFIERS.get(check, OneRound), without) as scene:
        if part == "attested":
            ended = await ATTESTED[name](scene)
        else:
            scene.world.join_node()
            scene.policy(serving={"kubelet": "Approve"})
            ended = await KUBELET[name](scene)
        return scene.ran[-1] if ended.reason else "", ended.reason
