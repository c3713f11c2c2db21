"""One issue with the parts of this machine: who asks, the provider's attestor, the API server, then ``flow.obtain``.

A node asks by its own certificate while that is valid, else by its bootstrap token; if the API server no longer accepts
the certificate, the token is tried before giving up.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol, runtime_checkable

from nodeattest_authenticator import bootstrap_token, certificate, provider_id
from nodeattest_authenticator.agreed import StoredAgreement
from nodeattest_authenticator.api import HttpsApi, Login, UnreachableError
from nodeattest_authenticator.cache import Credential
from nodeattest_authenticator.clock import Deadline
from nodeattest_authenticator.draft import DraftStore
from nodeattest_authenticator.errors import Failure, Local
from nodeattest_authenticator.flow import Order, obtain
from nodeattest_authenticator.settings import Settings, invalid
from nodeattest_authenticator.storage import Storage
from nodeattest_providers import attestors
from nodeattest_providers.errors import Denied
from nodeattest_providers.exchange import Attestor, JsonValue
from nodeattest_providers.names import NODE_USER_PREFIX, ProviderName

__all__ = ["attestor_of", "issue"]


@runtime_checkable
class _Closable(Protocol):
    """An attestor that holds a device."""

    def close(self) -> None: ...


def issue(
    settings: Settings,
    storage: Storage,
    current: Credential | None,
    *,
    drafts: DraftStore,
    deadline: Deadline,
    chance: Callable[[], float],
) -> Credential:
    """Get a new credential; raises ``Failure``."""
    if current is None:
        by_token = _by_token(settings, storage)
        return _ask(settings, by_token, storage=storage, drafts=drafts, deadline=deadline, chance=chance)
    by_certificate = Login(
        username=NODE_USER_PREFIX + settings.node_name,
        certificate_pem=current.certificate_pem,
        key_pem=current.key_pem,
    )
    try:
        return _ask(settings, by_certificate, storage=storage, drafts=drafts, deadline=deadline, chance=chance)
    except Failure as failure:
        if failure.reason != Local.CREDENTIAL_REJECTED:
            raise
        try:
            by_token = _by_token(settings, storage)
        except Failure:
            raise failure from None
        return _ask(settings, by_token, storage=storage, drafts=drafts, deadline=deadline, chance=chance)


@contextmanager
def attestor_of(provider: ProviderName, provider_settings: Mapping[str, JsonValue]) -> Generator[Attestor]:
    """Make a provider's node half and release its device at the end; raises ``Failure`` for what it does not know."""
    try:
        attestor = attestors.attestor(provider, provider_settings)
    except Denied as denied:
        raise invalid(f"provider: expected {denied.expected}, got {denied.got}") from None
    try:
        yield attestor
    finally:
        if isinstance(attestor, _Closable):
            attestor.close()


def _by_token(settings: Settings, storage: Storage) -> Login:
    token = bootstrap_token.read(settings, storage)
    return Login(username=bootstrap_token.username(token), token=token)


def _ask(
    settings: Settings,
    login: Login,
    *,
    storage: Storage,
    drafts: DraftStore,
    deadline: Deadline,
    chance: Callable[[], float],
) -> Credential:
    with attestor_of(settings.provider, settings.provider_settings) as attestor:
        api = HttpsApi(
            settings.endpoint,
            login,
            ca_pem=settings.ca_pem,
            deadline=deadline,
            tls_server_name=settings.tls_server_name,
        )
        try:
            order = _order(settings, attestor, api)
            return obtain(
                order,
                attestor=attestor,
                api=api,
                drafts=drafts,
                agreed=StoredAgreement(storage, with_whom=f"{settings.provider}\n{order.pin}"),
                deadline=deadline,
                chance=chance,
            )
        finally:
            api.close()


def _order(settings: Settings, attestor: Attestor, api: HttpsApi) -> Order:
    server_certificate: bytes | None = None
    if certificate.has_several(settings.ca_pem):
        with suppress(UnreachableError):  # obtain retries; until then the first CA is as good
            server_certificate = api.server_certificate()
    return Order(
        node_name=settings.node_name,
        provider_id=provider_id.resolve(settings.provider_id, attestor),
        signer=settings.signer,
        ca_pem=settings.ca_pem,
        pin=certificate.pin(settings.ca_pem, server_certificate),
        expiration_seconds=settings.expiration_seconds,
        renewable=settings.renewable,
        minimum_version=settings.minimum_version,
    )
