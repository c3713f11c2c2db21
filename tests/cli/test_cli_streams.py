"""What goes in and out of the commands besides words: pipes, full disks, and what a terminal would obey."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeattest_cli.main import main
from nodeattest_sandbox.control_plane import ControlPlane


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="not possible here: no device that is full")
@pytest.mark.parametrize("words", [("version",)])
def test_a_full_disk_is_one_line_and_no_traceback(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "nodeattest_cli.main", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("nodeattest: No space left")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def pipe(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Path]:
    """A pipe that gives a kubeconfig once."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    content = control_plane.admin_kubeconfig.read_bytes()
    writer = threading.Thread(target=path.write_bytes, args=(content,), daemon=True)
    writer.start()
    yield path
    writer.join(10)
    assert not writer.is_alive()


def test_a_kubeconfig_may_come_through_a_pipe(pipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["token", "create", "--print-join-command", "--kubeconfig", str(pipe)]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("kubeadm join ")


POLICY = """
apiVersion: attestation.cluster.x-k8s.io/v1alpha1
kind: NodeAttestationPolicy
metadata: {name: "a\\nb: valid\\e[2J", namespace: default}
spec: {}
"""


def test_a_name_in_a_file_forges_no_line_of_a_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    assert main(["policy", "check", "-f", str(policy)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line.startswith(r"a\nb: valid\x1b[2J: ") for line in lines)


def test_a_warning_of_a_command_that_configures_no_logs_is_one_line() -> None:
    program = (
        "import logging; from nodeattest_cli.main import main; main(['version']); "
        r"logging.getLogger('kube').warning('cannot read: %s', 'x\nforged\x1b[2J'); logging.getLogger().info('no')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("WARNING cannot read: x\\nforged\\x1b[2J logger=kube\n")
