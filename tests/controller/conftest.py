"""A cluster's keys, and a management cluster's API server, for each file that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodeattest_controller.manifests import crds
from nodeattest_sandbox.control_plane import ControlPlane, start_sandbox
from nodeattest_sandbox.definitions import install_cluster_api, install_definitions
from nodeattest_sandbox.pki import ClusterPki


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> ClusterPki:
    return ClusterPki.make(tmp_path_factory.mktemp("pki"), "blue")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A server with Cluster API's kinds and ours."""
    with start_sandbox(tmp_path_factory.mktemp("management"), name="management") as running:
        install_cluster_api(running.client())
        install_definitions(running.client(), crds())
        yield running
