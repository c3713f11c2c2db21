"""TPM 2.0 commands and responses as bytes, and their way to the kernel's device or a software TPM, without a library.

Source: TCG TPM 2.0 Library, Part 1 §18, §19.4; Part 2 §6.5.2, §6.6.3, §6.9, §6.11, §7.4, §8.4; Linux
drivers/char/tpm/tpm-dev-common.c (a command is one write, its response one read); swtpm(8), "--server".
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Final, Protocol

from nodeattest_providers.errors import Reason, platform_unavailable
from nodeattest_providers.tpm.structures import Reader, sized

if TYPE_CHECKING:
    import socket


MAX_RESPONSE: Final = 4096
"""TPM_BUFSIZE of the kernel's driver, and TPM_PT_MAX_RESPONSE_SIZE of every TPM known."""
_HEADER_SIZE: Final = 10
_SIZE: Final = slice(2, 6)


class TpmConnection(Protocol):
    """Exchanges with one TPM."""

    def exchange(self, command: bytes) -> bytes:
        """Send a command and return its response; raises OSError."""
        ...

    def close(self) -> None: ...


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
        header = self._receive(_HEADER_SIZE)
        size = int.from_bytes(header[_SIZE], "big")
        return header + self._receive(min(size, MAX_RESPONSE) - _HEADER_SIZE)

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
    if not os.access(path, os.F_OK):
        raise platform_unavailable(
            f"there is no TPM at {path}", remedy="enable the TPM in the firmware's settings, or set tcti to where it is"
        )
    if not os.access(path, os.R_OK | os.W_OK):
        raise platform_unavailable(
            f"no permission to use the TPM at {path}", remedy="run as root, or as a member of the device's group (tss)"
        )


CREATE_PRIMARY: Final = 0x131
ACTIVATE_CREDENTIAL: Final = 0x147
NV_READ: Final = 0x14E
POLICY_SECRET: Final = 0x151
QUOTE: Final = 0x158
FLUSH_CONTEXT: Final = 0x165
NV_READ_PUBLIC: Final = 0x169
POLICY_OR: Final = 0x171
READ_PUBLIC: Final = 0x173
START_AUTH_SESSION: Final = 0x176
GET_CAPABILITY: Final = 0x17A
PCR_READ: Final = 0x17E

NULL: Final = 0x40000007
PASSWORD: Final = 0x40000009
"""TPM_RS_PW: the session handle of a password."""
ENDORSEMENT: Final = 0x4000000B

_NO_SESSIONS: Final = 0x8001
_SESSIONS: Final = 0x8002
_HEADER: Final = 10
_AGAIN: Final = frozenset({0x908, 0x90A, 0x922})
"""TPM_RC_YIELDED, TPM_RC_TESTING and TPM_RC_RETRY: the command did not start, and is to be sent again."""
_SUBMISSIONS: Final = 5
"""As libtss2 does (_ESYS_MAX_SUBMISSIONS)."""


class TpmCodeError(Exception):
    """The TPM, or the resource manager before it, answered with a return code other than success."""

    def __init__(self, code: int) -> None:
        super().__init__(f"0x{code:x}")
        self.code = code


def uint16(value: int) -> bytes:
    return value.to_bytes(2, "big")


def uint32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def authorisation(session: int = PASSWORD) -> bytes:
    """Write a TPMS_AUTH_COMMAND with an empty nonce, no attribute, and an empty password or HMAC.

    Without ``continueSession`` a policy session ends with the command that it authorised.
    """
    return uint32(session) + sized(b"") + b"\x00" + sized(b"")


def execute(
    connection: TpmConnection,
    command: int,
    *handles: int,
    parameters: bytes = b"",
    authorisations: tuple[bytes, ...] = (),
    returns_handle: bool = False,
) -> tuple[int, Reader]:
    """Send a command; returns the response's handle (0 where it has none) and its parameters.

    Raises ``TpmCodeError``, ``Denied`` for a response that is none, and ``OSError``.
    """
    body = b"".join(map(uint32, handles))
    if authorisations:
        area = b"".join(authorisations)
        body += uint32(len(area)) + area
    body += parameters
    tag = _SESSIONS if authorisations else _NO_SESSIONS
    answer = _answer(connection, uint16(tag) + uint32(_HEADER + len(body)) + uint32(command) + body, tag)
    handle = answer.number(4) if returns_handle else 0
    if not authorisations:
        return handle, answer
    size = answer.number(4)
    return handle, _reader(answer.take(size))  # an authorisation follows, which proves nothing without a secret


def _answer(connection: TpmConnection, command: bytes, tag: int) -> Reader:
    """Exchange until the TPM takes the command; returns what follows the header of a success."""
    code = 0
    for _ in range(_SUBMISSIONS):
        response = connection.exchange(command)
        answer = _reader(response)
        got, size, code = answer.number(2), answer.number(4), answer.number(4)
        if size != len(response) or size > MAX_RESPONSE:
            raise answer.wrong(f"the size that it says, {size}", f"{len(response)} bytes")
        if code == 0:
            if got != tag:
                raise answer.wrong(f"tag 0x{tag:04x}", f"0x{got:04x}")
            return answer
        if code not in _AGAIN:
            break
    raise TpmCodeError(code)


def _reader(data: bytes) -> Reader:
    return Reader(data, what="the TPM's response", reason=Reason.PLATFORM_UNAVAILABLE)
