"""The software TPM that fits the packages which the interpreter has installed.

Of another commit it is that commit's own: what evidence is made of changes with its versions.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Protocol

import nodeattest_providers
from bench.fixed_keys import fixed_key
from nodeattest_providers.node_interface import Attestor

ROOT = Path(__file__).parents[2]


class RegisteredTpm(Attestor, Protocol):
    @property
    def fingerprint(self) -> str: ...


def software_tpm(number: int) -> RegisteredTpm:
    """Make the TPM of a number."""
    tree = Path(nodeattest_providers.__file__).parents[2]
    if tree == ROOT:
        from bench.software_tpm import SoftwareAttestor

        return SoftwareAttestor(number)
    spec = importlib.util.spec_from_file_location(
        "software_tpm_of_the_commit", tree / "tests" / "bench" / "software_tpm.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.SoftwareAttestor()
    made.endorsement_key, made.attestation_key = fixed_key("endorsement", number), fixed_key("attestation", number)
    return made
