"""What no honest AWS shows: redirects, certificates out of their time, an instance of another account than it says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from aws_attacks import Stage
from aws_cloud import ACCOUNT, REGION, cloud, node_role
from aws_world import POLICY, Node, facts_of, filed_aws, region_key, trust_bundle
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from worlds import T1

from nodeattest_providers.aws.verifier import AwsSigner
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.platform import Platform

OTHER = "999999999999"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("aws")
    with cloud(folder) as running:
        (instance,) = running.start()
        yield Stage(cloud=running, bundle=trust_bundle(folder / "trust"), node=Node(instance_id=instance))


@pytest.fixture
def stage(played: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIACONTROLLEREXAMPL")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    return played.set()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_where_a_redirect_leads_is_never_asked(stage: Stage, status: int) -> None:
    stage.cloud.spoil = lambda action: (status, b"{}") if action == "GetCallerIdentity" else None
    with pytest.raises(Unavailable):
        stage.attest(filed_aws(stage.node))
    assert stage.cloud.asked == ["GetCallerIdentity"]


@pytest.mark.parametrize("begins", [timedelta(days=-30), timedelta(seconds=1)], ids=["ended", "not begun"])
def test_a_regions_certificate_counts_in_its_time_only(stage: Stage, tmp_path: Path, begins: timedelta) -> None:
    key, name = region_key(2048, REGION), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "once")])
    begin = T1 + begins
    made = x509.CertificateBuilder(name, name, key.public_key(), 7, begin, begin + timedelta(days=29))
    (tmp_path / f"{REGION}.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    with pytest.raises(Denied) as denied:
        replace(stage, bundle=tmp_path).attest(filed_aws(stage.node))
    assert denied.value.reason is Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID
    assert stage.cloud.asked == []


def test_an_instance_that_ec2_gives_to_another_account_than_document_and_role_is_refused(stage: Stage) -> None:
    node = replace(stage.node, account=OTHER)
    stage.cloud.principal = node_role(node.instance_id, account=OTHER)
    with pytest.raises(Denied) as denied:
        stage.attest(filed_aws(node), node, accounts=[ACCOUNT, OTHER])
    assert denied.value.reason is Reason.PLATFORM_INSTANCE_MISMATCH
    assert denied.value.checks[-1].name == "owner of the instance"


def test_addresses_of_an_account_that_the_policy_does_not_list_are_not_told(stage: Stage) -> None:
    async def ask() -> object:
        signer = AwsSigner(platform=Platform(settings={**stage.cloud.settings, "trustBundle": str(stage.bundle)}))
        try:
            return await signer.addresses(facts_of(stage.node, {**POLICY, "accounts": [OTHER]}))
        finally:
            await signer.aclose()

    with pytest.raises(Denied) as denied:
        asyncio.run(ask())
    assert denied.value.reason is Reason.PLATFORM_INSTANCE_NOT_FOUND
