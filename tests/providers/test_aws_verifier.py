"""The verifier against AWS on loopback: honest evidence passes, and one part spoilt is refused for that part."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from aws_attacks import Stage
from aws_cloud import ACCOUNT, REGION, ROLE, Answer, Cloud, cloud, node_role, refusal
from aws_world import INSTANCE, POLICY, Node, facts_of, filed_aws, region_key, trust_bundle
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from worlds import T1

from nodeattest_providers.aws.verifier import AwsSigner
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import Purpose
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import CallOutcome, Platform


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with cloud(tmp_path_factory.mktemp("aws")) as running:
        yield running


@pytest.fixture(scope="module")
def instance(aws: Cloud) -> str:
    (made,) = aws.start({"team": "nodes"})
    return made


@pytest.fixture
def node(aws: Cloud, instance: str) -> Node:
    aws.reset()
    aws.principal = node_role(instance)
    return Node(instance_id=instance)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return trust_bundle(tmp_path / "trust")


@pytest_asyncio.fixture
async def signer(aws: Cloud, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AwsSigner]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIACONTROLLEREXAMPL")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    made = AwsSigner(platform=Platform(settings={**aws.settings, "trustBundle": str(bundle)}), random=lambda: 0.5)
    yield made
    await made.aclose()


async def refused(signer: AwsSigner, node: Node, **changes: object) -> Denied:
    evidence = replace(node.evidence(), **changes)  # type: ignore[arg-type]
    with pytest.raises(Denied) as denied:
        await signer.verify_client_attestation_data(filed_aws(node, evidence), facts_of(node))
    assert denied.value.checks
    assert not denied.value.checks[-1].passed
    return denied.value


@pytest.mark.parametrize("purpose", [Purpose.CLIENT, Purpose.SERVING])
async def test_an_instance_proves_itself(signer: AwsSigner, aws: Cloud, node: Node, purpose: Purpose) -> None:
    verify = (
        signer.verify_client_attestation_data if purpose is Purpose.CLIENT else signer.verify_serving_attestation_data
    )
    proven = await verify(filed_aws(node, purpose=purpose), facts_of(node))
    assert proven.provider_id == node.provider_id
    assert proven.fingerprints == {"instance": f"{ACCOUNT}/{node.instance_id}"}
    assert proven.proven_node_name
    assert proven.proven_node_name.endswith(".ec2.internal")
    assert all(check.passed for check in proven.checks)
    assert aws.asked == ["GetCallerIdentity", "DescribeInstances"]
    assert aws.hosts[0] == "sts.us-east-1.amazonaws.com"


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({}, Reason.PLATFORM_REGION_NOT_ALLOWED),
        ({"accounts": []}, Reason.PLATFORM_ACCOUNT_NOT_ALLOWED),
        ({"roles": [ROLE + "2", ROLE.upper()]}, Reason.PLATFORM_ROLE_NOT_ALLOWED),
        ({"tags": {"team": "nodes", "Team": "nodes"}}, Reason.PLATFORM_TAGS_NOT_ALLOWED),
        ({"vpcs": []}, Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED),
    ],
)
async def test_a_policy_that_does_not_list_the_instance_refuses_it(
    signer: AwsSigner, node: Node, policy: dict[str, JsonValue], reason: Reason
) -> None:
    settings = {**POLICY, **policy} if policy else {}
    with pytest.raises(Denied) as denied:
        await signer.verify_client_attestation_data(filed_aws(node), facts_of(node, settings))
    assert denied.value.reason is reason


async def test_a_session_whose_user_id_names_another_instance_is_refused(
    signer: AwsSigner, aws: Cloud, node: Node
) -> None:
    aws.principal = replace(node_role(node.instance_id), user_id=f"AROAEXAMPLE:{INSTANCE}")
    assert (await refused(signer, node)).reason is Reason.PLATFORM_INSTANCE_MISMATCH


async def test_an_instance_that_was_started_moments_ago_is_waited_for(
    signer: AwsSigner, aws: Cloud, node: Node
) -> None:
    young = replace(node, instance_id=INSTANCE, pending=T1 - timedelta(seconds=30))
    aws.principal = node_role(INSTANCE)
    with pytest.raises(Unavailable):
        await signer.verify_client_attestation_data(filed_aws(young), facts_of(young))


async def test_a_request_that_was_answered_needs_no_second_word_of_sts(
    signer: AwsSigner, aws: Cloud, node: Node
) -> None:
    aws.now = T1 + timedelta(hours=3)  # STS would refuse the old signature
    facts = facts_of(node)
    with pytest.raises(Denied) as denied:
        await signer.verify_client_attestation_data(filed_aws(node), facts)
    assert denied.value.reason is Reason.PLATFORM_PROOF_EXPIRED
    answered = replace(facts, ledger=replace(facts.ledger, answered=True))
    proven = await signer.verify_client_attestation_data(filed_aws(node), answered)
    assert proven.fingerprints == {"instance": f"{ACCOUNT}/{node.instance_id}"}


STS_TROUBLE: dict[str, tuple[Answer, CallOutcome]] = {
    "it throttles": (refusal("Throttling", status=400), CallOutcome.THROTTLED),
    "too many requests": ((429, b""), CallOutcome.THROTTLED),
    "it fails": ((503, b"<html>"), CallOutcome.FAILED),
    "a refusal without reason": ((403, b"no"), CallOutcome.FAILED),
}


@pytest.mark.parametrize("row", STS_TROUBLE.values(), ids=STS_TROUBLE)
async def test_an_answer_of_sts_that_says_nothing_is_waited_for(
    aws: Cloud, node: Node, bundle: Path, row: tuple[Answer, CallOutcome]
) -> None:
    seen: list[tuple[str, CallOutcome]] = []
    aws.spoil = lambda action: row[0] if action == "GetCallerIdentity" else None
    platform = Platform(
        settings={**aws.settings, "trustBundle": str(bundle)},
        observe=lambda service, outcome, seconds: seen.append((service, outcome)),  # noqa: ARG005 - the protocol's names
    )
    signer = AwsSigner(platform=platform)
    with pytest.raises(Unavailable) as unavailable:
        await signer.verify_client_attestation_data(filed_aws(node), facts_of(node))
    await signer.aclose()
    assert unavailable.value.reason is Reason.PLATFORM_UNAVAILABLE
    assert seen == [("sts", row[1])]
    assert 1 < unavailable.value.retry_after < 30


async def test_offline_everything_is_checked_but_what_the_platform_answers(bundle: Path, node: Node) -> None:
    signer = AwsSigner(platform=Platform(settings={"trustBundle": str(bundle)}, may_call=False))
    with pytest.raises(Unavailable) as unavailable:
        await signer.verify_client_attestation_data(filed_aws(node), facts_of(node))
    assert {check.name for check in unavailable.value.checks if check.passed} >= {"signature of the document"}
    with pytest.raises(Unavailable):
        await signer.addresses(facts_of(node))
    await signer.aclose()


async def test_addresses_are_ec2s_own(signer: AwsSigner, node: Node) -> None:
    found = await signer.addresses(facts_of(node))
    assert {kind for kind, _ in found} >= {"InternalIP", "InternalDNS", "Hostname"}
    assert await signer.addresses(facts_of(node, {**POLICY, "accounts": ["999999999999", ACCOUNT]})) == found
    with pytest.raises(Denied) as denied:
        await signer.addresses(facts_of(replace(node, instance_id=INSTANCE)))
    assert denied.value.reason is Reason.PLATFORM_INSTANCE_NOT_FOUND


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
