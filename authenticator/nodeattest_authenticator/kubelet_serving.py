"""Keeps kubelet's serving certificate in the cache directory and renews it when it is due.

A certificate that is valid for the expected names and not due costs no request. A new one is requested with the node's
own certificate, never with a bootstrap token, and stored only if it passes every check. Until then the old file stays.
Failures and the lock have their own files, so kubelet's client credential never waits for this.

The file has the layout of the client credential (``cache_files``), so one rename replaces certificate, key and renewal
time together. PEM parsers, including kubelet's, skip the header line (RFC 7468 §2). The names are those of the
configuration, else the node's name and the addresses by which this machine reaches its API server.
Source: docs/operate.md#serving-certificates; k8s.io/apimachinery util/net ResolveBindAddress.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from nodeattest_authenticator.context import AgentContext, ignore_message
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.settings import SubjectNames
from nodeattest_authenticator.state import credential_cache
from nodeattest_authenticator.state.cache_files import UnsafeFileError
from nodeattest_authenticator.state.credential_cache import CachedCredential, CacheEntry
from nodeattest_authenticator.state.storage import exclusive
from nodeattest_discovery.node.clock import Deadline

if TYPE_CHECKING:
    from nodeattest_authenticator.settings import Settings
    from nodeattest_parsing.endpoint import Endpoint


FILE: Final = "serving.pem"
FAILURE_FILE: Final = "serving.failure"
_LOCK_FILE: Final = "serving.lock"
_PENDING_REQUEST_FILE: Final = "serving.draft"
_ELSEWHERE: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Documentation addresses (RFC 5737, RFC 3849), which are reached by the default route."""
_ANY_PORT: Final = 9
"""The discard port. Connecting a datagram socket sends nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEnrollment:
    """The stored serving certificate and its names."""

    credential: CachedCredential
    names: SubjectNames


def ensure_serving_certificate(context: AgentContext) -> ServingEnrollment:
    """Return a valid serving certificate for the expected names. Raises ``AgentError``.

    1. Use the stored one if it is valid and not due.
    2. Else wait for another process that requests one.
    3. Else request a new one, unless the last failure's pause is not over.
    """
    if context.settings.provider == "insecure":
        raise AgentError(
            AgentReason.CONFIGURATION_INVALID,
            "the insecure provider has no serving certificates",
            remedy="use another provider, or kubelet's own serverTLSBootstrap",
            kind=FailureKind.USAGE,
        )
    # 1
    found = stored(context)
    try:
        names = wanted_names(context.settings)
    except AgentError:
        if found is None or _is_due(context, found):
            raise
        names = found.names  # without a network the names cannot have changed
    context = replace(context, config_fingerprint=identity_of(context, names))
    if found is not None and _will_do(context, found, names):
        return found
    deadline = Deadline.after(context.clock, context.settings.timeout_seconds)
    with exclusive(context.storage, deadline, name=_LOCK_FILE):
        # 2
        found = stored(replace(context, log=ignore_message))
        if found is not None and _will_do(context, found, names):
            return found
        return _renewed(context, found, names, deadline)  # 3


def stored(context: AgentContext) -> ServingEnrollment | None:
    """Return the stored certificate if it is valid, for any names; else log the reason. Raises ``AgentError``."""
    from nodeattest_authenticator import certificate

    now = context.clock.now()
    try:
        data = context.storage.read(FILE)
        credential = credential_cache.parse(data).credential if data is not None else None
        if credential is None or now >= credential.not_after:
            return None
        names = SubjectNames(*(tuple(kind) for kind in certificate.names_of(credential.certificate_pem)))
        wanted = certificate.ExpectedCertificate(
            node_name=context.settings.node_name, ca_pem=context.settings.all_ca_pem, names=names
        )
        certificate.check_credential(credential, wanted, now=now)
    except (AgentError, UnsafeFileError, ValueError) as error:
        if isinstance(error, AgentError) and error.reason == AgentReason.CLOCK_OFF:
            raise
        context.log(f"the stored serving certificate is not used: {error}")
        return None
    return ServingEnrollment(credential=credential, names=names)


def identity_of(context: AgentContext, names: SubjectNames) -> bytes:
    """Return the identity of configuration and names. A stored failure counts for the same identity only."""
    return context.config_fingerprint + b"." + hashlib.sha256(str(names).encode()).hexdigest()[:16].encode()


def _will_do(context: AgentContext, found: ServingEnrollment, names: SubjectNames) -> bool:
    if found.names != names:
        context.log(f"the serving certificate has the names {found.names}, expected {names}")
    return found.names == names and not _is_due(context, found)


def _is_due(context: AgentContext, found: ServingEnrollment) -> bool:
    return context.clock.now() >= found.credential.renew_at


def _renewed(
    context: AgentContext, found: ServingEnrollment | None, names: SubjectNames, deadline: Deadline
) -> ServingEnrollment:
    context.raise_while_backing_off(name=FAILURE_FILE)
    current = found.credential if found else None
    client = context.load_valid_credential()
    if client is None:
        raise AgentError(
            AgentReason.CLIENT_CERTIFICATE_MISSING,
            f"{context.storage.path} holds no valid client certificate, which the request needs",
            remedy="start kubelet, which gets one, or run kubelet-authenticator join; see kubelet-authenticator status",
            kind=FailureKind.TEMPORARY,
        )
    from nodeattest_authenticator.enrollment.issue import issue_serving
    from nodeattest_authenticator.state.records import PendingRequestFile

    store = PendingRequestFile(
        context.storage, used_key_pem=current.key_pem if current else None, name=_PENDING_REQUEST_FILE
    )
    try:
        with _disk_errors(context):
            context.storage.check_room(f"{FILE}.probe")  # before a certificate is asked for that could not be stored
            credential = issue_serving(context, client.credential, names, store, deadline)
            entry = CacheEntry(credential=credential, config_fingerprint=context.config_fingerprint)
            context.storage.write(FILE, credential_cache.render(entry))
    except AgentError as failure:
        if failure.kind is not FailureKind.USAGE:
            context.remember_failure(failure, current, name=FAILURE_FILE)
        raise
    context.storage.remove(FAILURE_FILE)
    store.discard()
    return ServingEnrollment(credential=credential, names=names)


@contextmanager
def _disk_errors(context: AgentContext) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise AgentError(
            AgentReason.CACHE_UNSAFE,
            f"{context.storage.path}/{FILE} cannot be written: {error.strerror}",
            remedy="make room on the disk; run the agent as the user who runs kubelet, mostly root",
            kind=FailureKind.TEMPORARY,
        ) from None


def wanted_names(settings: Settings) -> SubjectNames:
    """Return the names that the certificate should have now; raises ``AgentError`` while an address is not known."""
    dns = settings.serving.dns_names if settings.serving else None
    addresses = settings.serving.ip_addresses if settings.serving else None
    if addresses is None:
        addresses = local_addresses(settings.endpoint)
    return SubjectNames(tuple(sorted(dns if dns is not None else (settings.node_name,))), tuple(sorted(addresses)))


def local_addresses(endpoint: Endpoint) -> tuple[str, ...]:
    """Return this machine's address towards the API server, of each family; the default route's where that is itself.

    A proxy or the server on this very machine is reached by the loopback, whose address no certificate is for.
    """
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        raise _unknown(f"{endpoint.host}: {getattr(error, 'strerror', None) or 'no host name'}") from None
    towards = {_source(family, str(address[0]), int(address[1])) for family, _, _, _, address in found} - {None}
    if not towards:
        families = {family for family, *_ in found} & _ELSEWHERE.keys()
        towards = {_source(family, _ELSEWHERE[family], _ANY_PORT) for family in families}
    addresses = tuple(sorted(address for address in towards if address is not None))
    if not addresses:
        raise _unknown(f"no interface of this machine leads to {endpoint.host}")
    return addresses


def _source(family: socket.AddressFamily | int, host: str, port: int) -> str | None:
    """Return the address from which this machine would connect; None for one that others cannot reach."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            address = ip_address(str(probe.getsockname()[0]).partition("%")[0])
    except (OSError, ValueError):
        return None
    return None if address.is_loopback or address.is_link_local or address.is_unspecified else str(address)


def _unknown(message: str) -> AgentError:
    return AgentError(
        AgentReason.ADDRESS_UNKNOWN,
        f"this machine's address is not known: {message}",
        remedy="name the addresses: join --serving-ip-address, or serving.ipAddresses in the configuration",
        kind=FailureKind.TEMPORARY,
    )
