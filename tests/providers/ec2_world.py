"""EC2 in memory with one instance that has a NitroTPM, where an answer is to be chosen and no signature matters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nodeattest_providers.aws.api.ec2 import Ec2, Instances, KeyType
from nodeattest_providers.aws.checks import Ec2Instance, Realm
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.identifiers import ProviderID
from nodeattest_providers.keys import PublicKey
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.verifier_interface import NamedEndorsementKey

ID = "i-0123456789abcdef0"
INSTANCE = ProviderID(f"aws:///us-east-1a/{ID}")
OURS, OTHERS = "111111111111", "222222222222"
FROM_EC2: dict[str, JsonValue] = {"endorsementKeysFrom": {"ec2": {"accounts": [OURS]}}}
RUNNING = Ec2Instance(
    instance_id=ID,
    owner=OURS,
    state="running",
    zone="us-east-1a",
    has_tpm=True,
    tags={},
    vpc="",
    private_dns_name="",
    addresses=(),
)


@dataclass
class Amazon(Ec2):
    """EC2; also, without a cache, ``endorsement_key`` of a signer."""

    instance: Ec2Instance = RUNNING
    key: str | None = "sha256:" + "ec" * 32
    """What it tells, whichever type is asked for."""
    fails: bool = False
    asked: list[tuple[str, KeyType]] = field(default_factory=list[tuple[str, KeyType]])
    """Accounts and types of the keys."""
    free: asyncio.Event = field(default_factory=asyncio.Event)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.free.set()

    async def describe(self, realm: Realm, instance_ids: Sequence[str], /) -> Mapping[str, Ec2Instance]:
        return {ID: self.instance} if realm.account == self.instance.owner else {}

    async def describe_key(self, realm: Realm, instance_id: str, key_type: KeyType, /) -> str | None:
        assert instance_id == ID
        self.asked.append((realm.account, key_type))
        await self.free.wait()
        if self.fails:
            raise Unavailable(Reason.PLATFORM_UNAVAILABLE, "no", remedy="wait")
        return self.key

    def close(self) -> None:
        self.free.set()

    def instances(self) -> Instances:
        return Instances(self, monotonic=lambda: self.now)

    async def endorsement_key(
        self, machine: ProviderID, *, accounts: frozenset[str], shown: PublicKey
    ) -> NamedEndorsementKey:
        instances = self.instances()
        try:
            return await instances.endorsement_key(machine, accounts=accounts, shown=shown)
        finally:
            await instances.aclose()
