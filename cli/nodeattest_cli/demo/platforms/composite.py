"""A rack of machines that must prove themselves twice: by their TPM and by a secret of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from nodeattest_cli.demo.machine_spec import AttestorSettings, MachineSpec
from nodeattest_cli.demo.platforms.bare import SecretDemoPlatform
from nodeattest_cli.demo.platforms.tpm import TpmDemoPlatform, missing_tpm_programs
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.names import ProviderName

__all__ = ["CompositeDemoPlatform"]


class CompositeDemoPlatform:
    """Machines with TPMs and secrets."""

    things = "TPMs and secrets"

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._tpms = TpmDemoPlatform(directory, stack)
        self._secrets = SecretDemoPlatform(directory, stack)
        self.policy: JsonObject = {"composite": {"allOf": ["challenge", "tpm"]}}
        self.platforms: JsonObject = {}
        self.environment: Mapping[str, str] = {}

    @staticmethod
    def missing() -> Iterable[str]:
        """Need what TPMs need."""
        return missing_tpm_programs()

    def create_machine(self, number: int) -> MachineSpec:
        """Make a machine with both."""
        tpm, secret = self._tpms.create_machine(number), self._secrets.create_machine(number)
        settings = {
            f"{made.attestor.provider}.{name}": value
            for made in (tpm, secret)
            for name, value in made.attestor.settings.items()
        }
        return replace(
            tpm, attestor=AttestorSettings(provider=ProviderName("composite"), settings=settings), secret=secret.secret
        )
