"""Nodes join, attackers do not: real processes over TLS, on the sandbox and on a real kube-apiserver."""

from __future__ import annotations

import pytest
from world import World

from nodeattest_sandbox.apiserver.jsonvalue import maps_at, text_at


@pytest.mark.swtpm
@pytest.mark.usefixtures("controller")
def test_a_machine_with_its_own_tpm_joins(world: World) -> None:
    tpm = world.tpm("tpm-0")
    world.machine("tpm-0", tpm=tpm)
    joined = world.agent("tpm-0", "tpm", tcti=tpm.tcti).join(world.token())
    assert joined.returncode == 0, joined.stderr
    ledger = world.ledger("tpm-0")
    assert text_at(ledger, "spec", "nodeName") == "tpm-0"
    assert text_at(ledger, "spec", "fingerprints", "tpm.ek") == tpm.endorsement_fingerprint()
    assert len(list(maps_at(ledger, "spec", "issued"))) == 1
