"""What the tests of the operator's tool share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from attested_fleet import AttestedFleet, Tool

from nodeattest_sandbox.control_plane import ControlPlane, start_sandbox


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttestedFleet]:
    """One sandbox server, as management cluster and as the workload clusters blue and green."""
    with start_sandbox(tmp_path_factory.mktemp("fleet"), name="fleet") as plane:
        yield AttestedFleet.build(plane, "blue", "green")


def _cleared(plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> Iterator[Tool]:
    made = Tool(plane, capsys)
    made.clear()
    yield made
    made.clear()


@pytest.fixture
def tool(control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> Iterator[Tool]:
    """Commands on each kind of control plane."""
    yield from _cleared(control_plane, capsys)


@pytest.fixture
def real_tool(real_control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> Iterator[Tool]:
    """Commands on a real one."""
    yield from _cleared(real_control_plane, capsys)
