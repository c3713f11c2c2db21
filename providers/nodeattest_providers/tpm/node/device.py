"""The TPM itself, through libtss2's ESAPI: keys by template, activation, quotes, PCRs, NV certificates.

Promises: every error of the TPM software stack becomes ``Unavailable`` with what to do about it; every handle that was
opened is flushed on ``close``, whatever happened; nothing is written to the TPM. The only module that imports
``tpm2_pytss``, and that on opening, so that importing this page costs nothing.
Leaves to others: which keys and what to quote (``attestor``).
Source: TCG TPM 2.0 Library, Part 3; TSS 2.0 ESAPI; docs/tpm-protocol.md §4 (6, 16).
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final, Protocol, Self

from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.tpm.key_templates import EndorsementTemplate
from nodeattest_providers.tpm.structures import Alg, PcrSelection, digest_size

__all__ = ["Device", "LoadedKey"]

_NV_CHUNK: Final = 512
"""Bytes a TPM2_NV_Read: below TPM_PT_NV_BUFFER_MAX of every TPM known."""
_NV_FIRST: Final = 0x01C00000
"""First of the NV indices that TCG reserves for endorsement certificates and their kin."""
_NV_LAST: Final = 0x01C07FFF
_HANDLES_A_CALL: Final = 64

_LOCKOUT: Final = 0x921
"""TPM_RC_LOCKOUT."""
_LAYER_SHIFT: Final = 16
"""Above it is the layer of the software stack that failed; 0 is the TPM itself (TSS 2.0 Overview §4)."""
_REMEDIES: Final = {
    _LOCKOUT: ("the TPM is in lockout", "wait for the lockout to pass, or clear it with tpm2_dictionarylockout -c"),
    0x902: ("the TPM has no room for another key", "use /dev/tpmrm0, or flush stale keys with tpm2_flushcontext -t"),
    0x903: ("the TPM has no room for another session", "use /dev/tpmrm0, or flush them with tpm2_flushcontext -l"),
    0x85: (
        "the TPM's endorsement hierarchy is disabled",
        "enable the endorsement hierarchy in the firmware's settings",
    ),
    0x101: ("the TPM is in failure mode", "power the machine off and on; if this stays, the TPM is broken"),
    0xA000A: (
        "no connection to the TPM (tcti:IO failure)",
        "see whether another program holds it (only /dev/tpmrm0 is shared), or whether a software TPM runs there",
    ),
    0xA0015: (
        "the TCTI is not known here",
        "name one that is installed, such as device:/dev/tpmrm0 or swtpm:path=SOCKET (packages libtss2-tcti-*)",
    ),
    0x8E: ("the TPM's endorsement hierarchy has a password", "set the endorsement hierarchy's password to empty"),
    0xA2: ("the TPM's endorsement hierarchy has a password", "set the endorsement hierarchy's password to empty"),
}
"""By return code without handle, parameter and session number (Part 2 §6.6.3); the TCTI's with its layer."""
_REMEDY: Final = "check the TPM with tpm2_getcap properties-fixed"


@dataclass(frozen=True, slots=True)
class LoadedKey:
    """A key that is loaded in the TPM."""

    handle: object = field(repr=False)
    public: bytes = field(repr=False)
    """TPMT_PUBLIC."""


class Device:
    """One connection to one TPM; keys stay loaded until ``close``."""

    def __init__(self, tcti: str) -> None:
        """Connect through a TCTI such as ``device:/dev/tpmrm0``; raises ``Unavailable``."""
        _check_path(tcti)
        self._tss = _load()
        self._keys: list[LoadedKey] = []
        with self._errors(f"the TPM at {tcti}"):
            self._esys: Any = self._tss.ESAPI(tcti)  # the library has no types; this class gives them

    def close(self) -> None:
        """Flush every key and disconnect; harmless when done twice."""
        keys, self._keys = self._keys, []
        if self._esys.is_closed():
            return
        try:
            for key in keys:
                with suppress(self._tss.TSS2_Exception):  # a TPM that is gone holds nothing of ours
                    self._esys.flush_context(key.handle)
        finally:
            self._esys.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def nv_indices(self) -> frozenset[int]:
        """List the NV indices of endorsement certificates and their kin."""
        found: set[int] = set()
        start = _NV_FIRST
        with self._errors("the list of NV indices"):
            while True:
                more, capability = self._esys.get_capability(self._tss.TPM2_CAP.HANDLES, start, _HANDLES_A_CALL)
                # ``data.handles`` points into ``capability``, which must outlive it.
                handles = [int(handle) for handle in capability.data.handles]
                found.update(handle for handle in handles if handle <= _NV_LAST)
                if not more or not handles or handles[-1] > _NV_LAST:
                    return frozenset(found)
                start = handles[-1] + 1

    def nv_read(self, index: int) -> bytes:
        """Read an NV index as a whole."""
        with self._errors(f"NV index 0x{index:x}"):
            handle = self._esys.tr_from_tpmpublic(self._tss.TPM2_HANDLE(index))
            try:
                public, _ = self._esys.nv_read_public(handle)
                size = int(public.nvPublic.dataSize)
                chunks = [
                    bytes(self._esys.nv_read(handle, min(_NV_CHUNK, size - at), at)) for at in range(0, size, _NV_CHUNK)
                ]
            finally:
                self._esys.tr_close(handle)
        return b"".join(chunks)

    def create(self, template: bytes, what: str) -> LoadedKey:
        """Create a primary key of the endorsement hierarchy from a TPMT_PUBLIC; the same template, the same key."""
        with self._errors(what):
            area, _ = self._tss.TPMT_PUBLIC.unmarshal(template)
            public = self._tss.TPM2B_PUBLIC(publicArea=area)
            handle, created, *_ = self._esys.create_primary(None, public, self._tss.ESYS_TR.ENDORSEMENT)
            key = LoadedKey(handle, bytes(created.publicArea.marshal()))
            self._keys.append(key)
            return key

    def activate(
        self, ek: LoadedKey, ak: LoadedKey, template: EndorsementTemplate, blob: bytes, secret: bytes
    ) -> bytes:
        """Decrypt a credential; ``Denied`` where the TPM says that it is for other keys."""
        with self._errors("the endorsement key's authorisation"):
            session = self._policy_session(template)
        try:
            return bytes(
                self._esys.activate_credential(
                    ak.handle,
                    ek.handle,
                    self._tss.TPM2B_ID_OBJECT(blob),
                    self._tss.TPM2B_ENCRYPTED_SECRET(secret),
                    session2=session,
                )
            )
        except self._tss.TSS2_Exception as error:
            if error.error == _LOCKOUT or error.rc >> _LAYER_SHIFT:
                raise _unavailable("activation", error) from None
            # Which error comes depends on what is wrong (TPM protocol §4.6); all of them say that this is not for us.
            raise Denied(
                Reason.CHALLENGE_UNKNOWN,
                expected="a challenge for this TPM's keys",
                got=f"one that the TPM refuses, 0x{error.rc:x}",
                remedy="wait for the controller to publish the challenge again",
            ) from None
        finally:
            with suppress(self._tss.TSS2_Exception):
                self._esys.flush_context(session)  # a TPM without resource manager has three places

    def _policy_session(self, template: EndorsementTemplate) -> object:
        """Satisfy the endorsement key's policy: PolicySecret of its hierarchy, in the high range a branch of an OR."""
        tss = self._tss
        session = self._esys.start_auth_session(
            tss.ESYS_TR.NONE, tss.ESYS_TR.NONE, tss.TPM2_SE.POLICY, None, tss.TPM2_ALG(template.name_alg)
        )
        try:
            self._esys.policy_secret(tss.ESYS_TR.ENDORSEMENT, session)
            if template.policy_branches:
                branches = [tss.TPM2B_DIGEST(branch) for branch in template.policy_branches]
                self._esys.policy_or(session, tss.TPML_DIGEST(branches))
        except tss.TSS2_Exception:
            self._esys.flush_context(session)
            raise
        return session

    def quote(self, ak: LoadedKey, selection: PcrSelection, extra_data: bytes) -> tuple[bytes, bytes]:
        """Quote PCRs; returns TPMS_ATTEST and TPMT_SIGNATURE."""
        with self._errors("the quote"):
            selected, _ = self._tss.TPML_PCR_SELECTION.unmarshal(selection.marshal())
            attest, signature = self._esys.quote(ak.handle, selected, extra_data)
            return bytes(attest), bytes(signature.marshal())

    def read_pcrs(self, selection: PcrSelection) -> tuple[bytes, ...]:
        """Read PCR values in the selection's order."""
        values: list[bytes] = []
        remaining = selection.pcrs
        with self._errors("the PCRs"):
            while remaining:
                part = PcrSelection(selection.bank, remaining)
                selected, _ = self._tss.TPML_PCR_SELECTION.unmarshal(part.marshal())
                _, _, digests = self._esys.pcr_read(selected)  # at most 8 a call
                read = [bytes(digest) for digest in digests]
                if not read:
                    raise _bank_inactive(selection.bank)
                values += read
                remaining = remaining[len(read) :]
        return tuple(values)

    @contextmanager
    def _errors(self, what: str) -> Generator[None]:
        """Turn the software stack's errors into ``Unavailable``: the one place where they stop."""
        try:
            yield
        except self._tss.TSS2_Exception as error:
            raise _unavailable(what, error) from None


class _TssError(Protocol):
    """The software stack's exception; as text it is the library's own message for the code, and nothing else."""

    error: int
    rc: int


def _unavailable(what: str, error: _TssError) -> Unavailable:
    detail, remedy = _REMEDIES.get(error.error, (f"TPM error 0x{error.rc:x} ({error})", _REMEDY))
    return Unavailable(Reason.PLATFORM_UNAVAILABLE, f"{what}: {detail}", remedy=remedy)


def _bank_inactive(bank: Alg) -> Unavailable:
    return Unavailable(
        Reason.PLATFORM_UNAVAILABLE,
        f"the TPM has no {bank.name} bank of {digest_size(bank)}-byte PCRs",
        remedy="activate the PCR bank that the policy's pcrs name, in the firmware's settings",
    )


def _check_path(tcti: str) -> None:
    """Say plainly what libtss2 would report as an I/O error."""
    kind, _, path = tcti.partition(":")
    if kind != "device" or not path:
        return
    if not os.access(path, os.F_OK):
        raise Unavailable(
            Reason.PLATFORM_UNAVAILABLE,
            f"there is no TPM at {path}",
            remedy="enable the TPM in the firmware's settings, or set tcti to where it is",
        )
    if not os.access(path, os.R_OK | os.W_OK):
        raise Unavailable(
            Reason.PLATFORM_UNAVAILABLE,
            f"no permission to use the TPM at {path}",
            remedy="run as root, or as a member of the device's group (tss)",
        )


def _load() -> ModuleType:
    """Import the software stack, without its habit of logging to stderr."""
    os.environ.setdefault("TSS2_LOG", "all+none")  # read by libtss2; an operator's own setting stays
    try:
        import tpm2_pytss
    except ImportError as error:
        raise Unavailable(
            Reason.PLATFORM_UNAVAILABLE,
            f"the TPM software stack is missing ({error.name or 'tpm2_pytss'})",
            remedy="install the packages for machines of the release (docs/install.md), which bring it along",
        ) from None
    return tpm2_pytss
