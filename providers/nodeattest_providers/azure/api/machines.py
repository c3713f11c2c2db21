"""Azure's virtual machines, read in lists: one call serves every request of a resource group or scale set.

A list is good for some seconds. A machine that is missing or another one is reported only from a list that was begun
after the question. A value that is not of its documented type counts as missing.
Source: Azure REST API, "Virtual Machines - List", "Virtual Machine Scale Set VMs - List", "Network Interfaces - List",
"Network Interfaces - List Virtual Machine Scale Set Network Interfaces".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.azure.provider_id import InstanceRef
from nodeattest_providers.cloud_http import Remembered
from nodeattest_providers.verifier_interface import Addresses

_Scope = tuple[str, str, str]
"""Subscription, resource group, scale set or nothing, in lower case."""

_TTL: Final = 15.0
"""Seconds for which a list is good: tags and state may change meanwhile, the machine's own proof is fresher."""
_MAX_SCOPES: Final = 256
"""Lists that are kept; each of a resource group that a policy names."""
_COMPUTE: Final = "api-version=2024-07-01"
_NETWORK: Final = "api-version=2024-05-01"
_SCALE_SET_NETWORK: Final = "api-version=2018-10-01"
"""The only version in which Azure lists a scale set's network interfaces."""


class Lists(Protocol):
    """Reads lists of resources."""

    async def list(self, service: str, path: str, query: str) -> list[JsonObject]:
        """Return the objects of one list; raises Unavailable."""
        ...


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

    def __init__(self, lists: Lists, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._lists = lists
        self._machines: Remembered[_Scope, Mapping[str, Machine]] = Remembered(
            _TTL, monotonic=monotonic, most=_MAX_SCOPES
        )
        self._interfaces: Remembered[_Scope, Mapping[str, Addresses]] = Remembered(
            _TTL, monotonic=monotonic, most=_MAX_SCOPES
        )

    async def find(self, name: InstanceRef, *, vm_id: str | None = None) -> Machine | None:
        """Find a machine, if given with this vmId; None when Azure has none of that name. Raises Unavailable."""
        for fresh in (False, True):
            found = await self._machines.get(name.key[:3], lambda: self._read_machines(name.key[:3]), fresh=fresh)
            machine = (found or {}).get(name.key[3])
            if machine is not None and vm_id in (None, machine.vm_id):
                break
        return machine

    async def addresses(self, name: InstanceRef) -> Addresses:
        """Return the private addresses of a machine's network interfaces; raises Unavailable."""
        for fresh in (False, True):
            found = await self._interfaces.get(name.key[:3], lambda: self._read_interfaces(name.key[:3]), fresh=fresh)
            addresses = (found or {}).get(name.key[3], ())
            if addresses:
                break
        return addresses

    async def aclose(self) -> None:
        """End what is under way."""
        await self._machines.cancel()
        await self._interfaces.cancel()

    async def _read_machines(self, scope: _Scope) -> Mapping[str, Machine]:
        service = "scaleSetMachines" if scope[2] else "machines"
        path = f"{_group(scope)}/providers/Microsoft.Compute/{_owner(scope)}virtualMachines"
        values = await self._lists.list(service, path, _COMPUTE)
        return {_last(value): _machine(value) for value in values}

    async def _read_interfaces(self, scope: _Scope) -> Mapping[str, Addresses]:
        service = "scaleSetInterfaces" if scope[2] else "interfaces"
        provider = "Microsoft.Compute" if scope[2] else "Microsoft.Network"
        path = f"{_group(scope)}/providers/{provider}/{_owner(scope)}networkInterfaces"
        machines = f"{_group(scope)}/providers/Microsoft.Compute/{_owner(scope)}virtualMachines/".lower()
        found: dict[str, Addresses] = {}
        for value in await self._lists.list(service, path, _SCALE_SET_NETWORK if scope[2] else _NETWORK):
            key = text(value, "properties", "virtualMachine", "id").lower().removeprefix(machines)
            if key and "/" not in key:  # not of a machine elsewhere, or of none
                found[key] = (*found.get(key, ()), *_private(value))
        return found


def _group(scope: _Scope) -> str:
    return f"/subscriptions/{scope[0]}/resourceGroups/{scope[1]}"


def _owner(scope: _Scope) -> str:
    return f"virtualMachineScaleSets/{scope[2]}/" if scope[2] else ""


def _machine(value: JsonObject) -> Machine:
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


_SCALE_SET_PARTS: Final = 10
"""Parts of the ID of a machine by itself; an instance of a scale set has two more."""


def _private(value: JsonObject) -> Addresses:
    """Read the private addresses of one interface."""
    found = (text(one, "properties", "privateIPAddress") for one in items(value, "properties", "ipConfigurations"))
    return tuple(("InternalIP", address) for address in found if address)


def _last(value: JsonObject) -> str:
    """Take the last part of an ID: the machine's name, or an instance's number."""
    return text(value, "id").rpartition("/")[2].lower()
