"""D4 at the reconciler: what a stolen token, an observed answer and another node are worth; unknown versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
from catalogue import Expected, Row, attacks
from controller_scene import MINE as MACHINE
from controller_scene import PROVER, Attack, Scene, hostname, running
from cryptography.hazmat.primitives.asymmetric import ec
from csr_world import TwoRounds, attested
from late_machines import BOOTSTRAP, put_config

from nodeattest_controller.model.attestation_object import reset
from nodeattest_controller.model.kubeadm_config import BOUND_GROUP_PREFIX, bound_group
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import ChallengeRequired
from nodeattest_providers.identifiers import (
    ANNOTATION_CHALLENGE,
    ANNOTATION_SUPPORTED_VERSIONS,
    NodeName,
    ProviderID,
)
from nodeattest_providers.node_interface import FirstRequestRef
from nodeattest_sandbox.pki import ClusterPki

CONFIG: Final = f"/apis/{BOOTSTRAP}/v1beta1/namespaces/fleet/kubeadmconfigs/mine"
MINE: Final = bound_group("fleet/blue", "dev://mine")
OTHERS: Final = bound_group("fleet/blue", "dev://other")


def bound(*groups: str) -> dict[str, Any]:
    """A token whose user is in groups, and which no configuration names."""
    return {"holder": "ffffff", "groups": ["system:bootstrappers", *groups]}


def known(s: Scene, **more: Any) -> Scene:
    """Make the machine, with its provider ID."""
    return s.machine(provider_id="dev://mine", **more)


def of_other(s: Scene, **more: Any) -> Any:
    """Have another machine join."""
    return s.machine("other", "bbbbbb").asks("dev://other", "other", "bbbbbb", **more)


async def gone(s: Scene) -> Expected:
    await known(s).world.follow()
    return await s.remove(CONFIG).asks("dev://mine")


async def taken_back(s: Scene) -> Expected:
    await known(s).world.follow()
    put_config(s.world, "mine", "bbbbbb", owner="mine")
    return await s.asks("dev://mine")


async def by_a_rejoin_token(s: Scene) -> Expected:
    """Another machine has joined, and an operator lets it come back."""
    await of_other(s)
    [path] = [path for path in s.world.management_api.objects if "/machineattestations/" in path]
    record = s.world.management_api.objects[path]
    s.world.management_api.put(path, reset(record, by="operator", reason="r", now=s.world.now))
    return await s.machine().asks("dev://mine", **bound(OTHERS))


async def answered_by(
    s: Scene, forged: str = "", meanwhile: Callable[[], object] = lambda: None, version: int = 1, **token: Any
) -> Expected:
    """Let the machine ask first, and itself or somebody else answer with its bytes.

    ``forged``: the challenge that stands on its first request before the controller's.
    """
    known(s).world.verifier.answer = ChallengeRequired('{"nonce": "n"}')
    await s.asks("dev://mine")
    if forged:
        s.write("r-1", annotations={ANNOTATION_CHALLENGE: forged})
        await s.ended("r-1")
    assert s.world.annotation(ANNOTATION_CHALLENGE) == '{"nonce": "n"}'
    uid = text(s.world.csr("r-1"), "metadata", "uid")
    s.world.verifier.answer = attested(FirstRequestRef(name="r-1", uid=uid))
    meanwhile()
    return await s.asks("dev://mine", request=s.beside("r-1", {"name": "r-1", "uid": uid}, version), **token)


async def of_version(s: Scene, *attestors: str, **annotations: str) -> Expected:
    """File evidence of a version that nobody has made."""
    if attestors:
        s.policy(authorizedAttestors=[*attestors])
    await s.machine().world.follow()
    s.world.file("draft", node=NodeName("mine"), provider_id=ProviderID("dev://mine"))
    s.world.file("r-1", request=s.beside("draft", {}, version=9))
    s.write("r-1", annotations={**annotations})
    return await s.ended("r-1")


async def forged_versions(s: Scene) -> Expected:
    ended = await of_version(s, **{ANNOTATION_SUPPORTED_VERSIONS: "insecure/v1"})
    assert s.world.annotation(ANNOTATION_SUPPORTED_VERSIONS, "r-1") == "tpm/v1"
    return ended


# Names, keys and Machines


async def anothers_name(s: Scene) -> Expected:
    await of_other(s)
    return await s.machine().asks("dev://mine", "other")


async def copied(s: Scene, *, returned: int) -> Expected:
    """File one answer twice under one token; both are the node's own."""
    ends = [await answered_by(s), await s.asks("dev://mine", request=text(s.world.csr("r-2"), "spec", "request"))]
    return ends[returned]


async def one_key_for_two(s: Scene) -> Expected:
    key = ec.generate_private_key(ec.SECP256R1())
    await of_other(s, key=key)
    s.world.verifier.answer = attested(ek="sha256:of-the-other-TPM")
    return await s.machine().asks("dev://mine", key=key)


async def after_the_machine(s: Scene) -> Expected:
    await s.machine().joins("dev://mine")
    return await s.remove(MACHINE).asks("dev://mine", username="system:node:mine", groups=["system:nodes"])


MALFORMED: Final[JsonObject] = {"discovery": {"bootstrapToken": {"token": "aaaaaa.01234"}}}
CASES: Final[Mapping[str, Attack]] = {
    "D4-63": lambda s: known(s.put_node("dev://somebody", "elder"), addresses=[hostname("elder")]).asks(
        "dev://mine", "elder"
    ),
    "D4-68": anothers_name,
    "D4-74": lambda s: copied(s, returned=1),
    "D4-75": lambda s: copied(s, returned=0),
    "D4-77": one_key_for_two,
    "D4-78": lambda s: known(s).change(MACHINE, "spec", clusterName="green").asks("dev://mine"),
    "D4-79": lambda s: s.machine().asks("dev://mine", username="system:node:neighbour", groups=["system:nodes"]),
    "D4-80": after_the_machine,
    "D4-81": lambda s: s.machine().asks("dev://mine", username="admin", groups=["system:masters"]),
    "D4-82": lambda s: answered_by(s, forged="{}"),
    "D4-83": lambda s: answered_by(s, meanwhile=lambda: s.remove(MACHINE)),
    "D4-89": lambda s: s.machine().asks("dev://mine", **bound(OTHERS)),
    "D4-90": lambda s: s.machine().asks("dev://mine", **bound(bound_group("fleet/green", "dev://mine"))),
    "D4-91": lambda s: s.machine().asks("dev://mine", **bound(MINE, OTHERS)),
    "D4-92": lambda s: s.machine().asks("dev://mine", **bound(MINE[: len(BOUND_GROUP_PREFIX) + 8])),
    "D4-93": lambda s: known(s).asks("dev://mine", "other", **bound(MINE)),
    "D4-94": lambda s: known(s).asks("dev://mine", **bound(MINE)),
    "D4-95": by_a_rejoin_token,
    "D4-96": lambda s: answered_by(s, **bound(OTHERS)),
    "D4-102": of_version,
    "D4-103": lambda s: answered_by(s, version=9),
    "D4-104": forged_versions,
    "D4-105": lambda s: of_version(s, "challenge"),
    "D4-106": lambda s: known(s).machine("other", "bbbbbb").asks("dev://mine", holder="bbbbbb"),
    "D4-107": lambda s: known(s).asks("dev://mine", holder="ffffff"),
    "D4-108": lambda s: known(s).change(MACHINE, "spec", bootstrap={"dataSecretName": "d"}).asks("dev://mine"),
    "D4-109": gone,
    "D4-110": lambda s: known(s).change(CONFIG, "spec", joinConfiguration=MALFORMED).asks("dev://mine"),
    "D4-111": lambda s: answered_by(s, holder="ffffff"),
    "D4-112": taken_back,
    "D4-113": lambda s: known(s).asks("dev://mine"),
    "D4-114": lambda s: known(s).asks("dev://mine", **bound(MINE)),
}


TWO_ROUNDS: Final = {"D4-74", "D4-75", "D4-82", "D4-83", "D4-96", "D4-103", "D4-111"}


@pytest.mark.parametrize(("row", "attack"), attacks(CASES))
async def test_a_token_is_good_for_the_machine_whose_configuration_names_it(
    pki: ClusterPki, row: Row, attack: Attack
) -> None:
    async with running(pki, TwoRounds if row.id in TWO_ROUNDS else PROVER, late=True) as scene:
        assert await attack(scene) == row.expected
