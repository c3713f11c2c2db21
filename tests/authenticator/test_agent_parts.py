"""The small parts: locks, remembered failures, storage, PEM, addresses, drafts, time."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_authenticator.errors import AgentError, FailureKind
from nodeattest_authenticator.formats import pem
from nodeattest_authenticator.state import failure_backoff
from nodeattest_authenticator.state.private_files import UnsafeFileError
from nodeattest_authenticator.state.records import PendingRequest, PendingRequestFile, SubmittedCsr
from nodeattest_authenticator.state.storage import Storage, exclusive, exclusive_if_free
from nodeattest_discovery.node.clock import Clock, Deadline, random_unit
from nodeattest_providers.identifiers import ProviderID


class VirtualTime:
    """A clock that runs when somebody sleeps."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.clock = Clock(now=lambda: self.time, monotonic=lambda: self.time, sleep=self.pass_)

    def pass_(self, seconds: float) -> None:
        self.time += seconds


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    made = Storage(str(tmp_path / "state"))
    made.close()
    return Storage(str(tmp_path / "state"))


# Locks


def test_the_lock_is_held_by_one_and_waited_for_no_longer_than_the_deadline(storage: Storage) -> None:
    virtual = VirtualTime()
    deadline = Deadline.after(virtual.clock, 5)
    with exclusive(storage, deadline):
        with pytest.raises(AgentError, match="LockTimeout") as caught, exclusive(storage, deadline):
            pass
        with exclusive_if_free(storage) as held:
            assert not held
    assert virtual.time == pytest.approx(1005)
    assert caught.value.kind is FailureKind.TEMPORARY
    with exclusive_if_free(storage) as held:
        assert held


def hold_and_die(path: str) -> None:
    with exclusive(Storage(path), Deadline.after(Clock(), 5)):
        os._exit(9)


def test_the_lock_of_a_dead_process_is_free(storage: Storage) -> None:
    process = multiprocessing.get_context("fork").Process(target=hold_and_die, args=(storage.path,))
    process.start()
    process.join()
    with exclusive_if_free(storage) as held:
        assert held


# The last resort


def test_a_process_stuck_in_a_library_is_ended_without_showing_values() -> None:
    stuck = "import hashlib; from nodeattest_authenticator import watchdog; watchdog.start(-1)"
    program = f"{stuck}; secret = b'hunter2'; hashlib.pbkdf2_hmac('sha256', secret, b'', 2**31 - 1)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "hunter2" not in done.stderr


# Remembered failures


def denied() -> AgentError:
    return AgentError("MachineNotFound", "the cluster refused", remedy="create\nit")


@pytest.mark.parametrize(
    ("kind", "valid_for", "drawn", "pauses"),
    [
        (FailureKind.DENIED, None, 0.5, [30, 60, 120, 240, 480, 600, 600]),
        (FailureKind.TEMPORARY, None, 0.5, [2, 4, 8, 16, 32, 60, 60]),
        (FailureKind.DENIED, 86400.0, 0.0, [30]),
        (FailureKind.DENIED, 86400.0, 0.999, [90]),
    ],
)
def test_pauses_double_with_jitter_up_to_their_bound(
    storage: Storage, kind: FailureKind, valid_for: float | None, drawn: float, pauses: list[int]
) -> None:
    failure = AgentError("Timeout", "m", remedy="r", kind=kind)
    for pause in pauses:
        made = failure_backoff.remember(storage, b"i", failure, valid_for=valid_for, now=0, random=lambda: drawn)
        assert made.until == pause


def test_a_failure_is_loaded_under_its_own_configuration_only(storage: Storage) -> None:
    made = failure_backoff.remember(storage, b"i", denied(), valid_for=None, now=0, random=random_unit)
    assert failure_backoff.load(storage, b"i") == made
    assert failure_backoff.load(storage, b"j") is None
    assert made.text == "MachineNotFound: the cluster refused; create it"
    failure_backoff.forget(storage)
    assert failure_backoff.load(storage, b"i") is None


@given(
    data=st.binary(max_size=99)
    | st.binary(max_size=9).map(lambda tail: b"kubelet-authenticator-failure/1 5 i 1\n" + tail)
)
def test_any_bytes_as_a_failure_file_are_a_failure_or_none(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with Storage(str(tmp_path_factory.mktemp("m") / "s")) as storage:
        storage.write("failure", data, durable=False)
        loaded = failure_backoff.load(storage, b"i")
        assert loaded is None or loaded.until == 5


# Storage


def test_a_write_replaces_a_link_and_leaves_its_target_alone(storage: Storage, tmp_path: Path) -> None:
    tmp_path.joinpath("target").write_text("precious")
    Path(storage.path, "file").symlink_to(tmp_path / "target")
    with pytest.raises(UnsafeFileError):
        storage.read("file")
    storage.write("file", b"new")
    assert storage.read("file") == b"new"
    assert tmp_path.joinpath("target").read_text() == "precious"


def test_the_left_over_of_a_killed_writer_is_in_nobodys_way(storage: Storage) -> None:
    Path(storage.path, "file.new").write_text("half")
    storage.write("file", b"whole")
    assert os.listdir(storage.path) == ["file"]  # noqa: PTH208 - names are what is asked


def test_a_failed_write_leaves_the_old_content(storage: Storage) -> None:
    storage.write("file", b"old")
    Path(storage.path, "file.new").mkdir()
    with pytest.raises(OSError, match=r"."):
        storage.write("file", b"new")
    assert storage.read("file") == b"old"


def test_a_directory_and_its_missing_parents_are_made_for_their_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Storage(str(tmp_path / "a" / "b" / "c")).close()
    finally:
        os.umask(before)
    for made in ("a", "a/b", "a/b/c"):
        assert tmp_path.joinpath(made).stat().st_mode & 0o777 == 0o700, made


# PEM and addresses


@given(data=st.binary(max_size=99), label=st.sampled_from(["CERTIFICATE", "X"]))
def test_pem_is_read_as_it_is_written(data: bytes, label: str) -> None:
    assert pem.decode(b"note\n" + pem.encode(data, label) + b"\r\n" + pem.encode(b"y", "OTHER"), label) == [data]


@given(data=st.binary(max_size=200))
def test_any_bytes_are_pem_or_a_value_error(data: bytes) -> None:
    text = b"-----BEGIN CERTIFICATE-----\n" + data + b"\n-----END CERTIFICATE-----\n"
    try:
        blocks = pem.decode(text, pem.CERTIFICATE)
    except ValueError:
        return
    assert all(isinstance(block, bytes) for block in blocks)


# Drafts


def test_a_draft_is_kept_whole(storage: Storage) -> None:
    drafts = PendingRequestFile(storage)
    filed = SubmittedCsr("a", b"1"), SubmittedCsr("b", b"\xff")
    draft = PendingRequest(purpose="p", key_pem=b"k", csr_der=b"\x00d", version=2, first=filed[0], second=filed[1])
    for kept in (
        PendingRequest(purpose="p", key_pem=b"k", csr_der=b"d", version=1),
        draft,
        replace(draft, assigned=ProviderID("m://7")),
    ):
        drafts.save(kept)
        assert drafts.load() == kept
    assert "b'k'" not in repr(draft)
    drafts.discard()
    assert drafts.load() is None


def test_the_draft_of_the_stored_credential_is_finished(storage: Storage) -> None:
    draft = PendingRequest(purpose="p", key_pem=b"k", csr_der=b"d", version=1)
    PendingRequestFile(storage).save(draft)
    assert PendingRequestFile(storage, used_key_pem=b"k").load() is None
    assert PendingRequestFile(storage, used_key_pem=b"j").load() == draft


@given(
    document=st.fixed_dictionaries(
        {"purpose": st.text(max_size=3), "key": st.text(max_size=3), "csr": st.text(max_size=4), "version": st.just(1)},
        optional={"first": st.dictionaries(st.sampled_from(["name", "request"]), st.text(max_size=4))},
    )
)
def test_any_draft_file_is_a_draft_or_none(document: object, tmp_path_factory: pytest.TempPathFactory) -> None:
    with Storage(str(tmp_path_factory.mktemp("d") / "s")) as storage:
        storage.write("draft", json.dumps(document).encode(), durable=False)
        draft = PendingRequestFile(storage).load()
        assert draft is None or draft.purpose
