"""The aws verifier beside an AWS on loopback, and EC2's instances and endorsement keys for many requests at once.

Each check that refuses has its attack in docs/proof/checks.md; the attacks are in tests/attacks/test_d6, test_d7.
"""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aws_signing import RoleSession
from aws_world import INSTANCE, POLICY, Stage, facts_of, filed_aws, region_key
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from worlds import T1, Calls, denied_for

from clouds.authority import certify
from clouds.aws import ACCOUNT, REGION, Answer, Front, Principal, error, refusal
from nodeattest_providers.aws.api.ec2 import Ec2, Instances, KeyType
from nodeattest_providers.aws.checks import Realm
from nodeattest_providers.aws.config import parse_platform
from nodeattest_providers.aws.verifier import AwsSigner
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.keys import endorsement_fingerprint
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import CallOutcome, Platform

HERE = Realm(ACCOUNT, REGION)


def test_an_instance_proves_itself_by_two_calls_to_its_own_region(stage: Stage) -> None:
    proven = stage.attest(filed_aws(stage.node))
    assert proven.provider_id == stage.node.provider_id
    assert proven.fingerprints == {"instance": f"{ACCOUNT}/{stage.node.instance_id}"}
    assert (proven.proven_node_name or "").endswith(".ec2.internal")
    assert stage.front.asked == ["GetCallerIdentity", "DescribeInstances"]
    assert stage.front.hosts[0] == "sts.us-east-1.amazonaws.com"


def test_a_session_whose_user_id_names_another_instance_is_refused(stage: Stage) -> None:
    stage.knows(stage.node.principal(UserId=f"AROAEXAMPLE:{INSTANCE}"))
    with denied_for(Reason.PLATFORM_INSTANCE_MISMATCH):
        stage.attest(filed_aws(stage.node))


def test_an_instance_that_was_started_moments_ago_is_waited_for(stage: Stage) -> None:
    young = replace(stage.node, instance_id=INSTANCE, launched=T1 - timedelta(seconds=30))
    stage.knows(young.principal())
    with pytest.raises(Unavailable):
        stage.attest(filed_aws(young), young)


async def test_a_request_in_the_ledger_is_not_confirmed_by_sts_again(stage: Stage) -> None:
    stage.front.now = T1 + timedelta(hours=3)  # STS would refuse the old signature
    signer = AwsSigner(platform=Platform(settings=stage.settings))
    facts, request = facts_of(stage.node), filed_aws(stage.node)
    with denied_for(Reason.PLATFORM_PROOF_EXPIRED):
        await signer.verify_client_attestation_data(request, facts)
    answered = replace(facts, ledger=replace(facts.ledger, answered=True))
    assert (await signer.verify_client_attestation_data(request, answered)).fingerprints
    found = await signer.addresses(facts)
    assert {kind for kind, _ in found} >= {"InternalIP", "InternalDNS", "Hostname"}
    for foreign in (
        facts_of(replace(stage.node, instance_id=INSTANCE)),
        facts_of(stage.node, {**POLICY, "accounts": ["999999999999"]}),
        facts_of(stage.node, {**POLICY, "accounts": ["999999999998", "999999999999"]}),
    ):
        with denied_for(Reason.PLATFORM_INSTANCE_NOT_FOUND):
            await signer.addresses(foreign)
    await signer.aclose()


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (refusal("Throttling", status=400), CallOutcome.THROTTLED),
        ((429, b""), CallOutcome.THROTTLED),
        ((503, b"<html>"), CallOutcome.FAILED),
        ((403, b"no"), CallOutcome.FAILED),
    ],
)
def test_an_answer_of_sts_that_says_nothing_is_waited_for(stage: Stage, answer: Answer, outcome: CallOutcome) -> None:
    outcomes = Calls()
    stage.front.spoil = lambda action: answer if action == "GetCallerIdentity" else None
    with pytest.raises(Unavailable) as unavailable:
        replace(stage, observe=outcomes).attest(filed_aws(stage.node))
    assert outcomes.seen == [("sts", outcome)]
    assert 1 < unavailable.value.retry_after < 30


async def test_offline_everything_is_checked_but_what_the_platform_answers(stage: Stage) -> None:
    signer = AwsSigner(platform=Platform(settings={"trustBundle": str(stage.bundle)}, may_call=False))
    with pytest.raises(Unavailable) as unavailable:
        await signer.verify_client_attestation_data(filed_aws(stage.node), facts_of(stage.node))
    assert {check.name for check in unavailable.value.checks if check.passed} >= {"signature of the document"}
    with pytest.raises(Unavailable):
        await signer.addresses(facts_of(stage.node))


@pytest.mark.parametrize("begins", [timedelta(days=-30), timedelta(seconds=1)], ids=["expired", "not yet valid"])
def test_a_regions_certificate_counts_in_its_time_only(stage: Stage, tmp_path: Path, begins: timedelta) -> None:
    key, begin = region_key().key, T1 + begins
    made = certify("once", key.public_key(), "once", key, begin=begin, end=begin + timedelta(days=29))
    (tmp_path / f"{REGION}.pem").write_bytes(made.public_bytes(Encoding.PEM))
    with denied_for(Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID):
        replace(stage, bundle=tmp_path).attest(filed_aws(stage.node))
    assert stage.front.asked == []


# EC2

STRANGER = "i-0123456789abcdef0"
MakeEc2 = Callable[..., Ec2]


@pytest.fixture
def amazon(stage: Stage) -> Front:
    return stage.front


@pytest.fixture
def outcomes() -> Calls:
    return Calls()


@pytest.fixture
def ec2_of(stage: Stage, outcomes: Calls) -> Iterator[MakeEc2]:
    with ExitStack() as stack:

        def make(**settings: JsonValue) -> Ec2:
            configuration = parse_platform({**stage.settings, **settings})
            made = Ec2(configuration, Platform(observe=outcomes))
            stack.callback(made.close)
            return made

        yield make


async def test_sixty_requests_of_a_scale_up_share_one_call(stage: Stage, amazon: Front, ec2_of: MakeEc2) -> None:
    started = stage.start(60)
    amazon.asked.clear()
    instances = Instances(ec2_of(), monotonic=lambda: 0.0)
    found = await asyncio.gather(*(instances.find(HERE, each) for each in started))
    assert [instance.instance_id for instance in found if instance] == started
    assert await instances.find(HERE, started[0]) == found[0]
    assert amazon.asked == ["DescribeInstances"]
    await instances.aclose()


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (error("RequestLimitExceeded", 503), CallOutcome.THROTTLED),
        (error("UnauthorizedOperation", 403), CallOutcome.REFUSED),
        (error("InternalError", 500), CallOutcome.FAILED),
    ],
)
async def test_what_ec2_refuses_is_waited_for_and_asked_once(
    amazon: Front, ec2_of: MakeEc2, outcomes: Calls, answer: Answer, outcome: CallOutcome
) -> None:
    amazon.spoil = lambda _: answer
    with pytest.raises(Unavailable):
        await ec2_of().describe(HERE, [STRANGER])
    assert (outcomes.seen, amazon.asked) == ([("ec2", outcome)], ["DescribeInstances"])


NITRO = {
    KeyType.RSA_2048: rsa.generate_private_key(65537, 2048).public_key(),
    KeyType.ECC_P384: ec.generate_private_key(ec.SECP384R1()).public_key(),
}


def told(kind: KeyType, **spoilt: str) -> Answer:
    """Answer with the key of a NitroTPM, or with something spoilt."""
    der = NITRO[kind].public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    said = {"instanceId": STRANGER, "keyType": str(kind), "keyFormat": "der", "keyValue": b64encode(der).decode()}
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in {**said, **spoilt}.items())
    return 200, f"<GetInstanceTpmEkPubResponse>{inner}</GetInstanceTpmEkPubResponse>".encode()


@pytest.mark.parametrize("kind", KeyType)
async def test_ec2_tells_an_instances_endorsement_key(amazon: Front, ec2_of: MakeEc2, kind: KeyType) -> None:
    amazon.spoil = lambda _: told(kind)
    assert await ec2_of().describe_key(HERE, STRANGER, kind) == endorsement_fingerprint(NITRO[kind])


@pytest.mark.parametrize(
    "answer",
    [
        told(KeyType.ECC_P384, keyType="rsa-2048"),
        told(KeyType.ECC_P384, keyValue="AAAA"),
        (200, told(KeyType.RSA_2048)[1].replace(b"rsa-2048", b"ecc-sec-p384")),
        (200, b"<html>"),
        error("RequestLimitExceeded", 503),
        error("InvalidInstanceID.NotFound", 400),
    ],
)
async def test_any_other_answer_about_a_key_is_waited_for(amazon: Front, ec2_of: MakeEc2, answer: Answer) -> None:
    amazon.spoil = lambda _: answer
    with pytest.raises(Unavailable):
        await ec2_of().describe_key(HERE, STRANGER, KeyType.ECC_P384)


async def test_credentials_that_come_late_are_found(
    amazon: Front, ec2_of: MakeEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {name: os.environ[name] for name in RoleSession().environment}
    for name in keys:
        monkeypatch.delenv(name)
    ec2 = ec2_of()
    with pytest.raises(Unavailable, match="no AWS credentials"):
        await ec2.describe(HERE, [STRANGER])
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    assert not await ec2.describe(HERE, [STRANGER])
    assert amazon.asked == ["DescribeInstances"]


async def test_instances_of_another_account_are_read_with_its_role(amazon: Front, ec2_of: MakeEc2) -> None:
    other = "999999999999"
    ec2 = ec2_of(assumeRoles={other: f"arn:aws:iam::{other}:role/reader"})
    for _ in range(2):
        assert not await ec2.describe(Realm(other, REGION), [STRANGER])
    assert not await ec2.describe(HERE, [STRANGER])
    assert amazon.asked == ["AssumeRole", *3 * ["DescribeInstances"]]


@pytest.mark.parametrize(("seconds", "times"), [(270, 2), (390, 1)])
async def test_a_roles_credentials_are_replaced_five_minutes_before_they_expire(
    amazon: Front, ec2_of: MakeEc2, seconds: int, times: int
) -> None:
    other, expires = "999999999999", datetime.now(UTC) + timedelta(seconds=seconds)
    keys = "<AccessKeyId>ASIAEXAMPLE</AccessKeyId><SecretAccessKey>x</SecretAccessKey><SessionToken>x</SessionToken>"
    credentials = f"<Credentials>{keys}<Expiration>{expires:%Y-%m-%dT%H:%M:%SZ}</Expiration></Credentials>"
    body = f"<AssumeRoleResponse><AssumeRoleResult>{credentials}</AssumeRoleResult></AssumeRoleResponse>".encode()
    amazon.spoil = lambda action: (200, body) if action == "AssumeRole" else None
    reader = RoleSession("ASIAEXAMPLE", "x", "x")
    amazon.principals[reader.access_key] = Principal(reader, frozenset({"DescribeInstances"}))
    ec2 = ec2_of(assumeRoles={other: f"arn:aws:iam::{other}:role/reader"})
    for _ in range(2):
        assert not await ec2.describe(Realm(other, REGION), [STRANGER])
    assert amazon.asked.count("AssumeRole") == times
