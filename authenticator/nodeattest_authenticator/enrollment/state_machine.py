"""The states of an enrolment, what may happen in each, and where that leads: a table, without I/O.

An enrolment makes a key with a PKCS#10 request, files a first request with evidence, answers the challenge by a second
request (two-step providers), and ends with a certificate. A refusal that a new first request cures leads back to the
beginning. What is on disk (``PendingRequest``) is one of the states that are not final; a process that is interrupted
resumes there. An event that the table does not allow is a bug: ``IllegalTransitionError``.
Source: docs/wire-format.md §3 (steps 0, 1, 7, 8, 18), §4 (11, 12, 14); the form is h11's ``_state.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.formats.csr_object import Csr
from nodeattest_authenticator.state.credential_cache import CachedCredential
from nodeattest_authenticator.state.pending_request import PendingRequest, SubmittedCsr


class EnrollmentState(StrEnum):
    """Where an enrolment is."""

    KEY_MADE = "key made"
    """Key and PKCS#10 request exist; no evidence yet."""
    FIRST_REQUEST = "first request"
    """The first request is, or is about to be, created."""
    SECOND_REQUEST = "second request"
    """The second request, which answers the challenge, is, or is about to be, created."""
    CERTIFIED = "certified"
    """Final: there is a certificate."""
    DENIED = "denied"
    """Final: no retry of this request helps; the key is discarded."""
    INTERRUPTED = "interrupted"
    """Final for this process: the request stays, and the next attempt resumes it."""


FINAL: Final = frozenset({EnrollmentState.CERTIFIED, EnrollmentState.DENIED, EnrollmentState.INTERRUPTED})


@dataclass(frozen=True, slots=True)
class FirstRequestMade:
    """The attestor made evidence for the first request."""

    request: SubmittedCsr


@dataclass(frozen=True, slots=True)
class SecondRequestMade:
    """The attestor answered the challenge of the first request."""

    request: SubmittedCsr


@dataclass(frozen=True, slots=True)
class RequestRenamed:
    """The request was created under another name, because a foreign object has its own."""

    request: SubmittedCsr


@dataclass(frozen=True, slots=True)
class Certified:
    """The cluster issued a certificate, and it passed every check."""

    credential: CachedCredential


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """The request is dead; a new first request with the same key may be approved."""

    error: AgentError


@dataclass(frozen=True, slots=True)
class KeyRefused:
    """The request is dead, and so is its key (superseded, or certified before)."""

    error: AgentError


@dataclass(frozen=True, slots=True)
class TermsRefused:
    """The controller wants the request otherwise, and says how: another version of the evidence, or a provider ID."""

    error: AgentError
    denied: Csr
    """This node's own request, with the annotations that came with the refusal, as they are."""


@dataclass(frozen=True, slots=True)
class RequestDenied:
    """The cluster, or a check of ours, refused for good."""

    error: AgentError


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Something did not answer, or not in time."""

    error: AgentError


Restart = RequestRefused | KeyRefused | TermsRefused
EnrollmentEvent = (
    FirstRequestMade | SecondRequestMade | RequestRenamed | Certified | Restart | RequestDenied | Interrupted
)

_FILED: Final[Mapping[type[EnrollmentEvent], EnrollmentState]] = {
    Certified: EnrollmentState.CERTIFIED,
    RequestRefused: EnrollmentState.KEY_MADE,
    KeyRefused: EnrollmentState.KEY_MADE,
    TermsRefused: EnrollmentState.KEY_MADE,
    RequestDenied: EnrollmentState.DENIED,
    Interrupted: EnrollmentState.INTERRUPTED,
}
"""What may happen to a request that was created."""

TRANSITIONS: Final[Mapping[EnrollmentState, Mapping[type[EnrollmentEvent], EnrollmentState]]] = MappingProxyType(
    {
        EnrollmentState.KEY_MADE: {
            FirstRequestMade: EnrollmentState.FIRST_REQUEST,
            RequestDenied: EnrollmentState.DENIED,
            Interrupted: EnrollmentState.INTERRUPTED,
        },
        EnrollmentState.FIRST_REQUEST: {
            **_FILED,
            RequestRenamed: EnrollmentState.FIRST_REQUEST,
            SecondRequestMade: EnrollmentState.SECOND_REQUEST,
        },
        EnrollmentState.SECOND_REQUEST: {**_FILED, RequestRenamed: EnrollmentState.SECOND_REQUEST},
        EnrollmentState.CERTIFIED: {},
        EnrollmentState.DENIED: {},
        EnrollmentState.INTERRUPTED: {},
    }
)


class IllegalTransitionError(Exception):
    """An event that must not happen in a state; a bug of the agent."""

    def __init__(self, state: EnrollmentState, event: type[EnrollmentEvent]) -> None:
        super().__init__(f"{event.__name__} in state {state!r}")


def next_state(state: EnrollmentState, event: EnrollmentEvent) -> EnrollmentState:
    """Look an event up; raises ``IllegalTransitionError``."""
    following = TRANSITIONS[state].get(type(event))
    if following is None:
        raise IllegalTransitionError(state, type(event))
    return following


def state_of(pending: PendingRequest) -> EnrollmentState:
    """Return the state of what is on disk."""
    if pending.second is not None:
        return EnrollmentState.SECOND_REQUEST
    return EnrollmentState.KEY_MADE if pending.first is None else EnrollmentState.FIRST_REQUEST
