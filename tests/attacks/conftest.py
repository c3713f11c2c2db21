"""What the attacks share: the API server to file them at. Which rows ran: ``tests/conftest.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest
from apiserver_kit import CSRS, csr_object
from world import World, built_world

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import ControlPlane

_NUMBERS = count(1)


@pytest.fixture
def answer_to(control_plane: ControlPlane) -> Callable[[JsonMap], str]:
    """Tell what the API server does with a request of this spec: ``stored`` or ``refused``."""
    client = control_plane.client()

    def answer(spec: JsonMap) -> str:
        body = csr_object(f"attack-{next(_NUMBERS)}")
        map_at(body, "spec").update(spec)
        try:
            client.create(CSRS, body)
        except ApiRefusal as refused:
            return "refused" if (refused.code, refused.reason) == (422, "Invalid") else str(refused)
        return "stored"

    return answer


@pytest.fixture(scope="session")
def world(
    start_control_plane: Callable[[str], ControlPlane], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """Management and workload cluster of the attacks on a running controller."""
    with built_world(start_control_plane, tmp_path_factory.mktemp("world")) as built:
        yield built
