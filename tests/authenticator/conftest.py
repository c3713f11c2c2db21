from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from agent_cluster import Authority, FakeApi
from agent_machine import Machine
from discovered_cluster import Discoverer, other_cluster, publish
from test_credential import challenge_then_sign


@pytest.fixture(scope="session")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def api(tmp_path: Path, authority: Authority) -> Generator[FakeApi]:
    with FakeApi(tmp_path, authority) as running:
        yield running


@pytest.fixture
def machine(tmp_path: Path, api: FakeApi) -> Machine:
    return Machine(tmp_path, api).prepare()


@pytest.fixture
def node(tmp_path: Path, api: FakeApi) -> Discoverer:
    """A node that has joined by discovery, and whose kubelet has asked for its credential once."""
    publish(api)
    api.on_create = challenge_then_sign
    joiner = Discoverer(tmp_path, api)
    joiner.challenged()
    done = joiner.join("--kubelet-ca-file", str(joiner.folder / "pki/ca.crt"))
    assert done.returncode == 0, done.stderr
    assert joiner.installed.run(info=joiner.info).returncode == 0
    return joiner


@pytest.fixture
def elsewhere(tmp_path: Path, authority: Authority) -> Generator[FakeApi]:
    with other_cluster(tmp_path, authority) as api:
        api.on_create = challenge_then_sign
        yield api
