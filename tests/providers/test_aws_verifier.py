"""The verifier against AWS on loopback: honest evidence passes, and one part spoilt is refused for that part."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio
from aws_cloud import ACCOUNT, REGION, ROLE, Answer, Cloud, cloud, node_role, refusal
from aws_signing import RoleSession, sign
from aws_world import INSTANCE, POLICY, Node, facts_of, filed_aws, filed_with, trust_bundle, with_headers
from worlds import OLD_PIN, T1

from nodeattest_providers.aws.protocol import sts_request
from nodeattest_providers.aws.verifier import AwsSigner
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.names import ClusterPin, ProviderName, Purpose
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import OFFLINE, CallOutcome, ClosingSigner, Platform, make_signer
from nodeattest_providers.verifier_interface import PlatformAddresses


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


async def test_a_proof_for_an_older_ca_of_the_cluster_counts(signer: AwsSigner, aws: Cloud, node: Node) -> None:
    evidence = node.evidence(pin=OLD_PIN)
    await signer.verify_client_attestation_data(filed_aws(node, evidence), facts_of(node))
    assert aws.asked.count("GetCallerIdentity") == 2


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({}, Reason.PLATFORM_REGION_NOT_ALLOWED),
        ({"regions": []}, Reason.PLATFORM_REGION_NOT_ALLOWED),
        ({"regions": ["eu-west-1"]}, Reason.PLATFORM_REGION_NOT_ALLOWED),
        ({"accounts": []}, Reason.PLATFORM_ACCOUNT_NOT_ALLOWED),
        ({"accounts": ["999999999999"]}, Reason.PLATFORM_ACCOUNT_NOT_ALLOWED),
        ({"roles": []}, Reason.PLATFORM_ROLE_NOT_ALLOWED),
        ({"roles": [ROLE + "2", ROLE.upper()]}, Reason.PLATFORM_ROLE_NOT_ALLOWED),
        ({"tags": {"team": "others"}}, Reason.PLATFORM_TAGS_NOT_ALLOWED),
        ({"tags": {"team": "nodes", "Team": "nodes"}}, Reason.PLATFORM_TAGS_NOT_ALLOWED),
        ({"vpcs": []}, Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED),
        ({"vpcs": ["vpc-0123456789abcdef0"]}, Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED),
        ({"accounts": [123456789012]}, Reason.POLICY_INVALID),
    ],
)
async def test_a_policy_that_does_not_list_the_instance_refuses_it(
    signer: AwsSigner, node: Node, policy: dict[str, JsonValue], reason: Reason
) -> None:
    settings = {**POLICY, **policy} if policy else {}
    with pytest.raises(Denied) as denied:
        await signer.verify_client_attestation_data(filed_aws(node), facts_of(node, settings))
    assert denied.value.reason is reason


async def test_tags_and_network_that_the_policy_demands_pass(signer: AwsSigner, aws: Cloud, node: Node) -> None:
    described = aws.ec2().describe_instances(InstanceIds=[node.instance_id])["Reservations"][0]["Instances"][0]
    policy: dict[str, JsonValue] = {**POLICY, "tags": {"team": "nodes"}, "vpcs": [described["VpcId"]]}
    await signer.verify_client_attestation_data(filed_aws(node), facts_of(node, policy))


DOCUMENTS: dict[str, tuple[dict[str, object], Reason]] = {
    "another account": ({"accountId": "999999999999"}, Reason.PLATFORM_ACCOUNT_NOT_ALLOWED),
    "another instance": ({"instanceId": INSTANCE}, Reason.PLATFORM_INSTANCE_MISMATCH),
    "another zone": ({"availabilityZone": "us-east-1b"}, Reason.PLATFORM_INSTANCE_MISMATCH),
    "another region": ({"region": "eu-west-1"}, Reason.PLATFORM_INSTANCE_MISMATCH),
    "a start in the future": ({"pendingTime": "2026-03-01T12:05:01Z"}, Reason.PLATFORM_DOCUMENT_MISMATCH),
    "an account that is a number": ({"accountId": 123456789012}, Reason.PLATFORM_DOCUMENT_MALFORMED),
    "no account": ({"accountId": None}, Reason.PLATFORM_DOCUMENT_MALFORMED),
    "a day that is none": ({"pendingTime": "2026-02-30T12:00:00Z"}, Reason.PLATFORM_DOCUMENT_MALFORMED),
    "a list": ({"region": ["us-east-1"]}, Reason.PLATFORM_DOCUMENT_MALFORMED),
}


@pytest.mark.parametrize("row", DOCUMENTS.values(), ids=DOCUMENTS)
async def test_a_document_that_says_otherwise_is_refused_though_aws_signed_it(
    signer: AwsSigner, aws: Cloud, node: Node, row: tuple[dict[str, object], Reason]
) -> None:
    document = node.document(**row[0])
    denied = await refused(signer, node, document=document, pkcs7=node.pkcs7(document).der())
    assert denied.reason is row[1]
    assert not aws.asked


async def test_the_document_must_be_what_was_signed(signer: AwsSigner, node: Node) -> None:
    spaced = node.document() + b"\n"
    assert (await refused(signer, node, document=spaced)).reason is Reason.PLATFORM_DOCUMENT_MISMATCH


async def test_a_key_that_stands_twice_is_refused(signer: AwsSigner, node: Node) -> None:
    document = b'{"accountId":"999999999999",' + node.document()[1:]
    denied = await refused(signer, node, document=document, pkcs7=node.pkcs7(document).der())
    assert denied.reason is Reason.PLATFORM_DOCUMENT_MALFORMED


async def test_a_document_signed_by_another_regions_certificate_is_refused(signer: AwsSigner, node: Node) -> None:
    denied = await refused(signer, node, pkcs7=node.pkcs7(region="eu-west-1").der())
    assert denied.reason is Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID


async def test_a_document_whose_bytes_changed_is_refused(signer: AwsSigner, node: Node) -> None:
    other = node.document(imageId="ami-99999999")
    swapped = replace(node.pkcs7(), content=other)
    denied = await refused(signer, node, document=other, pkcs7=swapped.der())
    assert denied.reason is Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID


async def test_bytes_that_are_no_pkcs7_are_refused(signer: AwsSigner, node: Node) -> None:
    assert (await refused(signer, node, pkcs7=b"0\x00")).reason is Reason.PLATFORM_DOCUMENT_MALFORMED


async def test_a_region_without_certificates_is_refused_naming_the_setting(
    aws: Cloud, node: Node, tmp_path: Path
) -> None:
    bundle = trust_bundle(tmp_path / "one", "eu-west-1")
    signer = AwsSigner(platform=Platform(settings={**aws.settings, "trustBundle": str(bundle)}))
    denied = await refused(signer, node)
    assert denied.reason is Reason.PLATFORM_REGION_NOT_ALLOWED
    assert "trust bundle" in denied.remedy
    await signer.aclose()


HEADERS: dict[str, tuple[str, str, Reason]] = {
    "a key of another spelling": ("Credential=ASIA", "Credential=asia", Reason.PLATFORM_PROOF_MALFORMED),
    "another service": ("/sts/", "/iam/", Reason.PLATFORM_PROOF_MALFORMED),
    "another region": ("us-east-1", "us-west-2", Reason.PLATFORM_PROOF_MALFORMED),
    "another day": ("/20260301/", "/20260302/", Reason.PLATFORM_PROOF_MALFORMED),
    "another algorithm": ("HMAC-SHA256", "ECDSA-P256-SHA256", Reason.PLATFORM_PROOF_MALFORMED),
    "a binding that is not signed": (";x-amz-nodeattest-binding", "", Reason.PLATFORM_PROOF_MALFORMED),
    "a binding that is signed twice": (
        ";x-amz-nodeattest-binding",
        ";x-amz-nodeattest-binding;x-amz-nodeattest-binding",
        Reason.PLATFORM_PROOF_MALFORMED,
    ),
    "a header more": ("content-type;", "accept;content-type;", Reason.PLATFORM_PROOF_MALFORMED),
    "no host": ("host;", "", Reason.PLATFORM_PROOF_MALFORMED),
    "a line more": (", Signature", "\r\nx: y, Signature", Reason.PLATFORM_PROOF_MALFORMED),
    "a signature in capitals": ("Signature=", "Signature=A", Reason.PLATFORM_PROOF_MALFORMED),
}


@pytest.mark.parametrize("row", HEADERS.values(), ids=HEADERS)
async def test_a_header_set_of_another_form_is_refused_before_aws_is_asked(
    signer: AwsSigner, aws: Cloud, node: Node, row: tuple[str, str, Reason]
) -> None:
    old, new, reason = row
    evidence = node.evidence()
    spoilt = with_headers(evidence, authorization=evidence.sts.authorization.replace(old, new))
    assert (await refused(signer, node, sts=spoilt.sts)).reason is reason
    assert not aws.asked


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (timedelta(minutes=5), None),
        (timedelta(minutes=5, seconds=1), Reason.PLATFORM_PROOF_EXPIRED),
        (timedelta(minutes=16), Reason.PLATFORM_PROOF_EXPIRED),
        (timedelta(minutes=-5), None),
        (timedelta(minutes=-5, seconds=-1), Reason.PLATFORM_PROOF_EXPIRED),
    ],
)
async def test_a_signature_is_of_the_requests_time(
    signer: AwsSigner, aws: Cloud, node: Node, before: timedelta, reason: Reason | None
) -> None:
    sent = replace(node, signed_at=T1 - before)
    if reason is None:
        await signer.verify_client_attestation_data(filed_aws(sent), facts_of(sent))
        return
    denied = await refused(signer, sent)
    assert denied.reason is reason
    assert "clock" in denied.remedy
    assert not aws.asked


async def test_a_signature_over_another_csr_is_refused(signer: AwsSigner, aws: Cloud, node: Node) -> None:
    other = replace(node, zone="us-east-1b").evidence()  # signed for a CSR with another provider ID
    denied = await refused(signer, node, sts=other.sts)
    assert denied.reason is Reason.PLATFORM_PROOF_NOT_BOUND
    assert aws.asked == ["GetCallerIdentity"] * 2


async def test_a_signature_for_another_cluster_is_refused(signer: AwsSigner, node: Node) -> None:
    other = node.evidence(pin=ClusterPin("sha256:" + "cc" * 32))
    assert (await refused(signer, node, sts=other.sts)).reason is Reason.PLATFORM_PROOF_NOT_BOUND


async def test_a_signature_for_the_other_signer_is_refused(signer: AwsSigner, node: Node) -> None:
    other = node.evidence(Purpose.SERVING)
    assert (await refused(signer, node, sts=other.sts)).reason is Reason.PLATFORM_PROOF_NOT_BOUND


async def test_a_signature_over_another_body_is_refused(signer: AwsSigner, node: Node) -> None:
    request = filed_aws(node)
    asked = dataclasses.replace(
        sts_request(REGION, request.binding(OLD_PIN)), body=b"Action=AssumeRole&Version=2011-06-15"
    )
    denied = await refused(signer, node, sts=sign(asked, node.session, T1))
    assert denied.reason is Reason.PLATFORM_PROOF_NOT_BOUND


async def test_credentials_that_sts_does_not_know_are_refused(signer: AwsSigner, aws: Cloud, node: Node) -> None:
    stranger = replace(node, session=RoleSession(token="FwoGZXIvYXdzSTRANGER"))
    denied = await refused(signer, stranger)
    assert denied.reason is Reason.PLATFORM_PROOF_REFUSED
    assert denied.got == "STS: InvalidClientTokenId"
    assert aws.asked == ["GetCallerIdentity"]


ARNS: dict[str, tuple[str, Reason]] = {
    "a user": (f"arn:aws:iam::{ACCOUNT}:user/{{id}}", Reason.PLATFORM_ROLE_NOT_ALLOWED),
    "root": (f"arn:aws:iam::{ACCOUNT}:root", Reason.PLATFORM_ROLE_NOT_ALLOWED),
    "a role without session": (f"arn:aws:iam::{ACCOUNT}:role/{ROLE}", Reason.PLATFORM_ROLE_NOT_ALLOWED),
    "a federated user": (f"arn:aws:sts::{ACCOUNT}:federated-user/{{id}}", Reason.PLATFORM_ROLE_NOT_ALLOWED),
    "another role": (f"arn:aws:sts::{ACCOUNT}:assumed-role/admin/{{id}}", Reason.PLATFORM_ROLE_NOT_ALLOWED),
    "a path": (f"arn:aws:sts::{ACCOUNT}:assumed-role/x/{ROLE}/{{id}}", Reason.PLATFORM_ROLE_NOT_ALLOWED),
    "something behind": (f"arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE}/{{id}}/x", Reason.PLATFORM_ROLE_NOT_ALLOWED),
    "a line behind": (f"arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE}/{{id}}\n", Reason.PLATFORM_UNAVAILABLE),
    "another account": (f"arn:aws:sts::999999999999:assumed-role/{ROLE}/{{id}}", Reason.PLATFORM_ACCOUNT_NOT_ALLOWED),
    "another partition": (
        f"arn:aws-cn:sts::{ACCOUNT}:assumed-role/{ROLE}/{{id}}",
        Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
    ),
    "another instance": (f"arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE}/{INSTANCE}", Reason.PLATFORM_INSTANCE_MISMATCH),
    "a person's session": (f"arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE}/mallory", Reason.PLATFORM_INSTANCE_MISMATCH),
}


@pytest.mark.parametrize("row", ARNS.values(), ids=ARNS)
async def test_whoever_is_not_the_instances_own_session_is_refused(
    signer: AwsSigner, aws: Cloud, node: Node, row: tuple[str, Reason]
) -> None:
    arn, reason = row[0].format(id=node.instance_id), row[1]
    aws.principal = replace(node_role(node.instance_id), arn=arn)
    with pytest.raises((Denied, Unavailable)) as verdict:
        await signer.verify_client_attestation_data(filed_aws(node), facts_of(node))
    assert verdict.value.reason is reason


async def test_a_session_whose_user_id_names_another_instance_is_refused(
    signer: AwsSigner, aws: Cloud, node: Node
) -> None:
    aws.principal = replace(node_role(node.instance_id), user_id=f"AROAEXAMPLE:{INSTANCE}")
    assert (await refused(signer, node)).reason is Reason.PLATFORM_INSTANCE_MISMATCH


async def test_an_instance_that_ec2_does_not_know_is_refused(signer: AwsSigner, aws: Cloud, node: Node) -> None:
    gone = replace(node, instance_id=INSTANCE)
    aws.principal = node_role(INSTANCE)
    assert (await refused(signer, gone)).reason is Reason.PLATFORM_INSTANCE_NOT_FOUND


async def test_an_instance_that_was_started_moments_ago_is_waited_for(
    signer: AwsSigner, aws: Cloud, node: Node
) -> None:
    young = replace(node, instance_id=INSTANCE, pending=T1 - timedelta(seconds=30))
    aws.principal = node_role(INSTANCE)
    with pytest.raises(Unavailable):
        await signer.verify_client_attestation_data(filed_aws(young), facts_of(young))


@pytest.mark.parametrize("state", ["stopped", "terminated"])
async def test_an_instance_that_does_not_run_is_refused(signer: AwsSigner, aws: Cloud, node: Node, state: str) -> None:
    (made,) = aws.start()
    client = aws.ec2()
    (client.stop_instances if state == "stopped" else client.terminate_instances)(InstanceIds=[made])
    aws.principal = node_role(made)
    assert (await refused(signer, replace(node, instance_id=made))).reason is Reason.PLATFORM_INSTANCE_NOT_RUNNING


async def test_a_provider_id_of_another_zone_than_ec2s_is_refused(signer: AwsSigner, node: Node) -> None:
    moved = replace(node, zone="us-east-1b")
    assert (await refused(signer, moved)).reason is Reason.PLATFORM_INSTANCE_MISMATCH


async def test_an_account_that_the_ledger_does_not_know_the_instance_by_is_refused(
    signer: AwsSigner, node: Node
) -> None:
    facts = facts_of(node)
    ledger = replace(facts.ledger, fingerprints={"instance": f"999999999999/{node.instance_id}"})
    with pytest.raises(Denied) as denied:
        await signer.verify_client_attestation_data(filed_aws(node), replace(facts, ledger=ledger))
    assert denied.value.reason is Reason.PLATFORM_INSTANCE_MISMATCH


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
    "a redirect": ((302, b"{}"), CallOutcome.FAILED),
    "a page": ((200, b"<html>"), CallOutcome.FAILED),
    "XML with an entity": ((200, b"<!DOCTYPE a [<!ENTITY b 'c'>]><GetCallerIdentityResponse/>"), CallOutcome.FAILED),
    "an answer that does not end": ((200, b"{" + b" " * 20_000), CallOutcome.FAILED),
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


def _note(seen: list[CallOutcome], service: str, outcome: CallOutcome, seconds: float) -> None:
    assert service == "sts"
    assert seconds >= 0
    seen.append(outcome)


async def test_an_sts_that_cannot_be_reached_is_waited_for(node: Node, bundle: Path) -> None:
    seen: list[CallOutcome] = []
    settings: dict[str, JsonValue] = {"endpoints": {"sts": "https://127.0.0.1:1"}, "trustBundle": str(bundle)}
    signer = AwsSigner(platform=Platform(settings=settings, observe=partial(_note, seen)))
    with pytest.raises(Unavailable):
        await signer.verify_client_attestation_data(filed_aws(node), facts_of(node))
    await signer.aclose()
    assert seen == [CallOutcome.UNREACHABLE]


async def test_an_sts_of_another_authority_is_not_believed(aws: Cloud, node: Node, bundle: Path) -> None:
    settings: dict[str, JsonValue] = {"endpoints": {"sts": aws.url}, "trustBundle": str(bundle)}
    signer = AwsSigner(platform=Platform(settings=settings))
    with pytest.raises(Unavailable):
        await signer.verify_client_attestation_data(filed_aws(node), facts_of(node))
    await signer.aclose()
    assert not aws.asked


async def test_the_environments_proxy_is_not_used(
    aws: Cloud, node: Node, signer: AwsSigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    await signer.verify_client_attestation_data(filed_aws(node), facts_of(node))
    assert aws.asked == ["GetCallerIdentity", "DescribeInstances"]


async def test_offline_everything_is_checked_but_what_the_platform_answers(bundle: Path, node: Node) -> None:
    platform = Platform(settings={"trustBundle": str(bundle)}, may_call=False)
    with pytest.raises(Unavailable) as unavailable:
        await AwsSigner(platform=platform).verify_client_attestation_data(filed_aws(node), facts_of(node))
    assert {check.name for check in unavailable.value.checks if check.passed} >= {"signature of the document"}


async def test_addresses_are_ec2s_own(signer: AwsSigner, node: Node) -> None:
    assert isinstance(signer, PlatformAddresses)
    assert isinstance(signer, ClosingSigner)
    found = await signer.addresses(facts_of(node))
    assert {kind for kind, _ in found} >= {"InternalIP", "InternalDNS", "Hostname"}
    with pytest.raises(Denied) as denied:
        await signer.addresses(facts_of(replace(node, instance_id=INSTANCE)))
    assert denied.value.reason is Reason.PLATFORM_INSTANCE_NOT_FOUND


async def test_a_provider_id_of_another_cloud_is_refused(signer: AwsSigner, node: Node) -> None:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Elsewhere(Node):
        @property
        def provider_id(self) -> str:
            return "gce://project/zone/name"

    with pytest.raises(Denied) as denied:
        await signer.verify_client_attestation_data(filed_with(Elsewhere(), node.evidence().to_json()), facts_of(node))
    assert denied.value.reason is Reason.PROVIDER_ID_INVALID


async def test_evidence_outside_the_schema_is_refused(signer: AwsSigner, node: Node) -> None:
    with pytest.raises(Denied) as denied:
        await signer.verify_client_attestation_data(filed_with(node, {}), facts_of(node))
    assert denied.value.reason is Reason.EVIDENCE_MALFORMED


def test_the_half_is_found_by_name_and_reads_its_settings() -> None:
    assert isinstance(make_signer(ProviderName("aws"), OFFLINE), AwsSigner)
    with pytest.raises(Denied) as denied:
        make_signer(ProviderName("aws"), Platform(settings={"trustBundel": "/x"}))
    assert "trustBundle" in denied.value.got


def test_a_half_that_may_not_call_costs_no_library_of_aws() -> None:
    code = (
        "import sys\n"
        "from nodeattest_providers.platform import OFFLINE, make_signer\n"
        "make_signer('aws', OFFLINE).check_settings({})\n"
        "print(*sorted({'boto3', 'botocore', 'aiohttp'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
