"""The evidence version that was agreed on, kept in the cache directory.

A hint that saves one request: what is unreadable, or was agreed with another cluster or provider, counts as nothing.

The provider ID that the controller told this node, kept in the cache directory with the certificate.

Unlike the agreed version, renewals depend on it: a file that cannot be read is an error. It counts in the cluster of
the certificate only: one of the cluster's CAs, present or previous, must be among those of the last certificate.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nodeattest_authenticator.config.settings import Settings
from nodeattest_authenticator.errors import AgentError, AgentReason
from nodeattest_authenticator.formats.strict_json import ConfigFields, FieldsError, parse_config_object
from nodeattest_authenticator.state.private_files import UnsafeFileError
from nodeattest_authenticator.state.storage import Storage
from nodeattest_providers.errors import Denied
from nodeattest_providers.evidence_versions import HIGHEST
from nodeattest_providers.identifiers import ProviderID, provider_id

AGREED_VERSION_FILE: Final = "version"
_LATEST: Final = 1 << 53
"""Seconds since the epoch: what every reader of JSON can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreedVersion:
    """The older version in which a certificate was issued last."""

    version: int
    newest: int
    """The newest that this node could make then: an agent that makes a newer one tries that."""
    since: int
    """When the newest was refused, in seconds since the epoch."""


class AgreedVersionFile:
    """The agreement of one provider with one cluster. Hold the lock to save."""

    def __init__(self, storage: Storage, settings: Settings, *, name: str = AGREED_VERSION_FILE) -> None:
        self._storage = storage
        self._name = name
        self._with_whom = f"{settings.provider} {settings.endpoint.url}"

    def load(self) -> AgreedVersion | None:
        """Return what is kept, None when that is nothing or makes no sense."""
        try:
            data = self._storage.read(self._name)
            with_whom, agreed = _parse_version(data) if data is not None else ("", None)
        except (UnsafeFileError, FieldsError):
            return None
        return agreed if with_whom == self._with_whom else None

    def save(self, agreed: AgreedVersion | None) -> None:
        """Keep it, or forget; a full disk costs one request at the next renewal."""
        try:
            if agreed is None:
                self._storage.remove(self._name)
            else:
                self._storage.write(self._name, _render(agreed, self._with_whom), durable=False)
        except OSError:
            return


def _render(agreed: AgreedVersion, with_whom: str) -> bytes:
    document = {"with": with_whom, "version": agreed.version, "newest": agreed.newest, "since": agreed.since}
    return json.dumps(document).encode()


def _parse_version(data: bytes) -> tuple[str, AgreedVersion]:
    fields = ConfigFields(parse_config_object(data))
    with_whom = fields.required("with")
    numbers = fields.number("version", low=1, high=HIGHEST), fields.number("newest", low=1, high=HIGHEST)
    since = fields.number("since", low=0, high=_LATEST)
    fields.end()
    if numbers[0] is None or numbers[1] is None or since is None:
        raise FieldsError("an agreement is not whole")
    return with_whom, AgreedVersion(version=numbers[0], newest=numbers[1], since=since)


PROVIDER_ID_FILE: Final = "provider-id"


class ProviderIdFile:
    """The answer of one cluster's controller. Hold the lock to save or remove."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def load(self, ca_pins: Sequence[str]) -> ProviderID | None:
        """Return the ID; None where there is none of the cluster with these CAs. Raises ``AgentError``."""
        try:
            data = self._storage.read(PROVIDER_ID_FILE)
            if data is None:
                return None
            assigned, pins = _parse(data)
        except (UnsafeFileError, FieldsError, Denied):
            raise AgentError(
                AgentReason.CACHE_UNSAFE,
                f"{self._storage.path}/{PROVIDER_ID_FILE}, the provider ID that the controller told, cannot be used",
                remedy="remove it and join again with a bootstrap token, or give join --provider-id",
            ) from None
        return None if pins.isdisjoint(ca_pins) else assigned

    def save(self, assigned: ProviderID, ca_pins: Sequence[str]) -> None:
        """Store the ID, before each certificate that was issued for it; raises OSError."""
        document = {"providerID": assigned, "caPins": ca_pins}
        self._storage.write(PROVIDER_ID_FILE, json.dumps(document).encode())

    def remove(self) -> None:
        """Forget the ID: the next request by a token asks the controller."""
        self._storage.remove(PROVIDER_ID_FILE)


def _parse(data: bytes) -> tuple[ProviderID, frozenset[str]]:
    fields = ConfigFields(parse_config_object(data))
    assigned = provider_id(fields.required("providerID"))
    pins = frozenset(fields.texts("caPins") or ())
    fields.end()
    return assigned, pins
