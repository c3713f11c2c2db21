"""What has no deadline of its own, such as a file that never opens, ends a command soon after its limit."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_cluster import FakeApi
from agent_machine import COMMAND
from test_adopt import OldNode
from test_join import Joiner

from nodeattest_authenticator import watchdog


def test_the_watchdog_fires_two_seconds_after_the_deadline() -> None:
    try:
        watchdog.start(3)
        assert 4 <= signal.alarm(0) <= 5  # the kernel rounds to the nearest second
    finally:
        watchdog.stop()


def join(folder: Path, api: FakeApi) -> list[str]:
    joiner = Joiner(folder, api)
    os.mkfifo(joiner.folder / "kubelet.conf")
    return ["join", *joiner.words(kubeconfig=str(joiner.folder / "kubelet.conf"), timeout="3")]


def adopt(folder: Path, api: FakeApi) -> list[str]:
    os.mkfifo(folder / "agent.json")
    return OldNode.make(folder, api).words("--timeout", "3")


@pytest.mark.parametrize("words", [join, adopt])
def test_a_command_that_hangs_is_ended(
    tmp_path: Path, api: FakeApi, words: Callable[[Path, FakeApi], list[str]]
) -> None:
    done = subprocess.run(
        [COMMAND, *words(tmp_path, api)],
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode != 0
    assert "Timeout: the TPM, a metadata service or name resolution did not answer" in done.stderr
