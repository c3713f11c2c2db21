"""DescribeInstances and GetInstanceTpmEkPub through botocore: the one place where its shapes and exceptions stop.

One attempt a call, in bounded time. An instance is asked for by filter, so that a missing one fails no other.
Credentials are botocore's chain, a profile, or a role of ``assumeRoles``. EC2's model (24 MB) is read once.
Source: EC2, "DescribeInstances", "GetInstanceTpmEkPub", "Error codes"; kubernetes/cloud-provider-aws (addresses).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol, TypeVar, cast

import botocore.session
from botocore import credentials, exceptions
from botocore.config import Config
from botocore.parsers import ResponseParserError
from cryptography.hazmat.primitives.serialization import load_der_public_key

from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_providers.aws.api.instances import Ec2Instance, KeyType, Realm
from nodeattest_providers.aws.api.sts import THROTTLING_CODES, retry_after
from nodeattest_providers.aws.config import AwsPlatform
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.errors import platform_unavailable
from nodeattest_providers.keys import check_key_type, endorsement_fingerprint
from nodeattest_providers.platform import CallOutcome, Platform

T = TypeVar("T")

SERVICE: Final = "ec2"
_CONNECT: Final = 3.0
_READ: Final = 8.0
"""Seconds; below the controller's limit for a verification."""
_THREADS: Final = 64
"""Calls at once: four at most are of one account and region, so a region that hangs delays no other."""
_KEY_CALLS: Final = 2
"""Questions about keys at once, by account and region."""
_PAGES: Final = 4
_SERVER_ERROR: Final = 500
_TPM: Final = "v2.0"
"""``TpmSupport`` of an instance with NitroTPM."""
_DER: Final = "der"
_UNSUPPORTED: Final = "UnsupportedOperation"
_TIMEOUTS: Final = (exceptions.ConnectTimeoutError, exceptions.ReadTimeoutError)
_UNREACHABLE: Final = (exceptions.EndpointConnectionError, exceptions.ConnectionClosedError, exceptions.SSLError)
_NO_CREDENTIALS: Final = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.CredentialRetrievalError,
    exceptions.ProfileNotFound,
    exceptions.UnauthorizedSSOTokenError,
)

_Shape = Mapping[str, Any]


class _Client(Protocol):
    """What is used of an EC2 client; boto3 makes its class at run time."""

    def describe_instances(self, **asked: object) -> _Shape: ...
    def get_instance_tpm_ek_pub(self, **asked: object) -> _Shape: ...
    def close(self) -> None: ...


class _Session(Protocol):
    """What is used of botocore's session, which has no types."""

    def get_credentials(self) -> object: ...
    def create_client(self, service: str, /, **settings: object) -> _Client: ...
    def register_component(self, name: str, component: object, /) -> None: ...


class Ec2:
    """Asks EC2 with the controller's credentials; implements ``Ec2Api``."""

    def __init__(self, configuration: AwsPlatform, platform: Platform, random: Callable[[], float]) -> None:
        self._configuration = configuration
        self._platform = platform
        self._random = random
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="aws-ec2")
        """Apart from the loop's own threads, which others may keep busy."""
        self._key_calls: defaultdict[Realm, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_KEY_CALLS))
        self._lock = threading.Lock()
        self._clients: dict[Realm, _Client] = {}
        self._shapes = cast("Any", botocore.session.Session()).get_component("data_loader")

    async def describe(self, realm: Realm, instance_ids: Sequence[str], /) -> Sequence[Ec2Instance]:
        """Return those that exist; raises Unavailable."""
        return await self._run(realm, lambda: list(self._described(realm, instance_ids)))

    async def describe_key(self, realm: Realm, instance_id: str, key_type: KeyType, /) -> str | None:
        """Return the fingerprint of an instance's key; None where it can have none. Raises Unavailable."""
        async with self._key_calls[realm]:
            return await self._run(realm, lambda: self._described_key(realm, instance_id, key_type))

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
            self._platform.observe(SERVICE, outcome, time.monotonic() - started)
        raise platform_unavailable(
            f"AWS EC2 in {realm.region}: {detail}",
            remedy="an operator checks the controller's AWS credentials, permissions and network; the request waits",
            retry_after=retry_after(outcome, self._random),
        )

    def close(self) -> None:
        """Close the connections; a call that is under way fails."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()

    def _described(self, realm: Realm, instance_ids: Sequence[str]) -> Iterator[Ec2Instance]:
        client = self._client(realm)
        asked: dict[str, object] = {"Filters": [{"Name": "instance-id", "Values": list(instance_ids)}]}
        for _ in range(_PAGES):
            answer = client.describe_instances(**asked)
            for reservation in answer.get("Reservations", ()):
                for instance in reservation.get("Instances", ()):
                    yield _instance(reservation["OwnerId"], instance)
            token = answer.get("NextToken")
            if not token:
                return
            asked = {**asked, "NextToken": token}

    def _described_key(self, realm: Realm, instance_id: str, key_type: KeyType) -> str | None:
        asked = {"InstanceId": instance_id, "KeyType": key_type.value, "KeyFormat": _DER}
        try:
            answer = self._client(realm).get_instance_tpm_ek_pub(**asked)
        except exceptions.ClientError as error:
            if _error_code(error) == _UNSUPPORTED:
                return None
            raise
        if any(answer[name] != value for name, value in asked.items()):
            raise ValueError("an answer for another instance or key")
        key = check_key_type(load_der_public_key(decode_base64(answer["KeyValue"])))
        if KeyType.of(key) is not key_type:
            raise ValueError("a key of another type")
        return endorsement_fingerprint(key)

    def _client(self, realm: Realm) -> _Client:
        with self._lock:  # sessions are not safe to share between threads, clients are
            if realm not in self._clients:
                self._clients[realm] = self._new_client(realm)
            return self._clients[realm]

    def _new_client(self, realm: Realm) -> _Client:
        configuration = self._configuration
        session = self._session(configuration.profile)
        if session.get_credentials() is None:  # a client made without would never have any
            raise exceptions.NoCredentialsError
        create = partial(
            session.create_client,
            region_name=realm.region,
            verify=str(configuration.ca_bundle) if configuration.ca_bundle else None,
            config=_config(configuration.proxy),
        )
        role = configuration.assume_roles.get(realm.account)
        if role is not None:
            session = self._assuming(session, partial(create, endpoint_url=configuration.sts), role)
            create = partial(session.create_client, *create.args, **create.keywords)
        return create("ec2", endpoint_url=configuration.ec2)

    def _session(self, profile: str | None = None) -> _Session:
        session = cast("_Session", botocore.session.Session(profile=profile))
        session.register_component("data_loader", self._shapes)
        return session

    def _assuming(self, session: _Session, create: Callable[..., _Client], role: str) -> _Session:
        """Make a session with the role's credentials, which renew themselves."""
        fetcher = cast("Any", credentials.AssumeRoleCredentialFetcher)(
            client_creator=create,
            source_credentials=session.get_credentials(),
            role_arn=role,
            extra_args={"RoleSessionName": "nodeattest"},
        )
        assuming = cast("Any", self._session())
        assuming._credentials = cast("Any", credentials.DeferredRefreshableCredentials)(  # noqa: SLF001 - boto3's own way
            method="assume-role", refresh_using=fetcher.fetch_credentials
        )
        return assuming


def _config(proxy: str | None) -> object:
    return cast("Callable[..., object]", Config)(
        connect_timeout=_CONNECT,
        read_timeout=_READ,
        retries={"total_max_attempts": 1, "mode": "standard"},
        proxies={"https": proxy} if proxy else {},  # an empty mapping: none from the environment
        user_agent_extra="nodeattest",
        ignore_configured_endpoint_urls=True,  # where AWS is, the controller's configuration says, not the environment
    )


def _outcome(error: Exception) -> tuple[CallOutcome, str]:
    """Return what an exception of boto3 means; its text may hold names of ours, its type and code do not."""
    if isinstance(error, exceptions.ClientError):
        response, code = _response(error), _error_code(error)
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in THROTTLING_CODES:
            return CallOutcome.THROTTLED, "it throttles"
        return (CallOutcome.FAILED if status >= _SERVER_ERROR else CallOutcome.REFUSED), code or f"status {status}"
    if isinstance(error, _TIMEOUTS):
        return CallOutcome.TIMED_OUT, "no answer in time"
    if isinstance(error, _NO_CREDENTIALS):
        return CallOutcome.REFUSED, "the controller has no AWS credentials"
    name = type(error).__name__
    return (CallOutcome.UNREACHABLE if isinstance(error, _UNREACHABLE) else CallOutcome.FAILED), name


def _response(error: exceptions.ClientError) -> _Shape:
    return cast("_Shape", cast("Any", error).response)


def _error_code(error: exceptions.ClientError) -> str:
    return str(_response(error).get("Error", {}).get("Code", ""))[:64]


def _instance(owner: str, shape: _Shape) -> Ec2Instance:
    return Ec2Instance(
        instance_id=shape["InstanceId"],
        owner=owner,
        state=shape["State"]["Name"],
        zone=shape["Placement"]["AvailabilityZone"],
        has_tpm=shape.get("TpmSupport") == _TPM,
        tags={tag["Key"]: tag["Value"] for tag in shape.get("Tags", ())},
        vpc=shape.get("VpcId", ""),
        private_dns_name=shape.get("PrivateDnsName", ""),
        addresses=tuple(dict.fromkeys(_addresses(shape))),
    )


def _addresses(shape: _Shape) -> Iterator[tuple[str, str]]:
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
