"""Software TPMs of this room's tests: made once, each with its own keys, all of one authority."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from aws_world import played as played  # noqa: PLC0414 - fixtures
from aws_world import stage as stage  # noqa: PLC0414 - fixtures
from azure_world import azure as azure  # noqa: PLC0414 - fixtures
from azure_world import running_azure as running_azure  # noqa: PLC0414 - fixtures
from gcp_world import google as google  # noqa: PLC0414 - fixtures
from gcp_world import running_google as running_google  # noqa: PLC0414 - fixtures
from gcp_world import vtpm as vtpm  # noqa: PLC0414 - fixtures

from nodeattest_sandbox.swtpm import SoftwareTpm


@pytest.fixture(scope="session")
def tpm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tpms")


@pytest.fixture(scope="session")
def real_tpm(tpm_folder: Path) -> Generator[SoftwareTpm]:
    with SoftwareTpm.create(tpm_folder, name="node-7") as running:
        yield running
