"""An attack for each check of an attested request (``controllers.csr.checks``), by swtpm where none stands in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final

from csr_world import (
    CAPI,
    CREATED,
    CSRS,
    NODE,
    OWN,
    PROVIDER_ID,
    OneRound,
    TellsAddresses,
    TwoRounds,
    World,
    attested,
    machine,
)
from joins import Join, allow, first_use, node_requester
from late_machines import put_machine, put_metal3, serve_metal3
from mutants import CHALLENGED, GRANTED, NOT_RECORDED, Ended, Scene, StandIn
from rows import Row

from nodeattest_controller.model.bound_tokens import bound_group
from nodeattest_controller.model.objects import mapping, rfc3339
from nodeattest_controller.model.retired_keys import MAX_LIVE
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import MachineName, NodeName, Purpose
from nodeattest_providers.node_interface import FirstRequestRef
from nodeattest_providers.node_interface import JsonObject as EvidenceObject
from nodeattest_providers.tpm.protocol import VERSIONS

__all__ = ["ROWS"]

OTHER: Final = "metal://rack-1/2"
SECOND_NODE: Final = "worker-2"
SERVES: Final[JsonObject] = {"attested": "Sign"}
Attack = Callable[[Scene], Awaitable[Ended]]


def other_machine(world: World, name: str = "m-2", provider_id: str = OTHER, **status: JsonValue) -> None:
    """Add a Machine of the same cluster."""
    addresses: list[JsonValue] = [{"type": "Hostname", "address": SECOND_NODE}]
    world.management_api.put(
        f"{CAPI}/machines/{name}", machine(name, provider_id, **{"addresses": addresses, **status})
    )


def node_stands(world: World, provider_id: str = PROVIDER_ID) -> None:
    """Register the Node of the machine's name."""
    node: JsonObject = {"metadata": {"name": NODE, "uid": "node-uid"}, "spec": {"providerID": provider_id}}
    world.workload_api.put(f"/api/v1/nodes/{NODE}", node)


def change_machine(world: World, *, watched: bool = True, **status: JsonValue) -> None:
    """Change the Machine's status; unless ``watched``, the controller's cache does not learn of it."""
    path = f"{CAPI}/machines/m-1"
    known = world.management_api.objects[path]
    changed: JsonObject = {**known, "status": {**mapping(known, "status"), **status}}
    if watched:
        world.management_api.put(path, changed)
    else:
        world.management_api.objects[path] = changed


async def thief_joins(scene: Scene, join: Join | None = None) -> Ended:
    """Join by a genuine TPM of the thief's own, where the policy trusts the first that comes."""
    await scene.world.settle()
    second = await (join or Join(world=scene.world)).through(scene.thief, "thief")
    return await scene.ended(second)


async def thief_serves(scene: Scene, *addresses: str) -> Ended:
    """Ask as the node, with its TPM, for a certificate to serve these addresses."""
    join = Join(world=scene.world, purpose=Purpose.SERVING, addresses=addresses, requester=node_requester())
    return await scene.ended(await join.through(scene.victim, "serving"))


async def joined(scene: Scene, **policy: JsonValue) -> Join:
    """Have the machine join by its registered TPM, and its Node register."""
    scene.world.policy(tpm={"endorsementKeys": allow(scene.victim)}, **policy)
    await scene.world.settle()
    join = Join(world=scene.world)
    await join.joins(scene.victim)
    scene.world.join_node()
    await scene.world.settle()
    return join


async def late_thief(scene: Scene, asked: str) -> Ended:
    """Join by a thief's TPM for a Machine to which Cluster API has given no provider ID."""
    world = scene.world
    serve_metal3(world)
    put_machine(world, "m-1", "abcdef", addresses=[{"type": "Hostname", "address": NODE}])
    world.policy(tpm=first_use(scene.thief), tokenBinding="Required")
    await world.evaluator.follow_platforms(world.workload)
    return await thief_joins(scene, Join(world=world, machine=asked))


async def chosen_provider_id(scene: Scene) -> Ended:
    return await late_thief(scene, "metal3://fleet/rack-1/chosen")


async def id_of_another_infrastructure_machine(scene: Scene) -> Ended:
    put_metal3(scene.world, "m-2", provider_id="metal3://fleet/rack-1/m-1")
    return await late_thief(scene, "metal3://fleet/rack-1/m-1")


# The request, the policy, the provider


async def bound_elsewhere(scene: Scene) -> Ended:
    scene.world.policy(tpm=first_use(scene.thief))
    groups: list[JsonValue] = ["system:bootstrappers", bound_group("fleet/blue", OTHER)]
    return await thief_joins(scene, Join(world=scene.world, requester={"groups": groups}))


async def paused(scene: Scene) -> Ended:
    path = f"{CAPI}/clusters/blue"
    scene.world.management_api.put(path, {**scene.world.management_api.objects[path], "spec": {"paused": True}})
    return await thief_joins(scene)


async def two_policies(scene: Scene) -> Ended:
    meta: JsonObject = {"name": "q", "namespace": "fleet"}
    spec: JsonObject = {"authorizedAttestors": ["tpm"], "tpm": first_use(scene.thief)}
    scene.world.management_api.put(f"{OWN}/nodeattestationpolicies/q", {"metadata": meta, "spec": spec})
    return await thief_joins(scene)


async def not_an_attestor(scene: Scene) -> Ended:
    scene.world.policy(authorizedAttestors=["challenge"], tpm=first_use(scene.thief))
    return await thief_joins(scene)


async def version_of_tomorrow(scene: Scene) -> Ended:
    scene.world.policy(tpm=first_use(scene.thief))
    return await thief_joins(scene, Join(world=scene.world, version=99))


async def serving_refused(scene: Scene) -> Ended:
    await joined(scene, serving={"attested": "Refuse"})
    return await thief_serves(scene, "10.0.0.1")


async def of_no_round(scene: Scene) -> Ended:
    scene.world.policy(tpm=first_use(scene.thief))
    await scene.world.settle()
    join = Join(world=scene.world)
    return await scene.ended(join.file("thief", join.der, {"phase": 3}))


# The machine


async def cloned_provider_id(scene: Scene) -> Ended:
    scene.world.policy(tpm=first_use(scene.thief))
    other_machine(scene.world, provider_id=PROVIDER_ID)
    return await thief_joins(scene)


async def deleted_now(scene: Scene) -> Ended:
    scene.world.policy(tpm=first_use(scene.thief))
    await scene.world.settle()
    path = f"{CAPI}/machines/m-1"
    known = scene.world.management_api.objects[path]
    meta: JsonObject = {**mapping(known, "metadata"), "deletionTimestamp": rfc3339(CREATED)}
    scene.world.management_api.objects[path] = {**known, "metadata": meta}
    return await thief_joins(scene)


async def node_drained(scene: Scene) -> Ended:
    scene.world.policy(tpm=first_use(scene.thief))
    change_machine(scene.world, nodeRef={"name": NODE, "uid": "node-uid"})
    return await thief_joins(scene)


async def never_joined_serves(scene: Scene) -> Ended:
    scene.world.policy(tpm={"endorsementKeys": allow(scene.victim)}, serving=SERVES)
    change_machine(
        scene.world,
        nodeRef={"name": NODE, "uid": "node-uid"},
        addresses=[{"type": "Hostname", "address": NODE}, {"type": "InternalIP", "address": "10.0.0.1"}],
    )
    node_stands(scene.world)
    await scene.world.settle()
    return await thief_serves(scene, "10.0.0.1")


async def anothers_address(scene: Scene) -> Ended:
    await joined(scene, serving=SERVES)
    other_machine(scene.world, addresses=[{"type": "InternalIP", "address": "10.0.0.1"}])
    await scene.world.settle()
    return await thief_serves(scene, "10.0.0.1")


async def unlisted_address(scene: Scene) -> Ended:
    await joined(scene, serving=SERVES)
    return await thief_serves(scene, "10.0.0.9")


async def anothers_name(scene: Scene) -> Ended:
    scene.world.policy(tpm=first_use(scene.thief))
    return await thief_joins(scene, Join(world=scene.world, node="control-plane-1"))


async def first_again(scene: Scene) -> Ended:
    join = await joined(scene)
    del join
    first = scene.world.csr("honest-1")
    meta = {**mapping(first, "metadata"), "annotations": {}}
    scene.world.workload_api.put(f"{CSRS}/honest-1", {**first, "metadata": meta, "status": {}})
    return await scene.ended("honest-1")


async def anothers_token(scene: Scene) -> Ended:
    world = scene.world
    world.policy(tpm=first_use(scene.thief), tokenBinding="Required")
    reference: JsonObject = {
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1",
        "kind": "KubeadmConfig",
        "name": "m-1",
        "namespace": "fleet",
    }
    known = world.management_api.objects[f"{CAPI}/machines/m-1"]
    bootstrap: JsonObject = {"configRef": reference, "dataSecretName": "d"}
    world.management_api.put(
        f"{CAPI}/machines/m-1", {**known, "spec": {**mapping(known, "spec"), "bootstrap": bootstrap}}
    )
    discovery: JsonObject = {"bootstrapToken": {"token": "mine00.0123456789abcdef"}}
    world.management_api.documents["/apis/bootstrap.cluster.x-k8s.io"] = {"preferredVersion": {"version": "v1beta1"}}
    world.management_api.put(
        "/apis/bootstrap.cluster.x-k8s.io/v1beta1/namespaces/fleet/kubeadmconfigs/m-1",
        {
            "metadata": {"name": "m-1"},
            "spec": {"joinConfiguration": {"discovery": discovery}},
            "status": {"ready": True},
        },
    )
    return await thief_joins(scene)


async def first_decided(scene: Scene) -> Ended:
    scene.world.policy(tpm=first_use(scene.thief))
    await scene.world.settle()
    second = await Join(world=scene.world).through(scene.thief, "thief")
    first = scene.world.csr("thief-1")
    denied: JsonObject = {"type": "Denied", "status": "True", "reason": "ByAnOperator"}
    scene.world.workload_api.put(f"{CSRS}/thief-1", {**first, "status": {"conditions": [denied]}})
    return await scene.ended(second)


async def unregistered(scene: Scene) -> Ended:
    scene.world.policy(tpm={"endorsementKeys": allow(scene.victim)})
    return await thief_joins(scene)


# What was proven


async def scripted(scene: Scene, **answer: object) -> Ended:
    """Ask with a provider whose answer is set."""
    scene.world.verifier.answer = replace(attested(), **answer)  # pyright: ignore[reportArgumentType] - the tests name real fields
    await scene.world.settle()
    join = Join(world=scene.world, node=SECOND_NODE)
    return await scene.ended(join.file("thief", join.der, {}))


async def of_a_pool(scene: Scene) -> Ended:
    world = scene.world
    world.management_api.remove(f"{CAPI}/machines/m-1")
    pool: JsonObject = {
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "kind": "MachinePool",
        "metadata": {"name": "workers", "namespace": "fleet"},
        "spec": {"clusterName": "blue", "providerIDList": [PROVIDER_ID, OTHER]},
        "status": {"bootstrapReady": True},
    }
    world.management_api.put(f"{CAPI}/machinepools/workers", pool)
    return await scripted(scene, proven_node_name=NodeName(NODE))


async def made_for_another(scene: Scene) -> Ended:
    """The provider ID leads to this Machine, and the evidence says that the instance was created for another."""
    other_machine(scene.world)
    scene.world.verifier.answer = replace(attested(), proven_machine_name=MachineName("m-2"))
    await scene.world.settle()
    join = Join(world=scene.world)
    return await scene.ended(join.file("thief", join.der, {}))


async def cloned_tpm(scene: Scene) -> Ended:
    world = scene.world
    world.policy(tpm=first_use(scene.thief))
    other_machine(world)
    await world.settle()
    await Join(world=world, node=SECOND_NODE, machine=OTHER).joins(scene.thief)
    return await thief_joins(scene)


async def name_of_a_node(scene: Scene) -> Ended:
    scene.world.policy(tpm=first_use(scene.thief))
    node_stands(scene.world, "metal://rack-9/9")
    return await thief_joins(scene)


async def standing_node(scene: Scene) -> Ended:
    scene.world.policy(tpm=first_use(scene.thief))
    node_stands(scene.world)
    return await thief_joins(scene)


async def adopted_without_node(scene: Scene) -> Ended:
    scene.world.policy(tpm={"endorsementKeys": allow(scene.thief)})
    return await thief_joins(scene, Join(world=scene.world, requester=node_requester()))


async def address_taken_meanwhile(scene: Scene) -> Ended:
    """Another machine gets the address while the evidence is verified."""
    await scripted_joined(scene)
    taken: list[JsonValue] = [{"type": "InternalIP", "address": "10.0.0.1"}]

    def verifying() -> None:
        other_machine(scene.world, addresses=taken)

    assert isinstance(scene.world.verifier, Slow)
    scene.world.verifier.meanwhile = verifying
    return await scripted_serves(scene, "10.0.0.1")


async def address_moved_away(scene: Scene) -> Ended:
    """The Machine still lists what the platform has given to somebody else."""
    await scripted_joined(scene)
    old: list[JsonValue] = [{"type": "Hostname", "address": NODE}, {"type": "InternalIP", "address": "10.0.0.9"}]
    change_machine(scene.world, addresses=old)
    await scene.world.settle()
    return await scripted_serves(scene, "10.0.0.9")


class Slow(StandIn):
    """A provider during whose verification something happens."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    async def verify_serving_attestation_data(self, request: object, facts: object) -> object:  # pyright: ignore[reportIncompatibleMethodOverride, reportIncompatibleVariableOverride] - it answers as the other
        self.meanwhile()
        return self.answer


class Rounds(TwoRounds):
    """A provider of two steps that compares nothing between them."""

    versions = VERSIONS


class Platform(TellsAddresses):
    """A provider whose platform says that the machine has 10.0.0.1 alone."""

    versions = VERSIONS


async def scripted_joined(scene: Scene) -> None:
    scene.world.policy(serving=SERVES)
    await scene.world.settle()
    join = Join(world=scene.world)
    await scene.world.reconcile(join.file("honest", join.der, {}))
    scene.world.join_node()
    await scene.world.settle()


async def scripted_serves(scene: Scene, *addresses: str) -> Ended:
    join = Join(world=scene.world, purpose=Purpose.SERVING, addresses=addresses, requester=node_requester())
    return await scene.ended(join.file("serving", join.der, {}))


# Directly before signing


async def approved_by_others(scene: Scene) -> Ended:
    scene.world.policy(tpm={"endorsementKeys": allow(scene.victim)})
    await scene.world.settle()
    second = await Join(world=scene.world).through(scene.victim)
    approved: JsonObject = {"type": "Approved", "status": "True", "reason": "ByAnOperator"}
    scene.world.workload_api.put(f"{CSRS}/{second}", {**scene.world.csr(second), "status": {"conditions": [approved]}})
    return await scene.ended(second)


async def one_key_for_two(scene: Scene) -> Ended:
    other_machine(scene.world)
    keys = [*allow(scene.victim), *allow(scene.thief, OTHER)]
    scene.world.policy(tpm={"endorsementKeys": keys})
    await scene.world.settle()
    join = Join(world=scene.world, node=SECOND_NODE, machine=OTHER)
    await join.joins(scene.thief)
    second = await replace(join, node=NODE, machine=PROVIDER_ID).through(scene.victim)
    return await scene.ended(second)


async def two_keys_for_one_challenge(scene: Scene) -> Ended:
    world = scene.world
    await world.settle()
    join = Join(world=world)
    first = join.file("first", join.der, {"x": "y"})
    uid = join.uid(first)
    world.verifier.answer = attested(FirstRequestRef(name=first, uid=uid))
    answer: EvidenceObject = {"name": first, "uid": uid}
    await world.reconcile(join.file("honest", join.der, answer))
    await world.settle()
    world.now = CREATED + timedelta(minutes=11)
    thief = Join(world=world)
    reopened = {**world.csr(first), "status": {}}
    world.workload_api.put(f"{CSRS}/{first}", reopened)
    return await scene.ended(thief.file("thief", thief.der, answer, after=timedelta(minutes=1)))


async def keys_without_pause(scene: Scene) -> Ended:
    await joined(scene)
    scene.world.now = CREATED + timedelta(minutes=1)
    return await scene.ended(await Join(world=scene.world).through(scene.victim, "again"))


async def many_live(scene: Scene) -> Ended:
    await joined(scene)
    path, record = next((p, o) for p, o in scene.world.management_api.objects.items() if "/machineattestations/" in p)
    retired: list[JsonValue] = [
        {"spki": f"sha256:{number:064x}", "serial": f"{number:x}", "notAfter": rfc3339(CREATED + timedelta(days=7))}
        for number in range(MAX_LIVE[Purpose.CLIENT])
    ]
    spec: JsonObject = {**mapping(record, "spec"), "retiredKeys": retired}
    scene.world.management_api.put(path, {**record, "spec": spec})
    await scene.world.settle()
    renewal = Join(world=scene.world, requester=node_requester())
    return await scene.ended(await renewal.through(scene.victim, "again"))


async def another_pin(scene: Scene) -> Ended:
    world = scene.world
    await world.settle()
    join = Join(world=world)
    await world.reconcile(join.file("honest", join.der, {}))
    world.now = CREATED + timedelta(minutes=11)
    await world.settle()
    world.verifier.answer = attested(ek="sha256:another")
    thief = Join(world=world)
    return await scene.ended(thief.file("thief", thief.der, {}))


def row(
    check: str,
    attack: str,
    reason: Reason,
    run: Attack,
    *then: tuple[str, str],
    gains: str = "",
    stays: str = "",
    mutants: tuple[str, ...] = (),
    stand_in: Callable[[], OneRound] | None = None,
    ends: Ended = GRANTED,
) -> Row[Scene]:
    return Row(
        check=f"attested: {check}",
        attack=attack,
        reason=reason,
        run=run,
        then=then,
        gains=gains,
        stays=stays,
        mutants=mutants,
        stand_in=stand_in,
        ends=ends,
    )


THIEFS: Final = "a certificate for the thief's key under the machine's name"
AT_ONCE: Final = "the fact itself cannot be had, so whichever check asks next refuses; it is first because it is cheap"

ROWS: Final[tuple[Row[Scene], ...]] = (
    row(
        "a token of no other machine",
        "a stolen token that is bound to another machine, with a genuine TPM where the first use is trusted",
        Reason.TOKEN_NOT_THIS_MACHINES,
        bound_elsewhere,
        gains=THIEFS,
    ),
    row(
        "an active cluster",
        "a request while the Cluster is paused",
        Reason.MACHINE_NOT_READY,
        paused,
        ("attested: one policy", Reason.MACHINE_NOT_READY),
        stays=AT_ONCE,
    ),
    row(
        "one policy",
        "a request that a second, weaker policy would admit",
        Reason.POLICY_INVALID,
        two_policies,
        ("attested: attestor authorized", Reason.POLICY_INVALID),
        stays=AT_ONCE,
    ),
    row(
        "attestor authorized",
        "evidence of a provider that the policy does not name, though its section is still there",
        Reason.ATTESTOR_NOT_AUTHORIZED,
        not_an_attestor,
        gains=THIEFS,
    ),
    row(
        "evidence version and schema",
        "evidence of a version that nobody has defined",
        Reason.EVIDENCE_VERSION_UNSUPPORTED,
        version_of_tomorrow,
        ("attested: round of the request", Reason.EVIDENCE_VERSION_UNSUPPORTED),
        stays="the provider's own parser refuses it, too; here it is refused before any provider's code runs",
    ),
    row(
        "attested serving request",
        "a node's request for a serving certificate where the policy refuses them",
        Reason.SERVING_NOT_ALLOWED,
        serving_refused,
        gains="a serving certificate that the operator did not want signed here",
    ),
    row(
        "round of the request",
        "evidence that is neither a first request's nor an answer",
        Reason.EVIDENCE_MALFORMED,
        of_no_round,
        ("attested: the Machine's provider ID", Reason.EVIDENCE_MALFORMED),
        stays=AT_ONCE,
    ),
    row(
        "one Machine, alive and ready",
        "a join as a provider ID that two Machines of the cluster claim",
        Reason.MACHINE_AMBIGUOUS,
        cloned_provider_id,
        gains=THIEFS + ", as one of two machines, nobody knows which",
    ),
    row(
        "the Machine's provider ID",
        "a machine's token, before Cluster API has its provider ID, and an ID that the thief chose",
        Reason.PROVIDER_ID_MISMATCH,
        chosen_provider_id,
        gains=THIEFS + ", under a provider ID that no machine has",
    ),
    row(
        "the Machine as it is now",
        "a join as a Machine that is being deleted, before the controller's cache has seen it",
        Reason.MACHINE_DELETING,
        deleted_now,
        gains=THIEFS + ", on its way out",
    ),
    row(
        "not bound otherwise",
        "a token used for a Machine that has a nodeRef and never joined attested, while its Node is gone",
        Reason.MACHINE_ALREADY_BOUND,
        node_drained,
        gains=THIEFS,
    ),
    row(
        "a joined machine",
        "a serving request by a certificate that was signed in-tree, by a machine that never joined attested",
        Reason.SERVING_NOT_ALLOWED,
        never_joined_serves,
        gains="a serving certificate for a node whose client certificate nobody attested",
    ),
    row(
        "names of one machine alone",
        "a serving request for an address that another machine lists, too",
        Reason.ADDRESS_NOT_ALLOWED,
        anothers_address,
        ("attested: names of one machine alone, read now", Reason.ADDRESS_NOT_ALLOWED),
        gains="a serving certificate for another machine's address",
        stays="it costs no call of a platform",
    ),
    row(
        "names and addresses on record",
        "a serving request for an address that the Machine does not list",
        Reason.ADDRESS_NOT_ALLOWED,
        unlisted_address,
        ("attested: names and addresses of the Machine", Reason.ADDRESS_NOT_ALLOWED),
        gains="a serving certificate for any address that no machine lists",
        stays="it costs no call of a platform",
    ),
    row(
        "the Machine's node name",
        "a thief's own TPM and a token, and the name of another node",
        Reason.NODE_NAME_MISMATCH,
        anothers_name,
        ("attested: the node name as proven", Reason.NODE_NAME_MISMATCH),
        gains="a certificate under whichever name was asked for",
        stays="no platform is asked about a name that is not the machine's",
    ),
    row(
        "first request not answered",
        "the first request of a join that has ended, filed as if it were open",
        Reason.SUPERSEDED,
        first_again,
        gains="the same challenge once more, and nothing by it: see *one key for one challenge*",
        ends=CHALLENGED,
        stays="who was answered is not asked to answer again until the request expires",
    ),
    row(
        "a token that the machine's bootstrap configuration names",
        "another machine's token, with a genuine TPM where the first use is trusted",
        Reason.TOKEN_NOT_THIS_MACHINES,
        anothers_token,
        gains=THIEFS,
    ),
    row(
        "one provider ID for one Machine",
        "a join, before Cluster API has the machine's provider ID, as one that another infrastructure machine has",
        Reason.MACHINE_AMBIGUOUS,
        id_of_another_infrastructure_machine,
        gains=THIEFS + ", as one of two machines, nobody knows which",
    ),
    row(
        "first request still pending",
        "an answer to a first request that an operator has denied",
        Reason.FIRST_REQUEST_MISMATCH,
        first_decided,
        gains=THIEFS + ", against the operator's word",
    ),
    row(
        "the provider's verification",
        "a genuine TPM that is not the machine's",
        Reason.ENDORSEMENT_KEY_UNTRUSTED,
        unregistered,
        ("attested: the Machine as proven", Reason.ENDORSEMENT_KEY_UNTRUSTED),
        stays="an approval is made of what the verification proved, so nothing can be signed without it",
    ),
    row(
        "the Machine as proven",
        "an instance that its platform created for another Machine of the cluster asks under this one's provider ID",
        Reason.EVIDENCE_FOR_OTHER_MACHINE,
        made_for_another,
        gains=THIEFS,
        stand_in=StandIn,
    ),
    row(
        "the node name as proven",
        "an instance of a pool asks for the name of another; its platform proves its own",
        Reason.NODE_NAME_MISMATCH,
        of_a_pool,
        gains="a certificate under whichever name was asked for",
        stand_in=StandIn,
    ),
    row(
        "hardware of no other machine",
        "the TPM of a machine that has joined joins as a second one",
        Reason.MACHINE_AMBIGUOUS,
        cloned_tpm,
        NOT_RECORDED,
        stays="the issuer compares again under its reservation and waits; the check says what is wrong, and is final",
    ),
    row(
        "no other node of this name",
        "a join under the name of a Node that has another provider ID",
        Reason.NODE_NAME_TAKEN,
        name_of_a_node,
        ("attested: no takeover of a node", Reason.MACHINE_ALREADY_BOUND),
        gains=THIEFS + ", which is another machine's node",
        stays="it also holds for machines that have joined, and against names that another machine is bound to",
    ),
    row(
        "no takeover of a node",
        "a token used for a Machine without nodeRef whose Node stands and never joined attested",
        Reason.MACHINE_ALREADY_BOUND,
        standing_node,
        gains="a certificate for a thief's key as a node that is running",
    ),
    row(
        "adoption of the machine's own node",
        "a stolen certificate that was signed in-tree, for a Machine of which Cluster API has found no node",
        Reason.MACHINE_NOT_READY,
        adopted_without_node,
        gains="an attested certificate by one that nobody attested, for a node that is not there",
    ),
    row(
        "names of one machine alone, read now",
        "a serving request for an address that another machine gets while the evidence is verified",
        Reason.ADDRESS_NOT_ALLOWED,
        address_taken_meanwhile,
        gains="a serving certificate for another machine's address",
        stand_in=Slow,
    ),
    row(
        "names and addresses of the Machine",
        "a serving request for an address that the platform has taken away, while the Machine still lists it",
        Reason.ADDRESS_NOT_ALLOWED,
        address_moved_away,
        gains="a serving certificate for an address that is another machine's by now",
        stand_in=Platform,
    ),
    row(
        "approval by this controller",
        "a sound answer that somebody else approved meanwhile",
        Reason.APPROVED_ELSEWHERE,
        approved_by_others,
        gains="the machine's own certificate, as it would get it anyway",
        stays="whose word an approval is must be clear to who reads the record; it costs nothing",
    ),
    row(
        "a key that was never certified",
        "one key for two machines",
        Reason.KEY_REUSED,
        one_key_for_two,
        gains="certificates under two names that one stolen key opens",
        mutants=("without known keys after a reset",),
    ),
    row(
        "one key for one challenge",
        "a second key for an answered challenge, by a provider that does not compare the two requests itself",
        Reason.REPLAYED,
        two_keys_for_one_challenge,
        gains="a second certificate by one proof",
        stays="our own providers refuse it already by *same PKCS#10 bytes*",
        mutants=("without the rule of one key for a first request", "without what retired keys answered"),
        stand_in=Rounds,
    ),
    row(
        "time between two keys",
        "a token and the machine's own TPM, a minute after the machine joined",
        Reason.MACHINE_ALREADY_BOUND,
        keys_without_pause,
        gains="as many certified keys as the machine can make",
        mutants=("without the pause between two keys",),
    ),
    row(
        "number of live certificates",
        "a renewal by a machine that has as many live certificates as one may have",
        Reason.MACHINE_ALREADY_BOUND,
        many_live,
        gains="a record that grows until the API server refuses it",
    ),
    row(
        "fingerprints as pinned",
        "another TPM under a machine that has joined, by a provider that does not compare pins itself",
        Reason.MACHINE_ALREADY_BOUND,
        another_pin,
        gains=THIEFS,
        stays="our own providers compare already; for providers of others it is the only one",
        mutants=("without the pin of the TPM",),
        stand_in=StandIn,
    ),
)
