"""EC2 instances in an AWS on loopback: a metadata service each, STS and EC2 that verify every signature."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from nodeattest_cli.demo.machine_spec import INSTALL, AttestorSettings, ClaimedIdentity, MachineSpec
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.names import ProviderName
from nodeattest_sandbox.clouds.aws.cloud import ACCOUNT, REGION, Instance, SandboxAws

__all__ = ["ROLE", "AwsDemoPlatform", "instance_attestor_settings"]

ROLE: Final = "demo-nodes"
"""Of the instances that may join."""
_TAG: Final = {"kubernetes.io/cluster/demo": "owned"}
_LIBRARIES: Final = ("boto3", "moto")


def instance_attestor_settings(instance: Instance) -> AttestorSettings:
    """Say what an instance proves itself with."""
    settings = {"metadataEndpoint": instance.metadata_endpoint}
    return AttestorSettings(provider=ProviderName("aws"), settings=settings, discovers_provider_id=True)


class AwsDemoPlatform:
    """Machines in AWS."""

    things = "instance roles"

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.cloud: Final = stack.enter_context(SandboxAws(directory / "aws"))
        self.policy: JsonObject = {
            "aws": {"accounts": [ACCOUNT], "regions": [REGION], "roles": [ROLE], "tags": dict(_TAG)}
        }
        self.platforms: JsonObject = {
            "aws": {
                "endpoints": {"sts": self.cloud.front, "ec2": self.cloud.front},
                "caBundle": str(self.cloud.ca_file),
                "trustBundle": str(self.cloud.regions),
            }
        }
        reader = self.cloud.session("demo-controller", "replica-1", may=["DescribeInstances"])
        self.environment = {**self.cloud.settings_only, **reader.environment}

    @staticmethod
    def missing() -> Iterable[str]:
        """Need AWS's library for the controller, and moto for the AWS that it asks."""
        absent = [module for module in _LIBRARIES if find_spec(module) is None]
        if absent:
            yield f"{' and '.join(absent)} ({INSTALL}), or choose another --provider"

    def create_machine(self, number: int) -> MachineSpec:
        """Run an instance."""
        instance = self.cloud.launch(role=ROLE, tags=_TAG)
        return MachineSpec(
            attestor=instance_attestor_settings(instance),
            identity=ClaimedIdentity(node=instance.private_dns, provider_id=instance.provider_id),
            addresses=instance.addresses,
        )
