"""moto as the sandbox's AWS behind the front: instances, roles and sessions really exist there, and nowhere else.

Promises: a server of its own on loopback, in this process; each account is entered by a role of its own. Leaves to
others: who may do what (``front``): moto believes everybody. What it gives as a role's ARN is what AWS gives:
``arn:aws:sts::<account>:assumed-role/<role>/<session>``, with a user ID of ``AROA…:<session>``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, cast

import botocore.session
from botocore.config import Config
from botocore.exceptions import ClientError
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

from nodeattest_sandbox.child_process import LOOPBACK

_IMAGE: Final = "ami-0a1b2c3d4e5f60718"
_KIND: Final = "m5.large"
_ADMIN: Final = "sandbox-admin"
_TRUST: Final = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"},
    ],
}
_Answer = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKeys:
    """Temporary credentials of an assumed role."""

    access_key_id: str
    secret: str = field(repr=False)
    token: str = field(repr=False)
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """An instance as RunInstances describes it."""

    instance_id: str
    image: str
    kind: str
    zone: str
    private_dns: str
    private_ip: str
    launched: datetime


class Backend:
    """A running moto server and clients of it."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer(LOOPBACK, 0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.url: Final = f"http://{host}:{port}"
        self._session = botocore.session.Session()
        self._roles: set[tuple[str, str]] = set()

    def stop(self) -> None:
        """Stop the server."""
        self._server.stop()

    def assume(self, account: str, role: str, session: str, *, region: str, seconds: int = 3600) -> SessionKeys:
        """Make a session of a role, as EC2 does for an instance, or a person who may."""
        botocore_session = cast("Any", botocore.session).get_session()
        partition = str(botocore_session.get_partition_for_region(region))
        arn = f"arn:{partition}:iam::{account}:role/{role}"
        answer = self._call("sts", region, None, "assume_role", RoleArn=arn, RoleSessionName=session)
        keys = cast("Mapping[str, str]", answer["Credentials"])
        expires = datetime.now(UTC).replace(microsecond=0).timestamp() + seconds
        return SessionKeys(
            access_key_id=keys["AccessKeyId"],
            secret=keys["SecretAccessKey"],
            token=keys["SessionToken"],
            expires=datetime.fromtimestamp(expires, UTC),
        )

    def launch(self, account: str, region: str, zone: str, *, role: str | None, tags: Mapping[str, str]) -> Launched:
        """Run an instance, with an instance profile of the role's name."""
        admin = self.assume(account, _ADMIN, "launch", region=region)
        options: dict[str, object] = {}
        if role is not None:
            self._make_profile(account, region, admin, role)
            options["IamInstanceProfile"] = {"Name": role}
        pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
        if pairs:
            options["TagSpecifications"] = [{"ResourceType": "instance", "Tags": pairs}]
        answer = self._call(
            "ec2",
            region,
            admin,
            "run_instances",
            ImageId=_IMAGE,
            InstanceType=_KIND,
            MinCount=1,
            MaxCount=1,
            Placement={"AvailabilityZone": zone},
            MetadataOptions={"HttpTokens": "required"},
            **options,
        )
        return _launched(cast("Sequence[_Answer]", answer["Instances"])[0])

    def change(self, account: str, region: str, action: str, **arguments: object) -> None:
        """Do something else to an account's instances: ``terminate_instances``, ``create_tags``."""
        admin = self.assume(account, _ADMIN, "change", region=region)
        self._call("ec2", region, admin, action, **arguments)

    def _make_profile(self, account: str, region: str, admin: SessionKeys, role: str) -> None:
        if (account, role) in self._roles:
            return

        def call(action: str, **arguments: object) -> None:
            with suppress(ClientError):  # it exists already
                self._call("iam", region, admin, action, **arguments)

        call("create_role", RoleName=role, AssumeRolePolicyDocument=json.dumps(_TRUST))
        call("create_instance_profile", InstanceProfileName=role)
        call("add_role_to_instance_profile", InstanceProfileName=role, RoleName=role)
        self._roles.add((account, role))

    def _call(self, service: str, region: str, keys: SessionKeys | None, action: str, **arguments: object) -> _Answer:
        client: object = self._session.create_client(  # pyright: ignore[reportUnknownMemberType] - botocore has no types
            service,
            region_name=region,
            endpoint_url=self.url,
            aws_access_key_id=keys.access_key_id if keys else "sandbox",
            aws_secret_access_key=keys.secret if keys else "sandbox",
            aws_session_token=keys.token if keys else None,
            config=Config(proxies={}, retries={"max_attempts": 0}),
        )
        return cast("Callable[..., _Answer]", getattr(client, action))(**arguments)


def _launched(instance: _Answer) -> Launched:
    def text(key: str) -> str:
        return str(instance[key])

    return Launched(
        instance_id=text("InstanceId"),
        image=text("ImageId"),
        kind=text("InstanceType"),
        zone=str(cast("_Answer", instance["Placement"])["AvailabilityZone"]),
        private_dns=text("PrivateDnsName"),
        private_ip=text("PrivateIpAddress"),
        launched=cast("datetime", instance["LaunchTime"]).astimezone(UTC),
    )
