"""Instances of each cloud join, renew and serve through one controller process, and others are refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import oci_world
import pytest
from cloud_fleets import CLOUDS, CloudInstances, Instance, cloud_instances
from cryptography import x509
from polling import eventually
from world import Controller, World

from clouds.aws import SandboxAws
from nodeattest_controller import configfile
from nodeattest_sandbox.apiserver.jsonvalue import text_at

pytestmark = pytest.mark.swtpm


@pytest.fixture(scope="module")
def clouds(world: World, aws: SandboxAws, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudInstances]:
    with cloud_instances(world, aws, tmp_path_factory.mktemp("clouds")) as running:
        yield running


@pytest.fixture(scope="module")
def controller(world: World, clouds: CloudInstances) -> Iterator[Controller]:
    world.set_policy(authorizedAttestors=list(CLOUDS), **clouds.sections())
    head = {"apiVersion": configfile.API_VERSION, "kind": configfile.KIND}
    path = world.directory / "clouds.json"
    path.write_text(json.dumps({**head, "platforms": clouds.platforms()}))
    with world.controller("--config", str(path), "--leader-elect", "false", log="clouds.log") as running:
        world.await_service(running)
        yield running


@pytest.mark.usefixtures("controller")
@pytest.mark.parametrize(
    ("provider", "changes"), [("aws", {}), ("azure", {}), ("azure", {"scale_set": "Pool"}), ("gcp", {}), ("oci", {})]
)
def test_an_instance_joins_renews_and_serves_at_its_live_address(
    world: World, clouds: CloudInstances, provider: str, changes: dict[str, str]
) -> None:
    name = f"{provider}-whole{len(changes)}"
    instance, agent = clouds.enrolled(provider, name, **changes)
    serving = ["--serving-ip-address", instance.address] if instance.address else []
    joined = agent.join(world.token(), *serving)
    assert joined.returncode == 0, joined.stderr
    assert text_at(world.ledger(name), "spec", "providerID") == instance.provider_id
    if serving:
        certificate = x509.load_pem_x509_certificate((agent.directory / "cache" / "serving.pem").read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == [instance.address]
    first = (agent.directory / "cache" / "credential").read_bytes()
    renewed = agent.join(world.token(), "--renew")
    assert renewed.returncode == 0, renewed.stderr
    assert (agent.directory / "cache" / "credential").read_bytes() != first


def terminated(clouds: CloudInstances, instance: Instance) -> None:
    clouds.aws.terminate(instance.made)


def being_deleted(_: CloudInstances, instance: Instance) -> None:
    instance.made.provisioning_state = "Deleting"


def stopped(_: CloudInstances, instance: Instance) -> None:
    instance.made.status = "TERMINATED"


Change = Callable[[CloudInstances, Instance], None]
REFUSED: list[tuple[str, dict[str, Any], Change | None, str]] = [
    ("aws", {"role": None}, None, "instance profile"),
    ("aws", {"tags": {}}, None, "PlatformTagsNotAllowed"),
    ("aws", {}, terminated, "PlatformInstanceNotRunning"),
    ("azure", {"tags": {}}, None, "PlatformTagsNotAllowed"),
    ("azure", {}, being_deleted, "PlatformInstanceNotRunning"),
    ("gcp", {"labels": {}}, None, "PlatformTagsNotAllowed"),
    ("gcp", {}, stopped, "PlatformInstanceNotRunning"),
    ("gcp", {"project": "somebodys-project"}, None, "PlatformAccountNotAllowed"),
    ("oci", {"units": oci_world.subject(oci_world.ocid("oci9"), tenant="ocid1.tenancy.oc1..thiefs")}, None, ""),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_an_instance_that_the_policy_does_not_want_is_refused(
    world: World, clouds: CloudInstances, controller: Controller, number: int
) -> None:
    provider, changes, change, reason = REFUSED[number]
    instance, agent = clouds.enrolled(provider, f"{provider}-{number + 1}", **changes)
    if change is not None:
        change(clouds, instance)
    refused = agent.join(world.token())
    assert refused.returncode == 1
    assert reason in refused.stderr
    if provider == "oci":
        eventually(lambda: "PlatformAccountNotAllowed" in controller.log(), what="the refusal of another tenancy")


@pytest.mark.usefixtures("controller")
def test_a_machine_that_was_recreated_under_its_name_does_not_renew(world: World, clouds: CloudInstances) -> None:
    instance, agent = clouds.enrolled("azure", "azure-recreated")
    assert agent.join(world.token()).returncode == 0
    instance.made.vm_id = "02aab8a4-74ef-476e-8182-f6d2ba4166a6"
    assert "PlatformInstanceMismatch" in agent.join(world.token(), "--renew").stderr
