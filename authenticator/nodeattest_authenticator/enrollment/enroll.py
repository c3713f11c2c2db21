"""Enrollment: key, evidence, first request, challenge, second request, certificate.

A library without files, processes or environment: client, attestor, store, time and randomness are arguments. An
interrupted call continues with the same key and the same bytes. A challenge is answered only on the object that this
node created, because otherwise the node would decrypt for others. If the controller refuses the version of the
evidence, the next request has the newest common version (``next_version``). If it assigns a provider ID, the next
request has that ID; a denial discards it together with the pending request.
Out of scope: storing the credential, discarding the pending request afterwards, and backing off after failures.
Source: docs/wire-format.md §3 (steps 0, 1, 7, 8, 18), §4.5, §4.6.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

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
from nodeattest_providers import envelope, errors
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ClusterPin, NodeName, ProviderID, ProviderName, SignerName, evidence_block
from nodeattest_providers.keys import PrivateKey
from nodeattest_providers.node_interface import Attestor, Binding, Evidence, PublishedChallenge, parse_versions
from nodeattest_providers.pkcs10 import build_csr

if TYPE_CHECKING:
    from nodeattest_authenticator.settings import SubjectNames


USAGES: Final = ("digital signature", "client auth")
_SERVING_USAGES: Final = ("digital signature", "server auth")
"""For ECDSA keys; RSA keys would need key encipherment (kubernetes pkg/apis/certificates/helpers.go)."""
_MAX_ATTEMPTS: Final = 5
"""First requests of one call, not counting those refused for their version."""
_RESUMABLE: Final = frozenset(set(AgentReason) - {AgentReason.CERTIFICATE_REFUSED, AgentReason.REQUEST_REFUSED})
"""Failures after which the same request may still get its certificate, for example when the clock is corrected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSpec:
    """The certificate to request."""

    node_name: NodeName
    provider_id: ProviderID | None
    """None if the controller has to assign it."""
    signer: SignerName
    ca_pem: bytes
    pin: ClusterPin
    expiration_seconds: int | None = None
    renewable: bool = True
    names: SubjectNames | None = None
    """None for a client certificate; else a serving certificate with these names."""

    @property
    def purpose(self) -> str:
        """A text that differs for certificates that need different requests."""
        names = f"\n{self.names}" if self.names is not None else ""
        return f"{self.node_name}\n{self.provider_id or ''}\n{self.signer}\n{self.pin}{names}"

    @property
    def usages(self) -> tuple[str, ...]:
        """The usages in the CertificateSigningRequest."""
        return USAGES if self.names is None else _SERVING_USAGES


@dataclass(frozen=True, slots=True)
class Enrolled:
    """The result of an enrollment."""

    credential: CachedCredential
    assigned: ProviderID | None
    """The provider ID in the request. The caller clears it if the machine knows its own."""
    version: int
    """The version of the evidence."""


def enroll(
    spec: CertificateSpec,
    *,
    attestor: Attestor,
    client: ApiServerClient,
    store: PendingRequestFile,
    deadline: Deadline,
    random: Callable[[], float],
) -> Enrolled:
    """Get a certificate. The caller stores it, then discards the pending request. Raises ``AgentError``."""
    return _Enrollment(spec, attestor, CsrSession(client, deadline, random, spec.provider_id), store).run()


def new_pending_request(spec: CertificateSpec, *, key_pem: bytes | None = None, version: int) -> PendingRequest:
    """Create a PKCS#10 request, with a new P-256 key unless one is given."""
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
    """One call of ``enroll``. Its state is the pending request: a key, then a first request, then a second one."""

    def __init__(
        self, spec: CertificateSpec, attestor: Attestor, session: CsrSession, store: PendingRequestFile
    ) -> None:
        self._spec = spec
        self._attestor = attestor
        self._session = session
        self._store = store
        self._refused: set[int] = set()
        """Versions of the evidence that the controller refused."""
        self._restarts = 0
        self._assigned: ProviderID | None = None
        """The provider ID that the controller assigned, in this call or an interrupted one."""
        self._pending = self._resume() or new_pending_request(spec, version=attestor.versions[0])

    def run(self) -> Enrolled:
        """Run until the certificate is issued. Raises ``AgentError``."""
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
        """Prepare the next request, or submit it and wait. Return the credential when it is issued."""
        spec, pending = self._spec, self._pending
        request = pending.second or pending.first
        if request is None:
            self._keep(replace(pending, first=self._request(self._attest(None))))
            return None
        csr, submitted = self._session.submit(
            request, signer_name=spec.signer, usages=spec.usages, expiration_seconds=spec.expiration_seconds
        )
        if submitted != request:  # another object had its name
            second = pending.second is not None
            self._keep(replace(pending, second=submitted) if second else replace(pending, first=submitted))
            return None
        if pending.second is None:
            return self._wait_for_first(csr)
        return self._checked(self._session.wait_for_decision(csr, lambda seen: seen.certificate))

    def _wait_for_first(self, csr: Csr) -> CachedCredential | None:
        """Wait for the first request's certificate, or for its challenge and prepare the second request.

        Others may overwrite the challenge. The node ignores an invalid one and waits for the controller's.
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
        """Prepare a new first request. Raises ``AgentError`` if no version, attempt or time is left."""
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
        """Accept the controller's provider ID or choose another version. Return the version. Raises ``AgentError``."""
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
        """Load the pending request if it is for this certificate and in a supported version."""
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
    """Draw the renewal time: after 50 to 70 % of the remaining validity."""
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
    except X509_ERRORS:
        return False


def next_version(attestor: Attestor, refused: Collection[int], published: str | None) -> int:
    """Choose the version after a refusal. Raises ``AgentError`` if there is none.

    ``published``: the annotation of the refused request. Others can write it, so no version is sent twice.
    """
    provider, versions = attestor.provider, attestor.versions
    mine = ", ".join(evidence_block(provider, version) for version in versions)
    try:
        understood = parse_versions(published or "", provider)
    except Denied:
        understood = ()
    for version in versions:
        if version in understood and version not in refused:
            return version
    theirs = "did not list the versions that it supports"
    if understood:
        theirs = f"supports {', '.join(evidence_block(provider, version) for version in understood)}"
    raise AgentError(
        Reason.EVIDENCE_VERSION_UNSUPPORTED,
        f"the controller refused the evidence and {theirs}; this agent supports {mine}",
        remedy="upgrade the controller or the agent of this node, whichever is older",
    )


def check_version(evidence: Evidence, provider: ProviderName, version: int) -> None:
    """Raise ``AgentError`` if the evidence has another version than requested."""
    wanted = evidence_block(provider, version)
    if evidence.block != wanted:
        raise AgentError(
            AgentReason.CONFIGURATION_INVALID,
            f"expected evidence {wanted} from the provider, got {evidence.block}",
            remedy="upgrade the package of this provider, or report this to its authors",
        )
