"""Target of a TPM's responses: whatever a TPM, or what stands in for it, answers to the agent's commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fuzz.target import Target, require
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.tpm.key_templates import AK_TEMPLATE, EK_TEMPLATES
from nodeattest_providers.tpm.node import commands
from nodeattest_providers.tpm.node.connection import MAX_RESPONSE
from nodeattest_providers.tpm.node.device import Device, LoadedKey
from nodeattest_providers.tpm.structures import Alg, PcrSelection

_HEADER: Final = 10
_NV_INDICES: Final = range(0x01C00000, 0x01C08000)
_MOST_KEPT: Final = 8
_LARGEST_INDEX: Final = (1 << 16) - 1
_KEY: Final = LoadedKey(0x80000001, b"")
_HIGH_RANGE: Final = next(template for template in EK_TEMPLATES if template.policy_branches)
_SELECTION: Final = PcrSelection(Alg.SHA256, tuple(range(24)))


class ScriptedTpm:
    """Gives prepared bytes as responses: each as long as it says, or all that is left, until none is left."""

    def __init__(self, responses: bytes) -> None:
        self.sent: list[bytes] = []
        self._left = memoryview(responses)

    def exchange(self, command: bytes) -> bytes:
        """Take a command, and answer with the next response."""
        self.sent.append(command)
        if not self._left:
            raise ConnectionResetError("no response is left")
        size = int.from_bytes(self._left[2:6], "big")
        size = size if _HEADER <= size <= MAX_RESPONSE else MAX_RESPONSE
        response, self._left = bytes(self._left[:size]), self._left[size:]
        return response

    def close(self) -> None:
        """Do nothing."""


def _list(device: Device) -> None:
    require(all(index in _NV_INDICES for index in device.nv_indices()), "indices that were asked for")


def _read(device: Device) -> None:
    require(len(device.nv_read(_NV_INDICES[2])) <= _LARGEST_INDEX, "no more than an index can have")


def _kept(device: Device) -> None:
    require(len(list(device.persistent_keys())) <= _MOST_KEPT, "few keys")


def _create(device: Device) -> None:
    require(len(device.create(AK_TEMPLATE, "the key").public) <= MAX_RESPONSE, "a public area")


def _activate(device: Device) -> None:
    try:
        device.activate(_KEY, _KEY, _HIGH_RANGE, bytes(84), bytes(68))
    except Denied as denied:
        require(denied.reason is Reason.CHALLENGE_UNKNOWN, "ChallengeUnknown for a challenge")
        raise


def _quote(device: Device) -> None:
    device.quote(_KEY, _SELECTION, bytes(32))


def _pcrs(device: Device) -> None:
    require(len(device.read_pcrs(_SELECTION)) >= len(_SELECTION.pcrs), "a value for each PCR")


OPERATIONS: Final[tuple[Callable[[Device], None], ...]] = (_list, _read, _kept, _create, _activate, _quote, _pcrs)
"""By the first byte of an input; the others are the responses."""


def converse(data: bytes) -> ScriptedTpm:
    """Let the agent do what the first byte says; raises ``Denied`` and ``Unavailable``."""
    tpm = ScriptedTpm(data[1:])
    with Device("scripted", connect=lambda _: tpm) as device:
        OPERATIONS[(data or b"\0")[0] % len(OPERATIONS)](device)
    return tpm


def _responses(data: bytes) -> bool:
    try:
        tpm = converse(data)
    except (Denied, Unavailable):
        return False
    created = any(_code(command) == commands.CREATE_PRIMARY for command in tpm.sent)
    require(created == (_code(tpm.sent[-1]) == commands.FLUSH_CONTEXT), "what was created is flushed, and nothing else")
    return True


def _code(command: bytes) -> int:
    require(int.from_bytes(command[2:6], "big") == len(command), "commands as long as they say")
    return int.from_bytes(command[6:10], "big")


TARGETS: Final = (Target("tpm-responses", _responses),)
