"""From nothing to a credential: key, evidence, request, challenge, second request, certificate.

A library call without files, processes or environment: API, attestor, drafts, time and randomness are arguments.
Promises: the returned credential passed every check of ``certificate``; a TPM join is four requests (create, watch,
create, watch); a challenge is only answered when it stands on the very object that this node filed, else the node
would decrypt for others; an interrupted call is taken up where it stopped, with the same key and the same bytes;
what the controller is too old for is filed again in a version that both know (``negotiation``).
Leaves to others: storing the credential, then discarding the draft; remembering failures.
Source: docs/tpm-protocol.md §3 (steps 0, 1, 7, 8, 18), §4 (11, 12, 14).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509 import load_der_x509_csr

from nodeattest_authenticator.certificate import Wanted, check_time, checked
from nodeattest_authenticator.enrollment.csr_submission import (
    RETRY,
    CsrClient,
    Desk,
    RestartError,
    VersionRefusedError,
    follow,
    name_of,
    submit,
)
from nodeattest_authenticator.enrollment.evidence_version import (
    AgreedStore,
    Offer,
    agreement,
    check_version,
    fallback,
    offer_of,
    opening,
    speaking,
)
from nodeattest_authenticator.errors import Failure, Fate, Local
from nodeattest_authenticator.formats.csr_object import Csr
from nodeattest_authenticator.state.credential_cache import Credential
from nodeattest_authenticator.state.pending_request import FIRST_VERSION, Draft, DraftStore, Filed
from nodeattest_discovery.node.clock import Deadline
from nodeattest_providers import envelope
from nodeattest_providers.binding import Binding
from nodeattest_providers.csr import PrivateKey, build_csr
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_providers.names import ClusterPin, NodeName, ProviderID, SignerName
from nodeattest_providers.node_interface import Attestor, Evidence, PublishedChallenge

if TYPE_CHECKING:
    from nodeattest_authenticator.kubelet_serving.names import Names

__all__ = ["USAGES", "Order", "new_draft", "obtain", "renewal_moment"]

USAGES: Final = ("digital signature", "client auth")
_SERVING_USAGES: Final = ("digital signature", "server auth")
"""For ECDSA keys, the only ones made here; RSA would add key encipherment (kubernetes
pkg/apis/certificates/helpers.go)."""
_MOST_ROUNDS: Final = 5
_RESUMABLE: Final = frozenset(set(Local) - {Local.CERTIFICATE_REFUSED, Local.REQUEST_REFUSED})
"""Failures after which the same request may still get its certificate (clock off: this very one will do later)."""


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
    minimum_version: int = 1
    """Of the evidence; nothing below it is filed."""
    names: Names | None = None
    """None: a client certificate; else a serving certificate for these names, by the signer for such."""

    @property
    def purpose(self) -> str:
        """One line that differs wherever a draft cannot be shared."""
        names = f"\n{self.names}" if self.names is not None else ""
        return f"{self.node_name}\n{self.provider_id}\n{self.signer}\n{self.pin}{names}"

    @property
    def usages(self) -> tuple[str, ...]:
        """What the key may be used for."""
        return USAGES if self.names is None else _SERVING_USAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What every round works with."""

    order: Order
    attestor: Attestor
    offer: Offer
    desk: Desk
    drafts: DraftStore


def obtain(
    order: Order,
    *,
    attestor: Attestor,
    api: CsrClient,
    drafts: DraftStore,
    deadline: Deadline,
    random: Callable[[], float],
    agreed: AgreedStore | None = None,
) -> Credential:
    """Get a certificate; raises ``Failure``. The caller stores the credential, then discards the draft.

    Without ``agreed``, each call begins with the newest version of the evidence.
    """
    desk, offer = Desk(api, deadline, random), offer_of(attestor, order.minimum_version)
    run = _Run(order=order, attestor=attestor, offer=offer, desk=desk, drafts=drafts)
    before, now = agreed.load() if agreed else None, deadline.clock.now()
    draft = _taken_up(run) or new_draft(order, version=opening(offer, before, now=now))
    refused: set[int] = set()
    most = _MOST_ROUNDS + len(offer.versions) - 1
    for rounds in range(most):
        try:
            credential = _round(run, draft)
        except Failure as failure:
            if failure.reason not in _RESUMABLE:
                drafts.discard()
            raise
        except (RestartError, VersionRefusedError) as ended:
            draft = _drafted_anew(run, draft, ended, refused)
            drafts.save(draft)
            if rounds + 1 == most or deadline.passed:
                raise ended.failure from None
            deadline.sleep(RETRY.pause(rounds, random))
        else:
            if agreed:
                agreed.save(agreement(offer, before, draft.version, refused=bool(refused), now=now))
            return credential
    raise AssertionError("the last round returns or raises")


def new_draft(order: Order, *, key_pem: bytes | None = None, version: int = FIRST_VERSION) -> Draft:
    """Make a PKCS#10 request, with a new P-256 key unless one is given."""
    key: PrivateKey
    if key_pem is None:
        key = generate_private_key(SECP256R1())
        key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    else:
        key = _loaded(key_pem)
    try:
        csr_der = build_csr(
            key,
            order.node_name,
            order.provider_id,
            dns_names=order.names.dns_names if order.names else (),
            ip_addresses=order.names.ip_addresses if order.names else (),
        )
    except Denied as denied:
        raise _refused_here(denied) from None
    return Draft(purpose=order.purpose, key_pem=key_pem, csr_der=csr_der, version=version)


def renewal_moment(*, now: float, not_after: int, renewable: bool, random: Callable[[], float]) -> int:
    """Draw the moment from which a new certificate is wanted: after 50 to 70 % of the time that is left at issue."""
    return int(now + (not_after - now) * (0.5 + 0.2 * random())) if renewable else not_after


def _taken_up(run: _Run) -> Draft | None:
    """Load the unfinished draft if it is still for this order, and in a version that may still be sent."""
    draft = run.drafts.load()
    if draft is None or draft.purpose != run.order.purpose or draft.version not in run.offer.versions:
        return None
    return draft if _is_coherent(draft) else None


def _drafted_anew(run: _Run, draft: Draft, ended: RestartError | VersionRefusedError, refused: set[int]) -> Draft:
    """Make the draft after one whose request is dead; raises ``Failure`` when no version is left to be tried."""
    match ended:
        case RestartError():
            key_pem = draft.key_pem if ended.same_key else None
            return new_draft(run.order, key_pem=key_pem, version=draft.version)
        case VersionRefusedError():
            refused.add(draft.version)
            run.drafts.discard()
            version = fallback(run.offer, refused, ended.understood)
            return new_draft(run.order, key_pem=draft.key_pem, version=version)


def _round(run: _Run, draft: Draft) -> Credential:
    if draft.first is None:
        draft = replace(draft, first=_file(run, draft, _attest(run, draft, None)))
        run.drafts.save(draft)
    if draft.first is None:
        raise AssertionError("the first request was just made")
    if draft.second is None:
        first, filed = _submit(run, draft.first)
        if filed != draft.first:  # under another name
            draft = replace(draft, first=filed)
            run.drafts.save(draft)
        outcome = _answered(run, draft, first)
        if isinstance(outcome, bytes):
            return _accept(run, draft, outcome)
        draft = replace(draft, second=_file(run, draft, outcome))
        run.drafts.save(draft)
    if draft.second is None:
        raise AssertionError("the second request was just made")
    second, filed = _submit(run, draft.second)
    if filed != draft.second:
        draft = replace(draft, second=filed)
        run.drafts.save(draft)
    return _accept(run, draft, follow(run.desk, second, lambda csr: csr.certificate))


def _submit(run: _Run, filed: Filed) -> tuple[Csr, Filed]:
    return submit(
        run.desk,
        filed,
        signer_name=run.order.signer,
        usages=run.order.usages,
        expiration_seconds=run.order.expiration_seconds,
    )


def _answered(run: _Run, draft: Draft, first: Csr) -> bytes | Evidence:
    """Wait for the first request's certificate or challenge; answers the challenge with evidence.

    A challenge that is not ours to answer may have been overwritten by somebody; the controller writes its own again.
    """
    tried: set[str] = set()
    two_step = speaking(run.attestor, draft.version).two_step

    def decided(csr: Csr) -> bytes | str | None:
        if csr.certificate is not None:
            return csr.certificate
        return csr.challenge if two_step and csr.challenge not in tried else None

    refusal: Failure | None = None
    while True:
        outcome = follow(run.desk, first, decided, otherwise=refusal)
        if isinstance(outcome, bytes):
            return outcome
        digest = hashlib.sha256(draft.csr_der).digest()
        published = PublishedChallenge(
            name=first.name, uid=first.uid, csr_sha256=digest, text=outcome, spki_sha256=_spki_sha256(draft)
        )
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
        evidence = speaking(run.attestor, draft.version).attest(binding, challenge)
    except Denied as denied:
        raise _refused_here(denied) from None
    except Unavailable as unavailable:
        raise Failure(
            Local.ATTESTATION_UNAVAILABLE, unavailable.detail, remedy=unavailable.remedy, fate=Fate.TEMPORARY
        ) from None
    check_version(evidence, run.attestor.provider, draft.version)
    return evidence


def _file(run: _Run, draft: Draft, evidence: Evidence) -> Filed:
    request = envelope.encode(draft.csr_der, evidence)
    return Filed(name_of(request, run.order.signer), request)


def _accept(run: _Run, draft: Draft, certificate: bytes) -> Credential:
    order, now = run.order, run.desk.deadline.clock.now()
    wanted = Wanted(node_name=order.node_name, ca_pem=order.ca_pem, names=order.names)
    canonical, not_before, not_after = checked(certificate, draft.key_pem, wanted)
    check_time(not_before, not_after, now=now, clock_skew=run.desk.api.clock_skew)
    return Credential(
        certificate_pem=canonical,
        key_pem=draft.key_pem,
        not_before=not_before,
        renew_at=renewal_moment(now=now, not_after=not_after, renewable=order.renewable, random=run.desk.random),
        not_after=not_after,
    )


def _refused_here(denied: Denied) -> Failure:
    message = f"expected {denied.expected}, got {denied.got}"
    return Failure(denied.reason, message, remedy=denied.remedy)


def _spki_sha256(draft: Draft) -> str:
    spki = _loaded(draft.key_pem).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return "sha256:" + hashlib.sha256(spki).hexdigest()


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
