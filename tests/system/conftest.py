"""The world of the system tests, one for the sandbox and one for real control planes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from world import World

from nodeattest_sandbox.process import ControlPlane, start_sandbox
from nodeattest_sandbox.versions import why_no_custom_resources


@pytest.fixture(scope="session")
def world(
    start_control_plane: Callable[[str], ControlPlane], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    directory: Path = tmp_path_factory.mktemp("world")
    workload = start_control_plane("workload")
    with ExitStack() as stack:
        if why_no_custom_resources(workload.client()):
            management = stack.enter_context(start_sandbox(directory / "management", name="management"))
        else:
            management = start_control_plane("management")
        built = World(directory, management, workload)
        stack.callback(built.close)
        yield built
