"""A rack of machines with TPMs: a running software TPM each, whose endorsement key the platform knows."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from nodeattest_cli.demo.machine_spec import AttestorSettings, MachineSpec
from nodeattest_cli.demo.platforms.bare import rack_identity
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.names import ANNOTATION_TPM_ENDORSEMENT_KEY, ProviderName
from nodeattest_sandbox.swtpm import SoftwareTpm

__all__ = ["TpmDemoPlatform", "missing_tpm_programs"]

_PROGRAMS: Final = ("swtpm", "swtpm_setup", "swtpm_localca")
_PROGRAM_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin"


def missing_tpm_programs() -> Iterable[str]:
    """Name what software TPMs lack here."""
    absent = [name for name in _PROGRAMS if shutil.which(name, path=_PROGRAM_PATH) is None]
    if absent:
        yield f"{', '.join(absent)} (apt-get install swtpm swtpm-tools), or choose another --provider"


class TpmDemoPlatform:
    """Machines with TPMs."""

    things = "TPMs"

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self.policy: JsonObject = {}
        self.platforms: JsonObject = {}
        self.environment: Mapping[str, str] = {}

    @staticmethod
    def missing() -> Iterable[str]:
        """Need swtpm."""
        return missing_tpm_programs()

    def create_machine(self, number: int) -> MachineSpec:
        """Make a machine and switch its TPM on."""
        identity = rack_identity(number)
        tpm = SoftwareTpm.create(self._directory / "tpms", name=f"tpm-{number}")
        self._stack.callback(tpm.stop)
        tpm.start()
        return MachineSpec(
            attestor=AttestorSettings(provider=ProviderName("tpm"), settings={"tcti": tpm.tcti}),
            identity=identity,
            addresses=(("Hostname", identity.node),),
            tpm=tpm,
            annotations={ANNOTATION_TPM_ENDORSEMENT_KEY: tpm.endorsement_fingerprint()},
        )
