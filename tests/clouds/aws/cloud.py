"""One AWS on loopback: STS and EC2 of every region behind one HTTPS front, and a metadata service for each instance.

Instances, roles and sessions exist in moto, a server in threads of this process; what it gives as a role's ARN is what
AWS gives: ``arn:aws:sts::<account>:assumed-role/<role>/<session>``, with a user ID of ``AROA…:<session>``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self, cast

import botocore.session
from botocore.config import Config
from botocore.exceptions import ClientError
from cryptography.hazmat.primitives.serialization import Encoding

from clouds.aws.front import Front
from clouds.aws.metadata import Credentials, Instance, MetadataServer, make_region_key
from clouds.serving import Serving
from nodeattest_sandbox.child_process import LOOPBACK
from nodeattest_sandbox.pki import server_tls

ACCOUNT: Final = "111122223333"
"""The account where instances are launched unless said otherwise; one of AWS's documentation accounts."""
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


class SandboxAws:
    """A running sandbox AWS; a context manager."""

    def __init__(self, directory: Path) -> None:
        """Start it. ``directory`` is made."""
        os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # a thousand images cost moto a second
        from moto.moto_server.threaded_moto_server import ThreadedMotoServer

        self.regions: Final = directory / "regions"
        """The folder of the certificates under which regions sign identity documents: ``<region>.pem``."""
        self.regions.mkdir(parents=True, mode=0o700)
        self._config = directory / "config"
        self._config.write_text("[default]\n", encoding="ascii")
        self._keys = {region: make_region_key() for region in _REGIONS}
        for region, key in self._keys.items():
            (self.regions / f"{region}.pem").write_bytes(key.certificate.public_bytes(Encoding.PEM))
        self._session = botocore.session.Session(profile="default")
        for name in ("config_file", "credentials_file"):
            self._session.set_config_variable(name, str(self._config))  # pyright: ignore[reportUnknownMemberType] - botocore has no types
        self._moto = ThreadedMotoServer(LOOPBACK, 0, verbose=False)
        self._moto.start()
        host, port = self._moto.get_host_and_port()
        self._front = Front(moto=f"http://{host}:{port}")
        names = [f"{service}.{region}.amazonaws.com" for service in ("sts", "ec2") for region in _REGIONS]
        self.ca_file, tls = server_tls(directory, "aws", [*names, "localhost"])
        """The CA of the HTTPS front."""
        self._serving = [Serving(self._front.answer, tls)]
        self.front: Final = f"https://{LOOPBACK}:{self._serving[0].port}"
        """STS and EC2 of every region."""

    @property
    def settings_only(self) -> Mapping[str, str]:
        """Variables that keep AWS's libraries from profiles, endpoints and CAs of the user."""
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
        """Run an instance, with an instance profile of the role's name."""
        options: dict[str, Any] = {}
        if role is not None:
            self._make_profile(account, region, role)
            options["IamInstanceProfile"] = {"Name": role}
        if tags:
            pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
            options["TagSpecifications"] = [{"ResourceType": "instance", "Tags": pairs}]
        answer = self._do(
            account,
            region,
            "run_instances",
            ImageId=_IMAGE,
            InstanceType=_KIND,
            MinCount=1,
            MaxCount=1,
            Placement={"AvailabilityZone": zone or f"{region}a"},
            MetadataOptions={"HttpTokens": "required"},
            **options,
        )
        [made] = cast("Sequence[_Answer]", answer["Instances"])
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
        self._serving.append(Serving(server.answer))
        return replace(instance, metadata_endpoint=f"http://{LOOPBACK}:{self._serving[-1].port}")

    def session(
        self,
        role: str,
        session: str,
        *,
        account: str = ACCOUNT,
        region: str = REGION,
        may: Collection[str] = (),
        seconds: int = 3600,
    ) -> Credentials:
        """Let somebody assume a role; ``may`` are the actions that the role allows."""
        keys = self._assume(account, role, session, region=region, seconds=seconds)
        self._front.principals[keys.access_key_id] = (keys, frozenset(may))
        return keys

    def terminate(self, instance: Instance) -> None:
        """Terminate an instance; what it held of credentials stays good for a while, as on AWS."""
        self._do(instance.account, instance.region, "terminate_instances", InstanceIds=[instance.instance_id])

    def stop(self) -> None:
        """End it."""
        for serving in self._serving:
            serving.stop()
        self._moto.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _assume_for(self, account: str, region: str, instance_id: str, role: str) -> Credentials:
        return self.session(role, instance_id, account=account, region=region)

    def _assume(self, account: str, role: str, session: str, *, region: str, seconds: int = 3600) -> Credentials:
        partition = cast("Any", self._session).get_partition_for_region(region)
        arn = f"arn:{partition}:iam::{account}:role/{role}"
        answer = self._call("sts", region, None, "assume_role", RoleArn=arn, RoleSessionName=session)
        keys = cast("Mapping[str, str]", answer["Credentials"])
        return Credentials(
            access_key_id=keys["AccessKeyId"],
            secret=keys["SecretAccessKey"],
            token=keys["SessionToken"],
            expires=datetime.now(UTC) + timedelta(seconds=seconds),
        )

    def _make_profile(self, account: str, region: str, role: str) -> None:
        def call(action: str, **arguments: str) -> None:
            with suppress(ClientError):  # it exists already
                self._do(account, region, action, "iam", **arguments)

        call("create_role", RoleName=role, AssumeRolePolicyDocument=json.dumps(_TRUST))
        call("create_instance_profile", InstanceProfileName=role)
        call("add_role_to_instance_profile", InstanceProfileName=role, RoleName=role)

    def _do(self, account: str, region: str, action: str, service: str = "ec2", /, **arguments: object) -> _Answer:
        """Act as the account's administrator."""
        return self._call(service, region, self._assume(account, _ADMIN, "admin", region=region), action, **arguments)

    def _call(self, service: str, region: str, keys: Credentials | None, action: str, **arguments: object) -> _Answer:
        client: object = self._session.create_client(  # pyright: ignore[reportUnknownMemberType] - botocore has no types
            service,
            region_name=region,
            endpoint_url=self._front.moto,
            aws_access_key_id=keys.access_key_id if keys else "sandbox",
            aws_secret_access_key=keys.secret if keys else "sandbox",
            aws_session_token=keys.token if keys else None,
            config=Config(proxies={}, retries={"max_attempts": 0}),
        )
        return cast("Callable[..., _Answer]", getattr(client, action))(**arguments)
