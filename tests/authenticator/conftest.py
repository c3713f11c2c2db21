from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from agent_cluster import FakeApi
from agent_machine import Discoverer, Joiner, Machine, other_server, publish
from lying_servers import Ca

from nodeattest_authenticator.state.storage import Storage


@pytest.fixture(scope="session")
def authority() -> Ca:
    return Ca()


@pytest.fixture
def api(authority: Ca) -> Generator[FakeApi]:
    with FakeApi(authority) as running:
        yield running


@pytest.fixture
def machine(tmp_path: Path, api: FakeApi) -> Machine:
    return Machine(tmp_path, api).prepare()


@pytest.fixture
def joiner(tmp_path: Path, api: FakeApi) -> Joiner:
    return Joiner(tmp_path, api)


@pytest.fixture
def discoverer(tmp_path: Path, api: FakeApi) -> Discoverer:
    publish(api)
    return Discoverer(tmp_path, api)


@pytest.fixture
def node(discoverer: Discoverer) -> Discoverer:
    """A node that has joined by discovery, and whose kubelet has asked for its credential once."""
    discoverer.attests()
    done = discoverer.join("--kubelet-ca-file", str(discoverer.folder / "pki/ca.crt"))
    assert done.returncode == 0, done.stderr
    assert discoverer.run(info=discoverer.called).returncode == 0
    return discoverer


@pytest.fixture
def elsewhere(authority: Ca) -> Generator[FakeApi]:
    """Another API server of the same cluster."""
    with other_server(authority) as api:
        yield api


@pytest.fixture
def storage(tmp_path: Path) -> Generator[Storage]:
    with Storage(str(tmp_path / "state")) as opened:
        yield opened
