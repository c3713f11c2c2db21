"""Clusters and the controller for the measurements: those of the demo, left alone by everything else."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from nodeattest_cli.demo.children import Children
from nodeattest_cli.demo.join_info import join_info_with_ca
from nodeattest_cli.demo.tools import Tools
from nodeattest_cli.demo.world import World, create_world, start_control_planes, start_controller
from nodeattest_sandbox.control_plane import AuditEntry

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class BenchEnvironment:
    world: World
    tools: Tools
    children: Children
    directory: Path
    stack: ExitStack
    controller_pid: int

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


def cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


@contextmanager
def start_environment(tools: Tools, *, controller: bool = True) -> Generator[BenchEnvironment]:
    """Start clusters, and one controller unless the measurement brings its own."""
    with tempfile.TemporaryDirectory(prefix="nodeattest-bench-") as name, ExitStack() as stack:
        directory = Path(name)
        children = Children(os.environ)
        stack.callback(children.close)
        planes = start_control_planes(directory, assets=tools.assets, stack=stack)
        world = create_world(planes, provider="tpm", join_info=join_info_with_ca(planes.workload))
        pid = start_controller(world, directory / "controller", tools, stack).pid() if controller else 0
        yield BenchEnvironment(world, tools, children, directory, stack, pid)
