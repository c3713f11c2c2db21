"""The demo's platforms, one for each provider: a rack of TPMs, or a cloud with its metadata service and APIs.

A platform starts what the provider needs besides the two clusters, makes machines, and returns what the operator has to
configure: the provider's section of the policy and of the controller's configuration. Its services end with the exit
stack.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol, cast

from nodeattest_cli.demo.machine_spec import MachineSpec
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["PROVIDERS", "DemoPlatform", "DemoPlatformType", "platform_type"]

_MODULES: Final = MappingProxyType(
    {
        "tpm": "nodeattest_cli.demo.platforms.tpm:TpmDemoPlatform",
        "challenge": "nodeattest_cli.demo.platforms.bare:SecretDemoPlatform",
        "aws": "nodeattest_cli.demo.platforms.aws:AwsDemoPlatform",
        "gcp": "nodeattest_cli.demo.platforms.gcp:GcpDemoPlatform",
        "composite": "nodeattest_cli.demo.platforms.composite:CompositeDemoPlatform",
        "azure": "nodeattest_cli.demo.platforms.azure:AzureDemoPlatform",
        "insecure": "nodeattest_cli.demo.platforms.bare:BareDemoPlatform",
    }
)
"""``module:class`` by provider; imported on demand, since a cloud needs its provider's libraries."""
PROVIDERS: Final = tuple(_MODULES)


class DemoPlatform(Protocol):
    """A running platform."""

    @property
    def policy(self) -> JsonObject:
        """The provider's section of the NodeAttestationPolicy, by its name: ``{"tpm": {...}}``; ``{}`` for none."""
        ...

    @property
    def platforms(self) -> JsonObject:
        """``platforms`` of the controller's configuration."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """Further environment variables of the controller: those of the cloud's SDK."""
        ...

    def create_machine(self, number: int) -> MachineSpec:
        """Make one machine, which boots when its agent runs; called from several threads."""
        ...


class DemoPlatformType(Protocol):
    """The type of a platform: what it needs, and how to start it."""

    things: str
    """What its machines have, for the display: ``TPMs``."""

    def missing(self) -> Iterable[str]:
        """Name programs that are missing here, with how to install them."""
        ...

    def __call__(self, directory: Path, stack: ExitStack) -> DemoPlatform:
        """Start its services; they end with the stack."""
        ...


def platform_type(provider: str) -> DemoPlatformType:
    """Return a provider's platform type."""
    module, name = _MODULES[provider].split(":")
    return cast("DemoPlatformType", getattr(import_module(module), name))
