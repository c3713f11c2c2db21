"""The unfinished request on disk: the key and the exact bytes that were filed, until the certificate is stored.

An agent that was killed, timed out or lost the reply files the same bytes under the same name again, finds its own
object there and continues; a new key would be a new request, and an issued certificate would be lost.
"""

from __future__ import annotations

import binascii
import json
from dataclasses import dataclass, field
from typing import Final, Protocol

from nodeattest_authenticator.formats.strict_json import ConfigFields, FieldsError, parse_config_object
from nodeattest_authenticator.state.private_files import UnsafeFileError
from nodeattest_authenticator.state.storage import Storage
from nodeattest_providers.errors import Denied
from nodeattest_providers.evidence_versions import HIGHEST
from nodeattest_providers.identifiers import ProviderID, provider_id
from nodeattest_providers.node_interface import JsonObject

PENDING_REQUEST_FILE: Final = "draft"
FIRST_VERSION: Final = 1
"""The version of a pending request that names none."""


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
    version: int = FIRST_VERSION
    """Of the evidence, in both requests."""
    first: SubmittedCsr | None = None
    second: SubmittedCsr | None = None
    assigned: ProviderID | None = None
    """The provider ID that the controller told, where the node knew none; part of ``purpose``."""


class PendingRequestStore(Protocol):
    """Where the pending request is kept."""

    def load(self) -> PendingRequest | None:
        """Return it; None when there is none that can be resumed."""
        ...

    def save(self, pending: PendingRequest) -> None:
        """Keep it; what cannot be kept is not an error."""
        ...

    def discard(self) -> None:
        """Forget it."""
        ...


class PendingRequestFile:
    """The pending request in the cache directory. Hold the lock."""

    def __init__(
        self, storage: Storage, *, used_key_pem: bytes | None = None, name: str = PENDING_REQUEST_FILE
    ) -> None:
        self._storage = storage
        self._name = name
        self._used = used_key_pem
        """The key of the stored credential: its request is finished, whatever a crash left behind."""

    def load(self) -> PendingRequest | None:
        """Return it; None when there is none that can be resumed."""
        try:
            data = self._storage.read(self._name)
            pending = _parse(data) if data is not None else None
        except (UnsafeFileError, FieldsError, Denied):
            return None
        return None if pending is None or pending.key_pem == self._used else pending

    def save(self, pending: PendingRequest) -> None:
        """Keep it; a full disk costs the ability to continue after a crash, not the certificate."""
        try:
            self._storage.write(self._name, _render(pending), durable=False)
        except OSError:
            return

    def discard(self) -> None:
        """Forget it."""
        self._storage.remove(self._name)


def _render(pending: PendingRequest) -> bytes:
    document: JsonObject = {
        "purpose": pending.purpose,
        "key": pending.key_pem.decode("ascii"),
        "csr": _text(pending.csr_der),
        "version": pending.version,
    }
    if pending.assigned is not None:
        document["assignedProviderID"] = pending.assigned
    for name, request in (("first", pending.first), ("second", pending.second)):
        if request is not None:
            document[name] = {"name": request.name, "request": _text(request.request)}
    return json.dumps(document).encode()


def _parse(data: bytes) -> PendingRequest:
    fields = ConfigFields(parse_config_object(data))
    key = fields.required("key")
    if not key.isascii():
        raise FieldsError("key must be PEM")
    assigned = fields.text("assignedProviderID")
    pending = PendingRequest(
        purpose=fields.required("purpose"),
        key_pem=key.encode(),
        csr_der=fields.required_octets("csr"),
        version=fields.number("version", low=1, high=HIGHEST) or FIRST_VERSION,
        first=_filed(fields.object("first")),
        second=_filed(fields.object("second")),
        assigned=None if assigned is None else provider_id(assigned),
    )
    fields.end()
    return pending


def _filed(fields: ConfigFields | None) -> SubmittedCsr | None:
    if fields is None:
        return None
    return SubmittedCsr(fields.required("name"), fields.required_octets("request"))


def _text(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()
