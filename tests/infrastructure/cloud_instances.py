"""Instances of the sandbox clouds, for the providers whose platform proves the machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from aws_fleet import ROLE, TAGS, AwsFleet
from azure_fleet import AzureFleet
from gcp_fleet import PROJECT, GcpFleet
from world import World

from clouds.aws.cloud import SandboxAws
from clouds.azure.cloud import SandboxAzure
from clouds.gcp.cloud import GoogleCloud
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap


@dataclass(frozen=True, slots=True)
class Instance:
    """What a cloud's instance is called, and where its agent finds the platform."""

    provider_id: str
    dns: str
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CloudInstances:
    """The sandbox clouds with one fleet each."""

    aws: AwsFleet
    azure: AzureFleet
    gcp: GcpFleet

    def sections(self) -> JsonMap:
        """Return the policy's sections of the clouds."""
        return {"aws": self.aws.section(), "azure": self.azure.section(), "gcp": self.gcp.section()}

    def platforms(self) -> JsonMap:
        """Return the controller's configuration of the clouds."""
        found: JsonMap = {}
        for name, each in (("aws", self.aws), ("azure", self.azure), ("gcp", self.gcp)):
            path = each.flags(f"{name}-platform.json")[1]
            found |= json.loads(Path(path).read_text())["platforms"]
        return found

    def launch(self, attestor: str, name: str) -> Instance:
        """Run an instance of the cloud whose provider this is."""
        launches: dict[str, Callable[[str], Instance]] = {
            "aws": self._launch_aws,
            "azure": self._launch_azure,
            "gcp": self._launch_gcp,
        }
        return launches[attestor](name)

    def _launch_aws(self, _name: str) -> Instance:
        made = self.aws.cloud.launch(role=ROLE, tags=TAGS)
        return Instance(made.provider_id, made.private_dns, {"metadataEndpoint": made.metadata_endpoint})

    def _launch_azure(self, name: str) -> Instance:
        made = self.azure.run(name)
        return Instance(made.provider_id, made.computer_name, {"metadataEndpoint": made.metadata})

    def _launch_gcp(self, name: str) -> Instance:
        made = self.gcp.run(name)
        return Instance(made.provider_id, made.name, dict(self.gcp.agent(made).settings))


CLOUDS: Final = ("aws", "azure", "gcp")


@contextmanager
def cloud_instances(world: World, aws: SandboxAws, directory: Path) -> Generator[CloudInstances]:
    """Run the clouds, and give controllers that are started from here on credentials of AWS."""
    with (
        SandboxAzure(directory / "azure") as azure,
        GoogleCloud(directory / "gcp") as google,
        pytest.MonkeyPatch.context() as patch,
    ):
        made = CloudInstances(AwsFleet(world, aws), AzureFleet(world, azure), GcpFleet(world, google, [PROJECT]))
        for name, value in made.aws.environment().items():
            patch.setenv(name, value)
        yield made
