from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from scripted import Server, serving

from nodeattest_kube.client import ApiClient
from nodeattest_sandbox.pki import ClusterPki


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> ClusterPki:
    return ClusterPki.make(tmp_path_factory.mktemp("pki"), "kube")


@pytest.fixture
async def server(pki: ClusterPki) -> AsyncGenerator[Server]:
    async with serving(pki) as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncGenerator[ApiClient]:
    async with ApiClient.from_kubeconfig(server.kubeconfig(), request_timeout=60.0) as made:
        yield made
