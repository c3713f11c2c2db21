"""Two replicas, of which one leads, each with an address, a clock and connections of its own.

A replica that ends is started again, as a Deployment does. Its clock is libfaketime's: wall time only, since a change
of the wall clock does not move the monotonic one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import yaml

from bench.chaos.link import Link, owner_of_port
from nodeattest_controller import manifests
from nodeattest_demo.world import USER, Tools, World, controller_config, create_all
from nodeattest_sandbox.child_process import LOOPBACK, Process

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
"""Debian's package ``libfaketime``; without it no clock is moved."""
RESTART = 1.0
"""Seconds between the end of a replica and its next start."""

TRIES = 20
"""To find the process of a connection."""


class Replica:
    """One replica's process."""

    def __init__(self, number: int, directory: Path, command: list[str]) -> None:
        self.name = f"replica-{number}"
        self.address = f"127.0.0.{10 + number}"
        self.starts = 0
        self.ends: list[tuple[float, int]] = []
        """Unix time and exit code."""
        self._directory, self._command = directory, command
        self._clock = directory / "clock"
        self._process: Process | None = None
        self._pid_file = directory / "controller.pid"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def begin(self) -> None:
        """Start it, and start it again whenever it ends."""
        self.set_clock(0)
        self._start()
        self._thread.start()

    def end(self) -> None:
        """Stop it for good."""
        self._stop.set()
        self._thread.join()
        if self._process is not None:
            self._process.stop()

    @property
    def pid(self) -> int | None:
        with suppress(OSError, ValueError):
            return int(self._pid_file.read_text(encoding="ascii"))
        return None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the controller itself; one that has ended gets none."""
        pid = self.pid
        with suppress(ProcessLookupError):
            if pid is not None:
                os.kill(pid, number)

    def set_clock(self, seconds: int) -> None:
        """Move its wall clock, by so much from the true time, within a second."""
        beside = self._clock.with_suffix(".new")
        beside.write_text(f"{seconds:+d}", encoding="ascii")
        beside.rename(self._clock)

    @property
    def log(self) -> Path:
        return self._directory / "controller.log"

    def _start(self) -> None:
        self.starts += 1
        environment: dict[str, str] = {}
        if FAKETIME.exists():
            environment = {
                "LD_PRELOAD": str(FAKETIME),
                "FAKETIME_TIMESTAMP_FILE": str(self._clock),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        wrapper = [sys.executable, "-m", "nodeattest_sandbox.child_process", str(self._pid_file)]
        self._process = Process(
            "controller", [*wrapper, *self._command], self._directory, self._pid_file, environment=environment
        )

    def _keep(self) -> None:
        while not self._stop.wait(RESTART):
            assert self._process is not None
            code = self._process.popen.poll()
            if code is not None:
                self.ends.append((time.time(), code))
                self._start()


class Replicas:
    """Both, and the links between them and the API servers."""

    def __init__(self, world: World, directory: Path, tools: Tools, *, lease: int) -> None:
        self.management = Link(_port(world.management.server), self._address_of)
        self.workload = Link(_port(world.workload.server), self._address_of)
        self.replicas: list[Replica] = []
        create_all(world.workload.client(), manifests.objects("workload-hardening"), user=USER)
        kubeconfig = directory / "replica.kubeconfig"
        document = world.management.client_kubeconfig(USER).read_text(encoding="utf-8")
        kubeconfig.write_text(through(document, world.management.server, self.management), encoding="utf-8")
        for number in (1, 2):
            folder = directory / f"replica-{number}"
            folder.mkdir()
            config = controller_config(world) | {
                "kubeconfig": str(kubeconfig),
                "leaseDuration": f"{lease}s",
                "renewDeadline": f"{lease * 2 / 3:.1f}s",
                "retryPeriod": f"{lease / 8:.1f}s",
            }
            (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
            command = [str(tools.controller), "run", "--config", str(folder / "config.yaml")]
            self.replicas.append(Replica(number, folder, command))

    def begin(self) -> None:
        for replica in self.replicas:
            replica.begin()

    def close(self) -> None:
        for replica in self.replicas:
            replica.end()
        self.management.close()
        self.workload.close()

    def owner(self, find: Callable[[], str]) -> Replica:
        """Return the replica that leads, by the identity that the Lease names."""
        holder = find()
        for replica in self.replicas:
            if holder and holder.encode() in replica.log.read_bytes():  # a process has its identity to itself
                return replica
        return self.replicas[0]

    def other(self, replica: Replica) -> Replica:
        return next(one for one in self.replicas if one is not replica)

    def _address_of(self, port: int) -> str | None:
        """Ask again for a while: the kernel's table is not read at one moment."""
        for _ in range(TRIES):
            pids = {replica.pid: replica for replica in self.replicas}
            found = owner_of_port(port, [pid for pid in pids if pid is not None])
            if found is not None:
                return pids[found].address
            time.sleep(0.05)
        return None


def through(kubeconfig: str, server: str, link: Link) -> str:
    """Let a kubeconfig lead through a link."""
    changed = kubeconfig.replace(server, f"https://{LOOPBACK}:{link.port}")
    assert changed != kubeconfig, "the kubeconfig names another server"
    return changed


def _port(server: str) -> int:
    return int(server.rpartition(":")[2])
