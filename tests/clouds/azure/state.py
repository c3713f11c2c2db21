"""What the sandbox's Azure holds: virtual machines, the calls that were made, and switches for its faults."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class SandboxMachine:
    """One virtual machine; what is changed here is what Azure says from then on."""

    subscription: str
    group: str
    name: str
    """The number, for an instance of a uniform scale set."""
    scale_set: str | None = None
    """A uniform one."""
    computer_name: str
    address: str
    tags: dict[str, str] = field(default_factory=dict[str, str])
    vm_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    provisioning_state: str = "Succeeded"
    metadata: str = ""
    """Its metadata service, as ``http://host:port``."""
    exists: bool = True

    @property
    def resource_id(self) -> str:
        """Its ID; Azure spells the group as it was written first."""
        owner = f"virtualMachineScaleSets/{self.scale_set}/" if self.scale_set else ""
        group = f"/subscriptions/{self.subscription}/resourceGroups/{self.group}"
        return f"{group}/providers/Microsoft.Compute/{owner}virtualMachines/{self.name}"

    @property
    def provider_id(self) -> str:
        """As Cluster API's Azure provider writes it: the group in lower case."""
        return "azure://" + self.resource_id.replace(f"/{self.group}/", f"/{self.group.lower()}/", 1)

    def in_list(self) -> Mapping[str, object]:
        """Show it as the Resource Manager lists it."""
        return {
            "id": self.resource_id,
            "name": self.name,
            "location": "westeurope",
            "tags": self.tags,
            "properties": {
                "vmId": self.vm_id,
                "provisioningState": self.provisioning_state,
                "osProfile": {"computerName": self.computer_name},
            },
        }

    def interface(self) -> Mapping[str, object]:
        """Show its network interface as the Resource Manager lists it."""
        return {
            "id": f"{self.resource_id}-nic",
            "properties": {
                "primary": True,
                "virtualMachine": {"id": self.resource_id},
                "ipConfigurations": [{"properties": {"privateIPAddress": self.address, "primary": True}}],
            },
        }


@dataclass
class Switches:
    """Faults of the Resource Manager."""

    down: bool = False
    """Every request is answered 503."""
    throttled: int = 0
    """Retry-After in seconds; 0: not throttled."""
    forbidden: bool = False
    redirect: str = ""
    """Where every request is sent on to."""
    page: int = 50
    """Objects in a page."""
    elsewhere: str = ""
    """What next pages' addresses begin with in place of our own."""
    huge: bool = False
    """Every answer is too large to read."""


@dataclass
class State:
    """All of it."""

    machines: list[SandboxMachine] = field(default_factory=list[SandboxMachine])
    switches: Switches = field(default_factory=Switches)
    calls: list[str] = field(default_factory=list[str])
    """Paths that the Resource Manager and the authority were asked for."""
