"""Endorsement keys of EC2 instances: only of one that runs where its provider ID says, with NitroTPM; told once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from ec2_world import INSTANCE, OTHERS, OURS, RUNNING, Amazon

from nodeattest_providers.aws.api.endorsement_keys import EndorsementKeys, KeyType
from nodeattest_providers.aws.api.instances import Ec2Instance
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.key_types import PublicKey
from nodeattest_providers.names import ProviderID

RSA = rsa.generate_private_key(65537, 2048).public_key()
P384 = ec.generate_private_key(ec.SECP384R1()).public_key()
P256 = ec.generate_private_key(ec.SECP256R1()).public_key()


@pytest.fixture
def amazon() -> Amazon:
    return Amazon()


async def found(keys: EndorsementKeys, shown: PublicKey = RSA, machine: ProviderID = INSTANCE, *accounts: str) -> str:
    checks = Checks()
    named = await keys.find(checks, machine, accounts=frozenset(accounts or (OURS,)), shown=shown)
    assert named.checks == checks.record()
    assert all(check.passed for check in named.checks)
    return named.fingerprint


@pytest.mark.parametrize(("shown", "kind"), [(RSA, KeyType.RSA_2048), (P384, KeyType.ECC_P384)])
async def test_the_key_of_the_type_that_was_shown_is_asked_for(amazon: Amazon, shown: PublicKey, kind: KeyType) -> None:
    assert await found(amazon.keys(), shown) == amazon.key
    assert amazon.asked == [(OURS, kind)]


async def test_the_account_that_owns_the_instance_is_found_among_those_listed(amazon: Amazon) -> None:
    amazon.instance = replace(RUNNING, owner=OTHERS)
    await found(amazon.keys(), RSA, INSTANCE, OURS, OTHERS)
    assert amazon.asked == [(OTHERS, KeyType.RSA_2048)]


async def test_a_key_is_asked_for_once_in_five_minutes_whoever_wants_it(amazon: Amazon) -> None:
    keys = amazon.keys()
    amazon.free.clear()
    together = [asyncio.create_task(found(keys)) for _ in range(8)]
    while not amazon.asked:
        await asyncio.sleep(0.005)
    amazon.free.set()
    await asyncio.gather(*together)
    amazon.now = 299.0
    await found(keys)
    assert len(amazon.asked) == 1
    amazon.now = 301.0
    await found(keys)
    assert len(amazon.asked) == 2
    await keys.aclose()


async def test_a_failure_is_not_remembered(amazon: Amazon) -> None:
    keys = amazon.keys()
    amazon.fails = True
    with pytest.raises(Unavailable):
        await found(keys)
    amazon.fails = False
    await found(keys)


WRONG: list[tuple[str, Ec2Instance, Reason]] = [
    ("of another account", replace(RUNNING, owner=OTHERS), Reason.PLATFORM_INSTANCE_NOT_FOUND),
    ("in another zone", replace(RUNNING, zone="us-east-1b"), Reason.PLATFORM_INSTANCE_MISMATCH),
    ("terminated", replace(RUNNING, state="terminated"), Reason.PLATFORM_INSTANCE_NOT_RUNNING),
    ("without NitroTPM", replace(RUNNING, has_tpm=False), Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED),
]


@pytest.mark.parametrize(("instance", "reason"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
async def test_of_an_instance_that_may_not_join_no_key_is_asked_for(
    amazon: Amazon, instance: Ec2Instance, reason: Reason
) -> None:
    amazon.instance = instance
    with pytest.raises(Denied) as denied:
        await found(amazon.keys())
    assert denied.value.reason is reason
    assert denied.value.checks
    assert not amazon.asked


async def test_an_instance_for_which_ec2_tells_no_key_is_denied(amazon: Amazon) -> None:
    amazon.key = None
    with pytest.raises(Denied) as denied:
        await found(amazon.keys())
    assert denied.value.reason is Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED


async def test_a_type_of_key_that_ec2_does_not_tell_is_denied_with_the_agents_setting(amazon: Amazon) -> None:
    with pytest.raises(Denied) as denied:
        await found(amazon.keys(), P256)
    assert denied.value.reason is Reason.ENDORSEMENT_KEY_UNTRUSTED
    assert "endorsementKey to rsa2048 or ecc-p384" in denied.value.remedy


async def test_an_instance_that_starts_is_waited_for(amazon: Amazon) -> None:
    amazon.instance = replace(RUNNING, state="pending")
    with pytest.raises(Unavailable):
        await found(amazon.keys())


async def test_a_provider_id_that_is_none_of_ec2_is_denied(amazon: Amazon) -> None:
    with pytest.raises(Denied) as denied:
        await found(amazon.keys(), RSA, ProviderID("aws:///us-east-1a/mi-0123456789abcdef0"))
    assert denied.value.reason is Reason.PROVIDER_ID_INVALID
