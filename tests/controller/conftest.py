"""A cluster's keys, for each file that asks for them."""

from __future__ import annotations

import pytest

from nodeattest_sandbox.pki import ClusterPki


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> ClusterPki:
    return ClusterPki.make(tmp_path_factory.mktemp("pki"), "blue")
