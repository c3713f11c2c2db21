"""Small JSON records in the cache directory: the unfinished request, and the provider ID that the controller told.

An agent that was killed, timed out or lost the reply submits the same bytes under the same name again, finds its own
object there and continues; a new key would be a new request, and an issued certificate would be lost. A provider ID
counts in the cluster of the certificate only: one of the cluster's CAs, present or previous, must be among those of
the last certificate. Renewals depend on it, so a file that cannot be read is an error.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from nodeattest_authenticator.errors import AgentError, AgentReason
from nodeattest_authenticator.formats.strict_json import ConfigFields, FieldsError, parse_config_object
from nodeattest_authenticator.state.cache_files import UnsafeFileError
from nodeattest_authenticator.state.storage import Storage
from nodeattest_providers.errors import Denied
from nodeattest_providers.evidence_versions import HIGHEST
from nodeattest_providers.identifiers import ProviderID, provider_id
from nodeattest_providers.node_interface import JsonObject

PENDING_REQUEST_FILE: Final = "draft"
PROVIDER_ID_FILE: Final = "provider-id"


@dataclass(frozen=True, slots=True)
class SubmittedCsr:
    """One request as it is, or is about to be, created."""

    name: str
    request: bytes = field(repr=False)
    """``spec.request``, byte for byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    """A key, its PKCS#10 request, and the requests made of it."""

    purpose: str
    """What it is for (node, provider ID, signer, cluster pin): another purpose needs another request."""
    key_pem: bytes = field(repr=False)
    csr_der: bytes = field(repr=False)
    version: int
    """Of the evidence, in both requests."""
    first: SubmittedCsr | None = None
    second: SubmittedCsr | None = None
    assigned: ProviderID | None = None
    """The provider ID that the controller told, where the node knew none; part of ``purpose``."""


class PendingRequestFile:
    """The pending request in the cache directory. Hold the lock."""

    def __init__(
        self, storage: Storage, *, used_key_pem: bytes | None = None, name: str = PENDING_REQUEST_FILE
    ) -> None:
        """``used_key_pem``: the key of the stored credential, whose request is finished whatever a crash left."""
        self._storage = storage
        self._name = name
        self._used = used_key_pem

    def load(self) -> PendingRequest | None:
        """Return it; None when there is none that can be resumed."""
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
        """Forget it."""
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
    """Return the ID that the controller told; None where there is none of the cluster with these CAs.

    Raises ``AgentError``.
    """
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
            f"{storage.path}/{PROVIDER_ID_FILE}, the provider ID that the controller told, cannot be used",
            remedy="remove it and join again with a bootstrap token, or give join --provider-id",
        ) from None
    return None if pins.isdisjoint(ca_pins) else assigned


def save_provider_id(storage: Storage, assigned: ProviderID, ca_pins: Sequence[str]) -> None:
    """Store the ID, before each certificate that was issued for it; raises OSError. Hold the lock."""
    storage.write(PROVIDER_ID_FILE, json.dumps({"providerID": assigned, "caPins": [*ca_pins]}).encode())
