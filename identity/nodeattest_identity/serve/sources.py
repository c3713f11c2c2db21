"""Sources of an issuer's keys: files, or the API server whose tokens they verify.

Promises: all keys or none; an error is one line that quotes no key. An API server is trusted for the one issuer that is
expected of it, byte for byte, so that no cluster publishes keys for another's tokens. Its key set is read from itself,
never from the URL in its configuration.
Leaves to others: when to read, and what to do on errors (``poller``).
Source: Kubernetes pkg/routes/openidmetadata.go: the two paths, and ``Accept``, which has to name the key set's type;
pkg/serviceaccount/openidmetadata.go: one key of an unknown kind disables both documents, as a bad issuer does.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from nodeattest_identity.issuer.documents import CONFIGURATION_TYPE, JWKS_TYPE, DocumentError, parse_configuration
from nodeattest_identity.issuer.keys import MAX_SIZE, KeysError, VerifyingKey, deduplicate, read_jwks, read_pem
from nodeattest_identity.issuer.urls import CONFIGURATION_PATH, JWKS_PATH
from nodeattest_kube.client import ApiClient, ApiError, Forbidden, NotFound, Unreachable
from nodeattest_serving.tls import stamp

__all__ = ["KeyFileReader", "SourceError", "read_api_server"]

_MAX_CONFIGURATION: Final = 64 * 1024
_State = tuple[tuple[int, int, int] | None, ...]


class SourceError(Exception):
    """Keys cannot be read; ``outcome`` is a metric label of a closed set."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class KeyFileReader:
    """Keys in files of ``--service-account-key-file``, in the order of the flags."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)
        self._taken: _State = ()
        """State of the files when their keys were last returned."""
        self._seen: _State | None = None
        """State of the files at the last check; None: before the first."""

    async def read(self) -> tuple[VerifyingKey, ...] | None:
        """Read the files; None: unchanged. Raises ``SourceError``.

        Changed files are read once they are the same in two checks: a half-finished write must not remove keys.
        """
        state = tuple(stamp(file) for file in self._files)
        first, self._seen, before = self._seen is None, state, self._seen
        if state == self._taken or not (first or state == before):
            return None
        try:
            keys = deduplicate(key for file in self._files for key in _keys(file))
        except KeysError as error:
            raise SourceError("unusable", str(error)) from None
        if state != tuple(stamp(file) for file in self._files):
            return None
        self._taken = state
        return keys


def _keys(file: Path) -> tuple[VerifyingKey, ...]:
    """Read one file; raises ``KeysError`` or ``SourceError``, which name it."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise SourceError("unreadable", f"{file}: expected a file, got something else")
        with file.open("rb") as opened:
            data = opened.read(MAX_SIZE + 1)
    except OSError as error:
        raise SourceError("unreadable", f"{file}: expected a file with keys, got {error.strerror}") from None
    try:
        return read_pem(data)
    except KeysError as error:
        raise KeysError(f"{file}: {error}") from None


async def read_api_server(client: ApiClient, issuer: str) -> tuple[VerifyingKey, ...]:
    """Read the keys of a cluster's service accounts; raises ``SourceError``.

    1. Its configuration names this issuer. 2. Its own key set can be served as it is.
    """
    try:
        # 1
        said = await client.document(CONFIGURATION_PATH, accept=CONFIGURATION_TYPE, limit=_MAX_CONFIGURATION)
        theirs = parse_configuration(said).issuer
        if theirs != issuer:
            raise SourceError(
                "other-issuer",
                f"expected an API server with --service-account-issuer={issuer} as its first, got {theirs[:200]!a}",
            )
        # 2
        return read_jwks(await client.document(JWKS_PATH, accept=JWKS_TYPE, limit=MAX_SIZE))
    except (DocumentError, KeysError) as error:
        raise SourceError("unusable", f"its API server: {error}") from None
    except ApiError as error:
        raise SourceError(*_refused(error)) from None


def _refused(error: ApiError) -> tuple[str, str]:
    """Return the outcome and the message of an API error."""
    match error:
        case Forbidden():
            return "forbidden", f"{error}; apply manifests/workload-issuer in the workload cluster"
        case NotFound():
            return "absent", (
                f"{error}; expected an API server whose --service-account-issuer is an https URL without query and "
                "fragment, and whose keys of --service-account-key-file are all RSA, P-256, P-384 or P-521: for any "
                "other issuer, and with any other key among them, it serves no documents, and its log says why"
            )
        case Unreachable():
            return "unreachable", str(error)
        case _:
            return "refused", str(error)
