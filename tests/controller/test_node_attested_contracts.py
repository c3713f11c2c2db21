"""Where machines stand, on Cluster API's own definitions: one served version at a time, objects that they accept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest
import yaml
from node_attested_site import KEY, Site, Version, at_work, prepared
from polling import until

from nodeattest_controller.runtime.csr_observer import CSRDenied
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import NodeName, ProviderID, ProviderName, Purpose
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.control_plane import ControlPlane, start_real, start_sandbox
from nodeattest_sandbox.definitions import install_definitions


@pytest.fixture(scope="module", params=["sandbox", pytest.param("real", marks=pytest.mark.conformance)])
def kind(request: pytest.FixtureRequest) -> str:
    return cast("str", request.param)


@pytest.fixture(scope="module", params=["v1beta1", "v1beta2"])
def version(request: pytest.FixtureRequest) -> Version:
    return cast("Version", request.param)


@pytest.fixture(scope="module")
def plane(
    kind: str,
    version: Version,
    capi_definitions: Path,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ControlPlane]:
    directory = tmp_path_factory.mktemp(f"contracts-{kind}-{version}")
    with ExitStack() as stack:
        if kind == "sandbox":
            running = stack.enter_context(start_sandbox(directory, name="management"))
        else:
            assets = cast("Path", request.getfixturevalue("assets"))
            running = stack.enter_context(start_real(directory, assets, name="management"))
        install_definitions(running.client(), only(version, capi_definitions))
        yield prepared(running)


def only(version: Version, folder: Path) -> list[JsonMap]:
    """Read Cluster API's definitions, with one version that is stored and served: conversion needs its webhooks."""
    found: list[JsonMap] = []
    for kind in ("clusters", "machines", "machinepools"):
        text = (folder / f"cluster.x-k8s.io_{kind}.yaml").read_text()
        definition = cast("JsonMap", yaml.load(text, yaml.CSafeLoader))
        spec = map_at(definition, "spec")
        spec["versions"] = [one for one in maps_at(spec, "versions") if one["name"] == version]
        for one in maps_at(spec, "versions"):
            one.update({"storage": True, "served": True})
        spec.pop("conversion", None)
        found.append(definition)
    return found


@pytest.fixture(scope="module")
def site(plane: ControlPlane, version: Version) -> Site:
    made = Site(plane.client(), version)
    made.cluster()
    return made


async def test_machines_and_pools_say_how_they_stand_beside_others_conditions(plane: ControlPlane, site: Site) -> None:
    site.ledger(site.machine("good"))
    site.machine("unattested")
    site.machine("new", node=False)
    site.pool("pool", "sandbox://good", "sandbox://late")
    async with at_work(plane):
        await until(lambda: site.said("machines", "good") == ("True", "Attested"), "the certificate")
        await until(lambda: site.said("machines", "unattested") == ("Unknown", "NotAttested"), "the stranger")
        await until(lambda: site.said("machines", "new") == ("Unknown", "NotYetAttested"), "the new one")
        await until(lambda: site.said("machinepools", "pool") == ("Unknown", "InstancesNotAttested"), "the pool")
    kept = [text_at(one, "type") for one in site.conditions("machines", "good")]
    assert kept == ["InfrastructureReady", "NodeAttested"]
    ours = site.conditions("machines", "unattested")[1]
    assert ("observedGeneration" in ours) is (site.version == "v1beta2")


async def test_a_refusal_reaches_ledger_and_condition(plane: ControlPlane, site: Site) -> None:
    site.ledger(site.machine("refused"))
    async with at_work(plane) as controller:
        await until(lambda: site.said("machines", "refused") == ("True", "Attested"), "the certificate")
        controller.refused(
            CSRDenied(
                cluster=KEY, provider_id=ProviderID("sandbox://refused"), node_name=NodeName("refused"),
                username="system:node:refused", by_node=True, provider=ProviderName("tpm"), purpose=Purpose.CLIENT,
                reason=Reason.PCR_VALUE_NOT_ALLOWED, request_name="csr-1", message="", at=datetime.now(UTC),
            )
        )  # fmt: skip
        await until(lambda: site.said("machines", "refused") == ("False", "PCRValueNotAllowed"), "the refusal")
    assert ("severity" in site.conditions("machines", "refused")[1]) is (site.version == "v1beta1")
