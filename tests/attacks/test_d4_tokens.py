"""D4 at the reconciler: what a stolen token, an observed answer and another node are worth; unknown versions."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import pytest
from catalogue import Expected, Row, attacks
from cryptography.hazmat.primitives.asymmetric import ec
from csr_world import CAPI, CSRS, TwoRounds, attested
from late_machines import BOOTSTRAP, put_config
from machine_scene import Prover, Scene, hostname, scene_of

from nodeattest_controller.model.attestation_object import reset
from nodeattest_controller.model.kubeadm_config import BOUND_GROUP_PREFIX, bound_group
from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers import envelope
from nodeattest_providers.errors import ChallengeRequired
from nodeattest_providers.identifiers import ANNOTATION_CHALLENGE, ANNOTATION_SUPPORTED_VERSIONS, ProviderName
from nodeattest_providers.node_interface import Evidence, FirstRequestRef
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_sandbox.pki import ClusterPki

CONFIG: Final = f"/apis/{BOOTSTRAP}/v1beta1/namespaces/fleet/kubeadmconfigs/mine"
MINE: Final = bound_group("fleet/blue", "dev://mine")
OTHERS: Final = bound_group("fleet/blue", "dev://other")


def bound(*groups: str) -> dict[str, Any]:
    """A token whose user is in groups, and which no configuration names."""
    return {"holder": "ffffff", "groups": ["system:bootstrappers", *groups]}


async def gone(s: Scene) -> Expected:
    await s.machine(provider_id="dev://mine").world.follow()
    s.world.management_api.remove(CONFIG)
    return await s.asks("dev://mine")


async def taken_back(s: Scene) -> Expected:
    await s.machine(provider_id="dev://mine").world.follow()
    put_config(s.world, "mine", "bbbbbb", owner="mine")
    return await s.asks("dev://mine")


def unnamed(s: Scene) -> Awaitable[Expected]:
    path, api = f"{CAPI}/machines/mine", s.machine(provider_id="dev://mine").world.management_api
    machine = api.objects[path]
    spec: JsonObject = {**mapping(machine, "spec"), "bootstrap": {"dataSecretName": "d"}}
    api.put(path, {**machine, "spec": spec})
    return s.asks("dev://mine")


def malformed(s: Scene) -> Awaitable[Expected]:
    api = s.machine(provider_id="dev://mine").world.management_api
    discovery: JsonObject = {"bootstrapToken": {"token": "aaaaaa.01234"}}
    api.put(CONFIG, {**api.objects[CONFIG], "spec": {"joinConfiguration": {"discovery": discovery}}})
    return s.asks("dev://mine")


async def by_a_rejoin_token(s: Scene) -> Expected:
    """Another machine has joined, and an operator lets it come back."""
    await s.machine("other", "bbbbbb").asks("dev://other", "other", "bbbbbb")
    [path] = [path for path in s.world.management_api.objects if "/machineattestations/" in path]
    record = s.world.management_api.objects[path]
    s.world.management_api.put(path, reset(record, by="operator", reason="r", now=s.world.now))
    return await s.machine().asks("dev://mine", **bound(OTHERS))


def encoded(der: bytes, evidence: Evidence) -> str:
    return base64.b64encode(envelope.encode(der, evidence)).decode()


async def answered_by(
    s: Scene, forged: str = "", meanwhile: Callable[[], None] = lambda: None, version: int = 1, **token: Any
) -> Expected:
    """Let the machine ask first, and itself or somebody else answer with its bytes.

    ``forged``: the challenge that stands on its first request before the controller's.
    """
    s.machine(provider_id="dev://mine").world.verifier.answer = ChallengeRequired('{"nonce": "n"}')
    await s.asks("dev://mine")
    if forged:
        noted: JsonObject = {**mapping(s.world.csr("r-1"), "metadata"), "annotations": {ANNOTATION_CHALLENGE: forged}}
        s.world.workload_api.put(f"{CSRS}/r-1", {**s.world.csr("r-1"), "metadata": noted})
        await s.world.reconcile("r-1")
    filed = s.world.csr("r-1")
    assert s.world.annotation(ANNOTATION_CHALLENGE) == '{"nonce": "n"}'
    uid = text(filed, "metadata", "uid")
    s.world.verifier.answer = attested(FirstRequestRef(name="r-1", uid=uid))
    meanwhile()
    der = envelope.decode(base64.b64decode(text(filed, "spec", "request")))[0].der
    evidence = Evidence(ProviderName("tpm"), version, {"name": "r-1", "uid": uid})
    return await s.asks("dev://mine", request=encoded(der, evidence), **token)


async def of_version(s: Scene, *attestors: str, **annotations: str) -> Expected:
    """File evidence of a version that nobody has made."""
    if attestors:
        s.world.policy(authorizedAttestors=[*attestors])
    await s.machine().world.follow()
    der = build_csr(ec.generate_private_key(ec.SECP256R1()), "mine", "dev://mine")
    filed = s.world.file("r-1", request=encoded(der, Evidence(ProviderName("tpm"), 9, {})))
    metadata: JsonObject = {**mapping(filed, "metadata"), "annotations": {**annotations}}
    s.world.workload_api.put(f"{CSRS}/r-1", {**filed, "metadata": metadata})
    return await s.ended("r-1")


async def forged_versions(s: Scene) -> Expected:
    ended = await of_version(s, **{ANNOTATION_SUPPORTED_VERSIONS: "insecure/v1"})
    assert s.world.annotation(ANNOTATION_SUPPORTED_VERSIONS, "r-1") == "tpm/v1"
    return ended


# Names, keys and Machines


def name_of_a_foreign_node(s: Scene) -> Awaitable[Expected]:
    """The guest reports the host name of a Node that was there before."""
    node: JsonObject = {"metadata": {"name": "elder"}, "spec": {"providerID": "dev://somebody"}}
    s.world.workload_api.put("/api/v1/nodes/elder", node)
    return s.machine(provider_id="dev://mine", addresses=[hostname("elder")]).asks("dev://mine", "elder")


async def anothers_name(s: Scene) -> Expected:
    await s.machine("other", "bbbbbb").asks("dev://other", "other", "bbbbbb")
    return await s.machine().asks("dev://mine", "other")


async def copied(s: Scene, *, returned: int) -> Expected:
    """File one answer twice under one token; both are the node's own."""
    ends = [await answered_by(s), await s.asks("dev://mine", request=text(s.world.csr("r-2"), "spec", "request"))]
    return ends[returned]


async def one_key_for_two(s: Scene) -> Expected:
    key = ec.generate_private_key(ec.SECP256R1())
    await s.machine("other", "bbbbbb").asks("dev://other", "other", "bbbbbb", key=key)
    s.world.verifier.answer = attested(ek="sha256:of-the-other-TPM")
    return await s.machine().asks("dev://mine", key=key)


def machine_of_another_cluster(s: Scene) -> Awaitable[Expected]:
    s.machine(provider_id="dev://mine").change("spec", clusterName="green")
    return s.asks("dev://mine")


async def after_the_machine(s: Scene) -> Expected:
    await s.machine().joins("dev://mine")
    s.world.management_api.remove(f"{CAPI}/machines/mine")
    return await s.asks("dev://mine", username="system:node:mine", groups=["system:nodes"])


CASES: Final[Mapping[str, Callable[[Scene], Awaitable[Expected]]]] = {
    "D4-63": name_of_a_foreign_node,
    "D4-68": anothers_name,
    "D4-74": lambda s: copied(s, returned=1),
    "D4-75": lambda s: copied(s, returned=0),
    "D4-77": one_key_for_two,
    "D4-78": machine_of_another_cluster,
    "D4-79": lambda s: s.machine().asks("dev://mine", username="system:node:neighbour", groups=["system:nodes"]),
    "D4-80": after_the_machine,
    "D4-81": lambda s: s.machine().asks("dev://mine", username="admin", groups=["system:masters"]),
    "D4-82": lambda s: answered_by(s, forged="{}"),
    "D4-83": lambda s: answered_by(s, meanwhile=lambda: s.world.management_api.remove(f"{CAPI}/machines/mine")),
    "D4-89": lambda s: s.machine().asks("dev://mine", **bound(OTHERS)),
    "D4-90": lambda s: s.machine().asks("dev://mine", **bound(bound_group("fleet/green", "dev://mine"))),
    "D4-91": lambda s: s.machine().asks("dev://mine", **bound(MINE, OTHERS)),
    "D4-92": lambda s: s.machine().asks("dev://mine", **bound(MINE[: len(BOUND_GROUP_PREFIX) + 8])),
    "D4-93": lambda s: s.machine(provider_id="dev://mine").asks("dev://mine", "other", **bound(MINE)),
    "D4-94": lambda s: s.machine(provider_id="dev://mine").asks("dev://mine", **bound(MINE)),
    "D4-95": by_a_rejoin_token,
    "D4-96": lambda s: answered_by(s, **bound(OTHERS)),
    "D4-102": of_version,
    "D4-103": lambda s: answered_by(s, version=9),
    "D4-104": forged_versions,
    "D4-105": lambda s: of_version(s, "challenge"),
    "D4-106": lambda s: (
        s.machine(provider_id="dev://mine").machine("other", "bbbbbb").asks("dev://mine", holder="bbbbbb")
    ),
    "D4-107": lambda s: s.machine(provider_id="dev://mine").asks("dev://mine", holder="ffffff"),
    "D4-108": unnamed,
    "D4-109": gone,
    "D4-110": malformed,
    "D4-111": lambda s: answered_by(s, holder="ffffff"),
    "D4-112": taken_back,
    "D4-113": lambda s: s.machine(provider_id="dev://mine").asks("dev://mine"),
    "D4-114": lambda s: s.machine(provider_id="dev://mine").asks("dev://mine", **bound(MINE)),
}


TWO_ROUNDS: Final = {"D4-74", "D4-75", "D4-82", "D4-83", "D4-96", "D4-103", "D4-111"}


@pytest.mark.parametrize(("row", "attack"), attacks(CASES))
async def test_a_token_is_good_for_the_machine_whose_configuration_names_it(
    pki: ClusterPki, row: Row, attack: Callable[[Scene], Awaitable[Expected]]
) -> None:
    scene = scene_of(pki, TwoRounds() if row.id in TWO_ROUNDS else Prover())
    async with scene.world.running():
        assert await attack(scene) == row.expected
