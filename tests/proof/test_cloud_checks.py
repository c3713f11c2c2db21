"""Each check of a cloud's verifier is removed, alone and then with what else refuses its attack."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from dataclasses import replace
from itertools import count
from typing import Any, Final

import pytest
import pytest_asyncio
from aws_cloud import cloud
from cloud_rows import AWS_ROWS, AZURE_ROWS, GCP_ROWS, OCI_ROWS, AwsScene, AzureScene, GcpScene, OciScene
from gcp_world import cloud_in, instance_of, rsa_tpm
from mutants import Ended, plain
from oci_world import OracleCloud
from rows import Row, steps
from test_provider_checks import SHARED
from tpm_rows import ROWS as SWTPM_ROWS

from nodeattest_providers.verifier_interface import AttestedNode
from nodeattest_sandbox.clouds.azure.cloud import SandboxAzure

PARSERS: Final = frozenset(
    {
        "evidence schema",
        "provider ID",
        "partition",
        "signed headers",
        "identity document",
        "PKCS#7 structure",
        "signed document",
        "attested document",
        "identity certificate",
        "endorsement key template",
        "attestation key public area",
        "quote structure",
        "signature structure",
    }
)
TPM: Final = frozenset(row.check.removeprefix("tpm: ") for row in SWTPM_ROWS)
_NUMBERS: Final = count(1)
pytestmark = pytest.mark.asyncio(loop_scope="module")


def own(attested: AttestedNode) -> set[str]:
    return {plain(check.name) for check in attested.checks} - SHARED - PARSERS - TPM


def names(rows: tuple[Row[Any], ...]) -> set[str]:
    return {row.check.partition(": ")[2] for row in rows}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aws(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[AwsScene]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "AKIACONTROLLEREXAMPL")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        with cloud(tmp_path_factory.mktemp("aws")) as running:
            (instance,) = running.start({"team": "nodes"})
            made = AwsScene(cloud=running, instance=instance, folder=tmp_path_factory.mktemp("trust"))
            yield made
            await made.aclose()


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Generator[SandboxAzure]:
    with SandboxAzure(tmp_path_factory.mktemp("azure")) as running:
        yield running


@pytest.fixture(scope="module")
def gcp(tmp_path_factory: pytest.TempPathFactory) -> Generator[GcpScene]:
    with cloud_in(tmp_path_factory.mktemp("gcp")) as running:
        yield GcpScene(cloud=running, tpm=rsa_tpm())


@pytest.fixture(scope="module")
def oci(tmp_path_factory: pytest.TempPathFactory) -> OciScene:
    running = OracleCloud(tmp_path_factory.mktemp("oci"))
    return OciScene(cloud=running, instance=running.launch("victim"))


@pytest.mark.parametrize("row", AWS_ROWS, ids=lambda row: row.check)
async def test_an_attack_at_amazon_is_refused_by_its_check_and_without_it_ends_as_the_row_says(
    aws: AwsScene, row: Row[AwsScene]
) -> None:
    removed: set[str] = set()
    seen: list[Ended] = []
    for name, _ in steps(row):
        seen.append(await row.run(replace(aws, removed=frozenset(removed))))
        removed.add(name)
    assert seen == steps(row)


@pytest.mark.parametrize("row", AZURE_ROWS, ids=lambda row: row.check)
async def test_an_attack_at_azure_is_refused_by_its_check_and_without_it_ends_as_the_row_says(
    azure: SandboxAzure, row: Row[AzureScene]
) -> None:
    removed: set[str] = set()
    seen: list[Ended] = []
    for name, _ in steps(row):
        machine = azure.launch(f"vm-{next(_NUMBERS)}", tags={"Team": "nodes"})
        seen.append(await row.run(AzureScene(cloud=azure, machine=machine, removed=frozenset(removed))))
        removed.add(name)
    assert seen == steps(row)


@pytest.mark.parametrize("row", GCP_ROWS, ids=lambda row: row.check)
async def test_an_attack_at_google_is_refused_by_its_check_and_without_it_ends_as_the_row_says(
    gcp: GcpScene, row: Row[GcpScene]
) -> None:
    removed: set[str] = set()
    seen: list[Ended] = []
    for name, _ in steps(row):
        seen.append(await row.run(replace(gcp, removed=frozenset(removed))))
        removed.add(name)
    assert seen == steps(row)


@pytest.mark.parametrize("row", OCI_ROWS, ids=lambda row: row.check)
async def test_an_attack_at_oracle_is_refused_by_its_check_and_without_it_ends_as_the_row_says(
    oci: OciScene, row: Row[OciScene]
) -> None:
    removed: set[str] = set()
    seen: list[Ended] = []
    for name, _ in steps(row):
        seen.append(await row.run(replace(oci, removed=frozenset(removed))))
        removed.add(name)
    assert seen == steps(row)


async def test_every_check_of_a_cloud_has_one_row(
    aws: AwsScene, azure: SandboxAzure, gcp: GcpScene, oci: OciScene
) -> None:
    assert own(await oci.verified()) == names(OCI_ROWS)
    assert own(await aws.verified()) == names(AWS_ROWS)
    machine = azure.launch(f"vm-{next(_NUMBERS)}")
    assert own(await AzureScene(cloud=azure, machine=machine).verified()) == names(AZURE_ROWS)
    gcp.cloud.instances = [instance_of(gcp.tpm, labels={"role": "node"})]
    assert own(await gcp.verified(labels={"role": "node"})) == names(GCP_ROWS)
