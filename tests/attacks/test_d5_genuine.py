"""D5, what a genuine TPM can be made to do by who owns it: each on a real software TPM, none of it gets a node."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
from catalogue import Row, attacks, evaluated
from tpm_machines import Exchange, attestor_of, by_allow_list, by_certificate, exchange, filed, filed_nothing, read
from tpm_tss import P384, activate, connected, extend_with, imported_key, primary, quote, sign, tss
from tpm_world import (
    AK_PREFIX,
    CSR,
    UNMARKED_PREFIX,
    binding_of,
    challenge_of,
    digest_of,
    facts_of,
    ledger,
    parsed,
    request_of,
    verify,
)

from nodeattest_providers.node_interface import FirstRequestRef, JsonValue
from nodeattest_providers.tpm.key_templates import AK_TEMPLATE, parse_signature, signature_is_valid
from nodeattest_providers.tpm.protocol import (
    Challenge,
    FirstEvidence,
    SecondEvidence,
    make_credential,
    proof,
    qualifying_data,
)
from nodeattest_providers.tpm.structures import sized
from nodeattest_providers.verifier_interface import Facts, NodeRequest
from nodeattest_sandbox.swtpm import SoftwareTpm

pytestmark = pytest.mark.swtpm

UNRESTRICTED: Final = AK_TEMPLATE[:4] + (0x00040472).to_bytes(4, "big") + AK_TEMPLATE[8:]
OTHERS_TEMPLATE: Final = (
    UNMARKED_PREFIX + sized(hashlib.sha256(b"the key of another agent").digest()) + sized(bytes(32))
)
"""Of another agent on the node's host, which answers whoever asks: a key like ours without the mark."""
STRANGER: Final = replace(CSR, der=b"PKCS#10 with the stranger's key", spki=b"SPKI of the stranger's key")
FORGED: Final = b"\xffTCG\x80\x18 and whatever the attacker likes"
SECRET: Final = bytes(range(32))


@dataclass(frozen=True, slots=True)
class Scene:
    """The victim's TPM, the thief's own genuine one, and all that the victim said when it joined."""

    victim: SoftwareTpm
    thief: SoftwareTpm
    joined: Exchange


Aimed = tuple[NodeRequest, Facts]
Attempt = Callable[[Scene], Aimed]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Generator[Scene]:
    folder: Path = tmp_path_factory.mktemp("genuine")
    with SoftwareTpm.create(folder, name="victim") as victim, SoftwareTpm.create(folder, name="thief") as thief:
        with attestor_of(victim) as attestor:
            joined = exchange(attestor, by_certificate(victim, attestor.endorsement_fingerprint()))
        yield Scene(victim, thief, joined)


# Keys that a TPM holds or takes, and that prove nothing


def activated(esys: Any, ek: Any, ak: Any) -> Aimed:
    """Show keys for which the TPM activates a credential."""
    blob, encrypted = make_credential(parsed(ek.public), parsed(ak.public).name, SECRET, random=bytes)
    assert activate(esys, ek, ak, blob, encrypted) == SECRET
    first = FirstEvidence(ek_public=ek.public, ak_public=ak.public)
    return request_of(first), facts_of(by_allow_list(parsed(ek.public).fingerprint))


def unrestricted(scene: Scene) -> Aimed:
    tcti = scene.victim.tcti
    with connected(tcti) as esys, primary(esys, P384.creation()) as ek, primary(esys, UNRESTRICTED) as ak:
        assert signature_is_valid(parsed(ak.public), parse_signature(sign(esys, ak, FORGED)), FORGED)
        return activated(esys, ek, ak)


def imported(scene: Scene) -> Aimed:
    with connected(scene.victim.tcti) as esys, imported_key(esys) as (ak, _), primary(esys, P384.creation()) as ek:
        return activated(esys, ek, ak)


def challenged(first: NodeRequest, facts: Facts) -> Challenge:
    return Challenge.parse(challenge_of(first, replace(facts, first_request=None)).challenge)


def quoted(esys: Any, ak: Any, first: NodeRequest, challenge: Challenge) -> tuple[bytes, bytes]:
    """Quote for a challenge, with any key."""
    extra = qualifying_data(challenge.nonce, first.uid, digest_of(first))
    return quote(esys, ak, challenge.pcrs.marshal(), extra)


def answering(first: NodeRequest, facts: Facts, secret: bytes, signed: tuple[bytes, bytes]) -> Aimed:
    """Answer with a secret and a quote."""
    answer = SecondEvidence(
        first=FirstRequestRef(name=first.name, uid=first.uid),
        mac=proof(secret, first.uid, first.csr.sha256, digest_of(first)),
        quote=signed[0],
        signature=signed[1],
        pcrs=(bytes(32), bytes(32)),
    )
    return request_of(answer, csr=first.csr), replace(facts, first_request=first)


def of_the_owner_hierarchy(scene: Scene) -> Aimed:
    owner = tss.ESYS_TR.OWNER
    with (
        connected(scene.victim.tcti) as esys,
        primary(esys, P384.creation()) as ek,
        primary(esys, AK_TEMPLATE, owner) as ak,
    ):
        facts = facts_of(by_allow_list(parsed(ek.public).fingerprint))
        first = request_of(FirstEvidence(ek_public=ek.public, ak_public=ak.public))
        challenge = challenged(first, facts)
        secret = activate(esys, ek, ak, challenge.blob, challenge.secret)
        return answering(first, facts, secret, quoted(esys, ak, first, challenge))


# Another agent on the victim's host, whose key has the shape of ours


def strangers_first(tpm: SoftwareTpm) -> NodeRequest:
    """Show the host's endorsement key and the other agent's attestation key, for a key of one's own."""
    with connected(tpm.tcti) as esys, primary(esys, P384.creation()) as ek, primary(esys, OTHERS_TEMPLATE) as ak:
        return request_of(FirstEvidence(ek_public=ek.public, ak_public=ak.public), csr=STRANGER)


def of_another_agent(scene: Scene) -> Aimed:
    return strangers_first(scene.victim), facts_of(by_allow_list(scene.victim.endorsement_fingerprint()))


def of_another_agent_after_ours(scene: Scene) -> Aimed:
    """A stolen node certificate in the place of the token: the machine has joined."""
    pins = verify(request_of(scene.joined.answer), scene.joined.facts).fingerprints
    facts = facts_of(by_allow_list(pins["ek"]), ledger=ledger(fingerprints=pins))
    return strangers_first(scene.victim), facts


def of_another_agent_with_our_mark(scene: Scene) -> Aimed:
    """The mark is written into what the agent's key shows: no TPM activates for it, so the secret is guessed."""
    facts = facts_of(by_allow_list(scene.victim.endorsement_fingerprint()))
    shown = read(strangers_first(scene.victim).evidence)
    assert isinstance(shown, FirstEvidence)
    marked = AK_PREFIX + shown.ak_public[len(UNMARKED_PREFIX) :]
    first = request_of(replace(shown, ak_public=marked), csr=STRANGER)
    with connected(scene.victim.tcti) as esys, primary(esys, OTHERS_TEMPLATE) as ak:
        return answering(first, facts, bytes(32), quoted(esys, ak, first, challenged(first, facts)))


# Another genuine TPM


def another(scene: Scene) -> Aimed:
    with attestor_of(scene.thief) as attestor:
        return filed(attestor.attest(binding_of(filed_nothing()))), scene.joined.facts


def quoted_by_the_thief(scene: Scene) -> tuple[bytes, bytes]:
    """Quote for the victim's challenge with the thief's own key."""
    first = scene.joined.first
    with connected(scene.thief.tcti) as esys, primary(esys, AK_TEMPLATE) as ak:
        return quoted(esys, ak, first, challenged(first, scene.joined.facts))


def guessing(scene: Scene) -> Aimed:
    attest, signature = quoted_by_the_thief(scene)
    first = scene.joined.first
    mac = proof(bytes(32), first.uid, CSR.sha256, digest_of(first))
    return request_of(replace(scene.joined.answer, quote=attest, signature=signature, mac=mac)), scene.joined.facts


def copying(scene: Scene) -> Aimed:
    attest, signature = quoted_by_the_thief(scene)
    return request_of(replace(scene.joined.answer, quote=attest, signature=signature)), scene.joined.facts


# The victim's own answers, used otherwise


def for_the_thief(scene: Scene) -> Aimed:
    own = replace(CSR, der=b"PKCS#10 with the thief's key", spki=b"the thief's key")
    first = replace(scene.joined.first, csr=own, uid="uid-of-the-thief", name="csr-of-the-thief")
    answer = replace(scene.joined.answer, first=FirstRequestRef(name=first.name, uid=first.uid))
    return request_of(answer, csr=own), replace(scene.joined.facts, first_request=first)


def to_an_earlier_first(scene: Scene) -> Aimed:
    earlier = replace(scene.joined.first, uid="uid-0", name="csr-0")
    answer = replace(scene.joined.answer, first=FirstRequestRef(name=earlier.name, uid=earlier.uid))
    return request_of(answer), replace(scene.joined.facts, first_request=earlier)


def after_another_boot(scene: Scene) -> Aimed:
    """The operator allows the state of the first join; PCR 7 is extended before the next."""
    allowed: JsonValue = {"values": {"7": [scene.joined.answer.pcrs[-1].hex()]}}
    with connected(scene.victim.tcti) as esys:
        extend_with(esys, 7)
    with attestor_of(scene.victim) as attestor:
        settings: dict[str, JsonValue] = {**by_allow_list(attestor.endorsement_fingerprint()), "pcrs": allowed}
        again = exchange(attestor, facts_of(settings))
    return request_of(again.answer), again.facts


def an_older_answer(scene: Scene) -> Aimed:
    """A newer answer was certified; the older one, still within its five minutes, comes again."""
    with attestor_of(scene.victim) as attestor:
        newer = exchange(attestor, replace(scene.joined.facts, first_request=None))
    boot = verify(request_of(newer.answer), newer.facts).boot
    assert boot is not None
    seen = ledger(clock=boot.clock, reset_count=boot.reset_count)
    return request_of(scene.joined.answer), replace(scene.joined.facts, ledger=seen)


ATTEMPTS: Final[Mapping[str, Attempt]] = {
    "D5-127": unrestricted,
    "D5-128": imported,
    "D5-129": of_the_owner_hierarchy,
    "D5-200": of_another_agent,
    "D5-202": of_another_agent_after_ours,
    "D5-203": of_another_agent_with_our_mark,
    "D5-130": another,
    "D5-131": guessing,
    "D5-132": copying,
    "D5-133": for_the_thief,
    "D5-134": to_an_earlier_first,
    "D5-135": after_another_boot,
    "D5-136": an_older_answer,
}


def test_the_victims_own_join_is_sound(scene: Scene) -> None:
    assert verify(request_of(scene.joined.answer), scene.joined.facts).checks


@pytest.mark.parametrize(("row", "attempt"), attacks(ATTEMPTS))
def test_a_genuine_tpm_in_the_wrong_hands_gets_no_node(scene: Scene, row: Row, attempt: Attempt) -> None:
    request, facts = attempt(scene)
    assert evaluated(lambda: verify(request, facts), row) == row.expected
