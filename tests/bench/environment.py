"""Clusters and the controller for the measurements: those of the demo, left alone by everything else."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.controllers import start_controller
from bench.processes import cpu_seconds
from nodeattest_demo.machines import Children
from nodeattest_demo.world import Tools, World, create_world, join_info_with_ca, start_control_planes
from nodeattest_sandbox.control_plane import AuditEntry


@dataclass(frozen=True)
class BenchEnvironment:
    world: World
    tools: Tools
    children: Children
    directory: Path
    stack: ExitStack
    controller_pid: int

    @property
    def server_pids(self) -> list[int]:
        """API servers and etcds of both clusters."""
        return [pid for plane in (self.world.management, self.world.workload) for pid in plane.pids.values()]

    @property
    def management_pids(self) -> list[int]:
        """Those of the management cluster alone."""
        return list(self.world.management.pids.values())

    def controller_cpu(self) -> float:
        """Seconds of user and system time that the controller has used."""
        return cpu_seconds(self.controller_pid)

    def recorder(self) -> Callable[[], list[AuditEntry]]:
        """Start recording; the returned function gives the requests to both API servers that have finished since."""
        planes = (self.world.management, self.world.workload)
        before = [len(plane.requests()) for plane in planes]
        return lambda: [
            entry for plane, count in zip(planes, before, strict=True) for entry in plane.requests()[count:]
        ]


@contextmanager
def start_environment(tools: Tools, *, controller: bool = True, provider: str = "tpm") -> Generator[BenchEnvironment]:
    """Start clusters, and one controller unless the measurement brings its own."""
    with tempfile.TemporaryDirectory(prefix="nodeattest-bench-") as name, ExitStack() as stack:
        directory = Path(name)
        children = Children(os.environ)
        stack.callback(children.close)
        planes = start_control_planes(directory, assets=tools.assets, stack=stack)
        world = create_world(planes, provider=provider, join_info=join_info_with_ca(planes.workload))
        env = BenchEnvironment(world, tools, children, directory, stack, 0)
        if controller:
            started = start_controller(world, directory / "controller", tools)
            stack.callback(started.stop)
            env = replace(env, controller_pid=started.pid)
        yield env
