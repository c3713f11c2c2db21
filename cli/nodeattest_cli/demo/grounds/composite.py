"""A rack of machines that must prove themselves twice: by their TPM and by a secret of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from nodeattest_cli.demo.equipment import Equipment, Seat
from nodeattest_cli.demo.grounds.bare import SecretsGround
from nodeattest_cli.demo.grounds.tpm import TpmGround, missing_tpm_programs
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.names import ProviderName

__all__ = ["CompositeGround"]


class CompositeGround:
    """Machines with TPMs and secrets."""

    things = "TPMs and secrets"

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._tpms = TpmGround(directory, stack)
        self._secrets = SecretsGround(directory, stack)
        self.policy: JsonObject = {"composite": {"allOf": ["challenge", "tpm"]}}
        self.platforms: JsonObject = {}
        self.environment: Mapping[str, str] = {}

    @staticmethod
    def missing() -> Iterable[str]:
        """Need what TPMs need."""
        return missing_tpm_programs()

    def equip(self, number: int) -> Equipment:
        """Make a machine with both."""
        tpm, secret = self._tpms.equip(number), self._secrets.equip(number)
        settings = {
            f"{made.seat.provider}.{name}": value
            for made in (tpm, secret)
            for name, value in made.seat.settings.items()
        }
        return replace(tpm, seat=Seat(provider=ProviderName("composite"), settings=settings), secret=secret.secret)
