"""Bootstrap tokens as kubeadm makes them: read from a private file, never shown.

Source: k8s.io/cluster-bootstrap token/util (pattern ``[a-z0-9]{6}.[a-z0-9]{16}``); the API server names its holder
``system:bootstrap:<id>``.
"""

from __future__ import annotations

import re
from typing import Final

from nodeattest_authenticator.errors import Failure, Fate, Local
from nodeattest_authenticator.settings import TOKEN_FILE, Settings
from nodeattest_authenticator.storage import Storage
from nodeattest_authenticator.warm import UnsafeFileError, read_private

__all__ = ["parse", "read", "username"]

_PATTERN: Final = re.compile(r"[a-z0-9]{6}\.[a-z0-9]{16}")
_USER_PREFIX: Final = "system:bootstrap:"


def parse(data: bytes) -> str:
    """Accept one token with white space around it; raises ``Failure``."""
    text = data.decode("ascii", "replace").strip()
    if not _PATTERN.fullmatch(text):
        raise Failure(
            Local.CONFIGURATION_INVALID,
            "the bootstrap token has not the form of six, a dot, and sixteen lower-case letters or digits",
            remedy="take it from the bootstrap data, or make one with kubeadm token create",
            fate=Fate.USAGE,
        )
    return text


def username(token: str) -> str:
    """Name the holder as the API server does."""
    return _USER_PREFIX + token.partition(".")[0]


def read(settings: Settings, storage: Storage) -> str:
    """Read the token from its file; raises ``Failure`` when there is none or others could read it."""
    path = settings.token_file or f"{storage.path}/{TOKEN_FILE}"
    try:
        data = read_private(None, path) if settings.token_file else read_private(storage.directory, TOKEN_FILE)
    except (OSError, UnsafeFileError) as error:
        said = f"{path}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise Failure(
            Local.TOKEN_MISSING,
            f"there is no valid certificate, and the bootstrap token cannot be used: {said}",
            remedy="run kubelet-authenticator join with a fresh token (--token-file)",
        ) from None
    return parse(data)
