"""The command as a real process: exit codes, one-line errors, signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Self

import pytest

COMMAND = str(Path(sys.executable).with_name("node-attestation-controller"))

WORK = textwrap.dedent(
    """
    import asyncio, signal, sys
    from nodeattest_controller.main import serve

    async def stubborn() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            print("still busy", flush=True)
            await asyncio.sleep(600)

    async def work() -> int:
        print("started", flush=True)
        try:
            {body}
        finally:
            print("cleaned up", flush=True)
        return 7

    sys.exit(serve(work()))
    """
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=120, check=False)


class Work:
    """A process that serves a piece of work; it never outlives its test."""

    def __init__(self, body: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORK.format(body=body)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        assert self.line() == "started"
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.__exit__(None, None, None)

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip()

    def end(self) -> tuple[int, str, str]:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        out, err = self.process.stdout.read(), self.process.stderr.read()
        return self.process.wait(timeout=120), out, err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--worker", "3"), "Did you mean '--workers'?"),
        (("run", "--workers", "0"), "workers: expected 1 to 256, got 0"),
        (
            ("run", "--config", "/nowhere/config.yaml"),
            "/nowhere/config.yaml: cannot be read: No such file or directory",
        ),
        (("start",), "No such command 'start'"),
    ],
)
def test_a_user_s_mistake_is_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("node-attestation-controller: ")
    assert message in line


def test_outside_a_cluster_a_kubeconfig_is_asked_for() -> None:
    done = subprocess.run([COMMAND, "run"], capture_output=True, text=True, timeout=120, check=False, env={})
    assert done.returncode == 2
    assert "run in a pod" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_work_in_order_with_exit_code_0(signum: signal.Signals) -> None:
    with Work("await asyncio.sleep(600)") as work:
        work.process.send_signal(signum)
        assert work.end() == (0, "cleaned up\n", "")


def test_a_second_signal_ends_it_at_once() -> None:
    with Work("await stubborn()") as work:
        work.process.send_signal(signal.SIGTERM)
        assert work.line() == "still busy"
        work.process.send_signal(signal.SIGTERM)
        assert work.end()[0] == -signal.SIGTERM
