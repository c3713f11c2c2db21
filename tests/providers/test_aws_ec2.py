"""Instances and their endorsement keys, looked up for many requests at once: by moto over TLS, and by a virtual EC2."""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import pytest
from aws_cloud import ACCOUNT, REGION, Cloud, cloud
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from ec2_world import INSTANCE, OTHERS, OURS, RUNNING, Amazon

from nodeattest_providers.aws.api.ec2 import Ec2
from nodeattest_providers.aws.api.instances import Ec2Instance, EndorsementKeys, Instances, KeyType, Realm
from nodeattest_providers.aws.config import parse_platform
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import ProviderID
from nodeattest_providers.keys import PublicKey, endorsement_fingerprint
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import CallOutcome, Platform

HERE = Realm(ACCOUNT, REGION)
STRANGER = "i-0123456789abcdef0"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with cloud(tmp_path_factory.mktemp("aws")) as running:
        yield running


@pytest.fixture
def amazon(shared: Cloud, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIACONTROLLEREXAMPL")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    shared.reset()
    return shared


@dataclass(frozen=True, slots=True)
class Seen:
    outcomes: list[CallOutcome] = field(default_factory=list[CallOutcome])

    def __call__(self, service: str, outcome: CallOutcome, seconds: float) -> None:
        assert (service, seconds >= 0) == ("ec2", True)
        self.outcomes.append(outcome)


class MakeEc2(Protocol):
    def __call__(self, seen: Seen | None = None, **settings: JsonValue) -> Ec2: ...


@pytest.fixture
def ec2_of(amazon: Cloud) -> Iterator[MakeEc2]:
    with ExitStack() as stack:

        def make(seen: Seen | None = None, **settings: JsonValue) -> Ec2:
            configuration = parse_platform({**amazon.settings, **settings})
            made = Ec2(configuration, Platform(observe=seen or Seen()), lambda: 0.0)
            stack.callback(made.close)
            return made

        yield make


def instances_of(describe: Ec2) -> Instances:
    return Instances(describe, monotonic=lambda: 0.0, random=lambda: 0.0)


def error(code: str, status: int) -> tuple[int, bytes]:
    return status, f"<Response><Errors><Error><Code>{code}</Code></Error></Errors></Response>".encode()


async def test_sixty_requests_of_a_scale_up_share_one_call(amazon: Cloud, ec2_of: MakeEc2) -> None:
    started = amazon.start(count=60)
    amazon.asked.clear()
    instances = instances_of(ec2_of())
    found = await asyncio.gather(*(instances.find(HERE, one) for one in started))
    assert [instance.instance_id for instance in found if instance] == started
    assert amazon.asked == ["DescribeInstances"]
    again = await instances.find(HERE, started[0])
    assert again == found[0]
    assert amazon.asked == ["DescribeInstances"]
    await instances.aclose()


@pytest.mark.parametrize(
    ("code", "status", "outcome"),
    [
        ("RequestLimitExceeded", 503, CallOutcome.THROTTLED),
        ("UnauthorizedOperation", 403, CallOutcome.REFUSED),
        ("InternalError", 500, CallOutcome.FAILED),
    ],
)
async def test_what_ec2_refuses_is_waited_for_and_asked_once(
    amazon: Cloud, ec2_of: MakeEc2, code: str, status: int, outcome: CallOutcome
) -> None:
    amazon.spoil = lambda action: error(code, status) if action == "DescribeInstances" else None
    seen = Seen()
    with pytest.raises(Unavailable) as unavailable:
        await ec2_of(seen).describe(HERE, [STRANGER])
    assert unavailable.value.reason is Reason.PLATFORM_UNAVAILABLE
    assert seen.outcomes == [outcome]
    assert amazon.asked == ["DescribeInstances"]


NITRO = {
    KeyType.RSA_2048: rsa.generate_private_key(65537, 2048).public_key(),
    KeyType.ECC_P384: ec.generate_private_key(ec.SECP384R1()).public_key(),
}


def told(kind: KeyType, **spoilt: str) -> tuple[int, bytes]:
    """Answer with the key of a NitroTPM, or with something spoilt."""
    der = NITRO[kind].public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    said = {"instanceId": STRANGER, "keyType": str(kind), "keyFormat": "der", "keyValue": b64encode(der).decode()}
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in {**said, **spoilt}.items())
    return 200, f"<GetInstanceTpmEkPubResponse>{inner}</GetInstanceTpmEkPubResponse>".encode()


@pytest.mark.parametrize("kind", KeyType)
async def test_ec2_tells_an_instances_endorsement_key(amazon: Cloud, ec2_of: MakeEc2, kind: KeyType) -> None:
    amazon.spoil = lambda action: told(kind) if action == "GetInstanceTpmEkPub" else None
    seen = Seen()
    assert await ec2_of(seen).describe_key(HERE, STRANGER, kind) == endorsement_fingerprint(NITRO[kind])
    assert (seen.outcomes, amazon.asked) == ([CallOutcome.OK], ["GetInstanceTpmEkPub"])


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
async def test_any_other_answer_about_a_key_is_waited_for(
    amazon: Cloud, ec2_of: MakeEc2, answer: tuple[int, bytes]
) -> None:
    amazon.spoil = lambda _: answer
    with pytest.raises(Unavailable) as unavailable:
        await ec2_of().describe_key(HERE, STRANGER, KeyType.ECC_P384)
    assert unavailable.value.reason is Reason.PLATFORM_UNAVAILABLE
    assert amazon.asked == ["GetInstanceTpmEkPub"]


@pytest.mark.parametrize("roles", [{}, {ACCOUNT: f"arn:aws:iam::{ACCOUNT}:role/reader"}], ids=["own", "assumed"])
async def test_credentials_that_come_late_are_found(
    amazon: Cloud, ec2_of: MakeEc2, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, roles: dict[str, JsonValue]
) -> None:
    keys = {name: os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name in keys:
        monkeypatch.delenv(name)
    seen = Seen()
    ec2 = ec2_of(seen, assumeRoles=roles)
    with pytest.raises(Unavailable) as unavailable:
        await ec2.describe(HERE, [STRANGER])
    assert "no AWS credentials" in unavailable.value.detail
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    assert not await ec2.describe(HERE, [STRANGER])
    assert seen.outcomes == [CallOutcome.REFUSED, CallOutcome.OK]
    assert amazon.asked[-1] == "DescribeInstances"


async def test_instances_of_another_account_are_read_with_its_role(amazon: Cloud, ec2_of: MakeEc2) -> None:
    other = "999999999999"
    ec2 = ec2_of(assumeRoles={other: f"arn:aws:iam::{other}:role/reader"})
    assert not await ec2.describe(Realm(other, REGION), [STRANGER])
    assert amazon.asked == ["AssumeRole", "DescribeInstances"]
    assert not await ec2.describe(HERE, [STRANGER])
    assert amazon.asked[2:] == ["DescribeInstances"]


RSA = rsa.generate_private_key(65537, 2048).public_key()


@pytest.fixture
def ek_amazon() -> Amazon:
    return Amazon()


async def found(keys: EndorsementKeys, shown: PublicKey = RSA, machine: ProviderID = INSTANCE, *accounts: str) -> str:
    checks = Checks()
    named = await keys.find(checks, machine, accounts=frozenset(accounts or (OURS,)), shown=shown)
    assert named.checks == checks.record()
    assert all(check.passed for check in named.checks)
    return named.fingerprint


async def test_a_key_is_asked_for_once_in_five_minutes_whoever_wants_it(ek_amazon: Amazon) -> None:
    keys = ek_amazon.keys()
    ek_amazon.free.clear()
    together = [asyncio.create_task(found(keys)) for _ in range(8)]
    while not ek_amazon.asked:
        await asyncio.sleep(0.005)
    ek_amazon.free.set()
    await asyncio.gather(*together)
    ek_amazon.now = 299.0
    await found(keys)
    assert len(ek_amazon.asked) == 1
    ek_amazon.now = 301.0
    await found(keys)
    assert len(ek_amazon.asked) == 2
    await keys.aclose()


WRONG: list[tuple[str, Ec2Instance, Reason]] = [
    ("of another account", replace(RUNNING, owner=OTHERS), Reason.PLATFORM_INSTANCE_NOT_FOUND),
    ("in another zone", replace(RUNNING, zone="us-east-1b"), Reason.PLATFORM_INSTANCE_MISMATCH),
    ("terminated", replace(RUNNING, state="terminated"), Reason.PLATFORM_INSTANCE_NOT_RUNNING),
    ("without NitroTPM", replace(RUNNING, has_tpm=False), Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED),
]


@pytest.mark.parametrize(("instance", "reason"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
async def test_of_an_instance_that_may_not_join_no_key_is_asked_for(
    ek_amazon: Amazon, instance: Ec2Instance, reason: Reason
) -> None:
    ek_amazon.instance = instance
    with pytest.raises(Denied) as denied:
        await found(ek_amazon.keys())
    assert denied.value.reason is reason
    assert denied.value.checks
    assert not ek_amazon.asked
