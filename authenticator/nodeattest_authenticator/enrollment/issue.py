"""Gets a new certificate with this machine's credentials, attestor and API server, and stores it.

The node authenticates with its own certificate while that is valid, else with its bootstrap token. If the API server
rejects the certificate, the token is tried. Serving certificates are never requested with the token. A provider ID that
the controller assigned is stored with the certificate for renewals.

A lock serializes the agent's use of a device (a TPM). A client enrollment holds it throughout; a serving enrollment
holds it only while it makes evidence, so that kubelet's client certificate never waits for it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from nodeattest_authenticator import certificate
from nodeattest_authenticator.api_client import ApiServerClient, Credentials, UnreachableError, select_server
from nodeattest_authenticator.context import AgentContext
from nodeattest_authenticator.enrollment import provider_id
from nodeattest_authenticator.enrollment.enroll import CertificateSpec, Enrolled, enroll
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind, said
from nodeattest_authenticator.settings import Settings, invalid
from nodeattest_authenticator.state import credential_cache
from nodeattest_authenticator.state.cache_files import FAILURE_FILE
from nodeattest_authenticator.state.credential_cache import CachedCredential, CacheEntry
from nodeattest_authenticator.state.records import (
    PROVIDER_ID_FILE,
    PendingRequestFile,
    load_provider_id,
    load_token,
    save_provider_id,
)
from nodeattest_authenticator.state.storage import exclusive
from nodeattest_discovery.node.clock import Deadline
from nodeattest_discovery.tls import ClientCertificate
from nodeattest_providers import registry
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import (
    NODE_USER_PREFIX,
    ProviderID,
    ProviderName,
    Purpose,
    evidence_block,
    signer_for,
)
from nodeattest_providers.node_interface import (
    Attestor,
    Binding,
    Evidence,
    JsonValue,
    PublishedChallenge,
)

if TYPE_CHECKING:
    from nodeattest_authenticator.settings import SubjectNames


_DEVICE_LOCK: Final = "device.lock"


def issue_and_store(
    context: AgentContext,
    current: CachedCredential | None,
    deadline: Deadline,
    *,
    info: bytes | None = None,
) -> CacheEntry:
    """Get a new client certificate and store it. ``current``: the valid one to renew. The caller holds the lock.

    ``info``: the exec info that the fast path will answer. A credential that cannot be stored is still returned.
    Raises ``AgentError``, which is stored with its pause.
    """
    store = PendingRequestFile(context.storage, used_key_pem=current.key_pem if current else None)
    try:
        reached = replace(context, settings=select_server(context.settings, deadline, context.log))
        issued = _issue_client(reached, current, store, deadline)
    except AgentError as error:
        if error.kind is not FailureKind.USAGE:
            context.remember_failure(error, current)
        raise
    made = CacheEntry(credential=issued.credential, config_fingerprint=context.config_fingerprint)
    if info is not None:
        made = made.with_response(info)
    try:
        if issued.assigned is not None:  # stored first: without its provider ID a certificate cannot be renewed
            pins = certificate.ca_pins(context.settings.ca_pem)
            save_provider_id(context.storage, issued.assigned, pins)
        credential_cache.save(context.storage, made)
        context.storage.remove(FAILURE_FILE)
        store.discard()
    except OSError as error:
        # The pending request stays, so that the next attempt gets the same certificate.
        context.log(f"the credential is valid but cannot be stored: {error.strerror}")
    return made


def issue_serving(
    context: AgentContext,
    current: CachedCredential,
    names: SubjectNames,
    store: PendingRequestFile,
    deadline: Deadline,
) -> CachedCredential:
    """Get a new serving certificate. ``current``: the node's client certificate. Raises ``AgentError``."""
    reached = replace(context, settings=select_server(context.settings, deadline, context.log))
    return _enroll(reached, by_certificate(reached.settings, current), store, deadline, names=names).credential


@contextmanager
def attestor_of(provider: ProviderName, provider_settings: Mapping[str, JsonValue]) -> Generator[Attestor]:
    """Create a provider's attestor and release its device afterwards. Raises ``AgentError`` for invalid settings."""
    try:
        attestor = registry.make_attestor(provider, provider_settings)
    except Denied as denied:
        raise invalid(f"provider: {said(denied)}") from None
    with attestor:
        yield attestor


def by_certificate(settings: Settings, current: CachedCredential) -> Credentials:
    """Return the credentials of the node's own certificate."""
    return Credentials(
        username=NODE_USER_PREFIX + settings.node_name,
        certificate=ClientCertificate(current.certificate_pem, current.key_pem),
    )


def _by_token(context: AgentContext) -> Credentials:
    token = load_token(context.settings, context.storage)
    return Credentials(username=token.username, token=token.reveal())


def _issue_client(
    context: AgentContext, current: CachedCredential | None, store: PendingRequestFile, deadline: Deadline
) -> Enrolled:
    if current is None:
        try:
            return _enroll(context, _by_token(context), store, deadline)
        except AgentError as error:
            if error.reason in provider_id.OTHER_MACHINE:
                context.storage.remove(PROVIDER_ID_FILE)
            raise
    try:
        return _enroll(context, by_certificate(context.settings, current), store, deadline)
    except AgentError as error:
        if error.reason != AgentReason.CREDENTIAL_REJECTED:
            raise
        try:
            by_token = _by_token(context)
        except AgentError:
            raise error from None
        return _enroll(context, by_token, store, deadline)


def _enroll(
    context: AgentContext,
    credentials: Credentials,
    store: PendingRequestFile,
    deadline: Deadline,
    *,
    names: SubjectNames | None = None,
) -> Enrolled:
    """Enroll once. ``names``: those of a serving certificate."""
    settings = context.settings
    with ExitStack() as stack:
        client = ApiServerClient(settings.cluster, credentials, deadline)
        stack.callback(client.close)
        attestor = used = stack.enter_context(attestor_of(settings.provider, settings.provider_settings))
        if attestor.holds_device and names is None:
            stack.enter_context(exclusive(context.storage, deadline, name=_DEVICE_LOCK))
        elif attestor.holds_device:
            used = _SharedDevice(context, deadline, attestor)
        what = f"the API server {settings.endpoint.url}, with evidence of provider {settings.provider}"
        deadline.waits_for("certificate", what)
        machine_id, is_known = _provider_id(context, attestor, may_ask=credentials.token is not None)
        enrolled = enroll(
            _spec(settings, client, names, machine_id),
            attestor=used,
            client=client,
            store=store,
            deadline=deadline,
            random=context.random,
        )
        if enrolled.version != attestor.versions[0]:  # no other message shows that the controller is older
            sent, refused = (evidence_block(settings.provider, one) for one in (enrolled.version, attestor.versions[0]))
            said = f"the certificate was issued for evidence {sent}, because the controller refused {refused}"
            context.log(f"{said}; upgrade the controller")
        return replace(enrolled, assigned=None) if is_known else enrolled


def _provider_id(context: AgentContext, attestor: Attestor, *, may_ask: bool) -> tuple[ProviderID | None, bool]:
    """Return the provider ID and whether the machine knows it; else this cluster's stored answer, or None."""
    found = provider_id.resolve(context.settings.provider_id, attestor)
    if found is not None:
        return found, True
    kept = load_provider_id(context.storage, certificate.ca_pins(context.settings.all_ca_pem))
    if kept is None and not may_ask:
        raise provider_id.not_configured(attestor)
    return kept, False


class _SharedDevice(Attestor):
    """An attestor that locks and opens its device for each piece of evidence."""

    def __init__(
        self, context: AgentContext, deadline: Deadline, attestor: Attestor, version: int | None = None
    ) -> None:
        self._context = context
        self._deadline = deadline
        self._attestor = attestor
        self._version = version or attestor.versions[0]
        self.provider = attestor.provider
        self.versions = attestor.versions
        self.two_step = attestor.in_version(self._version).two_step

    def in_version(self, version: int) -> Attestor:
        return _SharedDevice(self._context, self._deadline, self._attestor, version)

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        settings = self._context.settings
        with (
            exclusive(self._context.storage, self._deadline, name=_DEVICE_LOCK),
            attestor_of(settings.provider, settings.provider_settings) as attestor,
        ):
            return attestor.in_version(self._version).attest(binding, challenge)


def _spec(
    settings: Settings, client: ApiServerClient, names: SubjectNames | None, machine_id: ProviderID | None
) -> CertificateSpec:
    server_certificate: bytes | None = None
    if certificate.has_several(settings.ca_pem):
        with suppress(UnreachableError):  # enroll retries; the first CA is a valid choice
            server_certificate = client.server_certificate()
    return CertificateSpec(
        node_name=settings.node_name,
        provider_id=machine_id,
        signer=settings.signer if names is None else signer_for(settings.provider, Purpose.SERVING),
        ca_pem=settings.ca_pem,
        pin=certificate.select_ca_pin(settings.ca_pem, server_certificate),
        expiration_seconds=settings.expiration_seconds,
        renewable=settings.renewable,
        names=names,
    )
