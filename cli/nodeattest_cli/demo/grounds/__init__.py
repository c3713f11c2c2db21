"""Where the demo's machines stand, one ground a provider: a rack of TPMs, a cloud with its metadata service and APIs.

A ground starts what the provider needs besides the two clusters, makes machines, and says what the operator has to
write: the provider's section of the policy, and that of the controller's configuration. Everything that it starts ends
with the exit stack it was opened on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol, cast

from nodeattest_cli.demo.equipment import Equipment
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["PROVIDERS", "Ground", "GroundType", "ground_type"]

_MODULES: Final = MappingProxyType(
    {
        "tpm": "nodeattest_cli.demo.grounds.tpm:TpmGround",
        "challenge": "nodeattest_cli.demo.grounds.bare:SecretsGround",
        "aws": "nodeattest_cli.demo.grounds.aws:AwsGround",
        "gcp": "nodeattest_cli.demo.grounds.gcp:GcpGround",
        "composite": "nodeattest_cli.demo.grounds.composite:CompositeGround",
        "azure": "nodeattest_cli.demo.grounds.azure:AzureGround",
        "insecure": "nodeattest_cli.demo.grounds.bare:BareGround",
    }
)
"""``module:class`` by provider; imported when asked for, since a cloud's ground needs its provider's libraries."""
PROVIDERS: Final = tuple(_MODULES)


class Ground(Protocol):
    """An opened ground."""

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
        """What the controller's process finds in its environment besides: the cloud SDK's own variables."""
        ...

    def equip(self, number: int) -> Equipment:
        """Make one machine, which boots when its agent runs; called from several threads."""
        ...


class GroundType(Protocol):
    """How a ground is opened."""

    things: str
    """What its machines have, for the display: ``TPMs``."""

    def missing(self) -> Iterable[str]:
        """Name what this machine lacks for it, with how to install it."""
        ...

    def __call__(self, directory: Path, stack: ExitStack) -> Ground:
        """Open it: start its services; they end with the stack."""
        ...


def ground_type(provider: str) -> GroundType:
    """Find a provider's ground."""
    module, name = _MODULES[provider].split(":")
    return cast("GroundType", getattr(import_module(module), name))
