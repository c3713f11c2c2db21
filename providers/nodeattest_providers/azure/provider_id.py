"""Provider IDs of Azure, taken apart, and made of what the metadata service says; ``key`` is what Azure compares.

Source: Azure, "Naming rules and restrictions for Azure resources"; cloud-provider-azure (resource group in lower case).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import printable

PREFIX: Final = "azure://"
ResourceKey = tuple[str, str, str, str]
"""Subscription, resource group, scale set (or nothing) and name, in lower case."""
GROUP: Final = r"[-A-Za-z0-9_.()]{0,89}[-A-Za-z0-9_()]"
"""Azure takes other letters, too; none of them has one lower case everywhere."""
NAME: Final = r"[A-Za-z0-9_][-A-Za-z0-9_.]{0,63}"
_ID: Final = re.compile(
    r"/subscriptions/(?P<subscription>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
    rf"/resourceGroups/(?P<group>{GROUP})/providers/Microsoft\.Compute/"
    rf"(?:virtualMachineScaleSets/(?P<scale_set>{NAME})/virtualMachines/(?P<instance>[0-9]{{1,10}})"
    rf"|virtualMachines/(?P<name>{NAME}))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRef:
    """One virtual machine, or one instance of a uniform scale set."""

    subscription: str
    group: str
    scale_set: str | None
    """Of an instance of a uniform scale set; a flexible one's machines are named by themselves."""
    name: str

    @property
    def key(self) -> ResourceKey:
        """What two names of one machine have in common."""
        return (self.subscription, self.group.lower(), (self.scale_set or "").lower(), self.name.lower())

    @property
    def resource_id(self) -> str:
        """The name as Azure writes it."""
        owner = f"virtualMachineScaleSets/{self.scale_set}/" if self.scale_set else ""
        group = f"/subscriptions/{self.subscription}/resourceGroups/{self.group}"
        return f"{group}/providers/Microsoft.Compute/{owner}virtualMachines/{self.name}"


def parse_provider_id(text: str) -> InstanceRef:
    """Read ``azure:///subscriptions/…``; anything else is ``Denied``."""
    found = _parse(text.removeprefix(PREFIX)) if text.startswith(PREFIX) else None
    if found is None or found.group != found.group.lower():
        raise Denied(
            Reason.PROVIDER_ID_INVALID,
            expected="azure:///subscriptions/<ID>/resourceGroups/<group in lower case>/providers/Microsoft.Compute/…",
            got=printable(text),
            remedy="compare the Machine's spec.providerID with what the metadata service says of the machine",
        )
    return found


def provider_id_of(resource_id: str) -> str | None:
    """Make the provider ID of a machine that the metadata service names; None for another text."""
    found = _parse(resource_id)
    if found is None:
        return None
    return PREFIX + replace(found, group=found.group.lower()).resource_id


def _parse(resource_id: str) -> InstanceRef | None:
    match = _ID.fullmatch(resource_id)
    if match is None:
        return None
    return InstanceRef(
        subscription=match["subscription"],
        group=match["group"],
        scale_set=match["scale_set"],
        name=match["name"] or match["instance"],
    )
