"""Controllers as processes of the measurement, with the demo's configuration and what a measurement adds to it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import yaml

from nodeattest_demo.world import Tools, World, controller_config, log_field
from nodeattest_sandbox.child_process import Process, wait
from nodeattest_sandbox.client import ApiRefusal, Client

BINDING = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/nodeattest:node-bootstrapper"
CONNECTED = "nodeattest_cluster_connected{"
LOOK = 0.2
"""Seconds between two looks at a controller's metrics."""
NOTHING: Mapping[str, object] = {}


@dataclass(frozen=True)
class RunningController:
    process: Process
    directory: Path
    began: float
    """Monotonic seconds."""

    @property
    def pid(self) -> int:
        return self.process.pid()

    @property
    def log(self) -> Path:
        return self.process.log

    def is_ready(self) -> bool:
        """Ask /readyz at the port that the log names."""
        port = log_field(self.log, "serving health and metrics", "health_port")
        if port is None:
            return False
        with suppress(OSError), build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}/readyz", timeout=2):
            return True
        return False

    def identity(self) -> str:
        """Return the name by which it holds Leases; empty until it says it."""
        return log_field(self.log, "serving", "identity") or ""

    def gauge(self, start: str) -> float:
        """Add up the samples of its metrics that begin so; 0 while it does not serve any."""
        port = log_field(self.log, "serving health and metrics", "metrics_port")
        if port is None:
            return 0.0
        with (
            suppress(OSError),
            build_opener(ProxyHandler({})).open(f"http://127.0.0.1:{port}/metrics", timeout=10) as told,
        ):
            lines = told.read().decode().splitlines()
            return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))
        return 0.0

    def await_ready(self) -> float:
        """Wait until it is ready, and return the seconds since its start."""
        wait(self.process, self.is_ready)
        return time.monotonic() - self.began

    def await_serving(self) -> float:
        """Wait until it leads, its caches are complete, and a cluster is connected; return the seconds since its start.

        A standby is ready, too.
        """

        def serves() -> bool:
            time.sleep(LOOK)  # each look costs the controller some milliseconds
            return self.gauge(CONNECTED) >= 1

        wait(self.process, serves)
        return time.monotonic() - self.began

    def kill(self) -> None:
        """End it as a machine that loses its power does."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.process.popen.wait()

    def stop(self) -> None:
        """End it in order."""
        self.process.stop()


def launch(world: World, directory: Path, tools: Tools, config: Mapping[str, object] = NOTHING) -> RunningController:
    """Start ``node-attestation-controller run``, and wait for nothing but its process."""
    directory.mkdir()
    file, pid_file = directory / "config.yaml", directory / "controller.pid"
    file.write_text(yaml.safe_dump({**controller_config(world), **config}), encoding="utf-8")
    wrapper = [sys.executable, "-m", "nodeattest_sandbox.child_process", str(pid_file)]
    began = time.monotonic()
    process = Process(
        "controller", [*wrapper, str(tools.controller), "run", "--config", str(file)], directory, pid_file
    )
    wait(process, lambda: pid_file.exists() and pid_file.stat().st_size > 0)
    return RunningController(process, directory, began)


def start_controller(
    world: World, directory: Path, tools: Tools, config: Mapping[str, object] = NOTHING
) -> RunningController:
    """Start one, and wait until it serves the workload cluster."""
    started = launch(world, directory, tools, config)
    try:
        started.await_ready()
        admin = world.workload.client()
        wait(started.process, lambda: _exists(admin))
    except BaseException:
        started.stop()
        raise
    return started


def _exists(admin: Client) -> bool:
    try:
        admin.get(BINDING)
    except ApiRefusal:
        return False
    return True
