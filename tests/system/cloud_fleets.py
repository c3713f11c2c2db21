"""Instances of the sandbox clouds as machines of a world: policy sections, the controller's platforms, agents."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import oci_world
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from world import Agent, World

from clouds.aws import ACCOUNT, REGION, SandboxAws
from clouds.azure import SandboxAzure
from clouds.gcp import CloudInstance, GoogleCloud
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap

CLOUDS: Final = ("aws", "azure", "gcp", "oci")
PROJECT: Final = "system-project"
_ROLE: Final = "system-nodes"
_GROUP: Final = "System-RG"
_TAGS: Final = {"kubernetes.io-cluster-c1": "owned"}
"""In every cloud's spelling of tags and labels."""


@dataclass(frozen=True, slots=True)
class Instance:
    """What a cloud's instance is called, and where its agent finds the platform."""

    provider_id: str
    dns: str
    settings: Mapping[str, str]
    address: str = ""
    made: Any = None
    """The cloud's own object."""


@dataclass(frozen=True, slots=True)
class CloudInstances:
    """The sandbox clouds, in which instances are run for one world."""

    world: World
    aws: SandboxAws
    azure: SandboxAzure
    gcp: GoogleCloud
    oci: oci_world.OracleCloud
    services: ExitStack
    """Metadata services that end with the clouds."""
    numbers: count[int]

    def sections(self) -> JsonMap:
        """Return the policy's sections of the clouds: which instances may join."""
        aws = {"accounts": [ACCOUNT], "regions": [REGION], "roles": [_ROLE], "tags": _TAGS}
        azure = {"subscriptions": [self.azure.subscription], "resourceGroups": [_GROUP.lower()], "tags": _TAGS}
        gcp = {"projects": [PROJECT], "labels": {"owned": "c1"}, "requireSecureBoot": True}
        return json.loads(json.dumps({"aws": aws, "azure": azure, "gcp": gcp, "oci": dict(oci_world.POLICY)}))

    def platforms(self) -> JsonMap:
        """Return the controller's configuration of the clouds."""
        key = self.gcp.account(f"controller@{PROJECT}.iam.gserviceaccount.com", project=PROJECT, reads=(PROJECT,))
        aws = {
            "endpoints": {"sts": self.aws.url, "ec2": self.aws.url},
            "caBundle": str(self.aws.ca_file),
            "trustBundle": str(self.aws.regions),
        }
        gcp = {
            "endpoints": {"compute": self.gcp.endpoint},
            "caBundle": str(self.gcp.ca_file),
            "credentialsFile": str(key),
        }
        found = {"aws": aws, "azure": self.azure.configuration, "gcp": gcp, "oci": self.oci.platform}
        return json.loads(json.dumps(found))

    def launch(self, attestor: str, name: str, **changes: Any) -> Instance:
        """Run an instance of the cloud whose provider this is; ``changes`` are the cloud's own words."""
        launches: dict[str, Callable[..., Instance]] = {
            "aws": self._launch_aws,
            "azure": self._launch_azure,
            "gcp": self._launch_gcp,
            "oci": self._launch_oci,
        }
        return launches[attestor](name, **changes)

    def _launch_aws(self, _: str, **changes: Any) -> Instance:
        options: dict[str, Any] = {"role": _ROLE, "tags": _TAGS, **changes}
        made = self.aws.launch(**options)
        settings = {"metadataEndpoint": made.metadata_endpoint}
        return Instance(made.provider_id, made.private_dns, settings, made.private_ip, made)

    def _launch_azure(self, name: str, **changes: Any) -> Instance:
        options: dict[str, Any] = {"group": _GROUP, "computer_name": name, "tags": _TAGS, **changes}
        made = self.azure.launch(str(next(self.numbers)) if "scale_set" in changes else name, **options)
        settings = {"metadataEndpoint": made.metadata}
        return Instance(made.provider_id, made.computer_name, settings, made.address, made)

    def _launch_gcp(self, name: str, **changes: Any) -> Instance:
        number, tpm = next(self.numbers), self.world.tpm(f"gcp-{name}")
        key = tpm.endorsement_certificate("rsa2048").public_key()
        pem = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        options: dict[str, Any] = {"project": PROJECT, "labels": {"owned": "c1"}, **changes}
        made = self.gcp.add(
            CloudInstance(
                zone="europe-west4-a",
                name=name,
                number=str(number),
                internal_ip=f"10.128.0.{number}",
                keys={"encryptionKey": pem},
                **options,
            )
        )
        settings = {"tcti": tpm.tcti, "metadataEndpoint": self.gcp.metadata_endpoint(made)}
        return Instance(made.provider_id, name, settings, made.internal_ip, made)

    def _launch_oci(self, name: str, **changes: Any) -> Instance:
        made = self.oci.launch(name.replace("-", ""), **changes)
        url = self.services.enter_context(oci_world.metadata_service(made))
        return Instance(made.provider_id, name, {"metadataEndpoint": url}, made=made)

    def enrolled(self, attestor: str, name: str, **changes: Any) -> tuple[Instance, Agent]:
        """Run an instance and create its Machine, one of whose addresses is made up; return its agent, too.

        The agent is not told its provider ID.
        """
        instance = self.launch(attestor, name, **changes)
        fleet.create_machine(
            self.world.admin,
            name,
            cluster=self.world.cluster,
            provider_id=instance.provider_id,
            addresses=[("InternalDNS", instance.dns), ("InternalIP", "10.99.99.99")],
        )
        agent = self.world.agent(instance.dns, attestor, directory=name, **instance.settings)
        return instance, replace(agent, provider_id="")


@contextmanager
def cloud_instances(world: World, aws: SandboxAws, directory: Path) -> Generator[CloudInstances]:
    """Run the clouds, and give controllers that are started from here on credentials of AWS."""
    (directory / "oci").mkdir()
    with (
        SandboxAzure(directory / "azure") as azure,
        GoogleCloud(directory / "gcp") as google,
        pytest.MonkeyPatch.context() as patch,
        ExitStack() as services,
    ):
        reader = aws.session("system-controller", "replica-1", may=["DescribeInstances", "GetInstanceTpmEkPub"])
        for name, value in {**aws.settings_only, **reader.environment}.items():
            patch.setenv(name, value)
        oracle = oci_world.OracleCloud(directory / "oci")
        yield CloudInstances(world, aws, azure, google, oracle, services, count(10))
