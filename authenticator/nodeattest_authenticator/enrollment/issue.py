"""One issue with the parts of this machine: who asks, the provider's attestor, the API server, then ``flow.obtain``.

A node asks by its own certificate while that is valid, else by its bootstrap token; if the API server no longer accepts
the certificate, the token is tried before giving up. A serving certificate is never asked for by the token.

A device (a TPM) has one user of ours at a time, by a lock of its own: the client certificate's issue keeps it from
beginning to end, a serving certificate's for each piece of evidence only, so that kubelet never waits for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from nodeattest_authenticator import certificate
from nodeattest_authenticator.config.settings import Settings, invalid
from nodeattest_authenticator.enrollment import bootstrap_token, provider_id
from nodeattest_authenticator.enrollment.enroll import Order, obtain
from nodeattest_authenticator.enrollment.evidence_version import speaking
from nodeattest_authenticator.errors import Failure, Local
from nodeattest_authenticator.state.credential_cache import Credential
from nodeattest_authenticator.state.evidence_version_store import AGREED_FILE, StoredAgreement
from nodeattest_authenticator.state.lock import exclusive
from nodeattest_authenticator.state.pending_request import DraftStore
from nodeattest_authenticator.state.storage import Storage
from nodeattest_authenticator.transport.api_client import ApiClient, Credentials, UnreachableError
from nodeattest_discovery.node.clock import Deadline
from nodeattest_providers import registry
from nodeattest_providers.binding import Binding
from nodeattest_providers.errors import Denied
from nodeattest_providers.names import NODE_USER_PREFIX, ProviderName, Purpose, signer_for
from nodeattest_providers.node_interface import Attestor, Evidence, JsonValue, PublishedChallenge, VersionedAttestor

if TYPE_CHECKING:
    from nodeattest_authenticator.kubelet_serving.names import Names

__all__ = ["attestor_of", "by_certificate", "issue", "issue_serving"]

_DEVICE_LOCK: Final = "device.lock"


@runtime_checkable
class _Closable(Protocol):
    """An attestor that holds a device."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What one issue works with."""

    settings: Settings
    storage: Storage
    drafts: DraftStore
    deadline: Deadline
    random: Callable[[], float]
    names: Names | None = None
    """None: a client certificate is wanted."""

    @property
    def agreed_file(self) -> str:
        """The file of the one who holds the lock."""
        return AGREED_FILE if self.names is None else f"serving.{AGREED_FILE}"


def issue(
    settings: Settings,
    storage: Storage,
    current: Credential | None,
    *,
    drafts: DraftStore,
    deadline: Deadline,
    random: Callable[[], float],
) -> Credential:
    """Get a new credential; raises ``Failure``."""
    run = _Run(settings=settings, storage=storage, drafts=drafts, deadline=deadline, random=random)
    if current is None:
        return _ask(run, _by_token(settings, storage))
    try:
        return _ask(run, by_certificate(settings, current))
    except Failure as failure:
        if failure.reason != Local.CREDENTIAL_REJECTED:
            raise
        try:
            by_token = _by_token(settings, storage)
        except Failure:
            raise failure from None
        return _ask(run, by_token)


def issue_serving(
    settings: Settings,
    storage: Storage,
    current: Credential,
    names: Names,
    *,
    drafts: DraftStore,
    deadline: Deadline,
    random: Callable[[], float],
) -> Credential:
    """Get a new serving certificate; ``current`` is the node's client certificate. Raises ``Failure``."""
    run = _Run(settings=settings, storage=storage, drafts=drafts, deadline=deadline, random=random, names=names)
    return _ask(run, by_certificate(settings, current))


@contextmanager
def attestor_of(provider: ProviderName, provider_settings: Mapping[str, JsonValue]) -> Generator[Attestor]:
    """Make a provider's node half and release its device at the end; raises ``Failure`` for what it does not know."""
    try:
        attestor = registry.make_attestor(provider, provider_settings)
    except Denied as denied:
        raise invalid(f"provider: expected {denied.expected}, got {denied.got}") from None
    try:
        yield attestor
    finally:
        if isinstance(attestor, _Closable):
            attestor.close()


def by_certificate(settings: Settings, current: Credential) -> Credentials:
    """Let the node ask by its own certificate."""
    return Credentials(
        username=NODE_USER_PREFIX + settings.node_name,
        certificate_pem=current.certificate_pem,
        key_pem=current.key_pem,
    )


def _by_token(settings: Settings, storage: Storage) -> Credentials:
    token = bootstrap_token.read(settings, storage)
    return Credentials(username=token.username, token=token.reveal())


def _ask(run: _Run, login: Credentials) -> Credential:
    settings = run.settings
    with attestor_of(settings.provider, settings.provider_settings) as attestor, _alone(run, attestor) as guarded:
        api = ApiClient(
            settings.endpoint,
            login,
            ca_pem=settings.ca_pem,
            deadline=run.deadline,
            tls_server_name=settings.tls_server_name,
        )
        try:
            order = _order(run, attestor, api)
            return obtain(
                order,
                attestor=guarded,
                api=api,
                drafts=run.drafts,
                agreed=StoredAgreement(run.storage, settings, name=run.agreed_file),
                deadline=run.deadline,
                random=run.random,
            )
        finally:
            api.close()


@contextmanager
def _alone(run: _Run, attestor: Attestor) -> Generator[Attestor]:
    """Let nobody else of ours use the attestor's device, if it has one."""
    if not isinstance(attestor, _Closable):
        yield attestor
    elif run.names is not None:
        yield _Sharing(run, attestor)
    else:
        with exclusive(run.storage, run.deadline, name=_DEVICE_LOCK):
            yield attestor


class _Sharing:
    """An attestor that opens its device anew for each piece of evidence, which none of the rounds minds."""

    def __init__(self, run: _Run, attestor: Attestor, version: int | None = None) -> None:
        self._run = run
        self._attestor = attestor
        self._version = version or attestor.versions[0]
        self.provider = attestor.provider
        self.versions = attestor.versions if isinstance(attestor, VersionedAttestor) else attestor.versions[:1]
        self.two_step = speaking(attestor, self._version).two_step

    def in_version(self, version: int) -> Attestor:
        return _Sharing(self._run, self._attestor, version)

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        settings = self._run.settings
        with (
            exclusive(self._run.storage, self._run.deadline, name=_DEVICE_LOCK),
            attestor_of(settings.provider, settings.provider_settings) as attestor,
        ):
            return speaking(attestor, self._version).attest(binding, challenge)


def _order(run: _Run, attestor: Attestor, api: ApiClient) -> Order:
    settings = run.settings
    server_certificate: bytes | None = None
    if certificate.has_several(settings.ca_pem):
        with suppress(UnreachableError):  # obtain retries; until then the first CA is as good
            server_certificate = api.server_certificate()
    return Order(
        node_name=settings.node_name,
        provider_id=provider_id.resolve(settings.provider_id, attestor),
        signer=settings.signer if run.names is None else signer_for(settings.provider, Purpose.SERVING),
        ca_pem=settings.ca_pem,
        pin=certificate.pin(settings.ca_pem, server_certificate),
        expiration_seconds=settings.expiration_seconds,
        renewable=settings.renewable,
        minimum_version=settings.minimum_version,
        names=run.names,
    )
