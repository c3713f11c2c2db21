from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from worlds import FACTS, OLD_PIN, PIN, SECRET, T1, answering, denied_for, filed, published

from nodeattest_providers.canonical_json import b64encode
from nodeattest_providers.challenge.attestor import ChallengeAttestor
from nodeattest_providers.challenge.protocol import Challenge, fingerprint, proof
from nodeattest_providers.challenge.verifier import ChallengeSigner
from nodeattest_providers.challenge_response import (
    LABEL_NONCE,
    LABEL_SECRET,
    challenge_context,
    check_first_request,
    derive,
)
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason, Unavailable
from nodeattest_providers.identifiers import ClusterPin, ProviderName
from nodeattest_providers.node_interface import Evidence, FirstRequestRef, JsonObject, JsonValue, SecretBytes
from nodeattest_providers.verifier_interface import AttestedNode, Facts, LedgerFacts, NodeRequest

CHALLENGE = ProviderName("challenge")
FIRST = filed(Evidence(CHALLENGE, 1, {"phase": 1}))
LIVE = dataclasses.replace(FACTS, first_request=FIRST)
SIGNER = ChallengeSigner()


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_bytes(SECRET)
    return path


async def challenge_for(request: NodeRequest, facts: Facts = FACTS) -> str:
    with pytest.raises(ChallengeRequired) as required:
        await SIGNER.verify_client_attestation_data(request, facts)
    return required.value.challenge


async def answer(secret: bytes = SECRET, *, pin: ClusterPin = PIN, first: NodeRequest = FIRST) -> Evidence:
    """The second evidence, written without the attestor."""
    nonce = Challenge.parse(await challenge_for(first)).nonce
    mac = proof(SecretBytes(secret), nonce, first.uid, first.binding(pin).digest)
    return Evidence(CHALLENGE, 1, {"phase": 2, "first": {"name": first.name, "uid": first.uid}, "mac": b64encode(mac)})


@pytest.mark.parametrize("pin", [PIN, OLD_PIN])
async def test_a_node_that_knows_the_secret_is_attested(secret_file: Path, pin: ClusterPin) -> None:
    attestor = ChallengeAttestor({"secretFile": str(secret_file)})
    first = filed(attestor.attest(FIRST.binding(pin)))
    text = await challenge_for(first)
    second = answering(first, attestor.attest(first.binding(pin), published(first, text)))
    ref = FirstRequestRef(name=first.name, uid=first.uid)
    assert SIGNER.first_request(first) is None
    assert SIGNER.first_request(second) == ref
    attested = await SIGNER.verify_client_attestation_data(second, dataclasses.replace(FACTS, first_request=first))
    assert attested == AttestedNode(
        provider=CHALLENGE,
        provider_id=second.csr.provider_id,
        fingerprints={"secret": fingerprint(SecretBytes(SECRET))},
        first_request=ref,
        checks=attested.checks,
    )
    assert all(check.passed for check in attested.checks)


Spoil = Callable[[NodeRequest, Facts], tuple[NodeRequest, Facts]]


def evidence_field(name: str, value: JsonValue) -> Spoil:
    def spoil(request: NodeRequest, facts: Facts) -> tuple[NodeRequest, Facts]:
        data: JsonObject = {**request.evidence.data, name: value}
        return dataclasses.replace(request, evidence=Evidence(CHALLENGE, 1, data)), facts

    return spoil


def other(**changes: object) -> Spoil:
    return lambda request, facts: (request, dataclasses.replace(facts, **changes))  # pyright: ignore[reportArgumentType] - the rows are typed by reading


ANSWER: JsonObject = {"phase": 2, "first": {"name": "a", "uid": "b"}, "mac": b64encode(bytes(32))}
TAMPERED: dict[str, tuple[Spoil, Reason]] = {
    "unknown field": (evidence_field("x", 1), Reason.EVIDENCE_MALFORMED),
    "short MAC": (evidence_field("mac", b64encode(bytes(31))), Reason.EVIDENCE_MALFORMED),
    "wrong MAC": (evidence_field("mac", b64encode(bytes(32))), Reason.PROOF_INVALID),
    "first request was a second one": (
        other(first_request=dataclasses.replace(FIRST, evidence=Evidence(CHALLENGE, 1, ANSWER))),
        Reason.FIRST_REQUEST_MISMATCH,
    ),
    "another machine": (other(machine=dataclasses.replace(FACTS.machine, uid="re-created")), Reason.PROOF_INVALID),
    "CA not of the cluster": (
        other(cluster=dataclasses.replace(FACTS.cluster, pins=frozenset({OLD_PIN}))),
        Reason.PROOF_INVALID,
    ),
    "master key gone": (other(challenge_keys=(SecretBytes(b"x" * 32),)), Reason.PROOF_INVALID),
}


@pytest.mark.parametrize("row", TAMPERED)
async def test_tampered_evidence_is_denied(row: str) -> None:
    spoil, reason = TAMPERED[row]
    request, facts = spoil(answering(FIRST, await answer()), LIVE)
    with denied_for(reason) as denied:
        await SIGNER.verify_client_attestation_data(request, facts)
    assert not denied.value.checks[-1].passed
    assert SECRET.hex() not in str(denied.value)


@pytest.mark.parametrize(
    "state",
    [
        LedgerFacts(bound_spkis=frozenset({FIRST.csr.spki_sha256})),
        LedgerFacts(bound_spkis=frozenset({"sha256:x"}), answered=True),
        LedgerFacts(fingerprints={"secret": fingerprint(SecretBytes(SECRET))}),
    ],
    ids=["same key again", "answered already", "pinned secret"],
)
async def test_a_lost_response_is_asked_for_again(state: LedgerFacts) -> None:
    request = answering(FIRST, await answer())
    assert await SIGNER.verify_client_attestation_data(request, dataclasses.replace(LIVE, ledger=state))


# What links an answer to its first request, and what every proof is bound to


@pytest.mark.parametrize("seconds", [-30, 0, 300])
def test_the_bounds_of_freshness_pass(seconds: int) -> None:
    second = answering(FIRST, Evidence(CHALLENGE, 1, ANSWER), after=timedelta(seconds=seconds))
    assert check_first_request(Checks(), second, LIVE, FirstRequestRef(name=FIRST.name, uid=FIRST.uid)) is FIRST


def test_each_field_of_the_context_changes_what_is_derived() -> None:
    key = SecretBytes(b"k" * 32)
    other_cluster = dataclasses.replace(FACTS, cluster=dataclasses.replace(FACTS.cluster, uid="x"))
    other_machine = dataclasses.replace(FACTS, machine=dataclasses.replace(FACTS.machine, uid="x"))
    contexts = [
        challenge_context(FACTS, FIRST),
        challenge_context(other_cluster, FIRST),
        challenge_context(other_machine, FIRST),
        challenge_context(FACTS, dataclasses.replace(FIRST, uid="x")),
        challenge_context(FACTS, dataclasses.replace(FIRST, request=b"x")),
        challenge_context(FACTS, dataclasses.replace(FIRST, username="x")),
        challenge_context(FACTS, dataclasses.replace(FIRST, created=T1 + timedelta(seconds=1))),
        challenge_context(FACTS, FIRST, b""),
        challenge_context(FACTS, FIRST, b"ak", b"ek"),
        challenge_context(FACTS, FIRST, b"a", b"kek"),
    ]
    labels = [LABEL_NONCE, LABEL_SECRET]
    derived = {derive(label, key, ctx) for ctx in contexts for label in labels}
    assert len(derived) == len(labels) * len(contexts)
    assert {len(value) for value in derived} == {32}
    assert derive(LABEL_NONCE, SecretBytes(b"p" * 32), contexts[0]) not in derived


# The node half


def _attest(path: Path) -> Evidence:
    return ChallengeAttestor({"secretFile": str(path)}).attest(FIRST.binding(PIN))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o777])
def test_a_secret_that_others_may_touch_is_refused(secret_file: Path, mode: int) -> None:
    secret_file.chmod(mode)
    with denied_for(Reason.SECRET_MISSING):
        _attest(secret_file)


def test_a_symbolic_link_to_a_secret_is_refused(secret_file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(secret_file)
    with pytest.raises(Unavailable):
        _attest(link)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    for path in (fifo, tmp_path):
        with pytest.raises(Denied):
            _attest(path)


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 31 + b"\n", b"x" * 4097], ids=len)
def test_a_secret_of_another_size_is_refused(secret_file: Path, content: bytes) -> None:
    secret_file.write_bytes(content)
    with pytest.raises(Denied):
        _attest(secret_file)


def test_a_foreign_challenge_is_not_answered(secret_file: Path) -> None:
    """Otherwise the node would be an oracle for whoever writes annotations."""
    attestor = ChallengeAttestor({"secretFile": str(secret_file)})
    own = Challenge(uid=FIRST.uid, spki_sha256=FIRST.csr.spki_sha256, nonce=bytes(32))
    other_uid = published(FIRST, dataclasses.replace(own, uid="u-9").to_text())
    other_csr = dataclasses.replace(published(FIRST, own.to_text()), csr_sha256=bytes(32))
    for challenge in (other_uid, other_csr):
        with denied_for(Reason.CHALLENGE_UNKNOWN):
            attestor.attest(FIRST.binding(PIN), challenge)
