from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from scripted import Server, serving

from nodeattest_kube.client import ApiClient


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[Server]:
    async with serving(tmp_path) as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncGenerator[ApiClient]:
    async with ApiClient.from_kubeconfig(server.kubeconfig(), request_timeout=60.0) as made:
        yield made
