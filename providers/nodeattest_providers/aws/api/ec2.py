"""EC2 instances and their endorsement keys: one call serves many requests, through botocore.

A call is one attempt in bounded time. Instances are filtered by ID, so that a missing one fails no other. EC2's model
(24 MB) is read once.
Source: EC2, "DescribeInstances", "GetInstanceTpmEkPub", "Error codes"; kubernetes/cloud-provider-aws (addresses).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from math import inf
from typing import Any, Final, Self, TypeVar, cast

import botocore.session
from botocore import exceptions
from botocore.config import Config
from botocore.parsers import ResponseParserError
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_der_public_key

from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_providers.aws.api.sts import THROTTLING_CODES, retry_after
from nodeattest_providers.aws.checks import PENDING, RUNNING, Ec2Instance, Realm
from nodeattest_providers.aws.config import AwsPlatform
from nodeattest_providers.aws.protocol import InstanceRef, parse_provider_id
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.checks import Checks, Rules, one_of
from nodeattest_providers.cloud_http import Lookup
from nodeattest_providers.errors import Reason, Unavailable, platform_unavailable
from nodeattest_providers.identifiers import ProviderID
from nodeattest_providers.keys import PublicKey, check_key_type, endorsement_fingerprint
from nodeattest_providers.platform import CallOutcome, Platform
from nodeattest_providers.verifier_interface import NamedEndorsementKey

_RSA_BITS: Final = 2048
_KEY_SECONDS: Final = 300.0
_KEY_CALLS: Final = 2
"""Questions about keys at once, by account and region."""
_INSTANCE_SECONDS: Final = 3.0
"""Two reads of one request, and a serving request right after."""
_NITRO: Final = "launch the instance with NitroTPM: an AMI whose TpmSupport is v2.0, booted by UEFI"
_COMPARE: Final = "compare the Machine's spec.providerID with the instance and the accounts of endorsementKeysFrom.ec2"


class KeyType(StrEnum):
    """What EC2 calls the types of keys that it tells."""

    RSA_2048 = "rsa-2048"
    ECC_P384 = "ecc-sec-p384"

    @classmethod
    def of(cls, key: PublicKey) -> Self | None:
        if isinstance(key, rsa.RSAPublicKey):
            return cls("rsa-2048") if key.key_size == _RSA_BITS else None
        return cls("ecc-sec-p384") if isinstance(key.curve, ec.SECP384R1) else None


T = TypeVar("T")
_CONNECT_SECONDS: Final = 3.0
_READ_SECONDS: Final = 8.0
"""Below the controller's limit for a verification."""
_THREADS: Final = 64
"""Calls at once: four at most are of one account and region, so a region that hangs delays no other."""
_PAGES: Final = 4
_SERVER_ERROR: Final = 500
_RENEW: Final = 300.0
"""Seconds before the credentials of an assumed role expire from which on others are asked for."""


class Ec2:
    """Asks EC2 with the controller's credentials."""

    def __init__(self, configuration: AwsPlatform, platform: Platform) -> None:
        self._configuration = configuration
        self._platform = platform
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="aws-ec2")
        self._locks: dict[Realm, threading.Lock] = {}
        self._clients: dict[Realm, tuple[Any, float]] = {}
        """With the time from which on another is made, in seconds since 1970."""
        self._shapes = cast("Any", botocore.session.Session()).get_component("data_loader")

    async def describe(self, realm: Realm, instance_ids: Sequence[str], /) -> Mapping[str, Ec2Instance]:
        return await self._run(realm, lambda: {each.instance_id: each for each in self._described(realm, instance_ids)})

    async def describe_key(self, realm: Realm, instance_id: str, key_type: KeyType, /) -> str | None:
        """Return the fingerprint of an instance's key; None where it can have none. Raises Unavailable."""
        return await self._run(realm, lambda: self._described_key(realm, instance_id, key_type))

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for client, _ in list(self._clients.values()):
            client.close()

    async def _run(self, realm: Realm, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._observed, realm, call)

    def _observed(self, realm: Realm, call: Callable[[], T]) -> T:
        """Count a call; whatever AWS refuses is ``Unavailable``."""
        started = time.monotonic()
        outcome, detail = CallOutcome.FAILED, ""
        try:
            answer = call()
            outcome = CallOutcome.REFUSED if answer is None else CallOutcome.OK
        except (exceptions.ClientError, exceptions.BotoCoreError) as error:
            outcome, detail = _outcome(error)
        except (ResponseParserError, KeyError, TypeError, AttributeError, *X509_ERRORS) as error:
            detail = f"an answer of another form ({type(error).__name__})"
        else:
            return answer
        finally:
            self._platform.observe("ec2", outcome, time.monotonic() - started)
        raise platform_unavailable(
            f"AWS EC2 in {realm.region}: {detail}",
            remedy="an operator checks the controller's AWS credentials, permissions and network; the request waits",
            retry_after=retry_after(outcome),
        )

    def _described(self, realm: Realm, instance_ids: Sequence[str]) -> Iterator[Ec2Instance]:
        client = self._client(realm)
        asked: dict[str, object] = {"Filters": [{"Name": "instance-id", "Values": list(instance_ids)}]}
        for _ in range(_PAGES):
            answer = client.describe_instances(**asked)
            for reservation in answer.get("Reservations", ()):
                for instance in reservation.get("Instances", ()):
                    yield _instance(reservation["OwnerId"], instance)
            if not answer.get("NextToken"):
                return
            asked["NextToken"] = answer["NextToken"]

    def _described_key(self, realm: Realm, instance_id: str, key_type: KeyType) -> str | None:
        asked = {"InstanceId": instance_id, "KeyType": key_type.value, "KeyFormat": "der"}
        try:
            answer = self._client(realm).get_instance_tpm_ek_pub(**asked)
        except exceptions.ClientError as error:
            if _error_code(error) == "UnsupportedOperation":
                return None
            raise
        if any(answer[name] != value for name, value in asked.items()):
            raise ValueError("an answer for another instance or key")
        key = check_key_type(load_der_public_key(decode_base64(answer["KeyValue"])))
        if KeyType.of(key) is not key_type:
            raise ValueError("a key of another type")
        return endorsement_fingerprint(key)

    def _client(self, realm: Realm) -> Any:  # noqa: ANN401 - botocore makes its class at run time
        with self._locks.setdefault(realm, threading.Lock()):  # sessions are not safe to share, clients are
            client, renew_at = self._clients.get(realm, (None, 0.0))
            if time.time() >= renew_at:
                client, renew_at = self._clients[realm] = self._new_client(realm)
            return client

    def _new_client(self, realm: Realm) -> tuple[Any, float]:
        platform, role = self._configuration, self._configuration.assume_roles.get(realm.account)
        session = cast("Any", botocore.session.Session(profile=platform.profile))
        session.register_component("data_loader", self._shapes)
        if session.get_credentials() is None:  # a client made without would never have any
            raise exceptions.NoCredentialsError
        options: dict[str, object] = {
            "region_name": realm.region,
            "verify": str(platform.ca_bundle) if platform.ca_bundle else None,
            "config": cast("Any", Config)(
                connect_timeout=_CONNECT_SECONDS,
                read_timeout=_READ_SECONDS,
                retries={"total_max_attempts": 1, "mode": "standard"},
                proxies={"https": platform.proxy}
                if platform.proxy
                else {},  # an empty mapping: none from the environment
                user_agent_extra="nodeattest",
                ignore_configured_endpoint_urls=True,  # the controller's configuration names them, not the environment
            ),
        }
        renew_at = inf
        if role is not None:
            sts = session.create_client("sts", endpoint_url=platform.sts, **options)
            made = sts.assume_role(RoleArn=role, RoleSessionName="nodeattest")["Credentials"]
            sts.close()
            renew_at = made["Expiration"].timestamp() - _RENEW
            options |= {
                "aws_access_key_id": made["AccessKeyId"],
                "aws_secret_access_key": made["SecretAccessKey"],
                "aws_session_token": made["SessionToken"],
            }
        return session.create_client("ec2", endpoint_url=platform.ec2, **options), renew_at


class Instances:
    """Looks instances and their keys up."""

    def __init__(self, ec2: Ec2, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._ec2 = ec2
        self._instances = Lookup(ec2.describe, seconds=_INSTANCE_SECONDS, monotonic=monotonic)
        self._keys = Lookup(self._describe_key, seconds=_KEY_SECONDS, monotonic=monotonic)
        self._key_calls: defaultdict[Realm, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_KEY_CALLS))

    async def find(self, realm: Realm, instance_id: str) -> Ec2Instance | None:
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
        await self._keys.cancel()
        await self._instances.cancel()
        self._ec2.close()

    async def _instance(self, place: InstanceRef, accounts: frozenset[str]) -> Ec2Instance | None:
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


def _outcome(error: Exception) -> tuple[CallOutcome, str]:
    """Return what an exception of botocore means; its text may hold names of ours, its type and code do not."""
    match error:
        case exceptions.ClientError():
            response, code = cast("Any", error).response, _error_code(error)
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if code in THROTTLING_CODES:
                return CallOutcome.THROTTLED, "it throttles"
            return CallOutcome.FAILED if status >= _SERVER_ERROR else CallOutcome.REFUSED, code or f"status {status}"
        case exceptions.ConnectTimeoutError() | exceptions.ReadTimeoutError():
            return CallOutcome.TIMED_OUT, "no answer in time"
        case exceptions.EndpointConnectionError() | exceptions.ConnectionClosedError() | exceptions.SSLError():
            return CallOutcome.UNREACHABLE, type(error).__name__
        case (
            exceptions.NoCredentialsError()
            | exceptions.PartialCredentialsError()
            | exceptions.CredentialRetrievalError()
            | exceptions.ProfileNotFound()
            | exceptions.UnauthorizedSSOTokenError()
        ):
            return CallOutcome.REFUSED, "the controller has no AWS credentials"
        case _:
            return CallOutcome.FAILED, type(error).__name__


def _error_code(error: Exception) -> str:
    return str(cast("Any", error).response.get("Error", {}).get("Code", ""))[:64]


def _instance(owner: str, shape: Mapping[str, Any]) -> Ec2Instance:
    return Ec2Instance(
        instance_id=shape["InstanceId"],
        owner=owner,
        state=shape["State"]["Name"],
        zone=shape["Placement"]["AvailabilityZone"],
        has_tpm=shape.get("TpmSupport") == "v2.0",
        tags={tag["Key"]: tag["Value"] for tag in shape.get("Tags", ())},
        vpc=shape.get("VpcId", ""),
        private_dns_name=shape.get("PrivateDnsName", ""),
        addresses=tuple(dict.fromkeys(_addresses(shape))),
    )


def _addresses(shape: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if private := shape.get("PrivateIpAddress"):
        yield "InternalIP", private
    for interface in shape.get("NetworkInterfaces", ()):
        if interface.get("Status") != "in-use":
            continue
        for address in interface.get("PrivateIpAddresses", ()):
            yield "InternalIP", address["PrivateIpAddress"]
        for address in interface.get("Ipv6Addresses", ()):
            yield "InternalIP", address["Ipv6Address"]
    if public := shape.get("PublicIpAddress"):
        yield "ExternalIP", public
    if name := shape.get("PrivateDnsName"):
        yield "InternalDNS", name
        yield "Hostname", name
    if name := shape.get("PublicDnsName"):
        yield "ExternalDNS", name
