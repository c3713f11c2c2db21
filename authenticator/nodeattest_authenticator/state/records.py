"""Records in the cache directory: the bootstrap token, the pending request, and the provider ID that was assigned.

An agent that was killed or lost a reply submits the same bytes under the same name again and continues with its own
object. With a new key the issued certificate would be lost. An assigned provider ID counts only in the cluster that
assigned it: they must have a CA in common. Renewals depend on it, so an unreadable file is an error.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.formats.strict_json import ConfigFields, FieldsError, parse_config_object
from nodeattest_authenticator.settings import TOKEN_FILE, Settings
from nodeattest_authenticator.state.cache_files import UnsafeFileError, read_private
from nodeattest_authenticator.state.storage import Storage
from nodeattest_discovery import token
from nodeattest_discovery.token import BootstrapToken
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import ProviderID, provider_id
from nodeattest_providers.node_interface import HIGHEST, JsonObject

PENDING_REQUEST_FILE: Final = "draft"
PROVIDER_ID_FILE: Final = "provider-id"


@dataclass(frozen=True, slots=True)
class SubmittedCsr:
    """The name and request of a CertificateSigningRequest."""

    name: str
    request: bytes = field(repr=False)
    """The bytes of ``spec.request``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    """A key, its PKCS#10 request, and the CertificateSigningRequests made from it."""

    purpose: str
    """Identifies node, provider ID, signer and cluster pin; another purpose needs another request."""
    key_pem: bytes = field(repr=False)
    csr_der: bytes = field(repr=False)
    version: int
    """The version of the evidence in both requests."""
    first: SubmittedCsr | None = None
    second: SubmittedCsr | None = None
    assigned: ProviderID | None = None
    """The provider ID that the controller assigned; part of ``purpose``."""


class PendingRequestFile:
    """The file of the pending request. The caller holds the lock."""

    def __init__(
        self, storage: Storage, *, used_key_pem: bytes | None = None, name: str = PENDING_REQUEST_FILE
    ) -> None:
        """``used_key_pem``: the key of the stored credential. A pending request with this key is finished."""
        self._storage = storage
        self._name = name
        self._used = used_key_pem

    def load(self) -> PendingRequest | None:
        """Return the pending request, or None if none can be resumed."""
        try:
            data = self._storage.read(self._name)
            pending = None if data is None else _parse_pending(ConfigFields(parse_config_object(data)))
        except (UnsafeFileError, FieldsError, Denied):
            return None
        return None if pending is None or pending.key_pem == self._used else pending

    def save(self, pending: PendingRequest) -> None:
        """Keep it; a full disk costs the ability to continue after a crash, not the certificate."""
        document: JsonObject = {
            "purpose": pending.purpose,
            "key": pending.key_pem.decode("ascii"),
            "csr": _base64(pending.csr_der),
            "version": pending.version,
        }
        if pending.assigned is not None:
            document["assignedProviderID"] = pending.assigned
        for name, request in (("first", pending.first), ("second", pending.second)):
            if request is not None:
                document[name] = {"name": request.name, "request": _base64(request.request)}
        with suppress(OSError):
            self._storage.write(self._name, json.dumps(document).encode(), durable=False)

    def discard(self) -> None:
        """Remove the pending request."""
        self._storage.remove(self._name)


def _parse_pending(fields: ConfigFields) -> PendingRequest:
    key, assigned = fields.required("key"), fields.text("assignedProviderID")
    version = fields.number("version", low=1, high=HIGHEST)
    if not key.isascii() or version is None:
        raise FieldsError("key must be PEM, and version a number")
    pending = PendingRequest(
        purpose=fields.required("purpose"),
        key_pem=key.encode(),
        csr_der=fields.required_octets("csr"),
        version=version,
        first=_submitted(fields.object("first")),
        second=_submitted(fields.object("second")),
        assigned=None if assigned is None else provider_id(assigned),
    )
    fields.end()
    return pending


def _submitted(fields: ConfigFields | None) -> SubmittedCsr | None:
    return None if fields is None else SubmittedCsr(fields.required("name"), fields.required_octets("request"))


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def load_provider_id(storage: Storage, ca_pins: Sequence[str]) -> ProviderID | None:
    """Return the ID that the cluster with these CAs assigned, or None. Raises ``AgentError``."""
    try:
        data = storage.read(PROVIDER_ID_FILE)
        if data is None:
            return None
        fields = ConfigFields(parse_config_object(data))
        assigned, pins = provider_id(fields.required("providerID")), frozenset(fields.texts("caPins") or ())
        fields.end()
    except (UnsafeFileError, FieldsError, Denied):
        raise AgentError(
            AgentReason.CACHE_UNSAFE,
            f"{storage.path}/{PROVIDER_ID_FILE}, the assigned provider ID, cannot be read",
            remedy="remove it and join again with a bootstrap token, or pass join --provider-id",
        ) from None
    return None if pins.isdisjoint(ca_pins) else assigned


def save_provider_id(storage: Storage, assigned: ProviderID, ca_pins: Sequence[str]) -> None:
    """Store an assigned ID. Call it before the certificate is stored. Raises OSError. The caller holds the lock."""
    storage.write(PROVIDER_ID_FILE, json.dumps({"providerID": assigned, "caPins": [*ca_pins]}).encode())


def parse_token(data: bytes, *, source: str = "") -> BootstrapToken:
    """Parse one token, with white space around it. ``source`` is the prefix of messages. Raises ``AgentError``."""
    try:
        return token.parse(data.decode("ascii", "replace").strip())
    except Denied as denied:
        said = f"{source}expected a bootstrap token of the form {denied.expected}, got {denied.got}"
        raise AgentError(
            AgentReason.CONFIGURATION_INVALID, said, remedy=denied.remedy, kind=FailureKind.USAGE
        ) from None


def load_token(settings: Settings, storage: Storage) -> BootstrapToken:
    """Read the token from its file. Raises ``AgentError`` if it does not exist or if other users can read it."""
    path = settings.token_file or f"{storage.path}/{TOKEN_FILE}"
    try:
        data = read_private(None, path) if settings.token_file else read_private(storage.directory, TOKEN_FILE)
    except (OSError, UnsafeFileError) as error:
        said = f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise AgentError(
            AgentReason.TOKEN_MISSING,
            f"the node has no valid certificate, and its bootstrap token cannot be read: {said}",
            remedy="run kubelet-authenticator join with a fresh token (--token-file)",
        ) from None
    return parse_token(data)
