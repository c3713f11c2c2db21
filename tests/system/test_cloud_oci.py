"""Instances of Oracle Cloud join and renew through the controller process; nobody joins as another instance."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from oci_world import POLICY, Instance, OracleCloud, metadata_service, subject
from polling import eventually
from world import Controller, World

from nodeattest_controller import configfile
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> OracleCloud:
    return OracleCloud(tmp_path_factory.mktemp("oci"))


@pytest.fixture(scope="module")
def controller(world: World, cloud: OracleCloud) -> Iterator[Controller]:
    section: JsonMap = json.loads(json.dumps(dict(POLICY)))
    world.set_policy(authorizedAttestors=["oci"], oci=section)
    head = {"apiVersion": configfile.API_VERSION, "kind": configfile.KIND}
    path = world.directory / "oci.json"
    path.write_text(json.dumps({**head, "platforms": {"oci": cloud.platform}}))
    with world.controller("--config", str(path), "--leader-elect", "false", log="oci.log") as running:
        world.await_service(running)
        yield running


def launch(world: World, cloud: OracleCloud, name: str) -> Instance:
    """Run an instance and create its Machine."""
    instance = cloud.launch(name)
    fleet.create_machine(world.admin, name, cluster=world.cluster, provider_id=instance.provider_id)
    return instance


@pytest.mark.usefixtures("controller")
def test_an_instance_joins_and_renews_and_is_not_told_its_provider_id(world: World, cloud: OracleCloud) -> None:
    instance = launch(world, cloud, "oci1")
    with metadata_service(instance) as url:
        agent = dataclasses.replace(world.agent("oci1", "oci", metadataEndpoint=url), provider_id="")
        joined = agent.join(world.token())
        assert joined.returncode == 0, joined.stderr
        ledger = world.ledger("oci1")
        assert text_at(ledger, "spec", "providerID") == instance.provider_id
        assert map_at(ledger, "spec", "fingerprints") == {"oci.instance": instance.ocid}
        credential: Path = agent.directory / "cache" / "credential"
        first = credential.read_bytes()
        renewed = agent.join(world.token(), "--renew")
        assert renewed.returncode == 0, renewed.stderr
        assert credential.read_bytes() != first


def test_an_instance_of_another_machine_and_one_of_another_tenancy_are_denied(
    world: World, cloud: OracleCloud, controller: Controller
) -> None:
    victim, thief = launch(world, cloud, "oci2"), launch(world, cloud, "oci3")
    with metadata_service(thief) as url:
        agent = world.agent("oci2", "oci", provider_id=victim.provider_id, metadataEndpoint=url)
        assert agent.join(world.token()).returncode != 0
    eventually(lambda: "PlatformInstanceMismatch" in controller.log(), what="the refusal of another instance")
    units = subject(victim.ocid, tenant="ocid1.tenancy.oc1..thiefs")
    with metadata_service(cloud.launch("oci2", units)) as url:
        agent = world.agent("oci2", "oci", directory="oci2b", provider_id=victim.provider_id, metadataEndpoint=url)
        assert agent.join(world.token()).returncode != 0
    eventually(lambda: "PlatformAccountNotAllowed" in controller.log(), what="the refusal of another tenancy")
