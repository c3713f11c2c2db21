"""Each check of the TPM protocol is removed, alone and then with what else refuses its attack."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

import pytest
import soft_rows
import tpm_rows
from _pytest.mark import ParameterSet
from mutants import GRANTED, Ended, Scene, plain, running
from rows import Row, steps
from soft_rows import Asked, Soft
from tpm_boots import BOOT
from tpm_world import PCR_VALUES, ledger, machine

from nodeattest_providers.names import ANNOTATION_TPM_ENDORSEMENT_KEY
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.tpm.endorsement_key import MACHINE_ANNOTATION
from nodeattest_sandbox.firmware import crypto_agile_log
from nodeattest_sandbox.pki import ClusterPki
from nodeattest_sandbox.swtpm import SoftwareTpm

pytestmark = pytest.mark.swtpm
S = TypeVar("S")


def by_version(rows: Iterable[Row[S]]) -> list[ParameterSet]:
    """Make the parameters of a test that carries out each row with each version of the evidence that it is for."""
    return [
        pytest.param(row, version, id=f"{row.check}, version {version}") for row in rows for version in row.versions
    ]


@pytest.mark.parametrize(("row", "version"), by_version(tpm_rows.ROWS))
async def test_an_attack_by_swtpm_is_refused_by_its_check_and_without_it_ends_as_the_row_says(
    pki: ClusterPki, tpms: tuple[SoftwareTpm, SoftwareTpm], row: Row[Scene], version: int
) -> None:
    removed: list[str] = []
    seen: list[Ended] = []
    for name, _ in steps(row):
        async with running(pki, *tpms, removed, version=version) as scene:
            seen.append(await row.run(scene))
        removed.append(name)
    assert seen == steps(row)


@pytest.mark.parametrize(("row", "version"), by_version(soft_rows.ROWS))
async def test_an_attack_by_a_tpm_in_software_is_refused_by_its_check_and_without_it_ends_as_the_row_says(
    row: Row[Asked], version: int
) -> None:
    removed: list[str] = []
    seen: list[Ended] = []
    for name, _ in steps(row):
        seen.append(await row.run(Asked(frozenset(removed), version)))
        removed.append(name)
    assert seen == steps(row)


async def test_before_the_first_join_version_1_takes_the_key_of_another_agent(
    pki: ClusterPki, tpms: tuple[SoftwareTpm, SoftwareTpm]
) -> None:
    """The limit of version 1, which version 2 ends."""
    async with running(pki, *tpms, (), version=1) as scene:
        assert await tpm_rows.another_agents_key(scene) == GRANTED


@pytest.mark.parametrize("name", soft_rows.PARSERS)
async def test_without_the_record_of_a_parser_its_refusal_stands(name: str) -> None:
    reason, made = soft_rows.PARSERS[name]
    assert await made().ended(frozenset()) == (f"tpm: {name}", reason)
    by, _ = await made().ended(frozenset({f"tpm: {name}"}))
    assert by in {soft_rows.PARSER, soft_rows.CRASHED}


async def recorded() -> set[str]:
    """Collect the names of all checks that sound exchanges record, by each way to trust an endorsement key."""
    sound = soft_rows.certified()
    tpm = sound.tpm
    named = {ANNOTATION_TPM_ENDORSEMENT_KEY: tpm.fingerprint}
    measured = soft_rows.logged(crypto_agile_log(BOOT))
    values: JsonValue = {"selection": [0, 7], "values": {"7": [PCR_VALUES[1].hex()]}}
    ways = (
        Soft(),
        Soft(tpm=tpm, settings={**tpm.settings, "pcrs": values}),
        sound,
        replace(sound, facts={"machine": machine(annotations={MACHINE_ANNOTATION: tpm.fingerprint})}),
        replace(sound, facts={"machine": machine(endorsement_keys=named)}),
        replace(sound, facts={"ledger": ledger(fingerprints={"ek": tpm.fingerprint}, clock=1, reset_count=1)}),
        measured,
        soft_rows.of_ec2(),
    )
    return {plain(check.name) for way in ways for check in (await way.verified(frozenset())).checks}


async def test_every_check_that_the_verifier_records_has_one_row() -> None:
    rows = [row.check for row in (*tpm_rows.ROWS, *soft_rows.ROWS)]
    listed = [*(name.partition(": ")[2] for name in rows), *soft_rows.PARSERS, *soft_rows.RECORDS]
    assert len(listed) == len(set(listed))
    assert await recorded() == set(listed)
