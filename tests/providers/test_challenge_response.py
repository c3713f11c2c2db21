"""What every proof is bound to, and what links an answer to its first request."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import combinations

import pytest
from tpm_world import CSR, OTHER_PIN, PIN, binding_of, sound_round
from worlds import FACTS, T1, answering, filed

from nodeattest_providers.binding import Binding, length_prefix
from nodeattest_providers.challenge_response import (
    LABEL_NONCE,
    LABEL_SECRET,
    challenge_context,
    check_first_request,
    derive,
    master_keys,
)
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Unavailable
from nodeattest_providers.identifiers import ClusterPin, EvidenceBlock, ProviderName, Purpose, signer_for
from nodeattest_providers.node_interface import Evidence, FirstRequestRef, SecretBytes

FIRST = filed(Evidence(ProviderName("challenge"), 1, {"phase": 1}))
SECOND = answering(FIRST, Evidence(ProviderName("challenge"), 1, {"phase": 2}))
REF = FirstRequestRef(name=FIRST.name, uid=FIRST.uid)
LIVE = dataclasses.replace(FACTS, first_request=FIRST)


def test_a_linked_request_gives_its_first_one_with_a_record() -> None:
    checks = Checks()
    assert check_first_request(checks, SECOND, LIVE, REF) is FIRST
    assert len(checks.record()) == 10
    assert all(check.passed for check in checks.record())


@pytest.mark.parametrize("seconds", [-30, 0, 300])
def test_the_bounds_of_freshness_pass(seconds: int) -> None:
    assert (
        check_first_request(Checks(), answering(FIRST, SECOND.evidence, after=timedelta(seconds=seconds)), LIVE, REF)
        is FIRST
    )


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


def test_deriving_is_stable_and_ignores_what_a_move_changes() -> None:
    moved = dataclasses.replace(FIRST, resource_version="99", usages=frozenset())
    assert challenge_context(FACTS, moved) == challenge_context(FACTS, FIRST)


def test_no_master_key_means_try_again() -> None:
    assert master_keys(FACTS) == FACTS.challenge_keys
    with pytest.raises(Unavailable):
        master_keys(dataclasses.replace(FACTS, challenge_keys=()))


TPM, GCP = ProviderName("tpm"), ProviderName("gcp")
BINDING = Binding(EvidenceBlock("tpm/v1"), PIN, signer_for(TPM, Purpose.CLIENT), CSR.sha256)
OTHERS: Mapping[str, Binding] = {
    "another provider": replace(BINDING, evidence_block=EvidenceBlock("gcp/v1")),
    "another version": replace(BINDING, evidence_block=EvidenceBlock("tpm/v2")),
    "another cluster": replace(BINDING, cluster_pin=OTHER_PIN),
    "another signer": replace(BINDING, signer_name=signer_for(GCP, Purpose.CLIENT)),
    "another purpose": replace(BINDING, signer_name=signer_for(TPM, Purpose.SERVING)),
    "another request": replace(BINDING, csr_sha256=bytes(32)),
    "another border": replace(BINDING, evidence_block=EvidenceBlock("tpm/v"), cluster_pin=ClusterPin("1" + PIN)),
}


def test_the_digest_is_that_of_the_label_and_four_fields() -> None:
    fields = b"tpm/v1", PIN.encode(), BINDING.signer_name.encode(), CSR.sha256
    assert BINDING.digest == hashlib.sha256(length_prefix(b"nodeattest/v1/binding", *fields)).digest()


def test_no_two_bindings_have_one_digest() -> None:
    bindings = (BINDING, *OTHERS.values())
    assert all(one.digest != other.digest for one, other in combinations(bindings, 2))


def test_a_requests_binding_has_its_own_evidence_block() -> None:
    assert binding_of(sound_round().first) == BINDING
