"""DescribeInstances and GetInstanceTpmEkPub through botocore: the one place where its shapes and exceptions stop.

One attempt a call, in bounded time. An instance is asked for by filter, so that a missing one fails no other.
Credentials are botocore's chain, a profile, or a role of ``assumeRoles``. EC2's model (24 MB) is read once.
Source: EC2, "DescribeInstances", "GetInstanceTpmEkPub", "Error codes"; kubernetes/cloud-provider-aws (addresses).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any, Final, TypeVar, cast

import botocore.session
from botocore import exceptions
from botocore.config import Config
from botocore.parsers import ResponseParserError
from cryptography.hazmat.primitives.serialization import load_der_public_key

from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_providers.aws.api.sts import THROTTLING_CODES, retry_after
from nodeattest_providers.aws.config import AwsPlatform
from nodeattest_providers.aws.instances import Ec2Instance, KeyType, Realm
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.errors import platform_unavailable
from nodeattest_providers.keys import check_key_type, endorsement_fingerprint
from nodeattest_providers.platform import CallOutcome, Platform

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
    """Asks EC2 with the controller's credentials; implements ``Ec2Api``."""

    def __init__(self, configuration: AwsPlatform, platform: Platform) -> None:
        self._configuration = configuration
        self._platform = platform
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="aws-ec2")
        """Apart from the loop's own threads, which others may keep busy."""
        self._locks: dict[Realm, threading.Lock] = {}
        self._clients: dict[Realm, tuple[Any, float]] = {}
        """With the time from which on another is made, in seconds since 1970."""
        self._shapes = cast("Any", botocore.session.Session()).get_component("data_loader")

    async def describe(self, realm: Realm, instance_ids: Sequence[str], /) -> Mapping[str, Ec2Instance]:
        """Return those that exist; raises Unavailable."""
        return await self._run(realm, lambda: {each.instance_id: each for each in self._described(realm, instance_ids)})

    async def describe_key(self, realm: Realm, instance_id: str, key_type: KeyType, /) -> str | None:
        """Return the fingerprint of an instance's key; None where it can have none. Raises Unavailable."""
        return await self._run(realm, lambda: self._described_key(realm, instance_id, key_type))

    def close(self) -> None:
        """Close the connections; a call that is under way fails."""
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
    """List what kubelet may be reached by, primary address first."""
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
