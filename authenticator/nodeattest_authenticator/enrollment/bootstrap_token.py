"""Reads bootstrap tokens from private files."""

from __future__ import annotations

from nodeattest_authenticator.config.settings import TOKEN_FILE, Settings
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.state.cache_files import UnsafeFileError, read_private
from nodeattest_authenticator.state.storage import Storage
from nodeattest_discovery import token
from nodeattest_discovery.token import BootstrapToken
from nodeattest_providers.errors import Denied


def parse(data: bytes, *, source: str = "") -> BootstrapToken:
    """Parse one token, with white space around it. ``source`` is the prefix of messages. Raises ``AgentError``."""
    try:
        return token.parse(data.decode("ascii", "replace").strip())
    except Denied as denied:
        said = f"{source}expected a bootstrap token of the form {denied.expected}, got {denied.got}"
        raise AgentError(
            AgentReason.CONFIGURATION_INVALID, said, remedy=denied.remedy, kind=FailureKind.USAGE
        ) from None


def read(settings: Settings, storage: Storage) -> BootstrapToken:
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
    return parse(data)
