"""What the tests of the operator's tool share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster_info_tool import ClusterInfoTool

from nodeattest_sandbox.control_plane import ControlPlane


@pytest.fixture
def tool(control_plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> Iterator[ClusterInfoTool]:
    """``nodeattest cluster-info`` on a cluster that has none, before and after."""
    made = ClusterInfoTool(control_plane, capsys)
    made.clear()
    yield made
    made.clear()
