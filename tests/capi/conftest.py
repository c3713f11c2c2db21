"""The journey's managers and its world, one for the whole module."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from capi_assets import found_managers
from capi_world import CapiWorld, capi_world
from imitation import Imitation
from managers import Managers
from needs import lacks, not_possible

from nodeattest_sandbox.kubernetes_binaries import kubeadm, version


@pytest.fixture(scope="module")
def kubernetes(assets: Path) -> str:
    """The version of kubeadm, such as v1.20.2."""
    return version(assets / "kubeadm")


@pytest.fixture(scope="module", params=["imitation", "cluster-api"])
def managers(request: pytest.FixtureRequest, assets: Path) -> Managers:
    if os.geteuid() != 0:
        lacks("root, as which kubeadm and kubelet run")
    asked = ("config", "print", "init-defaults", "--component-configs", "KubeletConfiguration")
    if kubeadm(assets, *asked).returncode != 0:
        not_possible("kubeadm before 1.23 built with Go 1.18 or later dies of KubeletConfiguration")
    if request.param == "imitation":
        return Imitation(request.getfixturevalue("capi_definitions"), assets)
    found = found_managers(assets)
    if isinstance(found, str):
        not_possible(found)
    return found


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
