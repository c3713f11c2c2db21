"""EC2 instances and their endorsement keys, for many requests at once; each remembered for a while.

Promises: requests that come within a few milliseconds share one call, by account and region, of which two at most are
under way; an instance that is not there fails nobody else, a call that fails fails those that waited for it and no
more. An instance found is remembered for three seconds; one that was not found never is. A key is that of an instance
which runs now, in an account that the caller lists, in the zone of its provider ID, with NitroTPM; an instance keeps
its key for its life, so it is asked for again after five minutes only. What failed is never remembered.
Source: EC2, "DescribeInstances", "GetInstanceTpmEkPub"; EC2 User Guide, "NitroTPM".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, Self

from cryptography.hazmat.primitives.asymmetric import ec, rsa

from nodeattest_providers.aws.protocol import parse_provider_id
from nodeattest_providers.checks import Checks, one_of
from nodeattest_providers.cloud_http import SingleFlight
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
_MAX_REMEMBERED: Final = 4096
_CALLS: Final = 2
"""Calls under way, by account and region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ec2Instance:
    """What DescribeInstances says, as far as it is read."""

    instance_id: str
    owner: str
    """The account."""
    state: str
    zone: str
    has_tpm: bool = False
    """Whether it was launched with NitroTPM."""
    tags: Mapping[str, str] = field(repr=False)
    vpc: str
    private_dns_name: str
    addresses: tuple[tuple[str, str], ...]
    """(type, address) as in ``Machine.status.addresses``."""


class Realm(NamedTuple):
    """Whose instances, and where."""

    account: str
    region: str


class Describe(Protocol):
    """Asks EC2; called in a thread."""

    def __call__(self, realm: Realm, instance_ids: Sequence[str], /) -> Sequence[Ec2Instance]:
        """Return those that exist; raises Unavailable."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class Instances:
    """Looks up instances for requests that are verified at the same time."""

    def __init__(self, describe: Describe, *, monotonic: Callable[[], float], random: Callable[[], float]) -> None:
        """``monotonic``: seconds; ``random``: from 0 to 1."""
        self._describe = describe
        self._monotonic = monotonic
        self._random = random
        self._queues: dict[Realm, _Queue] = {}
        self._remembered: dict[tuple[Realm, str], tuple[float, Ec2Instance]] = {}

    async def find(self, realm: Realm, instance_id: str) -> Ec2Instance | None:
        """Look an instance up; None when there is none. Raises Unavailable."""
        known = self._remembered.get((realm, instance_id))
        if known is not None and self._monotonic() < known[0]:
            return known[1]
        queue = self._queues.setdefault(realm, _Queue(realm, self._describe))
        try:
            instance = await queue.find(instance_id)
        except Unavailable as error:
            raise self._spread(error) from None
        if instance is not None:
            self._remember((realm, instance_id), instance)
        return instance

    def _spread(self, error: Unavailable) -> Unavailable:
        """Let those that waited for one call not come back together."""
        later = error.retry_after * (1.0 + self._random())
        return Unavailable(error.reason, error.detail, remedy=error.remedy, retry_after=later)

    def _remember(self, key: tuple[Realm, str], instance: Ec2Instance) -> None:
        self._remembered.pop(key, None)
        self._remembered[key] = (self._monotonic() + _REMEMBERED, instance)
        if len(self._remembered) > _MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    async def aclose(self) -> None:
        """Let the threads end; calls under way are not waited for."""
        for queue in self._queues.values():
            queue.close()
        self._queues.clear()
        self._describe.close()


class _Queue:
    """The requests for one realm."""

    def __init__(self, realm: Realm, describe: Describe) -> None:
        self._realm = realm
        self._describe = describe
        self._threads = ThreadPoolExecutor(_CALLS, thread_name_prefix=f"aws-ec2-{realm.region}")
        self._free = asyncio.Semaphore(_CALLS)
        self._waiting: dict[str, asyncio.Future[Ec2Instance | None]] = {}
        self._flushes: set[asyncio.Task[None]] = set()

    async def find(self, instance_id: str) -> Ec2Instance | None:
        future = self._waiting.get(instance_id)
        if future is None:
            if not self._waiting:
                self._spawn()
            future = self._waiting[instance_id] = asyncio.get_running_loop().create_future()
        return await asyncio.shield(future)  # a caller that gives up must not take the answer from the others

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _spawn(self) -> None:
        task = asyncio.create_task(self._flush())
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    async def _flush(self) -> None:
        """Collect for a moment, and longer while other calls are under way; then ask for all at once."""
        await asyncio.sleep(_WINDOW)
        async with self._free:
            batch = {one: self._waiting.pop(one) for one in list(self._waiting)[:BATCH]}
            if self._waiting:
                self._spawn()
            await self._ask(batch)

    async def _ask(self, batch: Mapping[str, asyncio.Future[Ec2Instance | None]]) -> None:
        try:
            call = asyncio.get_running_loop().run_in_executor(self._threads, self._describe, self._realm, list(batch))
            found = {instance.instance_id: instance for instance in await call}
        except BaseException as error:  # callers that wait must learn of its end, a cancellation included
            for future in batch.values():
                _fail(future, error)
            if not isinstance(error, Exception):
                raise
            return
        for instance_id, future in batch.items():
            if not future.done():
                future.set_result(found.get(instance_id))


def _fail(future: asyncio.Future[Ec2Instance | None], error: BaseException) -> None:
    if future.done():
        return
    if isinstance(error, asyncio.CancelledError):
        future.cancel()
        return
    future.set_exception(error)
    future.exception()  # a caller that waits sees it; there may be no caller left


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


class DescribeKey(Protocol):
    """Asks EC2; called in a thread."""

    def describe_key(self, realm: Realm, instance_id: str, key_type: KeyType, /) -> str | None:
        """Return the fingerprint of an instance's key; None where it can have none. Raises Unavailable."""
        ...


class EndorsementKeys:
    """Looks up the keys of instances."""

    def __init__(self, ec2: DescribeKey, instances: Instances, *, monotonic: Callable[[], float]) -> None:
        """``monotonic``: seconds."""
        self._ec2 = ec2
        self._instances = instances
        self._monotonic = monotonic
        self._threads: dict[Realm, ThreadPoolExecutor] = {}
        self._flights: SingleFlight[tuple[Realm, str, KeyType], str | None] = SingleFlight()
        self._remembered: dict[tuple[Realm, str, KeyType], tuple[float, str]] = {}

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
            fingerprint = await self._key(realm, place.instance_id, key_type)
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
        """Let the threads end; calls under way are not waited for."""
        await self._flights.cancel()
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)
        self._threads.clear()

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

    async def _key(self, realm: Realm, instance_id: str, key_type: KeyType) -> str | None:
        asked = realm, instance_id, key_type
        expires, fingerprint = self._remembered.get(asked, (0.0, None))
        if fingerprint is None or self._monotonic() >= expires:
            fingerprint = await self._flights.share(asked, lambda: self._ask(asked))
        return fingerprint

    async def _ask(self, asked: tuple[Realm, str, KeyType]) -> str | None:
        realm = asked[0]
        if realm not in self._threads:
            self._threads[realm] = ThreadPoolExecutor(_CALLS, thread_name_prefix=f"aws-ek-{realm.region}")
        call = asyncio.get_running_loop().run_in_executor(self._threads[realm], self._ec2.describe_key, *asked)
        fingerprint = await call
        self._remembered.pop(asked, None)
        if fingerprint is not None:
            self._remembered[asked] = (self._monotonic() + _KEY_REMEMBERED, fingerprint)
        if len(self._remembered) > _MAX_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        return fingerprint


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
