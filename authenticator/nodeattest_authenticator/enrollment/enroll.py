"""Enrolment: from nothing to a credential by key, evidence, request, challenge, second request and certificate.

A library call without files, processes or environment: client, attestor, store, time and randomness are arguments.
Promises: the returned credential passed every check of ``certificate``; a TPM join is four requests (create, watch,
create, watch); a challenge is only answered when it is on the very object that this node created, else the node
would decrypt for others; an interrupted call is resumed where it stopped, with the same key and the same bytes; a
version of the evidence that the controller refuses is followed by one that both know (``next_version``), and a
request without provider ID by one with the ID that the controller tells (``provider_id``). This ID is kept with the
pending request: a denial discards both, and the next call asks again.
Leaves to others: storing the credential with the provider ID, then discarding the pending request; remembering
failures.
Source: docs/wire-format.md §3 (steps 0, 1, 7, 8, 18), §4 (11, 12, 14).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
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

from nodeattest_authenticator.api_client import ApiServerClient, Csr
from nodeattest_authenticator.certificate import ExpectedCertificate, check_validity, validate
from nodeattest_authenticator.enrollment import provider_id
from nodeattest_authenticator.enrollment.csr_submission import (
    RETRY,
    CsrSession,
    Cure,
    RestartError,
    csr_name_for,
)
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind, attestation_unavailable, refusal
from nodeattest_authenticator.state.credential_cache import CachedCredential
from nodeattest_authenticator.state.records import PendingRequest, PendingRequestFile, SubmittedCsr
from nodeattest_discovery.node.clock import Deadline
from nodeattest_providers import envelope, errors, evidence_versions
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ClusterPin, NodeName, ProviderID, ProviderName, SignerName, evidence_block
from nodeattest_providers.keys import PrivateKey
from nodeattest_providers.node_interface import Attestor, Binding, Evidence, PublishedChallenge
from nodeattest_providers.pkcs10 import build_csr

if TYPE_CHECKING:
    from nodeattest_authenticator.config.settings import SubjectNames


USAGES: Final = ("digital signature", "client auth")
_SERVING_USAGES: Final = ("digital signature", "server auth")
"""For ECDSA keys, the only ones made here; RSA would add key encipherment (kubernetes
pkg/apis/certificates/helpers.go)."""
_MAX_ATTEMPTS: Final = 5
"""First requests of one call, in addition to those that are refused for their version."""
_RESUMABLE: Final = frozenset(set(AgentReason) - {AgentReason.CERTIFICATE_REFUSED, AgentReason.REQUEST_REFUSED})
"""Failures after which the same request may still get its certificate (clock off: this very one will do later)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSpec:
    """The certificate to be requested."""

    node_name: NodeName
    provider_id: ProviderID | None
    """None: the request has none, so that the controller tells it."""
    signer: SignerName
    ca_pem: bytes
    pin: ClusterPin
    expiration_seconds: int | None = None
    renewable: bool = True
    names: SubjectNames | None = None
    """None: a client certificate; else a serving certificate for these names, by the signer for such."""

    @property
    def purpose(self) -> str:
        """One line that differs wherever a pending request cannot be shared."""
        names = f"\n{self.names}" if self.names is not None else ""
        return f"{self.node_name}\n{self.provider_id or ''}\n{self.signer}\n{self.pin}{names}"

    @property
    def usages(self) -> tuple[str, ...]:
        """What the key may be used for."""
        return USAGES if self.names is None else _SERVING_USAGES


@dataclass(frozen=True, slots=True)
class Enrolled:
    """The result of an enrollment."""

    credential: CachedCredential
    provider_id: ProviderID | None
    """What the certified request had: the spec's, else the controller's answer."""
    version: int
    """Of the evidence."""


def enroll(
    spec: CertificateSpec,
    *,
    attestor: Attestor,
    client: ApiServerClient,
    store: PendingRequestFile,
    deadline: Deadline,
    random: Callable[[], float],
) -> Enrolled:
    """Get a certificate; raises ``AgentError``. The caller stores the result, then discards the pending request."""
    return _Enrollment(spec, attestor, CsrSession(client, deadline, random, spec.provider_id), store).run()


def new_pending_request(spec: CertificateSpec, *, key_pem: bytes | None = None, version: int) -> PendingRequest:
    """Make a PKCS#10 request, with a new P-256 key unless one is given."""
    key: PrivateKey
    if key_pem is None:
        key = generate_private_key(SECP256R1())
        key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    else:
        key = _load_key(key_pem)
    try:
        csr_der = build_csr(
            key,
            spec.node_name,
            spec.provider_id or "",
            dns_names=spec.names.dns_names if spec.names else (),
            ip_addresses=spec.names.ip_addresses if spec.names else (),
        )
    except errors.Denied as denied:
        raise refusal(denied) from None
    return PendingRequest(purpose=spec.purpose, key_pem=key_pem, csr_der=csr_der, version=version)


class _Enrollment:
    """One call. The pending request is its state: a key, then a first request, then a second that answers it."""

    def __init__(
        self, spec: CertificateSpec, attestor: Attestor, session: CsrSession, store: PendingRequestFile
    ) -> None:
        self._spec = spec
        self._attestor = attestor
        self._session = session
        self._store = store
        self._refused: set[int] = set()
        """Versions of the evidence that were refused in this call."""
        self._restarts = 0
        self._assigned: ProviderID | None = None
        """The controller's answer, to this call or an interrupted one."""
        self._pending = self._resume() or new_pending_request(spec, version=attestor.versions[0])

    def run(self) -> Enrolled:
        """Run until there is a certificate; raises ``AgentError``."""
        while True:
            try:
                credential = self._advance()
            except RestartError as restart:
                self._restart(restart)
            except AgentError as error:
                if error.reason not in _RESUMABLE:
                    self._store.discard()
                raise
            else:
                if credential is not None:
                    return Enrolled(credential, self._spec.provider_id, self._pending.version)

    def _advance(self) -> CachedCredential | None:
        """Make the next request, or wait for the one that is there; returns the certificate once there is one."""
        spec, pending = self._spec, self._pending
        request = pending.second or pending.first
        if request is None:
            self._keep(replace(pending, first=self._request(self._attest(None))))
            return None
        csr, submitted = self._session.submit(
            request, signer_name=spec.signer, usages=spec.usages, expiration_seconds=spec.expiration_seconds
        )
        if submitted != request:  # a foreign object has its name
            second = pending.second is not None
            self._keep(replace(pending, second=submitted) if second else replace(pending, first=submitted))
            return None
        if pending.second is None:
            return self._wait_for_first(csr)
        return self._checked(self._session.wait_for_decision(csr, lambda seen: seen.certificate))

    def _wait_for_first(self, csr: Csr) -> CachedCredential | None:
        """Wait for the first request's certificate or challenge; answers the challenge with evidence.

        A challenge that is not ours to answer may have been overwritten; the controller writes its own again.
        """
        tried: set[str] = set()
        two_step = self._attestor.in_version(self._pending.version).two_step

        def decided(seen: Csr) -> bytes | str | None:
            if seen.certificate is not None:
                return seen.certificate
            return seen.challenge if two_step and seen.challenge not in tried else None

        failure: AgentError | None = None
        while True:
            decision = self._session.wait_for_decision(csr, decided, otherwise=failure)
            if isinstance(decision, bytes):
                return self._checked(decision)
            try:
                second = self._request(self._attest(self._published(csr, decision)))
            except AgentError as error:
                if error.kind is not FailureKind.DENIED:
                    raise
                tried.add(decision)
                failure = error
            else:
                self._keep(replace(self._pending, second=second))
                return None

    def _keep(self, pending: PendingRequest) -> None:
        self._pending = pending
        self._store.save(pending)

    def _restart(self, restart: RestartError) -> None:
        """Begin anew after a refusal; raises ``AgentError`` when no version, attempt or time is left."""
        version, key_pem = self._pending.version, self._pending.key_pem
        if restart.cure is Cure.OTHER_TERMS:
            self._store.discard()
            version = self._renegotiated(restart, version)
        kept_key = None if restart.cure is Cure.NEW_KEY else key_pem
        pending = new_pending_request(self._spec, key_pem=kept_key, version=version)
        self._keep(replace(pending, assigned=self._assigned))
        self._restarts += 1
        deadline = self._session.deadline
        if self._restarts == _MAX_ATTEMPTS + len(self._attestor.versions) - 1 or deadline.passed:
            raise restart.error
        deadline.sleep(RETRY.pause(self._restarts - 1, self._session.random))

    def _renegotiated(self, restart: RestartError, version: int) -> int:
        """Take over what the controller wants; returns the version to send. Raises ``AgentError``."""
        if restart.error.reason == Reason.PROVIDER_ID_REQUIRED:
            self._assign(provider_id.accept(restart.provider_id, self._spec.provider_id, restart.error))
            return version
        self._refused.add(version)
        return next_version(self._attestor, self._refused, restart.supported_versions)

    def _assign(self, answer: ProviderID) -> None:
        self._assigned = answer
        self._spec = replace(self._spec, provider_id=answer)
        self._session = replace(self._session, provider_id=answer)

    def _resume(self) -> PendingRequest | None:
        """Load the pending request if it is still for this certificate, and in a version that may still be sent."""
        pending = self._store.load()
        if pending is None or pending.version not in self._attestor.versions:
            return None
        assigned = pending.assigned if self._spec.provider_id is None else None
        spec = self._spec if assigned is None else replace(self._spec, provider_id=assigned)
        if pending.purpose != spec.purpose or not _is_coherent(pending):
            return None
        if assigned is not None:
            self._assign(assigned)
        return pending

    def _attest(self, challenge: PublishedChallenge | None) -> Evidence:
        version, spec = self._pending.version, self._spec
        block = evidence_block(self._attestor.provider, version)
        binding = Binding(block, spec.pin, spec.signer, hashlib.sha256(self._pending.csr_der).digest())
        try:
            evidence = self._attestor.in_version(version).attest(binding, challenge)
        except errors.Denied as denied:
            raise refusal(denied) from None
        except errors.Unavailable as unavailable:
            raise attestation_unavailable(unavailable) from None
        check_version(evidence, self._attestor.provider, version)
        return evidence

    def _request(self, evidence: Evidence) -> SubmittedCsr:
        request = envelope.encode(self._pending.csr_der, evidence)
        return SubmittedCsr(csr_name_for(request, self._spec.signer), request)

    def _published(self, csr: Csr, challenge: str) -> PublishedChallenge:
        digest, key = hashlib.sha256(self._pending.csr_der).digest(), _load_key(self._pending.key_pem)
        spki = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        spki_sha256 = "sha256:" + hashlib.sha256(spki).hexdigest()
        return PublishedChallenge(
            name=csr.name, uid=csr.uid, csr_sha256=digest, text=challenge, spki_sha256=spki_sha256
        )

    def _checked(self, certificate: bytes) -> CachedCredential:
        spec, session = self._spec, self._session
        now = session.deadline.clock.now()
        expected = ExpectedCertificate(node_name=spec.node_name, ca_pem=spec.ca_pem, names=spec.names)
        canonical, not_before, not_after = validate(certificate, self._pending.key_pem, expected)
        check_validity(not_before, not_after, now=now, clock_skew=session.client.clock_skew)
        return CachedCredential(
            certificate_pem=canonical,
            key_pem=self._pending.key_pem,
            not_before=not_before,
            renew_at=renewal_moment(now=now, not_after=not_after, renewable=spec.renewable, random=session.random),
            not_after=not_after,
        )


def renewal_moment(*, now: float, not_after: int, renewable: bool, random: Callable[[], float]) -> int:
    """Draw the moment from which a new certificate is wanted: after 50 to 70 % of the time that is left at issue."""
    return int(now + (not_after - now) * (0.5 + 0.2 * random())) if renewable else not_after


def _load_key(key_pem: bytes) -> PrivateKey:
    key = load_pem_private_key(key_pem, password=None)
    if not isinstance(key, PrivateKey):
        raise TypeError("a pending request holds an ECDSA or RSA key")
    return key


def _is_coherent(pending: PendingRequest) -> bool:
    """Return whether key and request belong together: the file may have been edited."""
    try:
        return load_der_x509_csr(pending.csr_der).public_key() == _load_key(pending.key_pem).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def next_version(attestor: Attestor, refused: Collection[int], published: str | None) -> int:
    """Choose the version to submit after a refusal; raises ``AgentError`` when there is none.

    ``published`` is the annotation of the refused request: a claim, read strictly.
    """
    provider, versions = attestor.provider, attestor.versions
    mine = ", ".join(evidence_block(provider, version) for version in versions)
    try:
        understood = evidence_versions.parse(published or "", provider)
    except Denied:
        understood = ()
    for version in versions:
        if version in understood and version not in refused:
            return version
    theirs = "does not say in our form which versions it understands"
    if understood:
        theirs = f"understands {', '.join(evidence_block(provider, version) for version in understood)}"
    raise AgentError(
        Reason.EVIDENCE_VERSION_UNSUPPORTED,
        f"the controller refused the evidence and {theirs}; this agent makes {mine}",
        remedy="upgrade the older of both: the controller, or the agent of this node",
    )


def check_version(evidence: Evidence, provider: ProviderName, version: int) -> None:
    """Refuse evidence of another version than was asked for, lest a refused version is sent again."""
    wanted = evidence_block(provider, version)
    if evidence.block != wanted:
        raise AgentError(
            AgentReason.CONFIGURATION_INVALID,
            f"the provider made {evidence.block} where {wanted} was wanted",
            remedy="upgrade the package of this provider, or report it to its makers",
        )
