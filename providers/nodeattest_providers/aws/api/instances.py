"""EC2 instances and their endorsement keys, for many requests at once.

Requests of a few milliseconds share one call by account and region. An instance is remembered for three seconds; a key
belongs to an instance for its life, and is asked for again after five minutes. A missing instance and a failed call are
never remembered.
Source: EC2, "DescribeInstances", "GetInstanceTpmEkPub"; EC2 User Guide, "NitroTPM".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, Self

from cryptography.hazmat.primitives.asymmetric import ec, rsa

from nodeattest_providers.aws.protocol import parse_provider_id
from nodeattest_providers.checks import Checks, one_of
from nodeattest_providers.cloud_http import Batches, Remembered
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.identifiers import ProviderID
from nodeattest_providers.keys import PublicKey
from nodeattest_providers.verifier_interface import NamedEndorsementKey

BATCH: Final = 100
"""Instances of one call; a filter takes 200 values (EC2, "DescribeInstances")."""
_WINDOW: Final = 0.005
"""Seconds for which the first request waits for others."""
_REMEMBERED: Final = 3.0
"""Seconds: two reads of one request, and a serving request right after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Instance:
    """What DescribeInstances says, as far as it is read."""

    instance_id: str
    owner: str
    state: str
    zone: str
    has_tpm: bool = False
    tags: Mapping[str, str] = field(repr=False)
    vpc: str
    private_dns_name: str
    addresses: tuple[tuple[str, str], ...]
    """(type, address) as in ``Machine.status.addresses``."""


class Realm(NamedTuple):
    """Whose instances, and where."""

    account: str
    region: str


class Ec2Api(Protocol):
    """Asks EC2; raises Unavailable."""

    async def describe(self, realm: Realm, instance_ids: Sequence[str], /) -> Sequence[Ec2Instance]:
        """Return the instances that exist."""
        ...

    async def describe_key(self, realm: Realm, instance_id: str, key_type: KeyType, /) -> str | None:
        """Return the fingerprint of an instance's key; None where it can have none."""
        ...

    def close(self) -> None:
        """Close the connections; a call that is under way fails."""
        ...


class Instances:
    """Looks instances up."""

    def __init__(self, ec2: Ec2Api, *, monotonic: Callable[[], float], random: Callable[[], float]) -> None:
        """``random`` gives 0 to 1, to spread those that come back."""
        self._ec2 = ec2
        self._random = random
        self._batches = Batches(self._describe, window=_WINDOW, most=BATCH)
        self._remembered: Remembered[tuple[Realm, str], Ec2Instance] = Remembered(_REMEMBERED, monotonic=monotonic)

    async def find(self, realm: Realm, instance_id: str) -> Ec2Instance | None:
        """Look an instance up; None when there is none. Raises Unavailable."""
        try:
            return await self._remembered.get((realm, instance_id), lambda: self._batches.find(realm, instance_id))
        except Unavailable as error:  # those that waited for one call do not come back together
            later = error.retry_after * (1.0 + self._random())
            raise Unavailable(error.reason, error.detail, remedy=error.remedy, retry_after=later) from None

    async def aclose(self) -> None:
        """Close the connections; calls under way are not waited for."""
        await self._remembered.cancel()
        await self._batches.cancel()
        self._ec2.close()

    async def _describe(self, realm: Realm, instance_ids: Sequence[str]) -> Mapping[str, Ec2Instance]:
        return {instance.instance_id: instance for instance in await self._ec2.describe(realm, instance_ids)}


_SECTION: Final = "EC2, DescribeInstances"
_KEY_REMEMBERED: Final = 300.0
"""Seconds."""
_RSA_BITS: Final = 2048
_RUNNING: Final = "running"
_PENDING: Final = "pending"
_NITRO: Final = "launch the instance with NitroTPM: an AMI whose TpmSupport is v2.0, booted by UEFI"
_COMPARE: Final = "compare the Machine's spec.providerID with the instance"


class KeyType(StrEnum):
    """What EC2 calls the types of keys that it tells."""

    RSA_2048 = "rsa-2048"
    ECC_P384 = "ecc-sec-p384"

    @classmethod
    def of(cls, key: PublicKey) -> Self | None:
        """Return the type of a key; None for one that EC2 does not tell."""
        if isinstance(key, rsa.RSAPublicKey):
            return cls("rsa-2048") if key.key_size == _RSA_BITS else None
        return cls("ecc-sec-p384") if isinstance(key.curve, ec.SECP384R1) else None


class EndorsementKeys:
    """Looks up the keys of instances."""

    def __init__(self, ec2: Ec2Api, instances: Instances, *, monotonic: Callable[[], float]) -> None:
        self._ec2 = ec2
        self._instances = instances
        self._remembered: Remembered[tuple[Realm, str, KeyType], str] = Remembered(_KEY_REMEMBERED, monotonic=monotonic)

    async def find(
        self, checks: Checks, machine: ProviderID, *, accounts: frozenset[str], shown: PublicKey
    ) -> NamedEndorsementKey:
        """Return the key of an instance, of the type of the one that it showed; raises Denied or Unavailable.

        1. The key is of a type that EC2 tells. 2. The provider ID names an instance of one of the accounts. 3. It runs
        there, with NitroTPM. 4. EC2 tells its key.
        """
        # 1
        key_type = KeyType.of(shown)
        _require(
            checks,
            key_type is not None,
            "type of the key",
            Reason.ENDORSEMENT_KEY_UNTRUSTED,
            (" or ".join(KeyType), "another type" if key_type is None else str(key_type)),
            remedy="set the agent's endorsementKey to rsa2048 or ecc-p384",
        )
        # 2
        place = parse_provider_id(machine)
        realm, instance = await self._instance(place.region, place.instance_id, accounts)
        _require(
            checks,
            instance is not None,
            "instance exists",
            Reason.PLATFORM_INSTANCE_NOT_FOUND,
            (f"{place.instance_id} in {one_of(accounts, 'accounts')}", place.instance_id if instance else "none"),
            remedy=f"{_COMPARE}, and check the accounts of spec.tpm.endorsementKeysFrom.ec2",
        )
        if instance is None or key_type is None:
            raise AssertionError("a failed check raises Denied")
        # 3
        _check_instance(checks, instance, place.zone)
        # 4
        try:
            asked = realm, place.instance_id, key_type
            fingerprint = await self._remembered.get(asked, lambda: self._ec2.describe_key(*asked))
        except Unavailable as error:
            raise checks.recorded(error) from None
        _require(
            checks,
            fingerprint is not None,
            "key of the instance",
            Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED,
            (f"the {key_type} key of {place.instance_id}", "none: UnsupportedOperation" if not fingerprint else "it"),
            remedy=_NITRO,
        )
        if fingerprint is None:
            raise AssertionError("a failed check raises Denied")
        return NamedEndorsementKey(fingerprint=fingerprint, checks=checks.record())

    async def aclose(self) -> None:
        """End the calls under way."""
        await self._remembered.cancel()

    async def _instance(
        self, region: str, instance_id: str, accounts: frozenset[str]
    ) -> tuple[Realm, Ec2Instance | None]:
        """Look the instance up in each account, one after the other."""
        realm, instance = Realm("", region), None
        for account in sorted(accounts):
            realm = Realm(account, region)
            instance = await self._instances.find(realm, instance_id)
            if instance is not None and instance.owner == account:
                break
            instance = None
        return realm, instance


def _check_instance(checks: Checks, instance: Ec2Instance, zone: str) -> None:
    if instance.state == _PENDING:
        raise checks.unavailable(
            Reason.PLATFORM_UNAVAILABLE,
            "AWS EC2 does not show the instance as running yet",
            remedy="nothing; it will be looked up again",
        )
    for name, reason, expected, got, remedy in (
        ("zone", Reason.PLATFORM_INSTANCE_MISMATCH, zone, instance.zone, _COMPARE),
        (
            "state",
            Reason.PLATFORM_INSTANCE_NOT_RUNNING,
            _RUNNING,
            instance.state,
            "start the instance, if it is to join; it then files anew",
        ),
        (
            "NitroTPM",
            Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED,
            "enabled",
            "enabled" if instance.has_tpm else "not enabled",
            _NITRO,
        ),
    ):
        _require(checks, expected == got, f"{name} of the instance", reason, (expected, got), remedy=remedy)


def _require(
    checks: Checks, passed: bool, name: str, reason: Reason, compared: tuple[str, str], *, remedy: str
) -> None:
    expected, got = compared
    checks.require(passed, name, section=_SECTION, reason=reason, expected=expected, got=got, remedy=remedy)
