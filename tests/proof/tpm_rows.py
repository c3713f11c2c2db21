"""An attack for each check of the TPM protocol that root of a machine, or a thief with a TPM, can carry out by swtpm.

The whole exchange: both requests are filed at an API server, the real controller handles them, swtpm activates, quotes
and signs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final

from attested_rows import THIEFS, change_machine, node_stands
from csr_world import CAPI, CREATED, NODE
from joins import (
    GOOD,
    TPM_OTHER_MACHINE,
    Answer,
    Join,
    allow,
    extended,
    first_use,
    forged,
    node_requester,
    signed_by,
    unextended,
)
from mutants import CHALLENGED, Ended, Scene
from rows import Row
from tpm_tss import activate, quote
from tpm_world import SoftTpm, sized

from nodeattest_controller.model.objects import mapping
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_providers.challenge_response import CHALLENGE_TTL
from nodeattest_providers.errors import Reason
from nodeattest_providers.tpm.endorsement_key import MACHINE_ANNOTATION
from nodeattest_providers.tpm.key_templates import AK_TEMPLATES
from nodeattest_providers.tpm.protocol import VERSIONS
from nodeattest_providers.tpm.structures import Alg, PcrSelection
from nodeattest_sandbox.swtpm import SoftwareTpm

__all__ = ["ROWS", "another_agents_key"]

UNIQUE: Final = sized(hashlib.sha256(b"another agent").digest()) + sized(bytes(32))
OTHER_AGENTS: Final = AK_TEMPLATES[1][: -len(UNIQUE)] + UNIQUE
"""A template of our attributes and algorithms without the mark: another agent's key."""
BOOT: Final[JsonObject] = {"selection": [0, 7, 16, 23], "values": {"7": [GOOD.hex()]}}
"""PCR 7 decides; 16 and 23 are those that software may reset and extend."""


async def registered(scene: Scene, **section: JsonValue) -> Join:
    """Register the machine's TPM, and begin to join."""
    scene.world.policy(tpm={"endorsementKeys": allow(scene.victim), **section})
    await scene.world.settle()
    return scene.join()


# Keys


async def unrestricted_key(scene: Scene) -> Ended:
    join = await registered(scene, pcrs=BOOT)
    der, values = join.der, (bytes(32), GOOD, bytes(32), bytes(32))
    with join.keys(scene.victim, unrestricted(scene.version)) as keys:
        first = join.first("first", der, keys)
        if (refused := await scene.ended(first)) != CHALLENGED:
            return refused
        challenge = await join.challenge(first)
        secret = activate(keys.esys, keys.ek, keys.ak, challenge.blob, challenge.secret)
        lie = forged(keys, challenge, join.qualifying(challenge, first, der), values)
        answer = Answer(secret=secret, quote=lie, signature=signed_by(keys, lie), pcrs=values)
    return await scene.ended(join.second("second", der, first, answer))


async def not_registered(scene: Scene) -> Ended:
    join = await registered(scene)
    return await scene.ended(await join.through(scene.thief))


async def listed_for_another(scene: Scene) -> Ended:
    section: JsonObject = {"endorsementKeys": allow(scene.thief, TPM_OTHER_MACHINE), **first_use(scene.thief)}
    scene.world.policy(tpm=section)
    await scene.world.settle()
    return await scene.ended(await scene.join().through(scene.thief))


async def named_by_its_machine(scene: Scene) -> Ended:
    scene.world.policy(tpm={"endorsementCAs": scene.thief.authority_pem})
    path = f"{CAPI}/machines/m-1"
    known = scene.world.management_api.objects[path]
    annotations: JsonObject = {MACHINE_ANNOTATION: scene.victim.endorsement_fingerprint()}
    meta: JsonObject = {**mapping(known, "metadata"), "annotations": annotations}
    scene.world.management_api.put(path, {**known, "metadata": meta})
    await scene.world.settle()
    return await scene.ended(await scene.join().through(scene.thief))


async def chain_alone(scene: Scene) -> Ended:
    scene.world.policy(tpm={"endorsementCAs": scene.thief.authority_pem})
    await scene.world.settle()
    return await scene.ended(await scene.join().through(scene.thief))


async def first_use_as_a_node(scene: Scene) -> Ended:
    scene.world.policy(tpm=first_use(scene.thief))
    change_machine(scene.world, nodeRef={"name": NODE, "uid": "node-uid"})
    node_stands(scene.world)
    await scene.world.settle()
    join = scene.join(requester=node_requester())
    return await scene.ended(await join.through(scene.thief))


def unrestricted(version: int) -> bytes:
    """Write our template without the attribute that keeps a key from signing anything."""
    ours = AK_TEMPLATES[version]
    return ours[:4] + (0x00040472).to_bytes(4, "big") + ours[8:]


async def after_first_use(scene: Scene, by: SoftwareTpm, template: bytes | None = None, **changes: int) -> Ended:
    """The thief's TPM is the machine's here: its clock is behind, so nothing but the pins decides."""
    world, honest = scene.world, scene.thief
    world.policy(tpm=first_use(honest))
    await world.settle()
    await scene.join().joins(honest)
    world.now = CREATED + timedelta(minutes=11)
    return await scene.ended(await scene.join(**changes).through(by, "thief", template))


async def another_tpm(scene: Scene) -> Ended:
    return await after_first_use(scene, scene.victim)


async def imitated_key(scene: Scene) -> Ended:
    return await after_first_use(scene, scene.thief, AK_TEMPLATES[scene.version][: -len(UNIQUE)] + UNIQUE)


async def older_version(scene: Scene) -> Ended:
    return await after_first_use(scene, scene.thief, OTHER_AGENTS, version=1)


async def another_agents_key(scene: Scene) -> Ended:
    """The other agent activates and quotes for the thief, whose key and request these are."""
    join = await registered(scene)
    return await scene.ended(await join.through(scene.victim, "thief", OTHER_AGENTS))


# The two requests


async def another_key(scene: Scene) -> Ended:
    join = await registered(scene)
    der, other = join.der, scene.join().der
    with join.keys(scene.victim) as keys:
        first = join.first("first", der, keys)
        answer = join.answered(keys, await join.challenge(first), first, other)
    return await scene.ended(join.second("second", other, first, answer, proven=der))


async def too_late(scene: Scene) -> Ended:
    join = await registered(scene)
    der, late = join.der, CHALLENGE_TTL + timedelta(seconds=1)
    with join.keys(scene.victim) as keys:
        first = join.first("first", der, keys)
        answer = join.answered(keys, await join.challenge(first), first, der)
    scene.world.now = CREATED + late
    return await scene.ended(join.second("second", der, first, answer, after=late))


# The answer


async def by_two_tpms(scene: Scene, **spoilt: object) -> Ended:
    """Show the machine's endorsement key and an attestation key of the thief's TPM, and quote by that."""
    join = await registered(scene)
    der = join.der
    with join.keys(scene.victim) as victim, join.keys(scene.thief) as thief:
        first = join.first("first", der, replace(victim, ak=thief.ak))
        challenge = await join.challenge(first)
        extra = spoilt.pop("extra", join.qualifying(challenge, first, der))
        assert isinstance(extra, bytes)
        attest, signature = quote(thief.esys, thief.ak, challenge.pcrs.marshal(), extra)
    values = (bytes(32), bytes(32))
    answer = Answer(secret=bytes(32), quote=attest, signature=signature, pcrs=values)
    return await scene.ended(join.second("second", der, first, answer))


async def of_no_challenge(scene: Scene) -> Ended:
    return await by_two_tpms(scene, extra=bytes(32))


async def unopened(scene: Scene) -> Ended:
    return await by_two_tpms(scene)


async def kept_quote(scene: Scene) -> Ended:
    """Root has kept a quote of a good boot, and has booted something else since."""
    pcrs: JsonObject = {"selection": [16], "values": {"16": [GOOD.hex()]}}
    join = await registered(scene, pcrs=pcrs)
    extended(scene.victim, 16)
    with join.keys(scene.victim) as keys:
        der = join.der
        first = join.first("good-boot", der, keys)
        old = join.answered(keys, await join.challenge(first), first, der)
    unextended(scene.victim, 16)
    later = scene.join()
    der = later.der
    with join.keys(scene.victim) as keys:
        first = later.first("first", der, keys)
        now = later.answered(keys, await later.challenge(first), first, der)
    return await scene.ended(later.second("second", der, first, replace(old, secret=now.secret)))


async def of_the_owner_hierarchy(scene: Scene) -> Ended:
    join = await registered(scene)
    der = join.der
    with join.keys(scene.victim, owner=True) as keys:
        first = join.first("first", der, keys)
        answer = join.answered(keys, await join.challenge(first), first, der)
    return await scene.ended(join.second("second", der, first, answer))


async def forged_quote(scene: Scene) -> Ended:
    join = await registered(scene, pcrs=BOOT)
    der, values = join.der, (bytes(32), GOOD, bytes(32), bytes(32))
    with join.keys(scene.victim) as keys:
        first = join.first("first", der, keys)
        challenge = await join.challenge(first)
        secret = activate(keys.esys, keys.ek, keys.ak, challenge.blob, challenge.secret)
        lie = forged(keys, challenge, join.qualifying(challenge, first, der), values)
    answer = Answer(secret=secret, quote=lie, signature=SoftTpm().sign(lie), pcrs=values)
    return await scene.ended(join.second("second", der, first, answer))


# The boot


async def booted_badly(scene: Scene, change: Callable[[Answer], Answer], selection: tuple[int, ...] = ()) -> Ended:
    """PCR 7 holds nothing good, and 16 what it should hold; the quote is genuine."""
    join = await registered(scene, pcrs=BOOT)
    extended(scene.victim, 16)
    der, chosen = join.der, PcrSelection(Alg.SHA256, selection) if selection else None
    with join.keys(scene.victim) as keys:
        first = join.first("first", der, keys)
        answer = join.answered(keys, await join.challenge(first), first, der, chosen)
    return await scene.ended(join.second("second", der, first, change(answer)))


def unchanged(answer: Answer) -> Answer:
    return answer


def moved_borders(answer: Answer) -> Answer:
    """Cut the same bytes elsewhere: what PCR 16 holds comes second, where PCR 7's value is expected."""
    zero, seven, sixteen, last = answer.pcrs
    return replace(answer, pcrs=(zero + seven, sixteen, last[:16], last[16:]))


def false_values(answer: Answer) -> Answer:
    zero, _, sixteen, last = answer.pcrs
    return replace(answer, pcrs=(zero, GOOD, sixteen, last))


async def other_registers(scene: Scene) -> Ended:
    return await booted_badly(scene, unchanged, (0, 16, 17, 23))


async def cut_elsewhere(scene: Scene) -> Ended:
    return await booted_badly(scene, moved_borders)


async def lied_about(scene: Scene) -> Ended:
    return await booted_badly(scene, false_values)


async def told_truly(scene: Scene) -> Ended:
    return await booted_badly(scene, unchanged)


def row(
    check: str,
    attack: str,
    reason: Reason,
    run: Callable[[Scene], Awaitable[Ended]],
    *then: tuple[str, str],
    gains: str = "",
    stays: str = "",
    mutants: tuple[str, ...] = (),
    versions: tuple[int, ...] = VERSIONS,
) -> Row[Scene]:
    return Row(
        versions=versions,
        check=f"tpm: {check}",
        attack=attack,
        reason=reason,
        run=run,
        then=then,
        gains=gains,
        stays=stays,
        mutants=mutants,
    )


BAD_BOOT: Final = "a certificate for a machine that did not boot as the policy demands"

ROWS: Final[tuple[Row[Scene], ...]] = (
    row(
        "attestation key: attributes",
        "root makes a key in the machine's TPM that signs anything, activates the credential with it, and signs a "
        "quote of a good boot that the TPM never made",
        Reason.ATTESTATION_KEY_NOT_ALLOWED,
        unrestricted_key,
        gains=BAD_BOOT,
    ),
    row(
        "pinned ek",
        "another genuine TPM of the same maker, and a stolen token, after the first use",
        Reason.ENDORSEMENT_KEY_CHANGED,
        another_tpm,
        ("tpm: pinned ak", Reason.ATTESTATION_KEY_CHANGED),
        ("attested: fingerprints as pinned", Reason.MACHINE_ALREADY_BOUND),
        gains=THIEFS,
        stays="a changed TPM is refused before anything is asked of it, with what to do about it",
    ),
    row(
        "pinned ak",
        "the machine's own TPM, after the first use, with another key that imitates the agent's",
        Reason.ATTESTATION_KEY_CHANGED,
        imitated_key,
        ("attested: fingerprints as pinned", Reason.MACHINE_ALREADY_BOUND),
        gains="a certificate by a key that root of the machine made",
        stays="a changed key is refused before a challenge is made for it",
    ),
    row(
        "no version older than on record",
        "evidence of version 1 by the key of another agent of the same host, for a machine that joined by version 2",
        Reason.EVIDENCE_VERSION_UNSUPPORTED,
        older_version,
        versions=(2,),
        gains="a certificate for whoever gets that agent to activate and to quote",
    ),
    row(
        "attestation key: authPolicy",
        "before the first join: the key of another agent of the same host, with the attributes of ours, which "
        "activates credentials and quotes for strangers",
        Reason.ATTESTATION_KEY_NOT_ALLOWED,
        another_agents_key,
        versions=(2,),
        gains="a certificate for whoever gets that agent to activate and to quote",
    ),
    row(
        "endorsement key: on the allow-list",
        "a genuine TPM of the thief's own, and a stolen token",
        Reason.ENDORSEMENT_KEY_UNTRUSTED,
        not_registered,
        gains=THIEFS,
    ),
    row(
        "endorsement key: on no other machine's entry",
        "the registered TPM of another machine, where the first use is trusted besides",
        Reason.ENDORSEMENT_KEY_UNTRUSTED,
        listed_for_another,
        gains=THIEFS,
    ),
    row(
        "endorsement key: named by the Machine's annotation",
        "a genuine TPM of the same maker, where the annotation names the machine's own",
        Reason.ENDORSEMENT_KEY_UNTRUSTED,
        named_by_its_machine,
        gains=THIEFS,
    ),
    row(
        "endorsement key: bound to the Machine",
        "a genuine TPM that nothing but its maker's certificate speaks for",
        Reason.ENDORSEMENT_KEY_UNTRUSTED,
        chain_alone,
        gains=THIEFS,
    ),
    row(
        "endorsement key: first use",
        "a certificate of a node, signed in-tree and stolen, and a genuine TPM of the thief's own",
        Reason.ENDORSEMENT_KEY_UNTRUSTED,
        first_use_as_a_node,
        gains="the thief's TPM is pinned as the machine's",
    ),
    row(
        "same PKCS#10 bytes",
        "one challenge, answered for another key than the first request's",
        Reason.FIRST_REQUEST_MISMATCH,
        another_key,
        gains="a certificate for a key that the first request did not have; a second one only without "
        "*one key for one challenge*, too",
    ),
    row(
        "challenge answered in time",
        "an intruder prepares an answer, leaves the machine, and files it after the challenge's time",
        Reason.CHALLENGE_EXPIRED,
        too_late,
        gains="a certificate for the intruder's key, after he was thrown out",
    ),
    row(
        "known challenge",
        "the machine's endorsement key, a key of the thief's TPM, and an answer to no challenge at all",
        Reason.CHALLENGE_UNKNOWN,
        of_no_challenge,
        ("tpm: activated secret", Reason.PROOF_INVALID),
        ("tpm: quote binding", Reason.QUOTE_NOT_BOUND),
        gains=THIEFS,
        stays="it tells a challenge that is not known any more, after which the node may begin anew, from a forgery",
    ),
    row(
        "activated secret",
        "the machine's endorsement key, a key of the thief's TPM that quotes for the challenge, and no secret",
        Reason.PROOF_INVALID,
        unopened,
        ("tpm: quote binding", Reason.QUOTE_NOT_BOUND),
        gains=THIEFS,
        stays="*quote binding* demands both values under one key; this one tells which of them is wrong",
    ),
    row(
        "quote binding",
        "root has kept a quote of a good boot, boots something else, and opens a new challenge",
        Reason.QUOTE_NOT_BOUND,
        kept_quote,
        gains=BAD_BOOT,
    ),
    row(
        "qualified signer",
        "another agent's key of the owner hierarchy, of the same attributes",
        Reason.ATTESTATION_KEY_NOT_ALLOWED,
        of_the_owner_hierarchy,
        gains="a certificate for whoever gets that agent to activate and to quote",
    ),
    row(
        "quote signature",
        "root opens the challenge with the TPM, writes a quote of a good boot, and signs it with a key of his own",
        Reason.QUOTE_SIGNATURE_INVALID,
        forged_quote,
        gains=BAD_BOOT,
    ),
    row(
        "PCR selection",
        "root extends a free register with the events of a good boot, and quotes that instead of the one demanded",
        Reason.PCR_SELECTION_MISMATCH,
        other_registers,
        gains=BAD_BOOT,
    ),
    row(
        "PCR values",
        "root extends a free register with the events of a good boot, and cuts the quoted values so that it stands "
        "where the demanded one should",
        Reason.PCR_SELECTION_MISMATCH,
        cut_elsewhere,
        gains=BAD_BOOT,
    ),
    row(
        "PCR digest",
        "root sends the values of a good boot beside a genuine quote of another",
        Reason.PCR_DIGEST_MISMATCH,
        lied_about,
        gains=BAD_BOOT,
    ),
    row(
        "PCR value",
        "a machine that booted something else, and says so",
        Reason.PCR_VALUE_NOT_ALLOWED,
        told_truly,
        gains=BAD_BOOT,
    ),
)
