"""What the tests of the API server share."""

from __future__ import annotations

from itertools import count

import pytest

from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane

_NUMBERS = count(1)


@pytest.fixture
def admin(control_plane: ControlPlane) -> Client:
    return control_plane.client()


@pytest.fixture
def unique() -> str:
    """A name that no other test uses."""
    return f"t{next(_NUMBERS)}"


@pytest.fixture
def namespace(admin: Client, unique: str) -> str:
    admin.create("/api/v1/namespaces", {"metadata": {"name": unique}})
    return unique
