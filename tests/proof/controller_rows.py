"""Attacks on the controller's two lists: ``controllers.csr.checks`` and ``controllers.kubelet_serving.checks``.

The real evaluator, issuer and reconciler run over API servers in memory; the provider's answer is set.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, TypeVar

from cryptography.hazmat.primitives.asymmetric import ec
from csr_world import (
    CAPI,
    CREATED,
    CSRS,
    NODE,
    OWN,
    PROVIDER_ID,
    SIGNERS,
    OneRound,
    TwoRounds,
    World,
    attested,
    machine,
)
from late_machines import put_machine, put_metal3, serve_metal3
from removal import CHALLENGED, GRANTED, Outcome, Row

from nodeattest_controller.controllers.csr import checks as csr_checks
from nodeattest_controller.controllers.csr.evaluator import Evaluator
from nodeattest_controller.controllers.kubelet_serving import checks as kubelet_checks
from nodeattest_controller.controllers.kubelet_serving.checks import KubeletFacts
from nodeattest_controller.controllers.kubelet_serving.evaluator import KubeletServingEvaluator
from nodeattest_controller.model.attestation import MAX_LIVE
from nodeattest_controller.model.csr_request import parse_kubelet_request
from nodeattest_controller.model.issuance_rules import bound_group
from nodeattest_controller.verification.checks import Pipeline, RequestCheck
from nodeattest_controller.verification.facts import RequestFacts
from nodeattest_parsing.objects import mapping, rfc3339, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import envelope
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason
from nodeattest_providers.identifiers import (
    ANNOTATION_CHALLENGE,
    ANNOTATION_REASON,
    MachineName,
    NodeName,
    ProviderID,
    ProviderName,
    Purpose,
)
from nodeattest_providers.node_interface import Evidence, FirstRequestRef
from nodeattest_providers.node_interface import JsonObject as EvidenceObject
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.verifier_interface import Facts, NodeRequest
from nodeattest_sandbox.pki import ClusterPki

F = TypeVar("F", bound=RequestFacts)
Attack = Callable[["Scene"], Awaitable[Outcome]]
OTHER: Final = ProviderID("metal://rack-1/2")
SECOND_NODE: Final = NodeName("worker-2")
SERVES: Final[JsonObject] = {"attested": "Sign"}
APPROVES: Final[JsonObject] = {"kubelet": "Approve"}
AS_NODE: Final[dict[str, Any]] = {"username": f"system:node:{NODE}", "groups": ["system:nodes"]}
REFUSED: Final = Denied(Reason.ENDORSEMENT_KEY_UNTRUSTED, expected="a known key", got="another", remedy="register it")


@dataclass(frozen=True, slots=True)
class Scene:
    """One cluster whose controller may lack a check."""

    world: World
    kubelet_list: Pipeline[KubeletFacts]
    ran: list[str] = field(default_factory=list[str])
    """The checks that ran, in order."""

    async def file(self, name: str = "thief", **changes: Any) -> Outcome:
        """File a request once the caches have what was written, and let the controller handle it."""
        await self.world.settle()
        self.world.file(name, **changes)
        return await self.ended(name)

    async def serve(self) -> Outcome:
        """Ask as the node for a certificate to serve 10.0.0.1."""
        return await self.file("serving", signerName=SIGNERS[Purpose.SERVING], **AS_NODE)

    async def file_kubelets(self) -> Outcome:
        """Ask as kubelet for a certificate to serve 10.0.0.1."""
        await self.world.settle()
        self.world.file_kubelets()
        return await self.ended("k-1")

    async def ended(self, name: str) -> Outcome:
        """Let the controller handle a request."""
        world = self.world
        await world.reconcile(name)
        if text(world.csr(name), "status", "certificate"):
            return GRANTED
        reason = (
            world.condition("Denied", name)
            or world.condition("Failed", name)
            or world.annotation(ANNOTATION_REASON, name).partition(":")[0]
        )
        if reason:
            return (self.ran[-1] if self.ran else "", reason)
        if world.annotation(ANNOTATION_CHALLENGE, name):
            return CHALLENGED
        return GRANTED if world.condition("Approved", name) else ("left alone", "")

    async def join(self, **policy: JsonValue) -> None:
        """Have the machine join, and its Node register."""
        self.world.policy(**policy)
        assert await self.file("honest") == GRANTED
        self.world.join_node()
        await self.world.settle()

    def put_machine(self, name: str = "m-2", provider_id: str = OTHER, **status: JsonValue) -> None:
        """Write a Machine of the same cluster."""
        addresses: list[JsonValue] = [{"type": "Hostname", "address": SECOND_NODE}]
        body = machine(name, provider_id, **{"addresses": addresses, **status})
        self.world.management_api.put(f"{CAPI}/machines/{name}", body)

    def change(self, path: str, part: str, *, watched: bool = True, **fields: JsonValue) -> None:
        """Change a part of an object; unless ``watched``, the controller's cache does not learn of it."""
        api = self.world.management_api
        changed: JsonObject = {**api.objects[path], part: {**mapping(api.objects[path], part), **fields}}
        if watched:
            api.put(path, changed)
        else:
            api.objects[path] = changed

    def put_node(self, provider_id: str = PROVIDER_ID) -> None:
        """Register the Node of the machine's name."""
        node: JsonObject = {"metadata": {"name": NODE, "uid": "node-uid"}, "spec": {"providerID": provider_id}}
        self.world.workload_api.put(f"/api/v1/nodes/{NODE}", node)


def _list_without(part: str, checks: tuple[RequestCheck[F], ...], without: str, ran: list[str]) -> Pipeline[F]:
    """Make a pipeline of the declared checks but one, which notes the name of each that runs."""

    def noting(check: RequestCheck[F]) -> Callable[[F], Awaitable[None]]:
        async def run(facts: F) -> None:
            ran.append(f"{part}: {check.name}")
            await check.run(facts)

        return run

    return Pipeline(tuple(replace(check, run=noting(check)) for check in checks if f"{part}: {check.name}" != without))


@asynccontextmanager
async def running(pki: ClusterPki, row: Row[Scene], without: str) -> AsyncGenerator[Scene]:
    """Run a controller without a check, of either list; an empty name removes none."""
    ran: list[str] = []
    kubelet: Pipeline[KubeletFacts] = _list_without("kubelet", kubelet_checks.CHECKS, without, ran)

    class Without(Evaluator):
        _pipeline = _list_without("attested", csr_checks.CHECKS, without, ran)

    class KubeletWithout(KubeletServingEvaluator):
        _pipeline = kubelet

    verifier = row.stand_in() if row.stand_in else OneRound()
    async with World(pki, verifier, evaluator=Without, kubelet_serving=KubeletWithout).running() as world:
        yield Scene(world, kubelet, ran)


ROWS: Final[list[Row[Scene]]] = []


def attested_row(
    check: str, reason: Reason, attack: str, stand_in: type[OneRound] = OneRound, mutants: tuple[str, ...] = ()
) -> Callable[[Attack], Attack]:
    """Add an attack on a check of an attested request."""
    return _row(f"attested: {check}", reason, attack, stand_in, mutants)


def kubelet_row(check: str, reason: Reason, attack: str) -> Callable[[Attack], Attack]:
    """Add an attack on a check of kubelet's own serving request."""
    return _row(f"kubelet: {check}", reason, attack, OneRound, ())


def _row(
    check: str, reason: Reason, attack: str, stand_in: type[OneRound], mutants: tuple[str, ...]
) -> Callable[[Attack], Attack]:
    def add(run: Attack) -> Attack:
        ROWS.append(Row(check, attack, reason, run, mutants, stand_in))
        return run

    return add


MACHINE: Final = f"{CAPI}/machines/m-1"
CLUSTER: Final = f"{CAPI}/clusters/blue"
DELETED: Final = rfc3339(CREATED)


def address(value: str, kind: str = "InternalIP") -> JsonObject:
    return {"type": kind, "address": value}


# An attested request: the request itself, the policy, the provider


@attested_row(
    "a token of no other machine", Reason.TOKEN_NOT_THIS_MACHINES, "a stolen token that is bound to another machine"
)
async def bound_elsewhere(scene: Scene) -> Outcome:
    return await scene.file(groups=["system:bootstrappers", bound_group("fleet/blue", OTHER)])


@attested_row("an active cluster", Reason.MACHINE_NOT_READY, "a request while the Cluster is paused")
async def paused(scene: Scene) -> Outcome:
    scene.change(CLUSTER, "spec", paused=True)
    return await scene.file()


@attested_row("one policy", Reason.POLICY_INVALID, "a request that a second, weaker policy would admit")
async def two_policies(scene: Scene) -> Outcome:
    body: JsonObject = {"metadata": {"name": "q", "namespace": "fleet"}, "spec": {"authorizedAttestors": ["tpm"]}}
    scene.world.management_api.put(f"{OWN}/nodeattestationpolicies/q", body)
    return await scene.file()


@attested_row(
    "attestor authorized", Reason.ATTESTOR_NOT_AUTHORIZED, "evidence of a provider that the policy does not name"
)
async def not_an_attestor(scene: Scene) -> Outcome:
    scene.world.policy(authorizedAttestors=["challenge"])
    return await scene.file()


class Newer(OneRound):
    """A provider that knows newer evidence alone."""

    versions = (2,)


@attested_row(
    "evidence version and schema",
    Reason.EVIDENCE_VERSION_UNSUPPORTED,
    "evidence of a version that the provider does not accept",
    Newer,
)
async def other_version(scene: Scene) -> Outcome:
    return await scene.file()


@attested_row(
    "attested serving request", Reason.SERVING_NOT_ALLOWED, "a serving request of a node where the policy refuses them"
)
async def serving_refused(scene: Scene) -> Outcome:
    await scene.join(serving={"attested": "Refuse"})
    return await scene.serve()


class Unreadable(TwoRounds):
    """A provider of two steps that finds neither a first request nor an answer in the evidence."""

    def first_request(self, request: NodeRequest) -> FirstRequestRef | None:
        del request
        raise Denied(Reason.EVIDENCE_MALFORMED, expected="phase 1 or 2", got="phase 3", remedy="file another")


@attested_row(
    "round of the request",
    Reason.EVIDENCE_MALFORMED,
    "evidence that is neither a first request's nor an answer",
    Unreadable,
)
async def of_no_round(scene: Scene) -> Outcome:
    return await scene.file()


# The machine


@attested_row(
    "one Machine, alive and ready",
    Reason.MACHINE_AMBIGUOUS,
    "a join as a provider ID that two Machines of the cluster claim",
)
async def cloned_provider_id(scene: Scene) -> Outcome:
    scene.put_machine(provider_id=PROVIDER_ID)
    return await scene.file()


async def before_its_provider_id(scene: Scene, requested: str) -> Outcome:
    """Join for a Machine to which Cluster API has given no provider ID."""
    serve_metal3(scene.world)
    put_machine(scene.world, "m-1", "abcdef", addresses=[address(NODE, "Hostname")])
    scene.world.policy(tokenBinding="Required")
    await scene.world.follow()
    return await scene.file(provider_id=ProviderID(requested))


@attested_row(
    "the Machine's provider ID",
    Reason.PROVIDER_ID_MISMATCH,
    "a machine's token, before Cluster API has its provider ID, and an ID that the thief chose",
)
async def chosen_provider_id(scene: Scene) -> Outcome:
    return await before_its_provider_id(scene, "metal3://fleet/rack-1/chosen")


@attested_row(
    "the Machine as it is now",
    Reason.MACHINE_DELETING,
    "a join as a Machine that is being deleted, before the controller's cache has seen it",
)
async def deleted_now(scene: Scene) -> Outcome:
    await scene.world.settle()
    scene.change(MACHINE, "metadata", watched=False, deletionTimestamp=DELETED)
    return await scene.file()


@attested_row(
    "not bound otherwise",
    Reason.MACHINE_ALREADY_BOUND,
    "a token used for a Machine that has a nodeRef and never joined attested, while its Node is gone",
)
async def node_drained(scene: Scene) -> Outcome:
    scene.change(MACHINE, "status", nodeRef={"name": NODE, "uid": "node-uid"})
    return await scene.file()


@attested_row(
    "a joined machine",
    Reason.SERVING_NOT_ALLOWED,
    "a serving request by a certificate that was signed in-tree, by a machine that never joined attested",
)
async def never_joined_serves(scene: Scene) -> Outcome:
    scene.world.policy(serving=SERVES)
    scene.change(
        MACHINE,
        "status",
        nodeRef={"name": NODE, "uid": "node-uid"},
        addresses=[address(NODE, "Hostname"), address("10.0.0.1")],
    )
    scene.put_node()
    return await scene.serve()


@attested_row(
    "names of one machine alone",
    Reason.ADDRESS_NOT_ALLOWED,
    "a serving request for an address that another machine lists, too",
)
async def anothers_address(scene: Scene) -> Outcome:
    await scene.join(serving=SERVES)
    scene.put_machine(addresses=[address("10.0.0.1")])
    return await scene.serve()


@attested_row(
    "names and addresses on record",
    Reason.ADDRESS_NOT_ALLOWED,
    "a serving request for an address that the Machine does not list",
)
async def unlisted_address(scene: Scene) -> Outcome:
    await scene.join(serving=SERVES)
    scene.change(MACHINE, "status", addresses=[address(NODE, "Hostname"), address("10.0.0.9")])
    return await scene.serve()


class ProvesNoName(OneRound):
    """A provider that can prove no machine's name."""

    def provable_names(self, settings: object, sections: object) -> dict[ProviderID, NodeName]:
        del settings, sections
        return {}


@attested_row(
    "the Machine's node name",
    Reason.NODE_NAME_MISMATCH,
    "a token of one machine, and another node's name",
    ProvesNoName,
)
async def anothers_name(scene: Scene) -> Outcome:
    return await scene.file(node=NodeName("control-plane-1"))


async def answered(scene: Scene, key: ec.EllipticCurvePrivateKey, status: JsonObject | None = None) -> FirstRequestRef:
    """File a first request with a status, and an honest answer to it that is not handled yet."""
    await scene.world.settle()
    der = build_csr(key, NODE, PROVIDER_ID)
    filed = scene.world.file("first", request=encoded(der, {"x": "y"}))
    scene.world.workload_api.put(f"{CSRS}/first", {**filed, "status": status or {}})
    first = FirstRequestRef(name="first", uid=text(filed, "metadata", "uid"))
    scene.world.verifier.answer = attested(first)
    scene.world.file("honest", request=encoded(der, {"name": "first", "uid": first.uid}))
    return first


def encoded(der: bytes, evidence: EvidenceObject) -> str:
    """Write a request's envelope, around a certificate request whose bytes are given."""
    return base64.b64encode(envelope.encode(der, Evidence(ProviderName("tpm"), 1, evidence))).decode()


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@attested_row(
    "first request not answered",
    Reason.SUPERSEDED,
    "the first request of a join that has ended, filed as if it were open",
    TwoRounds,
)
async def first_again(scene: Scene) -> Outcome:
    world = scene.world
    await answered(scene, new_key())
    assert await scene.ended("honest") == GRANTED
    await world.settle()
    world.verifier.answer = ChallengeRequired("a challenge")
    metadata: JsonObject = {**mapping(world.csr("first"), "metadata"), "annotations": {}}
    world.workload_api.put(f"{CSRS}/first", {**world.csr("first"), "metadata": metadata, "status": {}})
    return await scene.ended("first")


@attested_row(
    "a token that the machine's bootstrap configuration names",
    Reason.TOKEN_NOT_THIS_MACHINES,
    "another machine's token",
)
async def anothers_token(scene: Scene) -> Outcome:
    serve_metal3(scene.world)
    put_machine(scene.world, "m-1", "mine00", provider_id=PROVIDER_ID, addresses=[address(NODE, "Hostname")])
    scene.world.policy(tokenBinding="Required")
    return await scene.file()


@attested_row(
    "one provider ID for one Machine",
    Reason.MACHINE_AMBIGUOUS,
    "a join, before Cluster API has the machine's provider ID, as one that another infrastructure machine has",
)
async def id_of_another_infrastructure_machine(scene: Scene) -> Outcome:
    put_metal3(scene.world, "m-2", provider_id="metal3://fleet/rack-1/m-1")
    return await before_its_provider_id(scene, "metal3://fleet/rack-1/m-1")


@attested_row(
    "first request still pending",
    Reason.FIRST_REQUEST_MISMATCH,
    "an answer to a first request that an operator has denied",
    TwoRounds,
)
async def first_decided(scene: Scene) -> Outcome:
    denied: JsonObject = {"type": "Denied", "status": "True", "reason": "ByAnOperator"}
    await answered(scene, new_key(), status={"conditions": [denied]})
    return await scene.ended("honest")


@attested_row("the provider's verification", Reason.ENDORSEMENT_KEY_UNTRUSTED, "a TPM that is not the machine's")
async def unproved(scene: Scene) -> Outcome:
    scene.world.verifier.answer = REFUSED
    return await scene.file()


# What was proven


@attested_row(
    "the Machine as proven",
    Reason.EVIDENCE_FOR_OTHER_MACHINE,
    "an instance that its platform created for another Machine of the cluster asks under this one's provider ID",
)
async def made_for_another(scene: Scene) -> Outcome:
    scene.put_machine()
    scene.world.verifier.answer = replace(attested(), proven_machine_name=MachineName("m-2"))
    return await scene.file()


@attested_row(
    "the node name as proven",
    Reason.NODE_NAME_MISMATCH,
    "an instance of a pool asks for the name of another; its platform proves its own",
)
async def of_a_pool(scene: Scene) -> Outcome:
    world = scene.world
    world.management_api.remove(MACHINE)
    pool: JsonObject = {
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "kind": "MachinePool",
        "metadata": {"name": "workers", "namespace": "fleet"},
        "spec": {"clusterName": "blue", "providerIDList": [PROVIDER_ID, OTHER]},
        "status": {"bootstrapReady": True},
    }
    world.management_api.put(f"{CAPI}/machinepools/workers", pool)
    world.verifier.answer = replace(attested(), proven_node_name=NODE)
    return await scene.file(node=SECOND_NODE)


async def second_joins(scene: Scene, key: ec.EllipticCurvePrivateKey | None = None, ek: str = "sha256:ek") -> None:
    """Have a second machine join."""
    scene.put_machine()
    scene.world.verifier.answer = replace(attested(ek=ek), provider_id=OTHER)
    assert await scene.file("honest", node=SECOND_NODE, provider_id=OTHER, key=key) == GRANTED
    scene.world.verifier.answer = attested()


@attested_row(
    "hardware of no other machine",
    Reason.MACHINE_AMBIGUOUS,
    "the TPM of a machine that has joined joins as a second one",
)
async def cloned_tpm(scene: Scene) -> Outcome:
    await second_joins(scene)
    return await scene.file()


@attested_row(
    "no other node of this name",
    Reason.NODE_NAME_TAKEN,
    "a join under the name of a Node that has another provider ID",
)
async def name_of_a_node(scene: Scene) -> Outcome:
    scene.put_node("metal://rack-9/9")
    return await scene.file()


@attested_row(
    "no takeover of a node",
    Reason.MACHINE_ALREADY_BOUND,
    "a token used for a Machine without nodeRef whose Node stands and never joined attested",
)
async def standing_node(scene: Scene) -> Outcome:
    scene.put_node()
    return await scene.file()


@attested_row(
    "adoption of the machine's own node",
    Reason.MACHINE_NOT_READY,
    "a stolen certificate that was signed in-tree, for a Machine of which Cluster API has found no node",
)
async def adopted_without_node(scene: Scene) -> Outcome:
    return await scene.file(**AS_NODE)


class Slow(OneRound):
    """A provider during whose verification something happens."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    async def verify_serving_attestation_data(self, request: NodeRequest, facts: Facts) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride] - it answers as the other
        del request, facts
        self.meanwhile()
        return self.answer


@attested_row(
    "names of one machine alone, read now",
    Reason.ADDRESS_NOT_ALLOWED,
    "a serving request for an address that another machine gets while the evidence is verified",
    Slow,
)
async def address_taken_meanwhile(scene: Scene) -> Outcome:
    await scene.join(serving=SERVES)
    assert isinstance(scene.world.verifier, Slow)
    scene.world.verifier.meanwhile = lambda: scene.put_machine(addresses=[address("10.0.0.1")])
    return await scene.serve()


class Elsewhere(OneRound):
    """A provider whose platform says that the machine has 10.0.0.9 alone."""

    tells_addresses = True

    async def addresses(self, facts: Facts) -> tuple[tuple[str, str], ...] | None:
        del facts
        return (("InternalIP", "10.0.0.9"),)


@attested_row(
    "names and addresses of the Machine",
    Reason.ADDRESS_NOT_ALLOWED,
    "a serving request for an address that the platform has taken away, while the Machine still lists it",
    Elsewhere,
)
async def address_moved_away(scene: Scene) -> Outcome:
    await scene.join(serving=SERVES)
    return await scene.serve()


# Directly before signing


@attested_row(
    "approval by this controller", Reason.APPROVED_ELSEWHERE, "a sound request that somebody else approved meanwhile"
)
async def approved_by_others(scene: Scene) -> Outcome:
    await scene.world.settle()
    approved: JsonObject = {"type": "Approved", "status": "True", "reason": "ByAnOperator"}
    body = scene.world.file("thief")
    scene.world.workload_api.put(f"{CSRS}/thief", {**body, "status": {"conditions": [approved]}})
    return await scene.ended("thief")


@attested_row(
    "a key that was never certified",
    Reason.KEY_REUSED,
    "one key for two machines",
    mutants=("without known keys after a reset",),
)
async def one_key_for_two(scene: Scene) -> Outcome:
    key = new_key()
    await second_joins(scene, key, ek="sha256:second")
    return await scene.file(key=key)


@attested_row(
    "one key for one challenge",
    Reason.REPLAYED,
    "a second key for an answered challenge, by a provider that does not compare the two requests itself",
    TwoRounds,
    mutants=("without the rule of one key for a first request", "without what retired keys answered"),
)
async def two_keys_for_one_challenge(scene: Scene) -> Outcome:
    world = scene.world
    first = await answered(scene, new_key())
    assert await scene.ended("honest") == GRANTED
    await world.settle()
    world.now = CREATED + timedelta(minutes=11)
    world.workload_api.put(f"{CSRS}/first", {**world.csr("first"), "status": {}})
    return await scene.file(evidence={"name": "first", "uid": first.uid})


@attested_row(
    "time between two keys",
    Reason.MACHINE_ALREADY_BOUND,
    "a token and the machine's own proof, a minute after the machine joined",
    mutants=("without the pause between two keys",),
)
async def keys_without_pause(scene: Scene) -> Outcome:
    await scene.join()
    scene.world.now = CREATED + timedelta(minutes=1)
    return await scene.file()


@attested_row(
    "number of live certificates",
    Reason.MACHINE_ALREADY_BOUND,
    "a renewal by a machine that has as many live certificates as one may have",
)
async def many_live(scene: Scene) -> Outcome:
    await scene.join()
    path = next(path for path in scene.world.management_api.objects if "/machineattestations/" in path)
    retired: list[JsonValue] = [
        {"spki": f"sha256:{number:064x}", "serial": f"{number:x}", "notAfter": rfc3339(CREATED + timedelta(days=7))}
        for number in range(MAX_LIVE[Purpose.CLIENT])
    ]
    scene.change(path, "spec", retiredKeys=retired)
    return await scene.file(**AS_NODE)


@attested_row(
    "fingerprints as pinned",
    Reason.MACHINE_ALREADY_BOUND,
    "another TPM under a machine that has joined, by a provider that does not compare pins itself",
    mutants=("without the pin of the TPM",),
)
async def another_pin(scene: Scene) -> Outcome:
    assert await scene.file("honest") == GRANTED
    scene.world.now = CREATED + timedelta(minutes=11)
    scene.world.verifier.answer = attested(ek="sha256:another")
    return await scene.file()


# Kubelet's own serving request: root on a node asks with the node's certificate, and nothing is attested


def serves(scene: Scene) -> None:
    """Have the machine joined, its node registered, and the policy approve."""
    scene.world.join_node()
    scene.world.policy(serving=APPROVES)


@kubelet_row("an active cluster", Reason.MACHINE_NOT_READY, "a request while the Cluster is paused")
async def kubelet_paused(scene: Scene) -> Outcome:
    serves(scene)
    scene.change(CLUSTER, "spec", paused=True)
    return await scene.file_kubelets()


@kubelet_row("policy approves", Reason.SERVING_NOT_ALLOWED, "a request that the policy leaves to another approver")
async def left_to_others(scene: Scene) -> Outcome:
    """The evaluator leaves such requests alone, so the list is run here as ``nodeattest explain`` runs it."""
    world = scene.world
    world.join_node()
    world.policy(serving={"kubelet": "Ignore"})
    await world.settle()
    request = parse_kubelet_request(world.file_kubelets())
    try:
        await scene.kubelet_list.run(KubeletFacts(world.facts_of(world.workload), request))
    except Denied as denied:
        return (scene.ran[-1], denied.reason)
    return GRANTED


@kubelet_row("one Machine, alive and ready", Reason.MACHINE_AMBIGUOUS, "a name that two machines claim")
async def two_of_the_name(scene: Scene) -> Outcome:
    serves(scene)
    scene.put_machine(addresses=[address(NODE, "Hostname")])
    return await scene.file_kubelets()


@kubelet_row("names of one machine alone", Reason.ADDRESS_NOT_ALLOWED, "an address that another machine lists, too")
async def kubelet_anothers_address(scene: Scene) -> Outcome:
    serves(scene)
    scene.put_machine(addresses=[address("10.0.0.1")])
    return await scene.file_kubelets()


@kubelet_row("names and addresses on record", Reason.ADDRESS_NOT_ALLOWED, "an address that the Machine does not list")
async def kubelet_unlisted_address(scene: Scene) -> Outcome:
    serves(scene)
    scene.change(MACHINE, "status", addresses=[address(NODE, "Hostname"), address("10.0.0.9")])
    return await scene.file_kubelets()


@kubelet_row(
    "the Machine as it is now",
    Reason.MACHINE_DELETING,
    "a Machine that is being deleted, before the controller's cache has seen it",
)
async def kubelet_deleted_now(scene: Scene) -> Outcome:
    serves(scene)
    await scene.world.settle()
    scene.change(MACHINE, "metadata", watched=False, deletionTimestamp=DELETED)
    return await scene.file_kubelets()


@kubelet_row(
    "the Machine's node name",
    Reason.NODE_NAME_MISMATCH,
    "a name that the Machine had until now, before the controller's cache has seen the change",
)
async def renamed_now(scene: Scene) -> Outcome:
    serves(scene)
    await scene.world.settle()
    renamed: list[JsonValue] = [address("worker-9", "Hostname"), address("10.0.0.1")]
    scene.change(MACHINE, "status", watched=False, addresses=renamed)
    return await scene.file_kubelets()


@kubelet_row(
    "a confirmed provider ID",
    Reason.MACHINE_NOT_READY,
    "a node that joined before Cluster API has its Machine's provider ID",
)
async def unconfirmed(scene: Scene) -> Outcome:
    serves(scene)
    scene.put_machine("m-1", "", addresses=[address(NODE, "Hostname"), address("10.0.0.1")])
    times: JsonObject = {"notBefore": rfc3339(CREATED), "notAfter": rfc3339(CREATED + timedelta(days=1))}
    issued: JsonObject = {**times, "issuedAt": rfc3339(CREATED), "spki": "sha256:0", "serial": "1", "certificate": ""}
    owner: JsonObject = {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "name": "m-1", "uid": "uid-m-1"}
    spec: JsonObject = {"clusterName": "blue", "providerID": PROVIDER_ID, "nodeName": NODE, "provider": "tpm"}
    body: JsonObject = {
        "metadata": {"name": "late", "namespace": "fleet", "ownerReferences": [owner]},
        "spec": {**spec, "issued": [issued]},
    }
    scene.world.management_api.put(f"{OWN}/machineattestations/late", body)
    return await scene.file_kubelets()


@kubelet_row("a registered Node", Reason.MACHINE_NOT_READY, "a stolen certificate of a node that has not registered")
async def no_node(scene: Scene) -> Outcome:
    serves(scene)
    scene.world.workload_api.remove(f"/api/v1/nodes/{NODE}")
    return await scene.file_kubelets()


@kubelet_row(
    "no other node of this name",
    Reason.NODE_NAME_TAKEN,
    "a Node of the name that has another machine's provider ID",
)
async def anothers_node(scene: Scene) -> Outcome:
    serves(scene)
    scene.put_node("metal://rack-9/9")
    return await scene.file_kubelets()


@kubelet_row(
    "names of one machine alone, read now",
    Reason.ADDRESS_NOT_ALLOWED,
    "the control plane's endpoint, by a machine that has just left the control plane",
)
async def endpoint_no_more(scene: Scene) -> Outcome:
    serves(scene)
    scene.change(CLUSTER, "spec", controlPlaneEndpoint={"host": "10.0.0.1", "port": 6443})
    scene.change(MACHINE, "metadata", labels={"cluster.x-k8s.io/control-plane": ""})
    await scene.world.settle()
    scene.change(MACHINE, "metadata", watched=False, labels={})
    return await scene.file_kubelets()


@kubelet_row(
    "names and addresses of the Machine",
    Reason.ADDRESS_NOT_ALLOWED,
    "an address that the Machine has just lost, before the controller's cache has seen it",
)
async def address_gone_now(scene: Scene) -> Outcome:
    serves(scene)
    await scene.world.settle()
    scene.change(MACHINE, "status", watched=False, addresses=[address(NODE, "Hostname")])
    return await scene.file_kubelets()
