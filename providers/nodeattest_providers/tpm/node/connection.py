"""How commands reach a TPM: the kernel's device, or the socket of a software TPM, without a library.

Source: Linux drivers/char/tpm/tpm-dev-common.c (a command is one write, its response one read); swtpm(8), "--server".
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Final, Protocol

from nodeattest_providers.errors import platform_unavailable

if TYPE_CHECKING:
    import socket

MAX_RESPONSE: Final = 4096
"""TPM_BUFSIZE of the kernel's driver, and TPM_PT_MAX_RESPONSE_SIZE of every TPM known."""
_HEADER: Final = 10
_SIZE: Final = slice(2, 6)


class TpmConnection(Protocol):
    """Exchanges with one TPM."""

    def exchange(self, command: bytes) -> bytes:
        """Send a command and return its response; raises OSError."""
        ...

    def close(self) -> None:
        """Disconnect; harmless when done twice."""
        ...


def connect(tcti: str) -> TpmConnection:
    """Connect to ``device:PATH`` or ``swtpm:path=SOCKET``; raises ``Unavailable`` and OSError."""
    kind, _, where = tcti.partition(":")
    if kind == "device" and where:
        return _Device(where)
    key, _, path = where.partition("=")
    if kind == "swtpm" and key == "path" and path:
        return _SoftwareTpm(path)
    raise platform_unavailable(
        f"the TCTI {kind} is not known here",
        remedy="set tcti to the kernel's device, device:/dev/tpmrm0, or to a software TPM, swtpm:path=SOCKET",
    )


class _Device:
    """A character device of the kernel."""

    def __init__(self, path: str) -> None:
        _check_path(path)
        self._file = io.FileIO(path, "r+")  # unbuffered: one call is one of the kernel's

    def exchange(self, command: bytes) -> bytes:
        if self._file.write(command) != len(command):
            raise OSError("a command was written in part")
        return self._file.read(MAX_RESPONSE)

    def close(self) -> None:
        self._file.close()


class _SoftwareTpm:
    """The data channel of swtpm."""

    def __init__(self, path: str) -> None:
        import socket

        self._socket: socket.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except BaseException:  # the watchdog may end it here, too
            self._socket.close()
            raise

    def exchange(self, command: bytes) -> bytes:
        self._socket.sendall(command)
        header = self._receive(_HEADER)
        size = int.from_bytes(header[_SIZE], "big")
        return header + self._receive(min(size, MAX_RESPONSE) - _HEADER)

    def _receive(self, count: int) -> bytes:
        received = b""
        while len(received) < count:
            part = self._socket.recv(count - len(received))
            if not part:
                raise ConnectionResetError("the software TPM hung up")
            received += part
        return received

    def close(self) -> None:
        self._socket.close()


def _check_path(path: str) -> None:
    """Say plainly what is missing."""
    if not os.access(path, os.F_OK):
        raise platform_unavailable(
            f"there is no TPM at {path}", remedy="enable the TPM in the firmware's settings, or set tcti to where it is"
        )
    if not os.access(path, os.R_OK | os.W_OK):
        raise platform_unavailable(
            f"no permission to use the TPM at {path}", remedy="run as root, or as a member of the device's group (tss)"
        )
