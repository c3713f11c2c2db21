"""D6, NitroTPM: keys of other instances, and answers about keys that are not EC2's for this instance."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from aws_world import Stage
from catalogue import Row, attacks, evaluated
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tpm_world import SoftTpm, facts_of, machine, new_key, request_of

from clouds.aws import ACCOUNT, Answer, Front, error
from nodeattest_providers.aws.verifier import AwsSigner
from nodeattest_providers.identifiers import ProviderID
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import Platform
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_sandbox.pki import server_tls

OWN, OTHER = "i-0123456789abcdef0", "i-0fedcba9876543210"
FROM_EC2: dict[str, JsonValue] = {"endorsementKeysFrom": {"ec2": {"accounts": [ACCOUNT]}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Nitro:
    """EC2 over TLS, which describes one instance and tells its key; each attack changes one thing."""

    front: Front
    other_ca: Path
    tpm: SoftTpm
    settings: Mapping[str, JsonValue]
    has_tpm: bool = True
    owner: str = ACCOUNT
    zone: str = "us-east-1a"
    state: str = "running"
    has_key: bool = True
    told: str = OWN
    """The instance that EC2 says the key is of."""

    def describe(self, action: str) -> Answer | None:
        """Answer as EC2."""
        if action == "DescribeInstances":
            support = "<tpmSupport>v2.0</tpmSupport>" if self.has_tpm else ""
            instance = (
                f"<instanceId>{OWN}</instanceId><instanceState><name>{self.state}</name></instanceState>"
                f"<placement><availabilityZone>{self.zone}</availabilityZone></placement>{support}"
            )
            item = f"<ownerId>{self.owner}</ownerId><instancesSet><item>{instance}</item></instancesSet>"
            return _xml(action, f"<reservationSet><item>{item}</item></reservationSet>")
        if not self.has_key:
            return error("UnsupportedOperation", 400)
        der = self.tpm.ek.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        key = f"<keyType>ecc-sec-p384</keyType><keyFormat>der</keyFormat><keyValue>{b64encode(der).decode()}</keyValue>"
        return _xml(action, f"<instanceId>{self.told}</instanceId>{key}")

    def attest(self, tpm: SoftTpm) -> None:
        """File a first request with a TPM, as the instance."""
        self.front.spoil = self.describe
        facts = facts_of(FROM_EC2, machine=replace(machine(), provider_id=ProviderID(f"aws:///us-east-1a/{OWN}")))
        aws = AwsSigner(platform=Platform(settings=self.settings))

        async def verify() -> None:
            try:
                signer = TpmSigner(platform=Platform(find_signer=lambda _: aws))
                await signer.verify_client_attestation_data(request_of(tpm.first()), facts)
            finally:
                await aws.aclose()

        asyncio.run(verify())


Case = Callable[[Nitro], None]


def _xml(action: str, content: str) -> Answer:
    return 200, f"<{action}Response>{content}</{action}Response>".encode()


@pytest.fixture(scope="module")
def tpm() -> SoftTpm:
    return SoftTpm("ecc-p384", new_key("ecc-p384"))


@pytest.fixture
def nitro(stage: Stage, tpm: SoftTpm) -> Nitro:
    other_ca, _ = server_tls(stage.bundle.parent / "another", "loopback")
    return Nitro(front=stage.front, other_ca=other_ca, tpm=tpm, settings=stage.settings)


CASES: dict[str, Case] = {
    "D6-98": lambda nitro: nitro.attest(SoftTpm("ecc-p384", new_key("ecc-p384"))),
    "D6-99": lambda nitro: replace(nitro, told=OTHER).attest(nitro.tpm),
    "D6-100": lambda nitro: replace(nitro, settings={**nitro.settings, "caBundle": str(nitro.other_ca)}).attest(
        nitro.tpm
    ),
    "D6-101": lambda nitro: replace(nitro, has_tpm=False).attest(nitro.tpm),
    "D6-102": lambda nitro: nitro.attest(SoftTpm()),
    "D6-103": lambda nitro: replace(nitro, owner="999999999999").attest(nitro.tpm),
    "D6-104": lambda nitro: replace(nitro, zone="us-east-1b").attest(nitro.tpm),
    "D6-105": lambda nitro: replace(nitro, state="terminated").attest(nitro.tpm),
    "D6-106": lambda nitro: replace(nitro, has_key=False).attest(nitro.tpm),
}


def test_the_instances_own_tpm_is_challenged(nitro: Nitro) -> None:
    assert evaluated(lambda: nitro.attest(nitro.tpm)).verdict == "accept"


@pytest.mark.parametrize(("row", "case"), attacks(CASES))
def test_a_key_that_ec2_does_not_name_for_this_instance_is_not_trusted(nitro: Nitro, row: Row, case: Case) -> None:
    assert evaluated(lambda: case(nitro), row) == row.expected
