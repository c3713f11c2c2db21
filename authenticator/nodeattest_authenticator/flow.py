"""From nothing to a credential: key, evidence, request, challenge, second request, certificate.

A library call without files, processes or environment: API, attestor, drafts, time and chance come in as arguments.
Promises: the returned credential passed every check of ``certificate``; a TPM join is four requests (create, watch,
create, watch); a challenge is only answered when it stands on the very object that this node filed, else the node
would decrypt for others; an interrupted call is taken up where it stopped, with the same key and the same bytes.
Leaves to others: storing the credential, then discarding the draft; remembering failures.
Source: the two-step protocol §E4-E5 steps 0, 1, 7, 8, 18 and §E10 (11, 12, 14).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509 import load_der_x509_csr

from nodeattest_authenticator.api import UnreachableError
from nodeattest_authenticator.cache import Credential
from nodeattest_authenticator.certificate import Wanted, check_time, checked
from nodeattest_authenticator.clock import Deadline
from nodeattest_authenticator.csr_object import Condition, Csr, manifest
from nodeattest_authenticator.draft import Draft, DraftStore, Filed
from nodeattest_authenticator.errors import Failure, Fate, Local
from nodeattest_providers import envelope
from nodeattest_providers.binding import Binding
from nodeattest_providers.csr import PrivateKey, build_csr
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.interface import Attestor, Evidence, JsonObject, PublishedChallenge
from nodeattest_providers.names import ClusterPin, NodeName, ProviderID, SignerName

__all__ = ["CsrApi", "Order", "new_draft", "obtain", "renewal_moment"]

USAGES: Final = ("digital signature", "client auth")
"""For ECDSA keys, the only ones made here; RSA would add key encipherment (kubernetes-rules C3)."""
NAME_PREFIX: Final = "nodeattest-"
_NAME_DIGITS: Final = 32
"""Hex digits of the request's digest in its name: 128 bits, as many as a UID has."""
_MOST_ROUNDS: Final = 5
_RETRY_FIRST: Final = 0.25
_RETRY_MOST: Final = 5.0
"""Seconds between attempts to reach the API server, doubling, with jitter."""

_SAME_KEY: Final = frozenset({Reason.CHALLENGE_EXPIRED, Reason.CHALLENGE_UNKNOWN, Reason.FIRST_REQUEST_MISSING})
_NEW_KEY: Final = frozenset({Reason.SUPERSEDED})
"""Refusals that a new first request cures (§E10.14); a key that another one superseded is done for."""

_RESUMABLE: Final = frozenset(set(Local) - {Local.CERTIFICATE_REFUSED, Local.REQUEST_REFUSED})
"""Failures after which the same request may still get its certificate (clock off: this very one will do later)."""

_T = TypeVar("_T")


class CsrApi(Protocol):
    """The API server, as ``api.HttpsApi`` reaches it."""

    username: str
    ahead: float | None

    def create(self, manifest: JsonObject) -> Csr | None:
        """Create a CSR; None when its name is taken."""
        ...

    def get(self, name: str) -> Csr | None:
        """Read a CSR; None when there is none."""
        ...

    def watch(self, csr: Csr) -> Generator[Csr | None]:
        """Yield the CSR at each change after ``csr``, None when it is deleted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The certificate that is wanted."""

    node_name: NodeName
    provider_id: ProviderID
    signer: SignerName
    ca_pem: bytes
    pin: ClusterPin
    expiration_seconds: int | None = None
    renewable: bool = True

    @property
    def purpose(self) -> str:
        """One line that differs wherever a draft cannot be shared."""
        return f"{self.node_name}\n{self.provider_id}\n{self.signer}\n{self.pin}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    order: Order
    attestor: Attestor
    api: CsrApi
    drafts: DraftStore
    deadline: Deadline
    chance: Callable[[], float]


class _RestartError(Exception):
    """This request is dead, a new one may live."""

    def __init__(self, failure: Failure, *, same_key: bool) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.same_key = same_key


def obtain(
    order: Order,
    *,
    attestor: Attestor,
    api: CsrApi,
    drafts: DraftStore,
    deadline: Deadline,
    chance: Callable[[], float],
) -> Credential:
    """Get a certificate; raises ``Failure``. The caller stores the credential, then discards the draft."""
    run = _Run(order=order, attestor=attestor, api=api, drafts=drafts, deadline=deadline, chance=chance)
    draft = drafts.load()
    if draft is None or draft.purpose != order.purpose or not _is_coherent(draft):
        draft = new_draft(order)
    for rounds in range(_MOST_ROUNDS):
        try:
            return _round(run, draft)
        except Failure as failure:
            if failure.reason not in _RESUMABLE:
                drafts.discard()
            raise
        except _RestartError as restart:
            drafts.discard()
            if rounds + 1 == _MOST_ROUNDS or deadline.passed:
                raise restart.failure from None
            draft = new_draft(order, key_pem=draft.key_pem if restart.same_key else None)
            deadline.sleep(_backoff(rounds, chance))
    raise AssertionError("the last round returns or raises")


def new_draft(order: Order, *, key_pem: bytes | None = None) -> Draft:
    """Make a PKCS#10 request, with a new P-256 key unless one is given."""
    key: PrivateKey
    if key_pem is None:
        key = generate_private_key(SECP256R1())
        key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    else:
        key = _loaded(key_pem)
    try:
        csr_der = build_csr(key, order.node_name, order.provider_id)
    except Denied as denied:
        raise _refused_here(denied) from None
    return Draft(purpose=order.purpose, key_pem=key_pem, csr_der=csr_der)


def renewal_moment(*, now: float, not_after: int, renewable: bool, chance: Callable[[], float]) -> int:
    """Draw the moment from which a new certificate is wanted: after 50 to 70 % of the time that is left at issue."""
    return int(now + (not_after - now) * (0.5 + 0.2 * chance())) if renewable else not_after


def _round(run: _Run, draft: Draft) -> Credential:
    if draft.first is None:
        draft = replace(draft, first=_file(run, draft, _attest(run, draft, None)))
        run.drafts.save(draft)
    if draft.first is None:
        raise AssertionError("the first request was just made")
    if draft.second is None:
        first, filed = _submit(run, draft.first)
        if filed != draft.first:
            draft = replace(draft, first=filed)
            run.drafts.save(draft)
        outcome = _answered(run, draft, first)
        if isinstance(outcome, bytes):
            return _accept(run, draft, outcome)
        draft = replace(draft, second=_file(run, draft, outcome))
        run.drafts.save(draft)
    if draft.second is None:
        raise AssertionError("the second request was just made")
    second, _ = _submit(run, draft.second)
    return _accept(run, draft, _follow(run, second, lambda csr: csr.certificate))


def _answered(run: _Run, draft: Draft, first: Csr) -> bytes | Evidence:
    """Wait for the first request's certificate or challenge; answers the challenge with evidence.

    A challenge that is not ours to answer may have been overwritten by somebody; the controller writes its own again.
    """
    tried: set[str] = set()

    def decided(csr: Csr) -> bytes | str | None:
        if csr.certificate is not None:
            return csr.certificate
        return csr.challenge if run.attestor.two_step and csr.challenge not in tried else None

    refusal: Failure | None = None
    while True:
        outcome = _follow(run, first, decided, otherwise=refusal)
        if isinstance(outcome, bytes):
            return outcome
        digest = hashlib.sha256(draft.csr_der).digest()
        published = PublishedChallenge(name=first.name, uid=first.uid, csr_sha256=digest, text=outcome)
        try:
            return _attest(run, draft, published)
        except Failure as failure:
            if failure.fate is not Fate.DENIED:
                raise
            tried.add(outcome)
            refusal = failure


def _attest(run: _Run, draft: Draft, challenge: PublishedChallenge | None) -> Evidence:
    binding = Binding(run.order.pin, run.order.signer, hashlib.sha256(draft.csr_der).digest())
    try:
        return run.attestor.attest(binding, challenge)
    except Denied as denied:
        raise _refused_here(denied) from None
    except Unavailable as unavailable:
        raise Failure(
            Local.ATTESTATION_UNAVAILABLE, unavailable.detail, remedy=unavailable.remedy, fate=Fate.TEMPORARY
        ) from None


def _file(run: _Run, draft: Draft, evidence: Evidence) -> Filed:
    request = envelope.encode(draft.csr_der, evidence)
    digest = hashlib.sha256(request + run.order.signer.encode()).hexdigest()
    return Filed(NAME_PREFIX + digest[:_NAME_DIGITS], request)


def _submit(run: _Run, filed: Filed) -> tuple[Csr, Filed]:
    """Create the object, or find it where an earlier attempt left it; another's object of that name is stepped around.

    The object that counts has our bytes, our signer and our name as its requester: anybody may copy a request that
    everybody can read.
    """
    for _ in range(_MOST_ROUNDS):
        document = manifest(
            filed.name,
            filed.request,
            signer_name=run.order.signer,
            usages=USAGES,
            expiration_seconds=run.order.expiration_seconds,
        )
        csr = _reach(run, lambda document=document: run.api.create(document))
        if csr is None:
            csr = _reach(run, lambda name=filed.name: run.api.get(name))
        if csr is None:
            continue  # deleted between the two requests
        if csr.request == filed.request and csr.signer_name == run.order.signer and csr.username == run.api.username:
            return csr, filed
        suffix = int(run.chance() * 2**32)
        filed = replace(filed, name=f"{filed.name[: len(NAME_PREFIX) + _NAME_DIGITS]}-{suffix:08x}")
    raise _lost("the request cannot be filed: objects of its name come and go")


def _follow(run: _Run, csr: Csr, decided: Callable[[Csr], _T | None], *, otherwise: Failure | None = None) -> _T:
    """Watch one object until it is decided; raises what the controller said, or that nobody decided in time."""
    uid, seen = csr.uid, csr
    for seen in _versions(run, csr):
        if seen is None or seen.uid != uid:
            raise _RestartError(_lost("the request was deleted before it was decided"), same_key=True)
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


def _versions(run: _Run, csr: Csr) -> Generator[Csr | None]:
    """Yield every version of the object that the server shows until the deadline, however often a watch ends."""
    latest: Csr | None = csr
    while latest is not None:
        yield latest
        try:
            for event in run.api.watch(latest):
                latest = event
                yield event
                if event is None or run.deadline.passed:
                    return
        except UnreachableError:
            run.deadline.sleep(_backoff(0, run.chance))
        if run.deadline.passed:
            return
        name = csr.name
        latest = _reach(run, lambda name=name: run.api.get(name))
    yield None


def _reach(run: _Run, request: Callable[[], _T]) -> _T:
    """Repeat a request until the API server answers it or the deadline has passed."""
    attempt = 0
    while True:
        try:
            return request()
        except UnreachableError as error:
            pause = error.retry_after if error.retry_after is not None else _backoff(attempt, run.chance)
            if run.deadline.left <= pause:
                raise Failure(
                    Local.API_UNAVAILABLE,
                    f"the API server cannot be reached: {error}",
                    remedy="nothing to do here if it comes back",
                    fate=Fate.TEMPORARY,
                ) from None
            run.deadline.sleep(pause)
            attempt += 1


def _accept(run: _Run, draft: Draft, certificate: bytes) -> Credential:
    order, now = run.order, run.deadline.clock.now()
    wanted = Wanted(node_name=order.node_name, ca_pem=order.ca_pem)
    canonical, not_before, not_after = checked(certificate, draft.key_pem, wanted)
    check_time(not_before, not_after, now=now, ahead=run.api.ahead)
    return Credential(
        certificate_pem=canonical,
        key_pem=draft.key_pem,
        not_before=not_before,
        renew_at=renewal_moment(now=now, not_after=not_after, renewable=order.renewable, chance=run.chance),
        not_after=not_after,
    )


def _refusal(condition: Condition, versions: str | None) -> Exception:
    reason, said = _printable(condition.reason), _printable(condition.message)
    understood = f"; the controller understands {_printable(versions)}" if versions else ""
    failure = Failure(reason, f"the cluster refused this node{understood}", remedy=said)
    if reason in _SAME_KEY or reason in _NEW_KEY:
        return _RestartError(failure, same_key=reason in _SAME_KEY)
    return failure


def _refused_here(denied: Denied) -> Failure:
    message = f"expected {denied.expected}, got {denied.got}"
    return Failure(denied.reason, message, remedy=denied.remedy)


def _lost(message: str) -> Failure:
    return Failure(Local.REQUEST_LOST, message, remedy="try again", fate=Fate.TEMPORARY)


def _loaded(key_pem: bytes) -> PrivateKey:
    key = load_pem_private_key(key_pem, password=None)
    if not isinstance(key, PrivateKey):
        raise TypeError("a draft holds an ECDSA or RSA key")
    return key


def _is_coherent(draft: Draft) -> bool:
    """Tell whether key and request belong together: a draft may have been written by hand, or half by hand."""
    try:
        return load_der_x509_csr(draft.csr_der).public_key() == _loaded(draft.key_pem).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def _backoff(attempt: int, chance: Callable[[], float]) -> float:
    return min(_RETRY_FIRST * 2**attempt, _RETRY_MOST) * (0.5 + chance())


def _printable(text: str | None) -> str:
    return "".join(character if character.isprintable() else " " for character in (text or "")[:300])
