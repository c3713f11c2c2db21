"""The small parts: locks, the watchdog, failures, storage, PEM, drafts, certificates, and the machine's own IDs."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_machine import COMMAND, Joiner, Machine
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from lying_servers import Ca, VirtualTime

from nodeattest_authenticator import certificate, watchdog
from nodeattest_authenticator.context import AgentContext, FailureRecord
from nodeattest_authenticator.enrollment.provider_id import MachineSources
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.formats import pem
from nodeattest_authenticator.state.cache_files import UnsafeFileError
from nodeattest_authenticator.state.credential_cache import CachedCredential
from nodeattest_authenticator.state.records import PendingRequest, PendingRequestFile, SubmittedCsr
from nodeattest_authenticator.state.storage import Storage, exclusive, exclusive_if_free
from nodeattest_discovery.node.clock import Clock, Deadline
from nodeattest_providers.identifiers import NodeName, ProviderID
from nodeattest_providers.node_interface import cluster_pin

# Locks


def test_the_lock_is_held_by_one_and_waited_for_no_longer_than_the_deadline(storage: Storage) -> None:
    virtual = VirtualTime()
    deadline = Deadline.after(virtual.clock, 5)
    with exclusive(storage, deadline):
        with pytest.raises(AgentError, match="LockTimeout") as caught, exclusive(storage, deadline):
            pass
        with exclusive_if_free(storage) as held:
            assert not held
    assert virtual.moment == pytest.approx(5)
    assert caught.value.kind is FailureKind.TEMPORARY


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


def test_the_watchdog_fires_two_seconds_after_the_deadline() -> None:
    try:
        watchdog.start(3)
        assert 4 <= signal.alarm(0) <= 5  # the kernel rounds to the nearest second
    finally:
        watchdog.stop()


def test_a_process_stuck_in_a_library_is_ended_without_showing_values() -> None:
    stuck = "import hashlib; from nodeattest_authenticator import watchdog; watchdog.start(-1)"
    program = f"{stuck}; secret = b'hunter2'; hashlib.pbkdf2_hmac('sha256', secret, b'', 2**31 - 1)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "hunter2" not in done.stderr


def test_a_join_that_hangs_is_ended(joiner: Joiner) -> None:
    os.mkfifo(joiner.folder / "kubelet.conf")
    words = joiner.words(kubeconfig=str(joiner.folder / "kubelet.conf"), timeout="3")
    done = subprocess.run([COMMAND, "join", *words], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "Timeout: the TPM, a metadata service or name resolution did not answer" in done.stderr


# Stored failures


def last(agent: AgentContext) -> FailureRecord:
    found = agent.last_failure()
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("kind", "valid_for", "drawn", "pauses"),
    [
        (FailureKind.DENIED, None, 0.5, [30, 60, 120, 240, 480, 600, 600]),
        (FailureKind.TEMPORARY, None, 0.5, [2, 4, 8, 16, 32, 60, 60]),
        (FailureKind.DENIED, 86400, 0.0, [30]),
        (FailureKind.DENIED, 86400, 0.999, [90]),
        (FailureKind.TEMPORARY, 960, 0.5, [60, 120, 120]),  # an eighth of what is left
    ],
)
def test_pauses_double_with_jitter_up_to_their_bound(
    machine: Machine, kind: FailureKind, valid_for: int | None, drawn: float, pauses: list[int]
) -> None:
    agent = replace(machine.agent(clock=Clock(now=lambda: 0.0)), random=lambda: drawn)
    current = CachedCredential(certificate_pem=b"", key_pem=b"", not_before=0, renew_at=0, not_after=valid_for or 0)
    for pause in pauses:
        failure = AgentError("Timeout", "m", remedy="r", kind=kind)
        agent.remember_failure(failure, None if valid_for is None else current)
        assert last(agent).until == pause


def test_a_failure_is_loaded_under_its_own_configuration_only(machine: Machine) -> None:
    agent = machine.agent()
    agent.remember_failure(AgentError("MachineNotFound", "the cluster refused", remedy="create\nit"), None)
    assert last(agent).text == "MachineNotFound: the cluster refused; create it"
    assert replace(agent, config_fingerprint=b"j").last_failure() is None
    for data in (b"", b"\n\n", b"\xff", b"kubelet-authenticator-failure/1 5 i 1\n\xff", b"other 5 i 1\na\nb\nc"):
        machine.write("failure", data)
        assert replace(agent, config_fingerprint=b"i").last_failure() is None


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


# PEM and drafts


@given(data=st.binary(min_size=1, max_size=99))
def test_pem_is_read_as_it_is_written(data: bytes) -> None:
    other = pem.encode([b"y"]).replace(b"CERTIFICATE", b"OTHER")
    assert pem.certificates(b"note\n" + pem.encode([data]) + b"\r\n" + other) == [data]


def test_a_draft_is_kept_whole_until_its_credential_is_stored(storage: Storage) -> None:
    drafts = PendingRequestFile(storage)
    filed = SubmittedCsr("a", b"1"), SubmittedCsr("b", b"\xff")
    draft = PendingRequest(purpose="p", key_pem=b"k", csr_der=b"\x00d", version=2)
    for kept in (draft, replace(draft, first=filed[0], second=filed[1]), replace(draft, assigned=ProviderID("m://7"))):
        drafts.save(kept)
        assert drafts.load() == kept
    assert "b'k'" not in repr(draft)
    assert PendingRequestFile(storage, used_key_pem=b"k").load() is None
    drafts.discard()
    assert drafts.load() is None


# Certificates: tests/attacks has those that are refused


OURS, OTHER = Ca(), Ca()
KEY = ec.generate_private_key(ec.SECP256R1())
KEY_PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
WANTED = certificate.ExpectedCertificate(node_name=NodeName("node-0"), ca_pem=OURS.pem)


def leaf(by: Ca = OURS) -> bytes:
    return by.client(KEY.public_key(), "node-0")


def test_a_good_certificate_passes_and_tells_its_times() -> None:
    canonical, not_before, not_after = certificate.validate(b"junk before\n" + leaf(), KEY_PEM, WANTED)
    assert canonical.startswith(b"-----BEGIN CERTIFICATE-----")
    assert not_before < time.time() < not_after


def test_a_certificate_below_an_intermediate_ca_passes() -> None:
    subordinate = Ca("subordinate")
    link = OURS.issue(subordinate.name, subordinate.key.public_key(), is_ca=True).public_bytes(Encoding.PEM)
    canonical, *_ = certificate.validate(leaf(subordinate) + link, KEY_PEM, WANTED)
    assert canonical.count(b"BEGIN") == 2
    node = OURS.issue(subordinate.name, subordinate.key.public_key()).public_bytes(Encoding.PEM)
    for chain, says in (
        (leaf(subordinate), "no CA of the cluster"),
        (leaf(subordinate) + node, "not issued by the next"),
        (leaf() * 5, "1 to 4"),
        (b"", "1 to 4"),
    ):
        with pytest.raises(AgentError, match=says):
            certificate.validate(chain, KEY_PEM, WANTED)


@given(data=st.binary(max_size=300), key=st.binary(max_size=300))
def test_any_bytes_are_refused_and_nothing_else_happens(data: bytes, key: bytes) -> None:
    for chain in (data, b"-----BEGIN CERTIFICATE-----\n" + data + b"\n-----END CERTIFICATE-----\n"):
        with pytest.raises(AgentError):
            certificate.validate(chain, KEY_PEM, WANTED)
    with pytest.raises(AgentError):
        certificate.validate(leaf(), key, WANTED)


@pytest.mark.parametrize(
    ("now", "ahead", "says"),
    [
        (699, None, "begins 5 minutes in its future"),
        (700, None, None),  # five minutes of skew are tolerated
        (1999, None, None),
        (100, -1200, "20 minutes behind the API server's"),
        (2000, 660, "11 minutes ahead of the API server's"),
        (2000, None, "expired"),
        (2000, 10, "expired"),
    ],
)
def test_a_wrong_time_is_laid_to_the_clock_where_that_explains_it(
    now: float, ahead: float | None, says: str | None
) -> None:
    said = None
    try:
        certificate.check_validity(1000, 2000, now=now, clock_skew=ahead)
    except AgentError as error:
        said = str(error)
    assert said is None if says is None else says in (said or "")


def spki_pin(authority: Ca) -> str:
    key = authority.key.public_key()
    return cluster_pin(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def test_of_several_cas_the_one_that_issued_the_servers_certificate_is_pinned() -> None:
    server = x509.load_pem_x509_certificate(leaf(OTHER)).public_bytes(Encoding.DER)
    assert certificate.select_ca_pin(OURS.pem + OTHER.pem, server) == spki_pin(OTHER)
    assert certificate.select_ca_pin(OURS.pem + OTHER.pem) == spki_pin(OURS)
    assert certificate.select_ca_pin(OURS.pem, server) == spki_pin(OURS)


# SMBIOS, the host name and cloud-init


UUID = "421c8d5a-7f3b-1c2d-9a8b-7c6d5e4f3a2b"
DATA = {
    "ds": {
        "meta_data": {"providerid": "fleet/rack-1/m3m", "local-hostname": "worker-1", "droplet_id": 7, "flag": True}
    },
    "v1": {"instance_id": "i-0", "cloud_name": "metal3", "region": "redacted for non-root user"},
    "merged_cfg": {"ratio": 0.5},
}
Sources = Callable[..., MachineSources]


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    """Make a machine with these files of SMBIOS and this instance data."""

    def made(data: Any = None, **dmi: str) -> MachineSources:
        for name, text in dmi.items():
            tmp_path.joinpath(name).write_text(text)
        path = tmp_path / "instance-data.json"
        if data is not None:
            path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
        return MachineSources(dmi=str(tmp_path), instance_data=str(path))

    return made


def unknown(machine: MachineSources, source: str) -> str:
    with pytest.raises(AgentError) as caught:
        machine.value(source)
    assert caught.value.reason == AgentReason.PROVIDER_ID_UNKNOWN
    return caught.value.message


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("product_uuid", f"{UUID.upper()}\n", UUID),
        ("product_serial", "VMware-42 1c 8d 5a 7f 3b 1c 2d-9a 8b 7c 6d 5e 4f 3a 2b\n", UUID),  # vCenter's order
        ("product_serial", "CZ-12/34\n", "CZ-12/34"),
        ("product_uuid", "", None),
        ("product_uuid", "7", None),
        ("product_uuid", "00000000-0000-0000-0000-000000000000", None),
        ("product_uuid", "03000200-0400-0500-0006-000700080009", None),
        ("product_serial", "To Be Filled By O.E.M.", None),
        ("product_serial", "a{b}", None),
    ],
)
def test_smbios_is_read_in_one_spelling_and_defaults_of_firmware_are_refused(
    sources: Sources, name: str, text: str, value: str | None
) -> None:
    found = sources(**{name: text})
    if value is None:
        assert name in unknown(found, f"dmi:{name}")
    else:
        assert found.value(f"dmi:{name}") == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ds.meta_data.providerid", "fleet/rack-1/m3m"),
        ("ds.meta_data.local_hostname", "worker-1"),
        ("ds.meta_data.local-hostname", "worker-1"),
        ("ds.meta_data.droplet_id", "7"),
        ("v1.instance_id", "i-0"),
        ("instance_id", "i-0"),
    ],
)
def test_keys_are_those_of_cloud_inits_templates(sources: Sources, key: str, value: str) -> None:
    assert sources(DATA).value(f"cloud-init:{key}") == value


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("ds.meta_data", "got dict"),
        ("ds.meta_data.flag", "got bool"),
        ("ds.meta_data.nothing.deeper", "got none"),
        ("merged_cfg.ratio", "got float"),
        ("region", "without spaces"),
    ],
)
def test_what_is_no_text_of_one_word_is_refused(sources: Sources, key: str, says: str) -> None:
    assert says in unknown(sources(DATA), f"cloud-init:{key}")


@pytest.mark.parametrize("data", [b"", b"[]", b'{"v1":' + b"[" * 10_000, b"\xff", b" " * (1 << 23)])
def test_instance_data_that_is_none_is_refused(sources: Sources, data: bytes) -> None:
    assert "instance-data.json" in unknown(sources(data), "cloud-init:v1.instance_id")
