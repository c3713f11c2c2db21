"""The provider ID that the controller told this node, kept in the cache directory for every later request.

It is a commitment, unlike the agreed version: what cannot be read is an error, so that no other ID takes its place.
"""

from __future__ import annotations

import json
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
    """The answer of the controller. Hold the lock to save."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def load(self) -> ProviderID | None:
        """Return what is kept, None when there is none; raises ``AgentError``."""
        try:
            data = self._storage.read(PROVIDER_ID_FILE)
            return _parse(data) if data is not None else None
        except (UnsafeFileError, FieldsError, Denied):
            raise self._failure("cannot be used") from None

    def save(self, provider_id: ProviderID) -> None:
        """Keep it; raises ``AgentError``: without it the node could not renew."""
        try:
            self._storage.write(PROVIDER_ID_FILE, json.dumps({"providerID": provider_id}).encode())
        except OSError as error:
            raise self._failure(f"cannot be written: {error.strerror}") from None

    def _failure(self, problem: str) -> AgentError:
        return AgentError(
            AgentReason.CACHE_UNSAFE,
            f"{self._storage.path}/{PROVIDER_ID_FILE}, the provider ID that the controller told, {problem}",
            remedy="remove it and join again with a bootstrap token, or give join --provider-id",
        )


def _parse(data: bytes) -> ProviderID:
    fields = ConfigFields(parse_config_object(data))
    kept = provider_id(fields.required("providerID"))
    fields.end()
    return kept
