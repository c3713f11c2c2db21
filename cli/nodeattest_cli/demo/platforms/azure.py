"""An Azure on loopback: machines with a metadata service each, and the Resource Manager that the controller asks."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final, cast

from nodeattest_cli.demo.machine_spec import INSTALL, AttestorSettings, ClaimedIdentity, MachineSpec
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.names import ProviderName
from nodeattest_sandbox.clouds.azure.cloud import SandboxAzure
from nodeattest_sandbox.clouds.azure.state import SandboxMachine

__all__ = ["AzureDemoPlatform", "machine_attestor_settings"]

_GROUP: Final = "Demo-RG"
_TAGS: Final = MappingProxyType({"sigs.k8s.io_cluster-api-provider-azure_cluster_demo": "owned"})
"""What Cluster API's Azure provider tags its machines with."""


def machine_attestor_settings(machine: SandboxMachine) -> AttestorSettings:
    """Say what a machine has to show: its metadata service."""
    return AttestorSettings(
        provider=ProviderName("azure"), settings={"metadataEndpoint": machine.metadata}, discovers_provider_id=True
    )


class AzureDemoPlatform:
    """Virtual machines of one resource group; the attacker's are in another."""

    things = "metadata services of Azure"

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.cloud = stack.enter_context(SandboxAzure(directory / "azure"))
        self.policy: JsonObject = {
            "azure": {
                "subscriptions": [self.cloud.subscription],
                "resourceGroups": [_GROUP],
                "tags": dict(_TAGS),
            }
        }
        self.platforms = cast("JsonObject", {"azure": self.cloud.configuration})
        self.environment: Mapping[str, str] = {}

    @staticmethod
    def missing() -> Iterable[str]:
        """Need the SDK that gives tokens."""
        if find_spec("azure") is None or find_spec("azure.identity") is None:
            yield f"azure-identity ({INSTALL}), or choose another --provider"

    def create_machine(self, number: int) -> MachineSpec:
        """Launch a machine."""
        machine = self.cloud.launch(f"worker-{number}", group=_GROUP, tags=_TAGS)
        return MachineSpec(
            attestor=machine_attestor_settings(machine),
            identity=ClaimedIdentity(node=machine.computer_name, provider_id=machine.provider_id),
            addresses=(("InternalIP", machine.address), ("Hostname", machine.computer_name)),
        )

    def foreign(self) -> SandboxMachine:
        """Launch a machine of somebody else's subscription, in a group and by a name of the same spelling."""
        return self.cloud.launch("worker-1", group=_GROUP, subscription=str(uuid.uuid4()), tags=_TAGS)
