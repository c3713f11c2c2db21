"""EC2 instances join, renew and serve; AWS throttles, fails and hangs; clocks are wrong; the controller is killed."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import pytest
from aws_fleet import AwsFleet, authorized_fleet, platform_calls
from cryptography import x509
from polling import eventually
from world import Controller, World

from nodeattest_providers.names import ANNOTATION_REASON
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at
from nodeattest_sandbox.clouds.aws.cloud import SandboxAws


@pytest.fixture(scope="module")
def machines(world: World, aws: SandboxAws) -> Iterator[AwsFleet]:
    with authorized_fleet(world, aws, "challenge") as made:
        yield made


@pytest.fixture(scope="module")
def controller(machines: AwsFleet) -> Iterator[Controller]:
    with machines.world.controller(*machines.flags("aws.json"), log="aws.log") as running:
        machines.world.await_service(running)
        yield running


@pytest.fixture
def faulty(aws: SandboxAws) -> Iterator[SandboxAws]:
    yield aws
    aws.answer("sts", "up")
    aws.answer("ec2", "up")


def test_an_instance_joins_renews_and_serves_at_its_live_address(
    world: World, machines: AwsFleet, controller: Controller
) -> None:
    instance = machines.launch("aws-whole", addresses=[("InternalIP", "10.99.99.99")])
    agent = machines.agent(instance)
    joined = agent.join(world.token(), "--serving-ip-address", instance.private_ip)
    assert joined.returncode == 0, joined.stderr
    assert text_at(world.ledger("aws-whole"), "spec", "providerID") == instance.provider_id
    serving = x509.load_pem_x509_certificate((agent.directory / "cache" / "serving.pem").read_bytes())
    names = serving.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == [instance.private_ip]
    first = (agent.directory / "cache" / "credential").read_bytes()
    renewed = agent.join(world.token(), "--renew")
    assert renewed.returncode == 0, renewed.stderr
    assert (agent.directory / "cache" / "credential").read_bytes() != first
    by_itself = [
        one for one in world.requests_of(instance.private_dns) if "system:node:" in text_at(one, "spec", "username")
    ]
    assert len(by_itself) >= 2
    assert platform_calls(controller)["sts", "ok"] >= 3


@dataclass(frozen=True, slots=True)
class Fault:
    """What one of AWS's services does wrong, and how the metric calls it."""

    service: Literal["sts", "ec2"]
    mode: Literal["throttle", "down", "hang"]
    outcome: str


FAULTS = [Fault("ec2", "throttle", "throttled"), Fault("sts", "hang", "timed_out")]


def test_while_aws_fails_its_machines_wait_others_join_and_the_metric_says_which_service(
    world: World, machines: AwsFleet, controller: Controller, faulty: SandboxAws
) -> None:
    with ThreadPoolExecutor(len(FAULTS)) as pool:
        joining: list[Future[subprocess.CompletedProcess[str]]] = []
        for fault in FAULTS:
            instance = machines.launch(f"aws-{fault.service}-{fault.mode}")
            what = fault.service, fault.outcome
            before = platform_calls(controller).get(what, 0)
            faulty.answer(fault.service, fault.mode, seconds=30)
            joining.append(pool.submit(machines.agent(instance).join, world.token(), "--timeout", "150", timeout=180))
            eventually(lambda: platform_calls(controller).get(what, 0) > before, what="the failed call")
            bare_metal_joins(world, f"bare-{fault.service}-{fault.mode}")
            (waiting,) = eventually(lambda: told_to_wait(world, instance.private_dns), what="the request that waits")
            assert not map_at(waiting, "status").get("conditions")
            faulty.answer(fault.service, "up")
        for one in joining:
            assert one.result().returncode == 0, one.result().stderr


def told_to_wait(world: World, node: str) -> list[JsonMap]:
    """Return the node's requests that say that the platform is unavailable."""
    return [
        one
        for one in world.requests_of(node)
        if text_at(one, "metadata", "annotations", ANNOTATION_REASON).startswith("PlatformUnavailable")
    ]


def bare_metal_joins(world: World, name: str) -> None:
    """Let a machine join that has nothing to do with AWS."""
    world.machine(name)
    secret = secrets.token_hex(32)
    path = world.directory / f"{name}.secret"
    path.write_text(secret)
    path.chmod(0o600)
    world.admin.create(
        "/api/v1/namespaces/fleet/secrets",
        {"metadata": {"name": f"{name}-attestation"}, "type": "Opaque", "stringData": {"secret": secret}},
    )
    joined = world.agent(name, "challenge", secretFile=str(path)).join(world.token())
    assert joined.returncode == 0, joined.stderr


@pytest.mark.usefixtures("controller")
def test_an_instance_without_role_tag_or_life_does_not_join(world: World, machines: AwsFleet) -> None:
    bare = machines.agent(machines.launch("aws-no-role", role=None)).join(world.token())
    assert bare.returncode == 1
    assert "instance profile" in bare.stderr
    untagged = machines.agent(machines.launch("aws-no-tag", tags={})).join(world.token())
    assert "PlatformTagsNotAllowed" in untagged.stderr
    ended = machines.launch("aws-ended")
    machines.cloud.terminate(ended)
    assert "PlatformInstanceNotRunning" in machines.agent(ended).join(world.token()).stderr
