"""What the attacks share: the API server to file them at, and the record of which rows of the catalogue were run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest
from apiserver_kit import CSRS, csr_object
from cases import Record
from world import World, built_world

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import ControlPlane

_NUMBERS = count(1)


RECORD = pytest.StashKey[Record]()


def _row_of(item: pytest.Item) -> str | None:
    mark = item.get_closest_marker("attack")
    return str(mark.args[0]) if mark else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the count of what ran come last."""
    last = [item for item in items if item.path.name == "test_every_row.py"]
    items[:] = [item for item in items if item not in last] + last
    config.stash.setdefault(RECORD, Record())


def pytest_collection_finish(session: pytest.Session) -> None:
    record = session.config.stash[RECORD]
    record.selected.update(row for item in session.items if (row := _row_of(item)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Count a case when its body ended well."""
    yield
    row = _row_of(item)
    if row:
        item.config.stash[RECORD].ran.add(row)


@pytest.fixture(scope="session")
def record(pytestconfig: pytest.Config) -> Record:
    return pytestconfig.stash[RECORD]


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
