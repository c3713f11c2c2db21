"""What the attacks share: the API server to file them at. Which rows ran: ``tests/conftest.py``."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from apiserver_kit import CSRS, csr_object
from aws_world import played as played  # noqa: PLC0414 - fixtures
from aws_world import stage as stage  # noqa: PLC0414 - fixtures
from azure_world import azure as azure  # noqa: PLC0414 - fixtures
from azure_world import running_azure as running_azure  # noqa: PLC0414 - fixtures
from gcp_world import google as google  # noqa: PLC0414 - fixtures
from gcp_world import running_google as running_google  # noqa: PLC0414 - fixtures
from gcp_world import vtpm as vtpm  # noqa: PLC0414 - fixtures

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.pki import ClusterPki

_NUMBERS = count(1)


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> ClusterPki:
    return ClusterPki.make(tmp_path_factory.mktemp("pki"), "blue")


@pytest.fixture
def answer_to(real_control_plane: ControlPlane) -> Callable[[JsonMap], str]:
    """Tell what a real API server does with a request of this spec: ``stored`` or ``refused``."""
    client = real_control_plane.client()

    def answer(spec: JsonMap) -> str:
        body = csr_object(f"attack-{next(_NUMBERS)}")
        map_at(body, "spec").update(spec)
        try:
            client.create(CSRS, body)
        except ApiRefusal as refused:
            return "refused" if (refused.code, refused.reason) == (422, "Invalid") else str(refused)
        return "stored"

    return answer
