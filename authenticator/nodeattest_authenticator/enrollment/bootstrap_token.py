"""Bootstrap tokens, as ``nodeattest_discovery.token`` has them: read from a private file, never shown."""

from __future__ import annotations

from nodeattest_authenticator.config.settings import TOKEN_FILE, Settings
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.state.cache_files import UnsafeFileError, read_private
from nodeattest_authenticator.state.storage import Storage
from nodeattest_discovery import token
from nodeattest_discovery.token import BootstrapToken
from nodeattest_providers.errors import Denied


def parse(data: bytes, *, source: str = "") -> BootstrapToken:
    """Accept one token with white space around it; ``source`` begins the message. Raises ``AgentError``."""
    try:
        return token.parse(data.decode("ascii", "replace").strip())
    except Denied as denied:
        said = f"{source}the bootstrap token has not the form of {denied.expected}: it has {denied.got}"
        raise AgentError(
            AgentReason.CONFIGURATION_INVALID, said, remedy=denied.remedy, kind=FailureKind.USAGE
        ) from None


def read(settings: Settings, storage: Storage) -> BootstrapToken:
    """Read the token from its file; raises ``AgentError`` when there is none or others could read it."""
    path = settings.token_file or f"{storage.path}/{TOKEN_FILE}"
    try:
        data = read_private(None, path) if settings.token_file else read_private(storage.directory, TOKEN_FILE)
    except (OSError, UnsafeFileError) as error:
        said = f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise AgentError(
            AgentReason.TOKEN_MISSING,
            f"there is no valid certificate, and the bootstrap token cannot be used: {said}",
            remedy="run kubelet-authenticator join with a fresh token (--token-file)",
        ) from None
    return parse(data)
