"""Machines without TPM or cloud: with a secret of their own, or with nothing but a token."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from nodeattest_cli.demo.machine_spec import AttestorSettings, ClaimedIdentity, MachineSpec
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.names import ProviderName

__all__ = ["BareDemoPlatform", "SecretDemoPlatform", "rack_identity", "write_private_file"]

_SECRET_BYTES: Final = 32


def rack_identity(number: int) -> ClaimedIdentity:
    """Name a machine of the demo's rack."""
    return ClaimedIdentity(node=f"worker-{number}", provider_id=f"demo://rack-1/{number}")


def write_private_file(path: Path, content: str) -> None:
    """Write a file that nobody else may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(content, encoding="ascii")


class BareDemoPlatform:
    """Machines with nothing but their tokens: the ``insecure`` provider."""

    things = "nothing but tokens"

    def __init__(self, directory: Path, _stack: ExitStack) -> None:
        self.directory = directory
        self.policy: JsonObject = {}
        self.platforms: JsonObject = {}
        self.environment: Mapping[str, str] = {}

    @staticmethod
    def missing() -> Iterable[str]:
        """Need nothing."""
        return ()

    def create_machine(self, number: int) -> MachineSpec:
        """Make a machine."""
        identity = rack_identity(number)
        attestor = AttestorSettings(provider=ProviderName("insecure"))
        return MachineSpec(attestor=attestor, identity=identity, addresses=(("Hostname", identity.node),))


class SecretDemoPlatform(BareDemoPlatform):
    """Machines with a secret each: the ``challenge`` provider."""

    things = "secrets"

    def create_machine(self, number: int) -> MachineSpec:
        """Make a machine, and leave its secret where cloud-init would."""
        identity = rack_identity(number)
        path = self.directory / "secrets" / identity.node
        secret = secrets.token_hex(_SECRET_BYTES)
        write_private_file(path, secret)
        return MachineSpec(
            attestor=AttestorSettings(provider=ProviderName("challenge"), settings={"secretFile": str(path)}),
            identity=identity,
            addresses=(("Hostname", identity.node),),
            secret=secret.encode(),
        )
