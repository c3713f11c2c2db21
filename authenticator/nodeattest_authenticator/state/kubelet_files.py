"""Files that join writes for kubelet: the cluster's CAs and kubelet's configuration.

Files are written atomically. A first line, which PEM and YAML parsers ignore, marks the agent's own files; others are
replaced only on request.
"""

from __future__ import annotations

import os
from typing import Final

from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.formats import pem
from nodeattest_authenticator.state.storage import make_folders, write_atomically

MARK: Final = b"# Written by kubelet-authenticator, which replaces it. To keep another file here, remove this line.\n"
PUBLIC: Final = 0o644
"""For the CAs, which pods and other users may read."""
PRIVATE: Final = 0o600


def check(path: str, *, flag: str, replace: bool) -> None:
    """Raise ``AgentError`` if the agent did not write a file and may not replace it."""
    old = read(path)
    if old is not None and not old.startswith(MARK) and not replace:
        raise foreign(path, flag=flag, replace="--replace-kubelet-files")


def foreign(path: str, *, flag: str, replace: str) -> AgentError:
    """Return the error for a file that must not be replaced."""
    return AgentError(
        AgentReason.CONFIGURATION_INVALID,
        f"{path} exists and was not written by kubelet-authenticator",
        remedy=f"move it away, choose another with {flag}, or pass {replace}",
        kind=FailureKind.USAGE,
    )


def has_cas(path: str, ca_pem: bytes) -> bool:
    """Return whether a file that the agent did not write has exactly these certificates."""
    old = read(path)
    if old is None or old.startswith(MARK):
        return False
    try:
        return set(pem.certificates(old)) == set(pem.certificates(ca_pem))
    except ValueError:
        return False


def write(path: str, content: bytes, *, mode: int) -> bool:
    """Write a file with the mark unless its content is the same. Return whether it was written."""
    return _write(path, MARK + content, mode, 0o755 if mode == PUBLIC else 0o700)


def write_private(path: str, data: bytes) -> bool:
    """Write a file without the mark unless its content is the same. Return whether it was written."""
    return _write(path, data, PRIVATE, 0o755)


def read(path: str) -> bytes | None:
    """Read a file. Return None if it does not exist. Raises ``AgentError``."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise cannot_write(path, error) from None


def _write(path: str, data: bytes, mode: int, folder_mode: int) -> bool:
    """Write a file. Missing folders get kubeadm's modes: 0755 for kubeconfigs and CAs, 0700 for kubelet's config."""
    if read(path) == data:
        return False
    try:
        make_folders(os.path.dirname(path), folder_mode, 0o755)
        write_atomically(path, data, mode=mode)
    except OSError as error:
        raise cannot_write(path, error) from None
    return True


def cannot_write(path: str, error: OSError) -> AgentError:
    """Return the error for a file that cannot be written."""
    return AgentError(
        AgentReason.CONFIGURATION_INVALID,
        f"{path} cannot be written: {error.strerror}",
        remedy="run the command as the user who runs kubelet, usually root, and free disk space if necessary",
        kind=FailureKind.USAGE,
    )
