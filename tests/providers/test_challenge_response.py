"""What every proof is bound to, and what links an answer to its first request."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest
from worlds import FACTS, T1, answering, filed

from nodeattest_providers.challenge_response import (
    LABEL_NONCE,
    LABEL_SECRET,
    challenge_context,
    check_first_request,
    derive,
)
from nodeattest_providers.checks import Checks
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import Evidence, FirstRequestRef, SecretBytes

FIRST = filed(Evidence(ProviderName("challenge"), 1, {"phase": 1}))
SECOND = answering(FIRST, Evidence(ProviderName("challenge"), 1, {"phase": 2}))
REF = FirstRequestRef(name=FIRST.name, uid=FIRST.uid)
LIVE = dataclasses.replace(FACTS, first_request=FIRST)


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
