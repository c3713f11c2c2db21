"""AWS on loopback: STS and EC2 of every region behind one HTTPS front, and a metadata service for each instance.

Instances, roles and sessions exist in moto, a server in threads of this process, which believes everybody. So the front
verifies SigV4. GetCallerIdentity is for everybody, all else for those who were given it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from html import unescape
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast
from urllib.error import HTTPError
from urllib.parse import parse_qs
from urllib.request import ProxyHandler, build_opener
from urllib.request import Request as HttpRequest

import botocore.session
from aws_signing import TIMESTAMP, RoleSession, signed_right
from botocore.config import Config
from botocore.exceptions import ClientError

from clouds.authority import Authority, rsa_key
from clouds.aws_metadata import Instance, MetadataServer
from clouds.serving import Cloud, Reply, Request, as_json
from nodeattest_sandbox.child_process import LOOPBACK
from nodeattest_sandbox.pki import server_tls

Answer = tuple[int, bytes]
_KEY: Final = re.compile(r"AWS4-HMAC-SHA256 Credential=(\w+)/\d{8}/[a-z0-9-]+/(sts|ec2)/")
_FIELD: Final = re.compile(r"<(Account|Arn|UserId|Code|Message|AccessKeyId|SecretAccessKey|SessionToken)>([^<]*)</")
_CALLER: Final = "GetCallerIdentity"


def refusal(code: str, message: str = "", status: int = 403) -> Answer:
    """What STS says when it refuses."""
    error = {"Code": code, "Message": message, "Type": "Sender"}
    return status, json.dumps({"Error": error, "RequestId": "r"}).encode()


def error(code: str, status: int = 403) -> Answer:
    """What EC2 says when it refuses."""
    return status, f"<Response><Errors><Error><Code>{code}</Code></Error></Errors></Response>".encode()


@dataclass(frozen=True, slots=True)
class Principal:
    session: RoleSession
    may: frozenset[str] = frozenset()
    identity: Mapping[str, str] | None = None
    """What STS says of it; None: what moto knows."""


@dataclass(slots=True, kw_only=True)
class Front:
    moto: str
    principals: dict[str, Principal] = field(default_factory=dict[str, Principal])
    now: datetime | None = None
    """STS's clock; None: the real one."""
    asked: list[str] = field(default_factory=list[str])
    hosts: list[str] = field(default_factory=list[str])
    spoil: Callable[[str], Answer | None] = lambda _: None
    """Answers in place of AWS, by action."""

    def answer(self, request: Request) -> Reply:
        action = parse_qs(request.body.decode()).get("Action", [""])[0]
        self.asked.append(action)
        self.hosts.append(request.headers.get("host", ""))
        match = _KEY.match(request.headers.get("authorization", ""))
        principal = self.principals.get(match[1] if match else "")
        chosen = self.spoil(action) or self._refuse(request, action, principal)
        if chosen is None and principal is not None and principal.identity is not None and action == _CALLER:
            return _identity(principal.identity)
        return self._forward(request) if chosen is None else _reply(*chosen)

    def _refuse(self, request: Request, action: str, principal: Principal | None) -> Answer | None:
        said = refusal if action == _CALLER else error
        headers, now = request.headers, datetime.now(UTC)
        if action == _CALLER:
            at = datetime.strptime(headers["x-amz-date"], TIMESTAMP).replace(tzinfo=UTC)
            if abs(at - (self.now or now)) > timedelta(minutes=5):
                return refusal("SignatureDoesNotMatch", "Signature expired: it is too old")
        if principal is None or principal.session.expires <= now:
            return said("InvalidClientTokenId")
        if headers.get("x-amz-security-token") != principal.session.token:
            return said("InvalidClientTokenId")
        if not signed_right(headers.get("host", ""), headers, request.body, principal.session):
            return said("SignatureDoesNotMatch")
        return None if action in principal.may | {_CALLER} else said("UnauthorizedOperation")

    def _forward(self, request: Request) -> Reply:
        """Let moto answer, which finds service, region and account in the authorization header.

        STS answers in JSON to anyone who accepts that, and moto in XML only.
        """
        passed = ("authorization", "content-type", "x-amz-date", "x-amz-security-token")
        headers = {name: request.headers[name] for name in passed if name in request.headers}
        try:
            with build_opener(ProxyHandler({})).open(HttpRequest(self.moto, request.body, headers)) as answer:  # noqa: S310 - loopback
                status, body = int(answer.status), cast("bytes", answer.read())
        except HTTPError as error:
            status, body = error.code, error.read()
        found = {name: unescape(value) for name, value in _FIELD.findall(body.decode())}
        if "SecretAccessKey" in found:
            session = RoleSession(found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"])
            self.principals[session.access_key] = Principal(session, frozenset({"DescribeInstances"}))
        if request.headers.get("accept") != "application/json" or b"sts.amazonaws.com" not in body:
            return _reply(status, body)
        return _identity(found)


def _identity(found: Mapping[str, str]) -> Reply:
    return as_json({"GetCallerIdentityResponse": {"GetCallerIdentityResult": dict(found)}})


def _reply(status: int, body: bytes) -> Reply:
    kind = "application/json" if body.startswith(b"{") else "text/xml"
    return Reply(status, body, {"Content-Type": kind, "Location": "/away"})


ACCOUNT: Final = "111122223333"
REGION: Final = "us-east-1"
_REGIONS: Final = (REGION, "eu-central-1")
_NO_TAGS: Final[Mapping[str, str]] = MappingProxyType({})
_IMAGE: Final = "ami-0a1b2c3d4e5f60718"
_KIND: Final = "m5.large"
_ADMIN: Final = "sandbox-admin"
_TRUST: Final = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"},
    ],
}
_Answer = Mapping[str, Any]


class SandboxAws(Cloud):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # a thousand images cost moto a second
        from moto.moto_server.threaded_moto_server import ThreadedMotoServer

        self.regions: Final = directory / "regions"
        self.regions.mkdir(parents=True, mode=0o700)
        self._config = directory / "config"
        self._config.write_text("[default]\n", encoding="ascii")
        self._keys = {region: Authority.root("Sandbox Web Services", key=rsa_key()) for region in _REGIONS}
        for region, key in self._keys.items():
            (self.regions / f"{region}.pem").write_text(key.pem)
        self._session = botocore.session.Session(profile="default")
        for name in ("config_file", "credentials_file"):
            self._session.set_config_variable(name, str(self._config))  # pyright: ignore[reportUnknownMemberType] - botocore has no types
        self._moto = ThreadedMotoServer(LOOPBACK, 0, verbose=False)
        self._moto.start()
        host, port = self._moto.get_host_and_port()
        self.front: Final = Front(moto=f"http://{host}:{port}")
        names = [f"{service}.{region}.amazonaws.com" for service in ("sts", "ec2") for region in _REGIONS]
        self.ca_file, tls = server_tls(directory, "aws", [*names, "localhost"])
        self.url: Final = self.serve(self.front.answer, tls)

    @property
    def settings_only(self) -> Mapping[str, str]:
        return {
            "AWS_CONFIG_FILE": str(self._config),
            "AWS_SHARED_CREDENTIALS_FILE": str(self._config),
            "AWS_PROFILE": "default",
            "AWS_DEFAULT_PROFILE": "default",
            "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true",
            "AWS_CA_BUNDLE": str(self.ca_file),
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def launch(
        self,
        *,
        account: str = ACCOUNT,
        region: str = REGION,
        zone: str = "",
        role: str | None = "nodes",
        tags: Mapping[str, str] = _NO_TAGS,
    ) -> Instance:
        options: dict[str, Any] = {"tags": tags}
        if role is not None:
            self._make_profile(account, region, role)
            options["IamInstanceProfile"] = {"Name": role}
        [made] = self.run(account=account, region=region, zone=zone, **options)
        instance = Instance(
            account=account,
            region=region,
            zone=made["Placement"]["AvailabilityZone"],
            instance_id=made["InstanceId"],
            image=made["ImageId"],
            kind=made["InstanceType"],
            launched=made["LaunchTime"].astimezone(UTC),
            private_dns=made["PrivateDnsName"],
            private_ip=made["PrivateIpAddress"],
        )
        assume = partial(self._assume_for, account, region, instance.instance_id)
        server = MetadataServer(instance=instance, region=self._keys[region], assume=assume, role=role)
        return replace(instance, metadata_endpoint=self.serve(server.answer))

    def run(
        self,
        count: int = 1,
        *,
        account: str = ACCOUNT,
        region: str = REGION,
        zone: str = "",
        tags: Mapping[str, str] = _NO_TAGS,
        **options: Any,
    ) -> Sequence[_Answer]:
        if tags:
            pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
            options["TagSpecifications"] = [{"ResourceType": "instance", "Tags": pairs}]
        options |= {"ImageId": _IMAGE, "InstanceType": _KIND, "MinCount": count, "MaxCount": count}
        options["Placement"] = {"AvailabilityZone": zone or f"{region}a"}
        return self.act("run_instances", account=account, region=region, **options)["Instances"]

    def session(
        self,
        role: str,
        session: str,
        *,
        account: str = ACCOUNT,
        region: str = REGION,
        may: Collection[str] = (),
        seconds: int = 3600,
    ) -> RoleSession:
        keys = self._assume(account, role, session, region=region, seconds=seconds)
        self.front.principals[keys.access_key] = Principal(keys, frozenset(may))
        return keys

    def terminate(self, instance: Instance) -> None:
        self.act(
            "terminate_instances",
            account=instance.account,
            region=instance.region,
            InstanceIds=[instance.instance_id],
        )

    def stop(self) -> None:
        super().stop()
        self._moto.stop()

    def _assume_for(self, account: str, region: str, instance_id: str, role: str) -> RoleSession:
        return self.session(role, instance_id, account=account, region=region)

    def _assume(self, account: str, role: str, session: str, *, region: str, seconds: int = 3600) -> RoleSession:
        partition = cast("Any", self._session).get_partition_for_region(region)
        arn = f"arn:{partition}:iam::{account}:role/{role}"
        answer = self._call("sts", region, None, "assume_role", RoleArn=arn, RoleSessionName=session)
        keys = cast("Mapping[str, str]", answer["Credentials"])
        expires = datetime.now(UTC) + timedelta(seconds=seconds)
        return RoleSession(keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"], expires)

    def _make_profile(self, account: str, region: str, role: str) -> None:
        def call(action: str, **arguments: str) -> None:
            with suppress(ClientError):  # it exists already
                self.act(action, "iam", account=account, region=region, **arguments)

        call("create_role", RoleName=role, AssumeRolePolicyDocument=json.dumps(_TRUST))
        call("create_instance_profile", InstanceProfileName=role)
        call("add_role_to_instance_profile", InstanceProfileName=role, RoleName=role)

    def act(
        self, action: str, service: str = "ec2", *, account: str = ACCOUNT, region: str = REGION, **arguments: object
    ) -> _Answer:
        return self._call(service, region, self._assume(account, _ADMIN, "admin", region=region), action, **arguments)

    def _call(self, service: str, region: str, keys: RoleSession | None, action: str, **arguments: object) -> _Answer:
        client: object = self._session.create_client(  # pyright: ignore[reportUnknownMemberType] - botocore has no types
            service,
            region_name=region,
            endpoint_url=self.front.moto,
            aws_access_key_id=keys.access_key if keys else "sandbox",
            aws_secret_access_key=keys.secret_key if keys else "sandbox",
            aws_session_token=keys.token if keys else None,
            config=Config(proxies={}, retries={"max_attempts": 0}),
        )
        return cast("Callable[..., _Answer]", getattr(client, action))(**arguments)
