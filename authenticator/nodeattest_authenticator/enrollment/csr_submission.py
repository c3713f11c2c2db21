"""Submits one CertificateSigningRequest and watches it until it is decided.

A request is created at most once under its name, even if replies are lost. If another object has the name (different
bytes, signer or requester), another name is used. Nothing waits beyond the deadline. A refusal that a new request may
cure raises ``RestartError``.
Source: kubelet's deterministic CSR names (kubernetes pkg/kubelet/certificate/bootstrap); docs/wire-format.md §3
(step 7), §4.5, §4.6.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeVar

from nodeattest_authenticator.api_client import ApiServerClient, Csr, ForbiddenError, UnreachableError, manifest
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.state.records import SubmittedCsr
from nodeattest_discovery.node.clock import Backoff, Deadline
from nodeattest_parsing.values import one_line
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import ProviderID, SignerName, printable

NAME_PREFIX: Final = "nodeattest-"
_NAME_DIGITS: Final = 32
"""Hex digits of the request's digest in its name: 128 bits, as many as a UID has."""
_MAX_NAMES: Final = 5
RETRY: Final = Backoff(first=0.25, longest=5.0)
"""Between attempts to reach the API server."""
_FORBIDDEN_FOR: Final = 5
"""Attempts after a 403, about seven seconds: in a new cluster the controller may not have bound the role yet."""
_SHOWN: Final = 300
"""Maximum characters of a message from the cluster."""


class Cure(StrEnum):
    """The kind of new first request that may be approved after a refusal."""

    SAME_KEY = "same key"
    NEW_KEY = "new key"
    """The key was superseded, or has a certificate already."""
    OTHER_TERMS = "other terms"
    """Another version of the evidence, or a provider ID, named by an annotation."""


class RestartError(Exception):
    """The request was refused, and a new one may be approved.

    ``provider_id`` and ``supported_versions`` are annotations of the refused object, which others can write.
    """

    def __init__(self, error: AgentError, cure: Cure, csr: Csr | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.cure = cure
        self.provider_id = csr.provider_id if csr else None
        self.supported_versions = csr.supported_versions if csr else None


_CURES: Final[Mapping[str, Cure]] = {
    Reason.CHALLENGE_EXPIRED: Cure.SAME_KEY,
    Reason.CHALLENGE_UNKNOWN: Cure.SAME_KEY,
    Reason.FIRST_REQUEST_MISSING: Cure.SAME_KEY,
    Reason.FIRST_REQUEST_MISMATCH: Cure.SAME_KEY,  # the certificate of the first request expired before the second
    Reason.PLATFORM_PROOF_EXPIRED: Cure.SAME_KEY,  # the request waited longer than the proof is valid
    Reason.SUPERSEDED: Cure.NEW_KEY,
    Reason.KEY_REUSED: Cure.NEW_KEY,
    Reason.EVIDENCE_VERSION_UNSUPPORTED: Cure.OTHER_TERMS,
    Reason.PROVIDER_ID_REQUIRED: Cure.OTHER_TERMS,
}
"""Refusals that a new first request may cure."""

_T = TypeVar("_T")


def csr_name_for(request: bytes, signer_name: SignerName) -> str:
    """Derive the object's name from the request's digest, so that a retry finds it."""
    return NAME_PREFIX + hashlib.sha256(request + signer_name.encode()).hexdigest()[:_NAME_DIGITS]


@dataclass(frozen=True, slots=True)
class CsrSession:
    """Client, deadline and randomness for the requests of one enrollment."""

    client: ApiServerClient
    deadline: Deadline
    random: Callable[[], float]
    provider_id: ProviderID | None
    """The provider ID in the requests, for messages."""

    def submit(
        self,
        request: SubmittedCsr,
        *,
        signer_name: SignerName,
        usages: Sequence[str],
        expiration_seconds: int | None,
    ) -> tuple[Csr, SubmittedCsr]:
        """Create the object, or find it from an earlier attempt. Return it and the request with its name.

        The object must have the same bytes, signer and requester, because others can read and copy a request. Raises
        ``AgentError``.
        """
        for _ in range(_MAX_NAMES):
            document = manifest(
                request.name,
                request.request,
                signer_name=signer_name,
                usages=usages,
                expiration_seconds=expiration_seconds,
            )
            csr = self._retry(lambda document=document: self.client.create(document))
            if csr is None:
                csr = self._retry(lambda name=request.name: self.client.get(name))
            if csr is None:
                continue  # deleted between the two requests
            found = (csr.request, csr.signer_name, csr.username)
            if found == (request.request, signer_name, self.client.username):
                return csr, request
            suffix = int(self.random() * 2**32)
            request = replace(request, name=f"{request.name[: len(NAME_PREFIX) + _NAME_DIGITS]}-{suffix:08x}")
        raise _lost("the request cannot be created: other objects have its name")

    def wait_for_decision(
        self, csr: Csr, decided: Callable[[Csr], _T | None], *, otherwise: AgentError | None = None
    ) -> _T:
        """Watch one object until ``decided`` returns a value.

        Raises ``RestartError`` or ``AgentError`` if it is refused. After the deadline raises ``otherwise`` if given,
        else a timeout.
        """
        uid = csr.uid
        with closing(self._versions(csr)) as versions:
            for seen in versions:
                if seen is None or seen.uid != uid:
                    raise RestartError(_lost("the request was deleted before it was decided"), Cure.SAME_KEY)
                refused = self._refusal(seen)
                if refused is not None:
                    raise refused
                decision = decided(seen)
                if decision is not None:
                    return decision
                csr = seen
        waiting = f" (it waits: {one_line(csr.waiting, _SHOWN)})" if csr.waiting else ""  # the controller's annotation
        raise otherwise or AgentError(
            AgentReason.TIMEOUT,
            f"the request {csr.name} {self._with_provider_id()} was not decided in time{waiting}",
            remedy="the next attempt continues with the same request; see the controller's log",
            kind=FailureKind.TEMPORARY,
        )

    def _refusal(self, csr: Csr) -> Exception | None:
        if csr.refused is None:
            return None
        reason, said = (one_line(part, _SHOWN) for part in csr.refused)
        versions = csr.supported_versions
        understood = f"; the controller supports {one_line(versions, _SHOWN)}" if versions else ""
        message = f"the cluster refused this node's request {self._with_provider_id()}{understood}"
        failure = AgentError(reason, message, remedy=said)
        cure = _CURES.get(reason)
        return failure if cure is None else RestartError(failure, cure, csr)

    def _with_provider_id(self) -> str:
        sent = self.provider_id
        return f"with provider ID {printable(sent, _SHOWN)}" if sent else "without a provider ID"

    def _tell(self, csr: Csr) -> None:
        waiting = f", which waits: {one_line(csr.waiting, _SHOWN)}" if csr.waiting else ""
        what = f"the decision on request {csr.name} {self._with_provider_id()}{waiting}"
        self.deadline.waits_for("decision with reason" if waiting else "decision", what)

    def _versions(self, csr: Csr) -> Generator[Csr | None]:
        """Yield every version of the object until the deadline, reopening the watch when it ends."""
        latest: Csr | None = csr
        ended = 0
        while latest is not None:
            yield latest
            retry_after: float | None = None
            self._tell(latest)
            try:
                with closing(self.client.watch(latest)) as events:
                    for event in events:
                        latest = event
                        if event is not None and event.waiting:
                            self._tell(event)
                        yield event
                        if event is None or self.deadline.passed:
                            return
            except UnreachableError as error:  # handled as the end of the watch
                retry_after = error.retry_after
            self.deadline.sleep(retry_after if retry_after is not None else RETRY.pause(ended, self.random))
            ended += 1
            if self.deadline.passed:
                return
            latest = self._retry(lambda: self.client.get(csr.name))
        yield None

    def _retry(self, request: Callable[[], _T]) -> _T:
        """Repeat a request until the API server answers it or the deadline has passed.

        Answers that do not come and answers that forbid it are counted apart: a server that was away must not use up
        the attempts that a young cluster gets.
        """
        unreachable = forbidden = 0
        while True:
            try:
                return request()
            except UnreachableError as error:
                pause = error.retry_after if error.retry_after is not None else RETRY.pause(unreachable, self.random)
                unreachable += 1
                if self.deadline.left <= pause:
                    raise AgentError(
                        AgentReason.API_UNAVAILABLE,
                        f"the API server cannot be reached: {error}",
                        remedy="nothing to do here if it comes back",
                        kind=FailureKind.TEMPORARY,
                    ) from None
                self.deadline.waits_for("API server", f"the API server: {error}")
            except ForbiddenError as error:
                pause = RETRY.pause(forbidden, self.random)
                if forbidden >= _FORBIDDEN_FOR or self.deadline.left <= pause:
                    raise
                self.deadline.waits_for("permission", f"permission: {error.message}")
                forbidden += 1
            self.deadline.sleep(pause)


def _lost(message: str) -> AgentError:
    return AgentError(AgentReason.REQUEST_LOST, message, remedy="try again", kind=FailureKind.TEMPORARY)
