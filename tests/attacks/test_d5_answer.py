"""D5, second requests: answers to a challenge that are sound, signatures included, but for one thing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

import pytest
import tpm_world
from catalogue import Row, attacks, evaluated

from clouds.authority import Authority
from nodeattest_providers.identifiers import ClusterPin, EvidenceBlock, NodeName, ProviderName, Purpose, signer_for
from nodeattest_providers.node_interface import Evidence, FirstRequestRef, JsonValue, SecretBytes
from nodeattest_providers.tpm.endorsement_key import MACHINE_ANNOTATION
from nodeattest_providers.tpm.protocol import PROVIDER, VERSION, FirstEvidence, proof, qualifying_data
from nodeattest_providers.tpm.structures import Alg, PcrSelection
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import NodeRequest

Case = Callable[[tpm_world.Round], object]
"""Verifies an answer of the round; everything but one thing is as the controller would do it."""
SERVING: Final = signer_for(ProviderName("tpm"), Purpose.SERVING)


@pytest.fixture(scope="module")
def sound() -> tpm_world.Round:
    return tpm_world.sound_round()


def with_quote(**changes: object) -> Case:
    """A quote that the attestation key signed, with these fields."""
    return lambda sound: sound.verify(sound.second(parts=replace(sound.parts, **changes)))


def over(
    *, pin: ClusterPin = tpm_world.PIN, nonce: bytes = b"", uid: str = "uid-1", csr: bytes = tpm_world.CSR.der
) -> Case:
    """A quote over something else than this challenge and this request."""

    def case(sound: tpm_world.Round) -> object:
        other = replace(sound.first, csr=replace(tpm_world.CSR, der=csr))
        extra = qualifying_data(nonce or sound.challenge.nonce, uid, tpm_world.digest_of(other, pin))
        return with_quote(extra=extra)(sound)

    return case


def with_evidence(**changes: object) -> Case:
    return lambda sound: sound.verify(sound.second(**changes))


def under_secret(secret: bytes) -> Case:
    def case(sound: tpm_world.Round) -> object:
        mac = proof(secret, "uid-1", tpm_world.CSR.sha256, tpm_world.digest_of(sound.first))
        return with_evidence(mac=mac)(sound)

    return case


def by_another_version(*, mac: bool = False, extra: bool = False) -> Case:
    """A genuine answer whose values are over the binding of a made-up version."""

    def case(sound: tpm_world.Round) -> object:
        binding = replace(tpm_world.binding_of(sound.first), evidence_block=EvidenceBlock("tpm/v2")).digest
        other = proof(sound.secret, "uid-1", tpm_world.CSR.sha256, binding)
        data = qualifying_data(sound.challenge.nonce, "uid-1", binding)
        parts = replace(sound.parts, extra=data) if extra else sound.parts
        answer = sound.second(parts=parts)
        return sound.verify(replace(answer, mac=other) if mac else answer)

    return case


def of_two_cas(sound: tpm_world.Round) -> object:
    mac = proof(sound.secret, "uid-1", tpm_world.CSR.sha256, tpm_world.digest_of(sound.first, tpm_world.OTHER_PIN))
    return sound.verify(sound.second(mac=mac), cluster=tpm_world.cluster(tpm_world.OTHER_PIN, tpm_world.PIN))


def of_no_challenge(sound: tpm_world.Round) -> object:
    parts = replace(sound.parts, extra=bytes(range(32)))
    return sound.verify(sound.second(parts=parts, mac=bytes(32)))


def signed(change: Callable[[tpm_world.Round, bytes], bytes]) -> Case:
    """The right quote with another signature."""
    return lambda sound: with_evidence(signature=change(sound, sound.tpm.sign(sound.parts.marshal())))(sound)


def of_scheme(scheme: str) -> Case:
    return signed(lambda _, signature: bytes.fromhex(scheme) + signature[4:])


def selecting(*pcrs: int) -> Case:
    return with_quote(selection=PcrSelection(Alg.SHA256, pcrs).marshal())


def in_banks(*banks: str) -> Case:
    chosen = b"".join(bytes.fromhex(f"{bank}03810000") for bank in banks)
    return with_quote(selection=len(banks).to_bytes(4, "big") + chosen)


def not_allowed(sound: tpm_world.Round) -> object:
    settings: dict[str, JsonValue] = {**sound.tpm.settings, "pcrs": {"values": {"7": ["00" * 32]}}}
    return tpm_world.sound_round(sound.tpm, settings).verify()


def with_facts(**changes: object) -> Case:
    return lambda sound: sound.verify(**changes)


def as_request(**changes: object) -> Case:
    """The answer in another request than the one that it belongs to."""
    return lambda sound: tpm_world.verify(replace(tpm_world.request_of(sound.second()), **changes), sound.facts)


def to_first(**changes: object) -> Case:
    """The answer to another first request than the one that was challenged."""
    return lambda sound: sound.verify(first_request=replace(sound.first, **changes))


def for_serving(sound: tpm_world.Round) -> object:
    serving: dict[str, object] = {"signer_name": SERVING, "purpose": Purpose.SERVING}
    facts = replace(sound.facts, first_request=replace(sound.first, **serving))
    request = replace(tpm_world.request_of(sound.second()), **serving)
    return asyncio.run(TpmSigner().verify_serving_attestation_data(request, facts))


def to_itself(sound: tpm_world.Round) -> object:
    itself = tpm_world.request_of(sound.second(), uid="uid-1", name="csr-1")
    return tpm_world.verify(itself, replace(sound.facts, first_request=itself))


def to_a_copy(sound: tpm_world.Round) -> object:
    """Link the answer to a copy of the first request, which the thief has filed."""
    thief: dict[str, object] = {"username": "system:bootstrap:thief0"}
    copy = replace(sound.first, name="copy", uid="uid-copy", **thief)  # pyright: ignore[reportArgumentType] - a real field
    linked = sound.second(first=FirstRequestRef(name="copy", uid="uid-copy"))
    return tpm_world.verify(tpm_world.request_of(linked, **thief), replace(sound.facts, first_request=copy))


def with_keys_swapped(sound: tpm_world.Round) -> object:
    other = tpm_world.SoftTpm(ek=sound.tpm.ek)
    return to_first(evidence=tpm_world.request_of(other.first()).evidence)(sound)


@dataclass(frozen=True, slots=True)
class CertifiedTpm(tpm_world.SoftTpm):
    """A TPM that sends its maker's certificate along."""

    maker: Authority = field(default_factory=Authority.root)

    def first(self, **changes: object) -> FirstEvidence:
        certificate = tpm_world.endorse(self.maker, self.ek)
        return tpm_world.SoftTpm.first(self, **{"ek_certificate": certificate, **changes})


def maker_withdrawn(_: tpm_world.Round) -> object:
    tpm = CertifiedTpm()
    bound = tpm_world.machine(annotations={MACHINE_ANNOTATION: tpm.fingerprint})
    before = tpm_world.sound_round(tpm, {"endorsementCAs": tpm.maker.pem}, machine=bound)
    return before.verify(settings={"endorsementCAs": Authority.root().pem})


def data_of(**changes: JsonValue) -> Case:
    def case(sound: tpm_world.Round) -> object:
        request: NodeRequest = tpm_world.request_of(sound.second())
        data: dict[str, JsonValue] = {**request.evidence.data, **changes}
        return tpm_world.verify(replace(request, evidence=Evidence(ProviderName("tpm"), VERSION, data)), sound.facts)

    return case


CUT_OTHERWISE: Final = (tpm_world.PCR_VALUES[0] + tpm_world.PCR_VALUES[1][:1], tpm_world.PCR_VALUES[1][1:])
ROTATED: Final = (SecretBytes(b"rotated twice since then, forever"),)

CASES: Final[Mapping[str, Case]] = {
    "D4-86": as_request(username="system:bootstrap:thief0"),
    "D4-87": as_request(csr=replace(tpm_world.CSR, der=b"PKCS#10 with the thief's key", spki=b"the thief's key")),
    "D4-88": to_a_copy,
    "D5-067": with_quote(magic=0xFF544348),
    "D5-068": with_quote(kind=0x8017),
    "D5-069": with_quote(tail=b"\0"),
    "D5-070": lambda sound: sound.verify(sound.second(quote=sound.parts.marshal()[:-1])),
    "D5-071": with_quote(extra=bytes(65)),
    "D5-072": with_quote(safe=2),
    "D5-073": with_quote(extra=b""),
    "D5-074": with_quote(extra=bytes.fromhex("00ff55aa")),
    "D5-075": over(csr=b"PKCS#10 with another key"),
    "D5-076": over(pin=tpm_world.OTHER_PIN),
    "D5-077": over(nonce=bytes(32)),
    "D5-078": over(uid="uid-9"),
    "D5-079": under_secret(bytes(range(32))),
    "D5-080": with_evidence(mac=bytes(32)),
    "D5-081": of_two_cas,
    "D5-082": of_no_challenge,
    "D5-083": with_quote(signer=b"\x00\x0b" + bytes(32)),
    "D5-084": signed(lambda sound, _: tpm_world.SoftTpm().sign(sound.parts.marshal())),
    "D5-085": of_scheme("0014000b"),
    "D5-086": of_scheme("00180004"),
    "D5-087": of_scheme("0018000c"),
    "D5-088": lambda sound: sound.verify(sound.second(quote=replace(sound.parts, clock=5_001).marshal())),
    "D5-089": selecting(0),
    "D5-090": selecting(0, 1, 7),
    "D5-091": in_banks("0004"),
    "D5-092": in_banks("000b", "0004"),
    "D5-093": in_banks(),
    "D5-094": with_evidence(pcrs=(*tpm_world.PCR_VALUES, bytes(32))),
    "D5-095": with_evidence(pcrs=tpm_world.PCR_VALUES[:1]),
    "D5-096": with_evidence(pcrs=CUT_OTHERWISE),
    "D5-097": with_evidence(pcrs=tpm_world.PCR_VALUES[::-1]),
    "D5-098": with_evidence(pcrs=(tpm_world.PCR_VALUES[0], bytes(32))),
    "D5-099": not_allowed,
    "D5-100": with_facts(ledger=tpm_world.ledger(clock=5_000, reset_count=3)),
    "D5-101": with_facts(ledger=tpm_world.ledger(clock=1, reset_count=4)),
    "D5-102": with_facts(ledger=tpm_world.ledger(clock=5_001, reset_count=3)),
    "D5-103": as_request(username="system:bootstrap:other1"),
    "D5-104": as_request(groups=frozenset({"system:bootstrappers", "system:bootstrappers:other"})),
    "D5-105": as_request(csr=replace(tpm_world.CSR, der=b"PKCS#10 with another key", spki=b"another key")),
    "D5-106": as_request(csr=replace(tpm_world.CSR, der=b"PKCS#10 of node-8", node_name=NodeName("node-8"))),
    "D5-107": as_request(signer_name=SERVING, purpose=Purpose.SERVING),
    "D5-108": for_serving,
    "D5-109": as_request(created=tpm_world.NOW + timedelta(seconds=301)),
    "D5-110": as_request(created=tpm_world.NOW - timedelta(seconds=31)),
    "D5-111": to_first(uid="uid-1-again"),
    "D5-112": with_facts(first_request=None),
    "D5-113": lambda sound: sound.verify(
        first_request=tpm_world.request_of(sound.second(), uid="uid-1", name="csr-1", created=tpm_world.NOW)
    ),
    "D5-114": to_itself,
    "D5-115": with_keys_swapped,
    "D5-116": to_first(request=b"another envelope"),
    "D5-117": lambda sound: sound.verify(
        machine=replace(sound.facts.machine, uid="uid of the Machine that took its place")
    ),
    "D5-118": lambda sound: sound.verify(cluster=replace(sound.facts.cluster, uid="uid of another Cluster")),
    "D5-119": with_facts(challenge_keys=ROTATED),
    "D5-120": with_facts(cluster=tpm_world.cluster(tpm_world.OTHER_PIN)),
    "D5-121": with_facts(settings={}),
    "D5-122": maker_withdrawn,
    "D5-123": data_of(mac="A" * 42),
    "D5-124": data_of(first={"name": "../secrets", "uid": "uid-1"}),
    "D5-125": data_of(pcrs=["A" * 87, "A" * 87]),
    "D5-126": with_facts(challenge_keys=()),
    "D5-206": to_first(evidence=Evidence(PROVIDER, 2, {"phase": 1})),
    "D5-207": by_another_version(mac=True),
    "D5-208": by_another_version(extra=True),
    "D5-209": by_another_version(mac=True, extra=True),
    "D5-233": to_first(name="another"),
}


def test_the_answer_that_the_attacks_spoil_attests_the_node(sound: tpm_world.Round) -> None:
    assert sound.verify().checks


@pytest.mark.parametrize(("row", "case"), attacks(CASES))
def test_a_spoilt_answer_is_denied(sound: tpm_world.Round, row: Row, case: Case) -> None:
    assert evaluated(lambda: case(sound), row) == row.expected
