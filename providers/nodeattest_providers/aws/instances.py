"""EC2 instances and their endorsement keys, looked up for many requests at once.

An instance is remembered for three seconds, a key for five minutes: it belongs to an instance for its life.
Source: EC2, "DescribeInstances", "GetInstanceTpmEkPub"; EC2 User Guide, "NitroTPM".
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, Self

from cryptography.hazmat.primitives.asymmetric import ec, rsa

from nodeattest_providers.aws.protocol import InstanceRef, parse_provider_id
from nodeattest_providers.checks import Checks, Rules, one_of
from nodeattest_providers.cloud_http import Lookup
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.identifiers import ProviderID
from nodeattest_providers.keys import PublicKey
from nodeattest_providers.verifier_interface import NamedEndorsementKey

RUNNING: Final = "running"
PENDING: Final = "pending"
_RSA_BITS: Final = 2048
_KEY_SECONDS: Final = 300.0
_KEY_CALLS: Final = 2
"""Questions about keys at once, by account and region."""
_INSTANCE_SECONDS: Final = 3.0
"""Two reads of one request, and a serving request right after."""
_NITRO: Final = "launch the instance with NitroTPM: an AMI whose TpmSupport is v2.0, booted by UEFI"
_COMPARE: Final = "compare the Machine's spec.providerID with the instance and the accounts of endorsementKeysFrom.ec2"


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


class Ec2Api(Protocol):
    """Asks EC2; raises Unavailable."""

    async def describe(self, realm: Realm, instance_ids: Sequence[str], /) -> Mapping[str, Ec2Instance]:
        """Return the instances that exist, by ID."""
        ...

    async def describe_key(self, realm: Realm, instance_id: str, key_type: KeyType, /) -> str | None:
        """Return the fingerprint of an instance's key; None where it can have none."""
        ...

    def close(self) -> None:
        """Close the connections; a call that is under way fails."""
        ...


class Instances:
    """Looks instances and their keys up."""

    def __init__(self, ec2: Ec2Api, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._ec2 = ec2
        self._instances = Lookup(ec2.describe, seconds=_INSTANCE_SECONDS, monotonic=monotonic)
        self._keys = Lookup(self._describe_key, seconds=_KEY_SECONDS, monotonic=monotonic)
        self._key_calls: defaultdict[Realm, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_KEY_CALLS))

    async def find(self, realm: Realm, instance_id: str) -> Ec2Instance | None:
        """Return an instance; None when there is none. Raises Unavailable."""
        return await self._instances.get(realm, instance_id)

    async def endorsement_key(
        self, machine: ProviderID, *, accounts: frozenset[str], shown: PublicKey
    ) -> NamedEndorsementKey:
        """Return the key of an instance, of the type of the one that it showed; raises Denied or Unavailable.

        1. The key is of a type that EC2 tells. 2. The provider ID names an instance of one of the accounts. 3. It runs
        there, with NitroTPM. 4. EC2 tells its key.
        """
        checks = Checks()
        rules = Rules(checks, "EC2, DescribeInstances", Reason.PLATFORM_INSTANCE_MISMATCH, _COMPARE)
        try:
            # 1
            reason, remedy = Reason.ENDORSEMENT_KEY_UNTRUSTED, "set the agent's endorsementKey to rsa2048 or ecc-p384"
            key_type = rules.present(
                KeyType.of(shown), "type of the key", " or ".join(KeyType), reason=reason, remedy=remedy
            )
            # 2
            place = parse_provider_id(machine)
            expected = f"{place.instance_id} in {one_of(accounts, 'accounts')}"
            reason, instance = Reason.PLATFORM_INSTANCE_NOT_FOUND, await self._instance(place, accounts)
            instance = rules.present(instance, "instance exists", expected, reason=reason)
            # 3
            _check_instance(rules, instance, place.zone)
            # 4
            asked = Realm(instance.owner, place.region), place.instance_id, key_type
            fingerprint = rules.present(
                await self._keys.get(asked, ""),
                "key of the instance",
                f"the {key_type} key of {place.instance_id}",
                reason=Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED,
                remedy=_NITRO,
            )
        except Unavailable as error:
            raise checks.recorded(error) from None
        return NamedEndorsementKey(fingerprint=fingerprint, checks=checks.record())

    async def aclose(self) -> None:
        """Close the connections; calls under way are not waited for."""
        await self._keys.cancel()
        await self._instances.cancel()
        self._ec2.close()

    async def _instance(self, place: InstanceRef, accounts: frozenset[str]) -> Ec2Instance | None:
        """Look the instance up in each account, one after the other."""
        for account in sorted(accounts):
            instance = await self.find(Realm(account, place.region), place.instance_id)
            if instance is not None and instance.owner == account:
                return instance
        return None

    async def _describe_key(self, asked: tuple[Realm, str, KeyType], _: Sequence[str]) -> Mapping[str, str]:
        async with self._key_calls[asked[0]]:
            fingerprint = await self._ec2.describe_key(*asked)
        return {} if fingerprint is None else {"": fingerprint}


def _check_instance(rules: Rules, instance: Ec2Instance, zone: str) -> None:
    if instance.state == PENDING:
        detail = "AWS EC2 does not show the instance as running yet"
        raise rules.checks.unavailable(Reason.PLATFORM_UNAVAILABLE, detail, remedy="wait: it is looked up again")
    rules.equal("zone of the instance", zone, instance.zone)
    reason, remedy = Reason.PLATFORM_INSTANCE_NOT_RUNNING, "start the instance, if it is to join"
    rules.equal("state of the instance", RUNNING, instance.state, reason=reason, remedy=remedy)
    reason = Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED
    rules.require(instance.has_tpm, "NitroTPM of the instance", "enabled", "not enabled", reason=reason, remedy=_NITRO)
