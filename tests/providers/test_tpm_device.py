"""The way to a TPM: the kernel's device and a software TPM's socket, what is sent, and responses that are none."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import tty
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tpm_machines import by_allow_list, exchange
from tpm_tss import P384, connected, primary, tss
from tpm_world import facts_of, request_of, verify

from nodeattest_providers.errors import Unavailable
from nodeattest_providers.tpm.attestor import TpmAttestor
from nodeattest_providers.tpm.key_templates import AK_TEMPLATE, EK_TEMPLATES
from nodeattest_providers.tpm.node import commands
from nodeattest_providers.tpm.node.commands import MAX_RESPONSE, TpmConnection
from nodeattest_providers.tpm.node.device import Device
from nodeattest_providers.tpm.structures import sized
from nodeattest_sandbox.swtpm import SoftwareTpm

KEYS = {template.name: template for template in EK_TEMPLATES}
ONE_HANDLE = bytes.fromhex("8001000000170000000000000000010000000101c00002")
"""A response to TPM2_GetCapability: no more, TPM_CAP_HANDLES, one NV index."""


@contextmanager
def answering(folder: Path, responses: Sequence[bytes]) -> Generator[tuple[str, list[bytes]]]:
    """Listen as a software TPM that gives these responses, then hangs up; yields its TCTI and what it was sent."""
    path = folder / "tpm"
    sent: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            peer, _ = listener.accept()
            with peer, contextlib.suppress(OSError):
                for response in responses:
                    sent.append(peer.recv(MAX_RESPONSE))
                    peer.sendall(response)
                peer.shutdown(socket.SHUT_WR)
                peer.recv(MAX_RESPONSE)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"swtpm:path={path}", sent
        finally:
            thread.join()


def failing(code: int) -> bytes:
    return bytes.fromhex("80010000000a") + code.to_bytes(4, "big")


@pytest.mark.parametrize("code", [0x908, 0x90A, 0x922])
def test_a_command_that_the_tpm_did_not_start_is_sent_again(tmp_path: Path, code: int) -> None:
    with answering(tmp_path, [failing(code), failing(code), ONE_HANDLE]) as (tcti, sent), Device(tcti) as device:
        assert device.nv_indices() == {0x01C00002}
        assert device.nv_indices() == {0x01C00002}  # which is not asked for again
    assert sent == [bytes.fromhex("8001 00000016 0000017a 00000001 01c00000 00000040")] * 3


def test_a_command_is_sent_five_times_at_most(tmp_path: Path) -> None:
    with answering(tmp_path, [failing(0x922)] * 9) as (tcti, sent), Device(tcti) as device:
        with pytest.raises(Unavailable, match="TPM error 0x922"):
            device.nv_indices()
        assert len(sent) == 5


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (b"", "hung up"),
        (ONE_HANDLE[:9], "hung up"),
        (bytes.fromhex("8001 00000009 00000000"), "the size that it says, 9, got 10"),
        (bytes.fromhex("8001 00001001 00000000") + bytes(4087), "the size that it says, 4097, got 4096"),
        (bytes.fromhex("8001 0000000a 00000000"), "1 more bytes at offset 10"),
        (ONE_HANDLE[:15] + b"\x00\x00\x00\x02" + ONE_HANDLE[19:], "4 more bytes"),
        (failing(0x101), "in failure mode"),
        (failing(0xB0143), "TPM error 0xb0143, which tpm2_rc_decode 0xb0143 explains"),
    ],
)
def test_a_response_that_is_none_is_unavailable_and_says_why(tmp_path: Path, response: bytes, words: str) -> None:
    with answering(tmp_path, [response]) as (tcti, _), Device(tcti) as device, pytest.raises(Unavailable, match=words):
        device.nv_indices()


@pytest.mark.parametrize("code", [0x2CA, 0x2E6])
def test_a_tpm_without_the_curve_says_so(tmp_path: Path, code: int) -> None:
    """TPM_RC_TYPE and TPM_RC_CURVE of TPM2_CreatePrimary's second parameter; the first is of an Infineon SLB9665."""
    with answering(tmp_path, [failing(code)]) as (tcti, _), Device(tcti) as device:
        with pytest.raises(Unavailable, match="the attestation key: the TPM cannot make such a key") as unavailable:
            device.create(AK_TEMPLATE, "the attestation key")
        assert "TPM2_ECC_NIST_P256" in unavailable.value.remedy


# With a software TPM


@contextmanager
def as_character_device(tpm: SoftwareTpm) -> Generator[str]:
    """Reach a software TPM through a terminal in raw mode: one write a command, one read a response."""
    master, slave = os.openpty()
    tty.setraw(slave)
    wake, done = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.connect(tpm.tcti.partition("=")[2])

        def forward() -> None:
            ways = {master: peer.fileno(), peer.fileno(): master}
            while True:
                ready, _, _ = select.select([*ways, wake], [], [])
                if wake in ready:
                    return
                for descriptor in ready:
                    os.write(ways[descriptor], os.read(descriptor, MAX_RESPONSE))

        thread = threading.Thread(target=forward)
        thread.start()
        try:
            yield os.ttyname(slave)
        finally:
            os.close(done)
            thread.join()
    for descriptor in (master, slave, wake):
        os.close(descriptor)


@pytest.mark.swtpm
def test_a_join_through_a_character_device_is_one_write_and_one_read_a_command(real_tpm: SoftwareTpm) -> None:
    with as_character_device(real_tpm) as path, TpmAttestor({"tcti": f"device:{path}"}) as attestor:
        joined = exchange(attestor, facts_of(by_allow_list(attestor.endorsement_fingerprint())))
    assert verify(request_of(joined.answer), joined.facts).checks


class CountedConnection:
    """Writes down which commands are sent."""

    def __init__(self, connection: TpmConnection) -> None:
        self.sent: list[int] = []
        self._connection = connection

    def exchange(self, command: bytes) -> bytes:
        self.sent.append(int.from_bytes(command[6:10], "big"))
        return self._connection.exchange(command)

    def close(self) -> None:
        self._connection.close()


class CountedDevice(Device):
    """A device that shows which commands it sent."""

    def __init__(self, tcti: str) -> None:
        super().__init__(tcti)
        self.counted = self._tpm = CountedConnection(self._tpm)


COMMON = [
    commands.GET_CAPABILITY,  # which endorsement certificates there are
    commands.NV_READ_PUBLIC,  # the certificate
    commands.NV_READ,
    commands.NV_READ,
    commands.GET_CAPABILITY,  # which endorsement keys are kept
]
PROOF = [
    commands.START_AUTH_SESSION,
    commands.POLICY_SECRET,
    commands.POLICY_OR,
    commands.ACTIVATE_CREDENTIAL,
    commands.PCR_READ,
    commands.QUOTE,
]


def joined_by(tpm: SoftwareTpm) -> list[int]:
    """Join, and return the commands that it took."""
    devices: list[CountedDevice] = []

    def connect(tcti: str) -> Device:
        devices.append(CountedDevice(tcti))
        return devices[-1]

    with TpmAttestor({"tcti": tpm.tcti}, connect=connect) as attestor:
        assert attestor.endorsement_fingerprint() == tpm.endorsement_fingerprint()
        joined = exchange(attestor, facts_of(by_allow_list(attestor.endorsement_fingerprint())))
    assert verify(request_of(joined.answer), joined.facts).checks
    [device] = devices
    return device.counted.sent


@pytest.mark.swtpm
def test_a_join_is_these_commands_to_the_tpm_and_no_others(real_tpm: SoftwareTpm) -> None:
    """swtpm_setup makes both certified endorsement keys persistent; the attestation key is made."""
    looked_at = [commands.READ_PUBLIC, commands.READ_PUBLIC]
    made = [commands.CREATE_PRIMARY]
    assert joined_by(real_tpm) == [*COMMON, *looked_at, *made, *PROOF, commands.FLUSH_CONTEXT]


def evict(esys: Any, handle: int) -> None:
    """Take a persistent object away."""
    found = esys.tr_from_tpmpublic(tss.TPM2_HANDLE(handle))
    esys.evict_control(tss.ESYS_TR.OWNER, found, handle)


def persist(esys: Any, template: bytes, handle: int, hierarchy: Any = None) -> None:
    with primary(esys, template, hierarchy) as key:
        esys.evict_control(tss.ESYS_TR.OWNER, key.handle, handle)


@pytest.fixture
def emptied(tpm_folder: Path) -> Generator[SoftwareTpm]:
    """A TPM that keeps no key."""
    with SoftwareTpm.create(tpm_folder, name="emptied") as tpm:
        with Device(tpm.tcti) as device:
            kept = [key.handle for key in device.persistent_keys()]
        with connected(tpm.tcti) as esys:
            for handle in kept:
                evict(esys, handle)
        yield tpm


def other_unique(template: bytes) -> bytes:
    """The same public area for another key: a point that is asked for seeds it."""
    return template[: -2 * len(sized(b""))] + sized(b"another") + sized(b"")


NOT_THE_KEY: dict[str, tuple[bytes, str]] = {
    "another template's": (KEYS["ecc-p256"].creation(), "ENDORSEMENT"),
    "of another hierarchy": (P384.creation(), "OWNER"),
    "with another number": (other_unique(P384.creation()), "ENDORSEMENT"),
}


@pytest.mark.swtpm
@pytest.mark.parametrize("case", NOT_THE_KEY)
def test_a_persistent_key_that_is_not_the_certified_one_is_not_used_whatever_its_handle(
    emptied: SoftwareTpm, case: str
) -> None:
    template, hierarchy = NOT_THE_KEY[case]
    with connected(emptied.tcti) as esys:
        persist(esys, template, 0x81010016, getattr(tss.ESYS_TR, hierarchy))
    try:
        assert joined_by(emptied).count(commands.CREATE_PRIMARY) == 2
    finally:
        with connected(emptied.tcti) as esys:
            evict(esys, 0x81010016)


# NV indices that cannot be read


@contextmanager
def defined(
    tpm: SoftwareTpm, index: int, attributes: str, *, password: bytes = b"", data: bytes = b""
) -> Generator[None]:
    """Define an NV index as the owner, and write it if there are data."""
    flags = tss.TPMA_NV.parse(attributes)
    public = tss.TPMS_NV_PUBLIC(nvIndex=index, nameAlg=tss.TPM2_ALG.SHA256, attributes=flags, dataSize=len(data) or 64)
    with connected(tpm.tcti) as esys:
        handle = esys.nv_define_space(password or None, tss.TPM2B_NV_PUBLIC(nvPublic=public))
        if data:
            esys.nv_write(handle, data, auth_handle=tss.ESYS_TR.OWNER)
    try:
        yield
    finally:
        with connected(tpm.tcti) as esys:
            esys.nv_undefine_space(esys.tr_from_tpmpublic(tss.TPM2_HANDLE(index)))


OPEN = "ownerread|ownerwrite|authread|authwrite|noda"
UNREADABLE: dict[str, tuple[str, bytes, bytes, str]] = {
    "never written": (OPEN, b"", b"", "code=0x14a error=TPM_RC_NV_UNINITIALIZED"),
    "read by its own password": (OPEN, b"secret", b"data", "code=0x9a2 error=TPM_RC_BAD_AUTH"),
    "read by the owner": ("ownerread|ownerwrite|noda", b"", b"data", "code=0x12f error=TPM_RC_AUTH_UNAVAILABLE"),
}


@pytest.mark.swtpm
@pytest.mark.parametrize(
    ("index", "case"), [*((0x01C0000A, case) for case in UNREADABLE), (0x01C0000B, "never written")]
)
def test_a_certificate_that_cannot_be_read_and_an_unwritten_nonce_are_logged_and_count_as_none(
    real_tpm: SoftwareTpm, caplog: pytest.LogCaptureFixture, index: int, case: str
) -> None:
    attributes, password, data, words = UNREADABLE[case]
    with defined(real_tpm, index, attributes, password=password, data=data):
        with TpmAttestor({"tcti": real_tpm.tcti}) as attestor:
            assert attestor.endorsement_fingerprint() == real_tpm.endorsement_fingerprint()
        with TpmAttestor({"tcti": real_tpm.tcti, "endorsementKey": "ecc-p256"}) as attestor:
            registered = by_allow_list(attestor.endorsement_fingerprint())
            joined = exchange(attestor, facts_of(registered))
    assert verify(request_of(joined.answer), joined.facts).checks
    assert f"index=0x{index:x} {words}" in caplog.text


@pytest.mark.swtpm
@pytest.mark.parametrize("case", sorted(UNREADABLE.keys() - {"never written"}))
def test_a_nonce_that_cannot_be_read_is_unavailable_because_the_key_would_be_another(
    real_tpm: SoftwareTpm, case: str
) -> None:
    attributes, password, data, words = UNREADABLE[case]
    with (
        defined(real_tpm, 0x01C0000B, attributes, password=password, data=data),
        TpmAttestor({"tcti": real_tpm.tcti, "endorsementKey": "ecc-p256"}) as attestor,
        pytest.raises(Unavailable, match=f"NV index 0x1c0000b cannot be read: {words.rpartition('=')[2]}"),
    ):
        attestor.endorsement_fingerprint()
