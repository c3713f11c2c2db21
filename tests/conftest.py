"""Control planes for every room's tests: each test that asks for one runs on the sandbox and on a real kube-apiserver.

The real ones need KUBEBUILDER_ASSETS, the folder that Kubernetes projects use for their integration tests; without it
they are skipped, and the report says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest

from nodeattest_sandbox.process import ControlPlane, start_real, start_sandbox

ControlPlaneKind = Literal["sandbox", "real"]
StartControlPlane = Callable[[str], ControlPlane]


def _assets() -> Path | None:
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    return Path(assets) if assets else None


@pytest.fixture(scope="session", params=["sandbox", pytest.param("real", marks=pytest.mark.conformance)])
def control_plane_kind(request: pytest.FixtureRequest) -> ControlPlaneKind:
    if request.param == "real" and _assets() is None:
        pytest.skip("KUBEBUILDER_ASSETS names no folder with etcd and kube-apiserver")
    return request.param


@pytest.fixture(scope="session")
def start_control_plane(
    control_plane_kind: ControlPlaneKind, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartControlPlane]:
    """Start control planes of the kind under test by name; they stop when the kind's tests are over."""
    assets = _assets()
    kubectl = assets / "kubectl" if assets and (assets / "kubectl").exists() else None
    with ExitStack() as stack:

        def start(name: str) -> ControlPlane:
            directory = tmp_path_factory.mktemp(f"{control_plane_kind}-{name}")
            if control_plane_kind == "real" and assets is not None:
                return stack.enter_context(start_real(directory, assets, name=name))
            return stack.enter_context(start_sandbox(directory, name=name, kubectl=kubectl))

        yield start


@pytest.fixture(scope="session")
def control_plane(start_control_plane: StartControlPlane) -> ControlPlane:
    """One control plane that tests share: use names of your own in it."""
    return start_control_plane("shared")
