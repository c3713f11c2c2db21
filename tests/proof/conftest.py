"""What the mutation tests share: a cluster's keys, and two software TPMs of one maker."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from nodeattest_sandbox.pki import ClusterPki
from nodeattest_sandbox.swtpm import SoftwareTpm


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> ClusterPki:
    return ClusterPki.make(tmp_path_factory.mktemp("pki"), "blue")


@pytest.fixture(scope="module")
def tpms(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[SoftwareTpm, SoftwareTpm]]:
    """The machine's TPM and the thief's."""
    folder: Path = tmp_path_factory.mktemp("proof")
    with SoftwareTpm.create(folder, name="victim") as victim, SoftwareTpm.create(folder, name="thief") as thief:
        yield victim, thief
