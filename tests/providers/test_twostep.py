from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest
from worlds import CSR, FACTS, KEY, SERVING_CSR, T1, answering, csr_of, filed

from nodeattest_providers import challenge_response
from nodeattest_providers.challenge_response import (
    LABEL_NONCE,
    LABEL_SECRET,
    challenge_context,
    check_first_request,
    derive,
    master_keys,
)
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.names import ProviderName, Purpose, SignerName
from nodeattest_providers.node_interface import Evidence, FirstRequestRef, SecretBytes
from nodeattest_providers.verifier_interface import Facts, NodeRequest

FIRST = filed(Evidence(ProviderName("challenge"), 1, {"phase": 1}))
SECOND = answering(FIRST, Evidence(ProviderName("challenge"), 1, {"phase": 2}))
REF = FirstRequestRef(name=FIRST.name, uid=FIRST.uid)
LIVE = dataclasses.replace(FACTS, first_request=FIRST)


def test_a_linked_request_gives_its_first_one_with_a_record() -> None:
    checks = Checks()
    assert check_first_request(checks, SECOND, LIVE, REF) is FIRST
    assert len(checks.record()) == 10
    assert all(check.passed for check in checks.record())


@pytest.mark.parametrize(
    ("second", "facts", "ref", "reason"),
    [
        pytest.param(SECOND, FACTS, REF, Reason.FIRST_REQUEST_MISSING, id="none"),
        pytest.param(
            SECOND, LIVE, FirstRequestRef(name="x", uid=FIRST.uid), Reason.FIRST_REQUEST_MISMATCH, id="other name"
        ),
        pytest.param(
            SECOND, LIVE, FirstRequestRef(name=FIRST.name, uid="x"), Reason.FIRST_REQUEST_MISMATCH, id="re-created"
        ),
        pytest.param(FIRST, LIVE, REF, Reason.FIRST_REQUEST_MISMATCH, id="answers itself"),
        pytest.param(
            dataclasses.replace(SECOND, username="system:bootstrap:stolen"),
            LIVE,
            REF,
            Reason.FIRST_REQUEST_MISMATCH,
            id="108 other username",
        ),
        pytest.param(
            dataclasses.replace(SECOND, groups=frozenset({"system:nodes"})),
            LIVE,
            REF,
            Reason.FIRST_REQUEST_MISMATCH,
            id="other groups",
        ),
        pytest.param(
            dataclasses.replace(SECOND, signer_name=SignerName("cluster.x-k8s.io/kubelet-serving-challenge")),
            LIVE,
            REF,
            Reason.FIRST_REQUEST_MISMATCH,
            id="other signer",
        ),
        pytest.param(
            filed(Evidence(ProviderName("challenge"), 2, {}), uid="u-2"),
            LIVE,
            REF,
            Reason.FIRST_REQUEST_MISMATCH,
            id="other version",
        ),
        pytest.param(
            filed(SECOND.evidence, csr=csr_of(), uid="u-2"),
            LIVE,
            REF,
            Reason.FIRST_REQUEST_MISMATCH,
            id="107 other signature over the same request",
        ),
        pytest.param(
            dataclasses.replace(
                SECOND, csr=filed(SECOND.evidence, csr=SERVING_CSR, purpose=Purpose.SERVING, uid="u-2").csr
            ),
            LIVE,
            REF,
            Reason.FIRST_REQUEST_MISMATCH,
            id="107 other names",
        ),
        pytest.param(
            answering(FIRST, SECOND.evidence, after=timedelta(seconds=301)),
            LIVE,
            REF,
            Reason.CHALLENGE_EXPIRED,
            id="106 too late",
        ),
        pytest.param(
            answering(FIRST, SECOND.evidence, after=timedelta(seconds=-31)),
            LIVE,
            REF,
            Reason.CHALLENGE_EXPIRED,
            id="before the first",
        ),
    ],
)
def test_an_unlinked_request_is_denied(second: NodeRequest, facts: Facts, ref: FirstRequestRef, reason: Reason) -> None:
    with pytest.raises(Denied) as denied:
        check_first_request(Checks(), second, facts, ref)
    assert denied.value.reason is reason
    assert [check.passed for check in denied.value.checks][-1:] == [False]


@pytest.mark.parametrize("seconds", [-30, 0, 300])
def test_the_bounds_of_freshness_pass(seconds: int) -> None:
    assert (
        check_first_request(Checks(), answering(FIRST, SECOND.evidence, after=timedelta(seconds=seconds)), LIVE, REF)
        is FIRST
    )


def test_ecdsa_signs_the_same_request_differently() -> None:
    """The premise of the row "other signature" above."""
    assert csr_of(KEY) != CSR


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


def test_the_window_is_five_minutes() -> None:
    assert timedelta(minutes=5) == challenge_response.CHALLENGE_TTL
    assert timedelta(seconds=30) == challenge_response.CLOCK_SKEW
