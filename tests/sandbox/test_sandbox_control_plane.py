"""Control planes and software TPMs as processes: they start or say why not, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from polling import eventually

from nodeattest_sandbox.child_process import StartFailed
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane, StartControlPlane, start_sandbox
from nodeattest_sandbox.swtpm import SoftwareTpm


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.fixture
def own(start_control_plane: StartControlPlane) -> Iterator[ControlPlane]:
    with start_control_plane("own") as plane:
        yield plane


def test_every_request_is_audited_with_user_verb_and_code(control_plane: ControlPlane, admin: Client) -> None:
    before = len(control_plane.requests())
    admin.get("/api/v1/namespaces/kube-system")
    eventually(lambda: len(control_plane.requests()) > before)
    entries = [entry for entry in control_plane.requests()[before:] if entry.user == "admin"]
    assert [(e.verb, e.resource, e.name, e.code) for e in entries] == [("get", "namespaces", "kube-system", 200)]
    assert "system:masters" in entries[0].groups


def test_stopped_control_plane_leaves_no_process(own: ControlPlane) -> None:
    pids = list(own.pids.values())
    assert all(alive(pid) for pid in pids)
    own.stop()
    assert own.pids == {}
    assert not any(alive(pid) for pid in pids)


def test_failed_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="unrecognized arguments: --nonsense"):
        start_sandbox(tmp_path, name="bad", options=["--nonsense"])


def test_control_plane_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from nodeattest_sandbox.control_plane import start_sandbox\n"
        "plane = start_sandbox(Path(sys.argv[1]), name='orphan')\n"
        "print(plane.pids['apiserver'], flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.kill()
    eventually(lambda: not alive(pid))


def test_a_command_that_ignores_sigterm_ends_with_its_parent(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command = [sys.executable, "-m", "nodeattest_sandbox.child_process", str(pid_file), "sleep", "60"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as wrapper:
        eventually(lambda: pid_file.exists() and pid_file.read_text(encoding="ascii") != "")
        pid = int(pid_file.read_text(encoding="ascii"))
        os.kill(pid, signal.SIGSTOP)
        assert wrapper.stdin is not None
        wrapper.stdin.close()
        eventually(lambda: not alive(pid))
        assert wrapper.wait(10) != 0


@pytest.mark.swtpm
def test_tpms_made_at_the_same_time_share_one_authority_and_no_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        made = [pool.submit(SoftwareTpm.create, tmp_path, name=name) for name in ("a", "b", "c")]
        tpms = [future.result() for future in made]
    assert len({tpm.authority_pem for tpm in tpms}) == 1
    assert (tmp_path / "ca" / "signkey.pem").stat().st_mode & 0o077 == 0
    issuer, root = x509.load_pem_x509_certificates(tpms[0].authority_pem.encode())
    issuer.verify_directly_issued_by(root)
    for kind in ("rsa2048", "ecc-p384"):
        certificates = [tpm.endorsement_certificate(kind) for tpm in tpms]
        assert len({certificate.serial_number for certificate in certificates}) == 3
        for certificate in certificates:
            certificate.verify_directly_issued_by(issuer)
    fingerprints = {tpm.endorsement_fingerprint(kind) for tpm in tpms for kind in ("rsa2048", "ecc-p384")}
    assert len(fingerprints) == 6


@pytest.mark.swtpm
def test_a_tpm_starts_stops_and_comes_back_after_a_power_loss(tmp_path: Path) -> None:
    tpm = SoftwareTpm.create(tmp_path, name="a")
    assert tpm.pid is None
    for end in (tpm.stop, tpm.kill, tpm.stop):
        tpm.start()
        tpm.start()  # starting a TPM that runs changes nothing
        pid = tpm.pid
        assert pid is not None
        assert Path(tpm.tcti.removeprefix("swtpm:path=")).is_socket()
        end()
        assert tpm.pid is None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        end()
