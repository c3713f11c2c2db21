"""Machines without TPM or cloud: with a secret of their own, or with nothing but a token."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from nodeattest_cli.demo.equipment import Equipment, Identity, Seat
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.names import ProviderName

__all__ = ["BareGround", "SecretsGround", "on_rack", "write_private"]

_SECRET_BYTES: Final = 32


def on_rack(number: int) -> Identity:
    """Name a machine of the demo's rack."""
    return Identity(node=f"worker-{number}", provider_id=f"demo://rack-1/{number}")


def write_private(path: Path, content: str) -> None:
    """Write a file that nobody else may read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(content, encoding="ascii")


class BareGround:
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

    def equip(self, number: int) -> Equipment:
        """Make a machine."""
        identity = on_rack(number)
        seat = Seat(provider=ProviderName("insecure"))
        return Equipment(seat=seat, identity=identity, addresses=(("Hostname", identity.node),))


class SecretsGround(BareGround):
    """Machines with a secret each: the ``challenge`` provider."""

    things = "secrets"

    def equip(self, number: int) -> Equipment:
        """Make a machine, and leave its secret where cloud-init would."""
        identity = on_rack(number)
        path = self.directory / "secrets" / identity.node
        secret = secrets.token_hex(_SECRET_BYTES)
        write_private(path, secret)
        return Equipment(
            seat=Seat(provider=ProviderName("challenge"), settings={"secretFile": str(path)}),
            identity=identity,
            addresses=(("Hostname", identity.node),),
            secret=secret.encode(),
        )
