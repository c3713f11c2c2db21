"""The provider ID that the controller told this node, kept in the cache directory with the certificate.

Unlike the agreed version, renewals depend on it: a file that cannot be read is an error. It counts in the cluster of
the certificate only: one of the cluster's CAs, present or previous, must be among those of the last certificate.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from nodeattest_authenticator.errors import AgentError, AgentReason
from nodeattest_authenticator.formats.strict_json import ConfigFields, FieldsError, parse_config_object
from nodeattest_authenticator.state.private_files import UnsafeFileError
from nodeattest_authenticator.state.storage import Storage
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import provider_id
from nodeattest_providers.names import ProviderID

__all__ = ["PROVIDER_ID_FILE", "ProviderIdFile"]

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
