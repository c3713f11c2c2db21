"""The table of an enrolment's states, row by row: what may happen in each, and that nothing else may."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from nodeattest_authenticator.enrollment.state_machine import (
    FINAL,
    TRANSITIONS,
    Certified,
    EnrollmentEvent,
    EnrollmentState,
    FirstRequestMade,
    IllegalTransitionError,
    Interrupted,
    KeyRefused,
    RequestDenied,
    RequestRefused,
    RequestRenamed,
    SecondRequestMade,
    TermsRefused,
    next_state,
    state_of,
)
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.formats.csr_object import Csr
from nodeattest_authenticator.state.credential_cache import CachedCredential
from nodeattest_authenticator.state.pending_request import PendingRequest, SubmittedCsr

REQUEST = SubmittedCsr("a", b"request")
ERROR = AgentError("Reason", "what happened", remedy="none")
DENIED = Csr(
    name="a",
    uid="u",
    resource_version="1",
    request=b"request",
    signer_name="s",
    username="system:bootstrap:abcdef",
    challenge=None,
    waiting=None,
    supported_versions="tpm/v1",
    provider_id=None,
    refused=None,
    certificate=None,
)
CREDENTIAL = CachedCredential(certificate_pem=b"", key_pem=b"", not_before=0, renew_at=1, not_after=2)
EVENTS: tuple[EnrollmentEvent, ...] = (
    FirstRequestMade(REQUEST),
    SecondRequestMade(REQUEST),
    RequestRenamed(REQUEST),
    Certified(CREDENTIAL),
    RequestRefused(ERROR),
    KeyRefused(ERROR),
    TermsRefused(ERROR, DENIED),
    RequestDenied(ERROR),
    Interrupted(ERROR),
)
KEY, FIRST, SECOND = EnrollmentState.KEY_MADE, EnrollmentState.FIRST_REQUEST, EnrollmentState.SECOND_REQUEST
ENDED = {
    Certified: EnrollmentState.CERTIFIED,
    RequestRefused: KEY,
    KeyRefused: KEY,
    TermsRefused: KEY,
    RequestDenied: EnrollmentState.DENIED,
    Interrupted: EnrollmentState.INTERRUPTED,
}
EXPECTED: dict[EnrollmentState, dict[type[EnrollmentEvent], EnrollmentState]] = {
    KEY: {FirstRequestMade: FIRST, RequestDenied: EnrollmentState.DENIED, Interrupted: EnrollmentState.INTERRUPTED},
    FIRST: {**ENDED, RequestRenamed: FIRST, SecondRequestMade: SECOND},
    SECOND: {**ENDED, RequestRenamed: SECOND},
    EnrollmentState.CERTIFIED: {},
    EnrollmentState.DENIED: {},
    EnrollmentState.INTERRUPTED: {},
}
"""Written down a second time on purpose: a change of the table is a change of the protocol."""


@pytest.mark.parametrize(
    ("state", "event"),
    list(itertools.product(EnrollmentState, EVENTS)),
    ids=lambda one: getattr(one, "name", type(one).__name__),
)
def test_each_event_leads_where_the_protocol_says_or_is_a_bug(state: EnrollmentState, event: EnrollmentEvent) -> None:
    expected = EXPECTED[state].get(type(event))
    if expected is None:
        with pytest.raises(IllegalTransitionError, match=type(event).__name__):
            next_state(state, event)
    else:
        assert next_state(state, event) is expected


def test_the_table_knows_every_state_and_every_event() -> None:
    assert set(TRANSITIONS) == set(EnrollmentState)
    kinds = {kind for member in get_args(EnrollmentEvent) for kind in (get_args(member) or (member,))}
    assert kinds == {type(event) for event in EVENTS}
    assert {kind for row in TRANSITIONS.values() for kind in row} == kinds


def test_nothing_follows_a_final_state_and_every_other_leads_to_each() -> None:
    assert {state for state, row in TRANSITIONS.items() if not row} == FINAL
    for state in set(EnrollmentState) - FINAL:
        reached = {state}
        for _ in EnrollmentState:
            reached |= {following for one in reached for following in TRANSITIONS[one].values()}
        assert reached >= FINAL


def test_what_is_on_disk_is_a_state_that_is_not_final() -> None:
    pending = PendingRequest(purpose="p", key_pem=b"k", csr_der=b"c")
    stored = [pending, PendingRequest(purpose="p", key_pem=b"k", csr_der=b"c", first=REQUEST)]
    stored.append(PendingRequest(purpose="p", key_pem=b"k", csr_der=b"c", first=REQUEST, second=REQUEST))
    assert [state_of(one) for one in stored] == [KEY, FIRST, SECOND]
    assert set(map(state_of, stored)) == set(EnrollmentState) - FINAL
