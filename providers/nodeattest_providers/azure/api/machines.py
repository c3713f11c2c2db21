"""Azure's virtual machines, read in lists: one call serves every request of a resource group or scale set.

A list is good for some seconds. A machine that is missing or another one is reported only from a list that was begun
after the question.
Source: Azure REST API, "Virtual Machines - List", "Virtual Machine Scale Set VMs - List", "Network Interfaces - List",
"Network Interfaces - List Virtual Machine Scale Set Network Interfaces".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.azure.api.resource_manager import ResourceManager
from nodeattest_providers.azure.provider_id import InstanceRef
from nodeattest_providers.cloud_http import Lookup
from nodeattest_providers.verifier_interface import Addresses

_Scope = tuple[str, str, str]
"""Subscription, resource group, scale set or nothing, in lower case."""

_SECONDS: Final = 15.0
"""For which a list is good: tags and state may change meanwhile, the machine's own proof is fresher."""
_ALL: Final = ""
"""The one key of a scope: its whole list."""
_CONFIGURATIONS: Final = ("properties", "ipConfigurations")
_COMPUTE: Final = "api-version=2024-07-01"
_NETWORK: Final = "api-version=2024-05-01"
_SCALE_SET_NETWORK: Final = "api-version=2018-10-01"
"""The only version in which Azure lists a scale set's network interfaces."""


_SCALE_SET_PARTS: Final = 10
"""Parts of the ID of a machine by itself; an instance of a scale set has two more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One virtual machine, as Azure knows it."""

    resource_id: str
    vm_id: str
    """Lower case."""
    provisioning_state: str
    computer_name: str
    """Lower case; empty where Azure knows none."""
    scale_set: str
    """Name of the scale set that it belongs to, in lower case; empty for none."""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    """By name in lower case."""


class Machines:
    """Looks up machines."""

    def __init__(self, manager: ResourceManager, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._manager = manager
        self._machines = Lookup(self._read_machines, seconds=_SECONDS, monotonic=monotonic)
        self._interfaces = Lookup(self._read_interfaces, seconds=_SECONDS, monotonic=monotonic)

    async def find(self, name: InstanceRef, *, vm_id: str | None = None) -> Machine | None:
        """Find a machine, if given with this vmId; None when Azure has none of that name. Raises Unavailable."""
        for fresh in (False, True):
            found = await self._machines.get(name.key[:3], _ALL, fresh=fresh) or {}
            machine = found.get(name.key[3])
            if machine is not None and vm_id in (None, machine.vm_id):
                break
        return machine

    async def addresses(self, name: InstanceRef) -> Addresses:
        """Return the private addresses of a machine's network interfaces; raises Unavailable."""
        for fresh in (False, True):
            found = await self._interfaces.get(name.key[:3], _ALL, fresh=fresh) or {}
            if name.key[3] in found:
                return found[name.key[3]]
        return ()

    async def aclose(self) -> None:
        """End what is under way and close connections."""
        await self._machines.cancel()
        await self._interfaces.cancel()
        await self._manager.aclose()

    async def _read_machines(self, scope: _Scope, _: Sequence[str]) -> Mapping[str, Mapping[str, Machine]]:
        service = "scaleSetMachines" if scope[2] else "machines"
        values = await self._manager.list(service, f"{_path(scope)}virtualMachines", _COMPUTE)
        return {_ALL: {_last(value): parse_machine(value) for value in values}}

    async def _read_interfaces(self, scope: _Scope, _: Sequence[str]) -> Mapping[str, Mapping[str, Addresses]]:
        machines = f"{_path(scope)}virtualMachines/".lower()
        found: dict[str, Addresses] = {}
        if scope[2]:
            values = await self._manager.list(
                "scaleSetInterfaces", f"{_path(scope)}networkInterfaces", _SCALE_SET_NETWORK
            )
        else:
            path = f"{_path(scope)}networkInterfaces".replace("Microsoft.Compute", "Microsoft.Network")
            values = await self._manager.list("interfaces", path, _NETWORK)
        for value in values:
            key = text(value, "properties", "virtualMachine", "id").lower().removeprefix(machines)
            private = (text(each, "properties", "privateIPAddress") for each in items(value, *_CONFIGURATIONS))
            if key and "/" not in key:  # not of a machine elsewhere, or of none
                addresses = (("InternalIP", address) for address in private if address)
                found[key] = (*found.get(key, ()), *addresses)
        return {_ALL: found}


def _path(scope: _Scope) -> str:
    owner = f"virtualMachineScaleSets/{scope[2]}/" if scope[2] else ""
    return f"/subscriptions/{scope[0]}/resourceGroups/{scope[1]}/providers/Microsoft.Compute/{owner}"


def parse_machine(value: JsonObject) -> Machine:
    """Read a machine; a value that is not of its documented type counts as missing."""
    flexible = text(value, "properties", "virtualMachineScaleSet", "id").rpartition("/")[2].lower()
    parts = text(value, "id").lower().split("/")
    uniform = parts[-3] if len(parts) > _SCALE_SET_PARTS else ""
    return Machine(
        resource_id=text(value, "id"),
        vm_id=text(value, "properties", "vmId").lower(),
        provisioning_state=text(value, "properties", "provisioningState"),
        computer_name=text(value, "properties", "osProfile", "computerName").lower(),
        scale_set=uniform or flexible,
        tags={str(name).lower(): str(tag) for name, tag in mapping(value, "tags").items()},
    )


def _last(value: JsonObject) -> str:
    """Take the last part of an ID: the machine's name, or an instance's number."""
    return text(value, "id").rpartition("/")[2].lower()
