"""The world of the system tests, one for the sandbox and one for real control planes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from world import World, built_world

from nodeattest_sandbox.control_plane import ControlPlane


@pytest.fixture(scope="session")
def world(
    start_control_plane: Callable[[str], ControlPlane], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    with built_world(start_control_plane, tmp_path_factory.mktemp("world")) as built:
        yield built
