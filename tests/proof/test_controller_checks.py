"""Each declared check of the controller is removed, alone and then with what else refuses its attack."""

from __future__ import annotations

import attested_rows
import kubelet_rows
import pytest
from mutants import Ended, Scene, running
from rows import Row, steps

from nodeattest_controller.controllers.csr import checks as csr_checks
from nodeattest_controller.controllers.kubelet_serving import checks as kubelet_checks
from nodeattest_sandbox.pki import ClusterPki
from nodeattest_sandbox.swtpm import SoftwareTpm

pytestmark = pytest.mark.swtpm
VERIFICATION = f"attested: {csr_checks.VERIFICATION}"


def test_every_declared_check_has_one_row_in_the_declared_order() -> None:
    assert [row.check for row in attested_rows.ROWS] == [f"attested: {check.name}" for check in csr_checks.CHECKS]
    assert [row.check for row in kubelet_rows.ROWS] == [f"kubelet: {check.name}" for check in kubelet_checks.CHECKS]


@pytest.mark.parametrize("row", [*attested_rows.ROWS, *kubelet_rows.ROWS], ids=lambda row: row.check)
async def test_an_attack_is_refused_by_its_check_and_without_it_ends_as_the_row_says(
    pki: ClusterPki, tpms: tuple[SoftwareTpm, SoftwareTpm], row: Row[Scene]
) -> None:
    removed: list[str] = []
    seen: list[Ended] = []
    for name, _ in steps(row):
        async with running(pki, *tpms, removed, row.stand_in) as scene:
            by, reason = await row.run(scene)
        is_inside = row.check == VERIFICATION == name and by.startswith("tpm: ")
        seen.append((name if is_inside else by, reason))
        removed.append(name)
    assert seen == steps(row)
