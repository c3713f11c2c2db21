"""The TPM: keys by template, activation, quotes, PCRs, and its NV memory.

Every error of the TPM becomes ``Unavailable`` with what to do about it. ``close`` flushes every key that was created.
Nothing is written to the TPM.
Source: TCG TPM 2.0 Library, Part 3; TCG TPM v2.0 Provisioning Guidance 1.0, §7.8; docs/wire-format.md §4.4.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Self

from nodeattest_providers.errors import Denied, Reason, platform_unavailable
from nodeattest_providers.tpm.key_templates import EndorsementTemplate
from nodeattest_providers.tpm.node import commands
from nodeattest_providers.tpm.node.commands import (
    MAX_RESPONSE,
    TpmCodeError,
    TpmConnection,
    authorisation,
    connect,
    execute,
    uint16,
    uint32,
)
from nodeattest_providers.tpm.structures import Alg, PcrSelection, digest_size, sized

_NV_CHUNK: Final = 512
"""Bytes a TPM2_NV_Read: below TPM_PT_NV_BUFFER_MAX of every TPM known."""
_NV_FIRST: Final = 0x01C00000
"""First of the NV indices that TCG reserves for endorsement certificates and their kin."""
_NV_LAST: Final = 0x01C07FFF
_PERSISTENT_FIRST: Final = 0x81010000
"""First of the persistent handles for endorsement keys (TCG TPM v2.0 Provisioning Guidance 1.0, §7.8)."""
_PERSISTENT_LAST: Final = 0x8101FFFF
_MAX_PERSISTENT: Final = 8
"""Keys there that are looked at: one a template is what exists."""
_HANDLES: Final = 1
"""TPM_CAP_HANDLES."""
_HANDLES_A_CALL: Final = 64
_POLICY: Final = 1
"""TPM_SE_POLICY."""
_NONCE: Final = 16
"""Bytes of a session's nonce, the fewest that a TPM takes (Part 3 §11.1.1)."""

_LOCKOUT: Final = 0x921
"""TPM_RC_LOCKOUT."""
_UNINITIALIZED: Final = 0x14A
"""TPM_RC_NV_UNINITIALIZED: the index was never written."""
_LAYER_SHIFT: Final = 16
"""Above it is the layer that failed, such as the kernel's resource manager; 0 is the TPM (TSS 2.0 Overview §4)."""
_FORMAT_ONE: Final = 0x80
"""The return code names a handle, parameter or session (Part 2 §6.6.3)."""
_FORMAT_ONE_ERROR: Final = 0xBF
_NO_CURVE: Final = (
    "the TPM cannot make such a key",
    "update the TPM's firmware: tpm2_getcap ecc-curves must list TPM2_ECC_NIST_P256; or set endorsementKey to auto",
)
_REMEDIES: Final = {
    _LOCKOUT: ("the TPM is in lockout", "wait for the lockout to pass, or clear it with tpm2_dictionarylockout -c"),
    0x902: ("the TPM has no room for another key", "use /dev/tpmrm0, or flush stale keys with tpm2_flushcontext -t"),
    0x903: ("the TPM has no room for another session", "use /dev/tpmrm0, or flush them with tpm2_flushcontext -l"),
    0x85: (
        "the TPM's endorsement hierarchy is disabled",
        "enable the endorsement hierarchy in the firmware's settings",
    ),
    0x101: ("the TPM is in failure mode", "power the machine off and on; if this stays, the TPM is broken"),
    0x8A: _NO_CURVE,
    0xA6: _NO_CURVE,
    0x8E: ("the TPM's endorsement hierarchy has a password", "set the endorsement hierarchy's password to empty"),
    0xA2: ("the TPM's endorsement hierarchy has a password", "set the endorsement hierarchy's password to empty"),
}
"""By return code without handle, parameter and session number (Part 2 §6.6.3)."""
_UNREADABLE: Final = {
    0x82: "TPM_RC_ATTRIBUTES",
    0x8B: "TPM_RC_HANDLE",
    0x8E: "TPM_RC_AUTH_FAIL",
    0xA2: "TPM_RC_BAD_AUTH",
    0x124: "TPM_RC_AUTH_TYPE",
    0x12F: "TPM_RC_AUTH_UNAVAILABLE",
    0x146: "TPM_RC_NV_RANGE",
    0x148: "TPM_RC_NV_LOCKED",
    0x149: "TPM_RC_NV_AUTHORIZATION",
    _UNINITIALIZED: "TPM_RC_NV_UNINITIALIZED",
}
"""Return codes for an NV index that is never written, or that nobody reads without its password or policy.

Lockout is none of them: it passes, and an index that counts as empty until then would choose another key."""
_NV_REMEDY: Final = "let it be read with an empty password (tpm2_nvreadpublic), or set endorsementKey to another key"
_REMEDY: Final = "check the TPM with tpm2_getcap properties-fixed"
_NO_CONNECTION: Final = (
    "see whether another program holds it (only /dev/tpmrm0 is shared), or whether a software TPM runs there"
)


@dataclass(frozen=True, slots=True)
class LoadedKey:
    """A key that is loaded in the TPM."""

    handle: int = field(repr=False)
    public: bytes = field(repr=False)


class Device:
    """One connection to one TPM; keys stay loaded until ``close``."""

    def __init__(self, tcti: str, *, connect: Callable[[str], TpmConnection] = connect) -> None:
        self._keys: list[LoadedKey] = []
        self._nv_indices: frozenset[int] | None = None
        self._nv: dict[int, bytes] = {}
        with _errors(f"the TPM at {tcti}"):
            self._tpm = connect(tcti)

    def close(self) -> None:
        keys, self._keys = self._keys, []
        try:
            for key in keys:
                self._flush(key.handle)
        finally:
            self._tpm.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def nv_indices(self) -> frozenset[int]:
        if self._nv_indices is None:
            with _errors("the list of NV indices"):
                self._nv_indices = frozenset(self._handles(_NV_FIRST, _NV_LAST))
        return self._nv_indices

    def _handles(self, first: int, last: int) -> Generator[int]:
        """Yield the handles in use from ``first`` to ``last``, ascending."""
        while first <= last:
            asked = uint32(_HANDLES) + uint32(first) + uint32(_HANDLES_A_CALL)
            _, answer = execute(self._tpm, commands.GET_CAPABILITY, parameters=asked)
            more, _, count = answer.number(1), answer.number(4), answer.number(4)
            for _ in range(count):
                handle = answer.number(4)
                if not first <= handle <= last:
                    return
                yield handle
                first = handle + 1
            if not more or not count:
                return

    def nv_read(self, index: int, *, is_optional: bool = True) -> bytes:
        """Read an NV index as a whole, empty where it is unwritten, or unreadable and optional; asks the TPM once."""
        if index not in self._nv:
            with _errors(f"NV index 0x{index:x}"):
                try:
                    self._nv[index] = self._nv_whole(index)
                except TpmCodeError as error:
                    name = _UNREADABLE.get(_kind(error.code))
                    if name is None:
                        raise
                    if not is_optional and error.code != _UNINITIALIZED:
                        raise platform_unavailable(
                            f"NV index 0x{index:x} cannot be read: {name}", remedy=_NV_REMEDY
                        ) from None
                    self._nv[index] = b""
                    import logging  # few nodes need it

                    logging.getLogger(__name__).warning(
                        "NV index cannot be read and counts as empty: index=0x%x code=0x%x error=%s",
                        *(index, error.code, name),
                    )
        return self._nv[index]

    def _nv_whole(self, index: int) -> bytes:
        _, answer = execute(self._tpm, commands.NV_READ_PUBLIC, index)
        answer.take(2 + 4 + 2 + 4)  # TPM2B_NV_PUBLIC: its size, the index, its nameAlg, its attributes
        answer.sized("authPolicy", MAX_RESPONSE)
        size = answer.number(2)
        return b"".join(self._nv_part(index, min(_NV_CHUNK, size - at), at) for at in range(0, size, _NV_CHUNK))

    def _nv_part(self, index: int, size: int, at: int) -> bytes:
        asked = uint16(size) + uint16(at)
        handles = (index, index)  # who authorises, and what is read
        _, answer = execute(self._tpm, commands.NV_READ, *handles, parameters=asked, authorisations=(authorisation(),))
        return answer.sized("NV data", size)

    def persistent_keys(self) -> Generator[LoadedKey]:
        """Yield the keys that the TPM keeps where endorsement keys belong; they are not flushed."""
        with _errors("the list of persistent keys"):
            handles = list(islice(self._handles(_PERSISTENT_FIRST, _PERSISTENT_LAST), _MAX_PERSISTENT))
        for handle in handles:
            with _errors(f"the key at 0x{handle:x}"):
                try:
                    _, answer = execute(self._tpm, commands.READ_PUBLIC, handle)
                except TpmCodeError:  # cannot be used: its hierarchy is disabled, or somebody took it away
                    continue
                key = LoadedKey(handle, answer.sized("public area", MAX_RESPONSE))
            yield key

    def create(self, template: bytes, what: str) -> LoadedKey:
        """Create a primary key of the endorsement hierarchy from a TPMT_PUBLIC; the same template, the same key."""
        sensitive, outside_info, creation_pcrs = sized(sized(b"") + sized(b"")), sized(b""), uint32(0)
        with _errors(what):
            handle, answer = execute(
                self._tpm,
                commands.CREATE_PRIMARY,
                commands.ENDORSEMENT,
                parameters=sensitive + sized(template) + outside_info + creation_pcrs,
                authorisations=(authorisation(),),
                returns_handle=True,
            )
            self._keys.append(LoadedKey(handle, b""))  # to be flushed, whatever the rest of the response is
            self._keys[-1] = LoadedKey(handle, answer.sized("public area", MAX_RESPONSE))
            return self._keys[-1]

    def activate(
        self, ek: LoadedKey, ak: LoadedKey, template: EndorsementTemplate, blob: bytes, secret: bytes
    ) -> bytes:
        """Decrypt a credential; ``Denied`` where the TPM says that it is for other keys."""
        with _errors("the endorsement key's authorisation"):
            session = self._policy_session(template)
        with _errors("activation"):
            try:
                _, answer = execute(
                    self._tpm,
                    commands.ACTIVATE_CREDENTIAL,
                    ak.handle,
                    ek.handle,
                    parameters=sized(blob) + sized(secret),
                    authorisations=(authorisation(), authorisation(session)),
                )
            except TpmCodeError as error:
                self._flush(session)  # a TPM without resource manager has three places
                if error.code == _LOCKOUT or error.code >> _LAYER_SHIFT:
                    raise
                refused = error.code
            else:
                return answer.sized("certInfo", MAX_RESPONSE)
        # Which error comes depends on what is wrong; all of them say that this is not for us.
        raise Denied(
            Reason.CHALLENGE_UNKNOWN,
            expected="a challenge for this TPM's keys",
            got=f"one that the TPM refuses, 0x{refused:x}",
            remedy="wait for the controller to publish the challenge again",
        )

    def _policy_session(self, template: EndorsementTemplate) -> int:
        """Satisfy the endorsement key's policy: PolicySecret of its hierarchy, in the high range a branch of an OR."""
        nonce, salt, algorithms = os.urandom(_NONCE), b"", uint16(Alg.NULL) + uint16(template.name_alg)
        session, _ = execute(
            self._tpm,
            commands.START_AUTH_SESSION,
            commands.NULL,
            commands.NULL,
            parameters=sized(nonce) + sized(salt) + bytes([_POLICY]) + algorithms,
            returns_handle=True,
        )
        try:
            # Neither nonceTPM, cpHashA nor policyRef, and no expiration: the session is used once, and at once.
            execute(
                self._tpm,
                commands.POLICY_SECRET,
                commands.ENDORSEMENT,
                session,
                parameters=3 * sized(b"") + uint32(0),
                authorisations=(authorisation(),),
            )
            if template.policy_branches:
                branches = b"".join(map(sized, template.policy_branches))
                listed = uint32(len(template.policy_branches)) + branches
                execute(self._tpm, commands.POLICY_OR, session, parameters=listed)
        except TpmCodeError:
            self._flush(session)
            raise
        return session

    def quote(self, ak: LoadedKey, selection: PcrSelection, extra_data: bytes) -> tuple[bytes, bytes]:
        with _errors("the quote"):
            scheme = uint16(Alg.NULL)  # the key's own
            asked = sized(extra_data) + scheme + selection.marshal()
            _, answer = execute(
                self._tpm, commands.QUOTE, ak.handle, parameters=asked, authorisations=(authorisation(),)
            )
            return answer.sized("quote", MAX_RESPONSE), answer.take(answer.remaining)

    def read_pcrs(self, selection: PcrSelection) -> tuple[bytes, ...]:
        values: list[bytes] = []
        remaining = selection.pcrs
        with _errors("the PCRs"):
            while remaining:
                part = PcrSelection(selection.bank, remaining)
                _, answer = execute(self._tpm, commands.PCR_READ, parameters=part.marshal())
                answer.take(4)  # how often PCRs changed
                PcrSelection.read(answer)  # what was read: the quote tells if it is not the first of what was asked
                read = [answer.sized("PCR", MAX_RESPONSE) for _ in range(answer.number(4))]  # at most 8 a call
                if not read:
                    raise platform_unavailable(
                        f"the TPM has no {selection.bank.name} bank of {digest_size(selection.bank)}-byte PCRs",
                        remedy="activate that bank in the firmware's settings, or name an active one in the policy's "
                        "spec.tpm.pcrs.bank",
                    )
                values += read
                remaining = remaining[len(read) :]
        return tuple(values)

    def _flush(self, handle: int) -> None:
        with suppress(TpmCodeError, Denied, OSError):  # a TPM that is gone holds nothing of ours
            execute(self._tpm, commands.FLUSH_CONTEXT, handle)


@contextmanager
def _errors(what: str) -> Generator[None]:
    """Turn errors of the TPM, and of the way to it, into ``Unavailable``: the one place where they stop."""
    try:
        yield
    except TpmCodeError as error:
        unknown = f"TPM error 0x{error.code:x}, which tpm2_rc_decode 0x{error.code:x} explains"
        detail, remedy = _REMEDIES.get(_kind(error.code), (unknown, _REMEDY))
        raise platform_unavailable(f"{what}: {detail}", remedy=remedy) from None
    except Denied as error:
        raise platform_unavailable(f"{what}: expected {error.expected}, got {error.got}", remedy=_REMEDY) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise platform_unavailable(f"{what}: no connection to the TPM ({reason})", remedy=_NO_CONNECTION) from None


def _kind(code: int) -> int:
    """Drop the number of the handle, parameter or session from a return code."""
    return code & _FORMAT_ONE_ERROR if code & _FORMAT_ONE else code
