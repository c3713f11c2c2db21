"""The world of the system tests, one for the sandbox and one for real control planes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from world import World

from nodeattest_sandbox.definitions import keeps_custom_resources
from nodeattest_sandbox.process import ControlPlane, start_sandbox


@pytest.fixture(scope="session")
def world(
    start_control_plane: Callable[[str], ControlPlane], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    directory: Path = tmp_path_factory.mktemp("world")
    with ExitStack() as stack:
        management = start_control_plane("management")
        if not keeps_custom_resources(management):  # some builds die of them; such a one can be a workload cluster
            management.stop()
            management = stack.enter_context(start_sandbox(directory / "management", name="management"))
        built = World(directory, management, start_control_plane("workload"))
        stack.callback(built.close)
        yield built
