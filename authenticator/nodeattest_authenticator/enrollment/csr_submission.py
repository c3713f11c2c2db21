"""One request, filed and followed until the cluster has decided.

Promises: a request is filed at most once under its name, however often the reply is lost; an object of that name that
is not ours (bytes, signer, requester) is stepped around; a watch that ends is opened again, in no hurry; nothing is
waited for beyond the deadline. Refusals that a new request cures raise ``RestartError`` or ``VersionRefusedError``.
Source: kubelet's deterministic CSR names (kubernetes pkg/kubelet/certificate/bootstrap); docs/tpm-protocol.md §3
(step 7), §4 (12, 14).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from nodeattest_authenticator.errors import Failure, Fate, Local
from nodeattest_authenticator.formats.csr_object import Condition, Csr, manifest
from nodeattest_authenticator.state.pending_request import Filed
from nodeattest_authenticator.transport.api_client import ForbiddenError, UnreachableError
from nodeattest_discovery.node.clock import Backoff, Deadline
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import SignerName
from nodeattest_providers.node_interface import JsonObject

__all__ = ["RETRY", "CsrClient", "Desk", "RestartError", "VersionRefusedError", "follow", "name_of", "submit"]

NAME_PREFIX: Final = "nodeattest-"
_NAME_DIGITS: Final = 32
"""Hex digits of the request's digest in its name: 128 bits, as many as a UID has."""
_MOST_NAMES: Final = 5
RETRY: Final = Backoff(first=0.25, longest=5.0)
"""Between attempts to reach the API server."""
_FORBIDDEN_FOR: Final = 5
"""Attempts: some seven seconds, in which the controller of a new cluster lets bootstrap tokens file requests."""
_SHOWN: Final = 300
"""Characters of the cluster's words that are repeated."""

_SAME_KEY: Final = frozenset(
    {
        Reason.CHALLENGE_EXPIRED,
        Reason.CHALLENGE_UNKNOWN,
        Reason.FIRST_REQUEST_MISSING,
        Reason.FIRST_REQUEST_MISMATCH,  # a certificate filed the first and ended, a token filed the second
        Reason.PLATFORM_PROOF_EXPIRED,  # the request waited longer for its Machine or the platform than a proof lasts
    }
)
_NEW_KEY: Final = frozenset({Reason.SUPERSEDED, Reason.KEY_REUSED})
"""Refusals that a new first request cures; a key that was superseded or certified before is done for."""

_T = TypeVar("_T")


class CsrClient(Protocol):
    """The API server, as ``api.HttpsApi`` reaches it."""

    username: str
    clock_skew: float | None

    def create(self, manifest: JsonObject) -> Csr | None:
        """Create a CSR; None when its name is taken."""
        ...

    def get(self, name: str) -> Csr | None:
        """Read a CSR; None when there is none."""
        ...

    def watch(self, csr: Csr) -> Generator[Csr | None]:
        """Yield the CSR at each change after ``csr``, None when it is deleted."""
        ...


@dataclass(frozen=True, slots=True)
class Desk:
    """Where requests are filed, and until when."""

    api: CsrClient
    deadline: Deadline
    random: Callable[[], float]


class RestartError(Exception):
    """This request is dead, a new one may live."""

    def __init__(self, failure: Failure, *, same_key: bool) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.same_key = same_key


class VersionRefusedError(Exception):
    """The controller does not know the version of this request's evidence."""

    def __init__(self, failure: Failure, understood: str | None) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.understood = understood
        """The annotation that says which versions it knows, as it stands there."""


def name_of(request: bytes, signer_name: SignerName) -> str:
    """Name a request by its digest, so that filing it again finds it."""
    return NAME_PREFIX + hashlib.sha256(request + signer_name.encode()).hexdigest()[:_NAME_DIGITS]


def submit(
    desk: Desk, filed: Filed, *, signer_name: SignerName, usages: Sequence[str], expiration_seconds: int | None
) -> tuple[Csr, Filed]:
    """Create the object, or find it where an earlier attempt left it; another's object of that name is stepped around.

    The object that counts has our bytes, our signer and our name as its requester: anybody may copy a request that
    everybody can read.
    """
    for _ in range(_MOST_NAMES):
        document = manifest(
            filed.name,
            filed.request,
            signer_name=signer_name,
            usages=usages,
            expiration_seconds=expiration_seconds,
        )
        csr = _reach(desk, lambda document=document: desk.api.create(document))
        if csr is None:
            csr = _reach(desk, lambda name=filed.name: desk.api.get(name))
        if csr is None:
            continue  # deleted between the two requests
        if csr.request == filed.request and csr.signer_name == signer_name and csr.username == desk.api.username:
            return csr, filed
        suffix = int(desk.random() * 2**32)
        filed = replace(filed, name=f"{filed.name[: len(NAME_PREFIX) + _NAME_DIGITS]}-{suffix:08x}")
    raise _lost("the request cannot be filed: objects of its name come and go")


def follow(desk: Desk, csr: Csr, decided: Callable[[Csr], _T | None], *, otherwise: Failure | None = None) -> _T:
    """Watch one object until it is decided; raises what the controller said, or that nobody decided in time."""
    uid = csr.uid
    with closing(_versions(desk, csr)) as versions:
        for seen in versions:
            if seen is None or seen.uid != uid:
                raise RestartError(_lost("the request was deleted before it was decided"), same_key=True)
            if seen.refused is not None:
                raise _refusal(seen.refused, seen.supported_versions)
            outcome = decided(seen)
            if outcome is not None:
                return outcome
            csr = seen
    waiting = f" (it waits: {_printable(csr.waiting)})" if csr.waiting else ""
    raise otherwise or Failure(
        Local.TIMEOUT,
        f"the request {csr.name} was not decided in time{waiting}",
        remedy="it stays filed and the next attempt takes it up; see the controller's log",
        fate=Fate.TEMPORARY,
    )


def _versions(desk: Desk, csr: Csr) -> Generator[Csr | None]:
    """Yield every version of the object that the server shows until the deadline, however often a watch ends."""
    latest: Csr | None = csr
    ended = 0
    while latest is not None:
        yield latest
        try:
            with closing(desk.api.watch(latest)) as events:
                for event in events:
                    latest = event
                    yield event
                    if event is None or desk.deadline.passed:
                        return
            asked_to_wait = None
        except UnreachableError as error:  # as if it had ended
            asked_to_wait = error.retry_after
        desk.deadline.sleep(asked_to_wait if asked_to_wait is not None else RETRY.pause(ended, desk.random))
        ended += 1
        if desk.deadline.passed:
            return
        latest = _reach(desk, lambda: desk.api.get(csr.name))
    yield None


def _reach(desk: Desk, request: Callable[[], _T]) -> _T:
    """Repeat a request until the API server answers it or the deadline has passed."""
    unreachable = forbidden = 0
    while True:
        try:
            return request()
        except UnreachableError as error:
            pause = error.retry_after if error.retry_after is not None else RETRY.pause(unreachable, desk.random)
            unreachable += 1
            if desk.deadline.left <= pause:
                raise Failure(
                    Local.API_UNAVAILABLE,
                    f"the API server cannot be reached: {error}",
                    remedy="nothing to do here if it comes back",
                    fate=Fate.TEMPORARY,
                ) from None
        except ForbiddenError:
            pause = RETRY.pause(forbidden, desk.random)
            if forbidden >= _FORBIDDEN_FOR or desk.deadline.left <= pause:
                raise
            forbidden += 1
        desk.deadline.sleep(pause)


def _refusal(condition: Condition, versions: str | None) -> Exception:
    reason, said = _printable(condition.reason), _printable(condition.message)
    understood = f"; the controller understands {_printable(versions)}" if versions else ""
    failure = Failure(reason, f"the cluster refused this node{understood}", remedy=said)
    if reason in _SAME_KEY or reason in _NEW_KEY:
        return RestartError(failure, same_key=reason in _SAME_KEY)
    if reason == Reason.EVIDENCE_VERSION_UNSUPPORTED:
        return VersionRefusedError(failure, versions)
    return failure


def _lost(message: str) -> Failure:
    return Failure(Local.REQUEST_LOST, message, remedy="try again", fate=Fate.TEMPORARY)


def _printable(text: str | None) -> str:
    return "".join(character if character.isprintable() else " " for character in (text or "")[:_SHOWN])
