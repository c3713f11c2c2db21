"""Other ways to a TPM than ``connection`` has: the TCTIs of tpm2-tss, through tpm2-pytss, as a transport only.

Promises: whole commands go out and whole responses of bounded size come back; every error of the library is an
``OSError`` or ``Unavailable``. The only module that imports ``tpm2_pytss``, and that when a TCTI needs it.
Source: TCG TSS 2.0 TPM Command Transmission Interface API; Tss2_TctiLdr_Initialize_Ex(3).
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from nodeattest_providers.errors import Reason, Unavailable

_NOT_SUPPORTED: Final = 0xA0015
"""TSS2_TCTI_RC_NOT_SUPPORTED: no library has this name."""


class LibraryConnection:
    """A TCTI that libtss2-tctildr finds by its name."""

    def __init__(self, name: str, configuration: str, *, most: int) -> None:
        """Load the TCTI and connect; ``most``: bytes of a response. Raises ``Unavailable`` and OSError."""
        self._most = most
        self._tss = _load()
        with self._errors(name):
            self._tcti: Any = self._tss.TCTILdr(os.fsencode(name), os.fsencode(configuration) or None)  # has no types

    def exchange(self, command: bytes) -> bytes:
        """Send a command and return its response; raises OSError."""
        if self._tcti is None:
            raise OSError("it is closed")  # the library would use memory that it freed
        with self._errors():
            self._tcti.transmit(command)
            return self._tcti.receive(self._most)

    def close(self) -> None:
        """Disconnect; harmless when done twice."""
        tcti, self._tcti = self._tcti, None
        if tcti is not None:
            tcti.close()

    @contextmanager
    def _errors(self, name: str = "") -> Generator[None]:
        try:
            yield
        except self._tss.TSS2_Exception as error:
            if name and error.rc == _NOT_SUPPORTED:
                raise Unavailable(
                    Reason.PLATFORM_UNAVAILABLE,
                    f"the TCTI {name} is not known here",
                    remedy="name one that is installed (packages libtss2-tcti-*), or the TPM itself, "
                    "device:/dev/tpmrm0",
                ) from None
            raise OSError(str(error)) from None


def _load() -> ModuleType:
    """Import the library, without its habit of logging to stderr."""
    os.environ.setdefault("TSS2_LOG", "all+none")  # read by libtss2; an operator's own setting stays
    try:
        import tpm2_pytss
    except ImportError as error:
        raise Unavailable(
            Reason.PLATFORM_UNAVAILABLE,
            f"the library for this TCTI is missing ({error.name or 'tpm2_pytss'})",
            remedy="install requirements-agent-tpm.txt of the release (extra tpm; docs/install.md), or set tcti to "
            "device:/dev/tpmrm0 or swtpm:path=SOCKET, which need no library",
        ) from None
    return tpm2_pytss
