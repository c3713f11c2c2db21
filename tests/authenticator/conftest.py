from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from agent_cluster import Authority, FakeApi
from agent_machine import Machine


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
