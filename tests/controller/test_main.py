"""The command as a real process: exit codes, one-line errors, signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from importlib import metadata
from pathlib import Path
from typing import Self

import pytest

from nodeattest_controller import configfile
from nodeattest_controller.settings import Settings

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


@pytest.mark.parametrize("words", ["version", "--version"])
def test_version_is_the_distribution_s(words: str) -> None:
    done = run(words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"node-attestation-controller {metadata.version('nodeattest')}"


def test_the_printed_configuration_gives_the_same_settings_again(tmp_path: Path) -> None:
    printed = run("print-config", "--workers", "3", "--controllers=*,-serving", "--leader-elect=false")
    assert (printed.returncode, printed.stderr) == (0, "")
    config = tmp_path / "controller.yaml"
    config.write_text(printed.stdout)
    settings = configfile.load(config, identity="replica-a")
    assert settings == Settings(identity="replica-a", workers=3, controllers=("*", "-serving"), leader_elect=False)
    assert run("print-config", "--config", str(config)).stdout == printed.stdout


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


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{tmp: {}}", "did you mean .platforms.tpm?"),
        ("{wholly-unknown: {}}", "known are "),
        ("{tpm: {region: x}}", ".platforms.tpm: expected no settings of its own, got 'region'"),
    ],
)
@pytest.mark.parametrize("command", ["run"])
def test_a_wrong_platform_is_told_at_the_start_with_file_and_field(
    tmp_path: Path, command: str, section: str, message: str
) -> None:
    config = tmp_path / "controller.yaml"
    config.write_text(f"apiVersion: {configfile.API_VERSION}\nkind: {configfile.KIND}\nplatforms: {section}\n")
    done = run(command, "--config", str(config))
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith(f"node-attestation-controller: {config}: .platforms.")
    assert message in line


def test_an_unreadable_kubeconfig_is_one_line_that_quotes_none_of_it(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("token: [very secret")
    done = run("run", "--kubeconfig", str(kubeconfig))
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("node-attestation-controller: kubeconfig: expected a kubeconfig in YAML")
    assert "secret" not in line


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


def test_a_cancellation_that_nobody_asked_for_is_an_error() -> None:
    with Work("raise asyncio.CancelledError") as work:
        code, _, err = work.end()
    assert code == 1
    assert "CancelledError" in err
