"""EC2 instances as machines of the world: a Machine each, an agent that knows nothing but where its metadata is."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

import pytest
from world import Agent, Controller, World

from clouds.aws.cloud import ACCOUNT, REGION, Instance, SandboxAws
from nodeattest_controller import configfile
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap

ROLE = "system-nodes"
TAGS = {"kubernetes.io/cluster/c1": "owned"}


class AwsFleet:
    """Machines in the sandbox's AWS."""

    def __init__(self, world: World, cloud: SandboxAws) -> None:
        self.world = world
        self.cloud = cloud

    def authorize(self, *others: str) -> None:
        """Let instances join, and machines of other providers."""
        self.world.set_policy(authorizedAttestors=["aws", *others], aws=self.section())

    def section(self) -> JsonMap:
        """Return the policy's section: which instances may join."""
        return {"accounts": [ACCOUNT], "regions": [REGION], "roles": [ROLE], "tags": dict(TAGS)}

    def flags(self, file: str) -> tuple[str, ...]:
        """Write the controller's configuration, and return the flags with which it is started."""
        aws = {
            "endpoints": {"sts": self.cloud.front, "ec2": self.cloud.front},
            "caBundle": str(self.cloud.ca_file),
            "trustBundle": str(self.cloud.regions),
        }
        path = self.world.directory / file
        head = {"apiVersion": configfile.API_VERSION, "kind": configfile.KIND}
        path.write_text(json.dumps({**head, "platforms": {"aws": aws}}))
        return "--config", str(path), "--leader-elect", "false"

    def environment(self) -> Mapping[str, str]:
        """Return what the controller's process finds in its environment: the least that it needs."""
        reader = self.cloud.session("system-controller", "replica-1", may=["DescribeInstances", "GetInstanceTpmEkPub"])
        return {**self.cloud.settings_only, **reader.environment}

    def launch(
        self,
        name: str,
        *,
        role: str | None = ROLE,
        tags: Mapping[str, str] = TAGS,
        addresses: Sequence[tuple[str, str]] = (),
    ) -> Instance:
        """Run an instance and create its Machine, whose other addresses than the name may be made up."""
        instance = self.cloud.launch(role=role, tags=tags)
        fleet.create_machine(
            self.world.admin,
            name,
            cluster=self.world.cluster,
            provider_id=instance.provider_id,
            addresses=[("InternalDNS", instance.private_dns), *addresses],
        )
        return instance

    def agent(self, instance: Instance, **more: str) -> Agent:
        """Make the agent of an instance; it is not told its provider ID."""
        settings = {"metadataEndpoint": instance.metadata_endpoint, **more}
        made = self.world.agent(instance.private_dns, "aws", **settings)
        return Agent(
            directory=made.directory,
            server=made.server,
            ca_file=made.ca_file,
            node_name=made.node_name,
            provider=made.provider,
            provider_id="",
            settings=made.settings,
        )


@contextmanager
def authorized_fleet(world: World, cloud: SandboxAws, *others: str) -> Generator[AwsFleet]:
    """Let instances join, and give controllers that are started from here on credentials of AWS."""
    made = AwsFleet(world, cloud)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made.environment().items():
            patch.setenv(name, value)
        made.authorize(*others)
        yield made


def platform_calls(controller: Controller) -> Mapping[tuple[str, str], int]:
    """Count the controller's calls to AWS by service and outcome, from its metrics."""
    port = (controller.said("serving health and metrics") or {}).get("metrics_port")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines: list[str] = answer.read().decode().splitlines()
    found: dict[tuple[str, str], int] = {}
    for line in lines:
        name, _, value = line.partition(" ")
        if name.startswith("nodeattest_platform_call_seconds_count{"):
            labels = dict(part.split("=", 1) for part in name.partition("{")[2].rstrip("}").split(","))
            found[labels["service"].strip('"'), labels["outcome"].strip('"')] = int(float(value))
    return found
