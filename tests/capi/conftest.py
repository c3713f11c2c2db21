"""The journey's managers and its world, one for the whole module."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from capi_world import CapiWorld, capi_world
from managers import Managers, found_managers
from needs import lacks

from nodeattest_sandbox.control_plane import version


@pytest.fixture(scope="module")
def kubernetes(assets: Path) -> str:
    """The version of kubeadm, such as v1.37.2."""
    return version(assets / "kubeadm")


@pytest.fixture(scope="module")
def managers(assets: Path) -> Managers:
    if os.geteuid() != 0:
        lacks("root, as which kubeadm and kubelet run")
    found = found_managers(assets)
    return lacks(found) if isinstance(found, str) else found


@pytest.fixture(scope="module")
def world(managers: Managers, assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CapiWorld]:
    with capi_world(tmp_path_factory.mktemp("capi"), assets, managers) as built:
        yield built


@pytest.fixture(autouse=True)
def _programs_are_told(request: pytest.FixtureRequest) -> None:
    """Let the report of each test of the journey name the programs."""
    if "world" in request.fixturenames:
        managers = request.getfixturevalue("world").managers
        told = ", ".join(f"{name} {version}" for name, version in managers.versions().items())
        request.node.user_properties.append(("programs", told))
