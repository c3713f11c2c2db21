"""The sandbox AWS as the program that starts it sees it: a child process, and orders to it.

Promises: it ends with its starter; what it hands out works as AWS's does, and only here. Needs moto, which is imported
by the child only. Standard library otherwise, so that importing this costs nothing.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Literal, Self, cast
from urllib.request import ProxyHandler, Request, build_opener

from nodeattest_sandbox.child_process import Process, wait

ACCOUNT: Final = "111122223333"
"""The account where instances are launched unless said otherwise; one of AWS's documentation accounts."""
REGION: Final = "us-east-1"
_NO_IMAGES: Final = MappingProxyType({"MOTO_EC2_LOAD_DEFAULT_AMIS": "false"})
"""A thousand images that nobody runs take moto a second to load."""
_TIMEOUT: Final = 30.0
"""Seconds."""
_NO_TAGS: Final[Mapping[str, str]] = MappingProxyType({})
Service = Literal["sts", "ec2"]
KeyType = Literal["rsa-2048", "ecc-sec-p384"]
"""What EC2 calls the types of endorsement keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A running instance."""

    account: str
    region: str
    zone: str
    instance_id: str
    private_dns: str
    private_ip: str
    metadata_endpoint: str
    """``http://127.0.0.1:<port>``, in place of the link-local address."""

    @property
    def provider_id(self) -> str:
        """The provider ID, as cloud-provider-aws gives it."""
        return f"aws:///{self.zone}/{self.instance_id}"

    @property
    def addresses(self) -> tuple[tuple[str, str], ...]:
        """What Cluster API's AWS provider reports in ``Machine.status.addresses``."""
        return (("InternalDNS", self.private_dns), ("InternalIP", self.private_ip))


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Temporary credentials of a role's session."""

    access_key_id: str
    secret: str = field(repr=False)
    token: str = field(repr=False)

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables in which AWS's libraries look for them."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_SESSION_TOKEN": self.token,
        }


class SandboxAws:
    """A running sandbox AWS."""

    def __init__(self, directory: Path) -> None:
        """Start it; raises StartFailed. ``directory`` is made."""
        directory.mkdir(parents=True, mode=0o700)
        self.directory: Final = directory.resolve()
        self._config = self.directory / "config"
        self._config.write_text("[default]\n", encoding="ascii")
        command = [sys.executable, "-m", "nodeattest_sandbox.clouds.aws", str(self.directory)]
        environment = {**self.settings_only, **_NO_IMAGES}
        self.process: Final = Process("aws", command, self.directory, environment=environment)
        try:
            wait(self.process, (self.directory / "ready").exists)
        except BaseException:  # whatever ends the start, no process may stay
            self.process.stop()
            raise
        ready = cast("Mapping[str, str]", json.loads((self.directory / "ready").read_text(encoding="ascii")))
        self.front: Final = ready["front"]
        """``https://127.0.0.1:<port>``: STS and EC2 of every region."""
        self._control, self._secret = ready["control"], ready["secret"]

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

    @property
    def ca_file(self) -> Path:
        """The CA of the HTTPS front."""
        return self.directory / "ca.crt"

    @property
    def regions(self) -> Path:
        """The folder of the certificates under which regions sign identity documents: ``<region>.pem``."""
        return self.directory / "regions"

    def launch(
        self,
        *,
        account: str = ACCOUNT,
        region: str = REGION,
        zone: str = "",
        role: str | None = "nodes",
        tags: Mapping[str, str] = _NO_TAGS,
    ) -> Instance:
        """Run an instance."""
        zone = zone or f"{region}a"
        answer = self._order("launch", account=account, region=region, zone=zone, role=role, tags=dict(tags))
        return Instance(**cast("dict[str, str]", answer))

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
        answer = self._order(
            "session", account=account, role=role, session=session, region=region, may=sorted(may), seconds=seconds
        )
        return Credentials(**cast("dict[str, str]", answer))

    def change(self, instance: Instance, action: str, **arguments: object) -> None:
        """Do something to the instances of an account: an action of EC2 in botocore's spelling."""
        self._order("change", account=instance.account, region=instance.region, action=action, arguments=arguments)

    def terminate(self, instance: Instance) -> None:
        """Terminate an instance; what it held of credentials stays good for a while, as on AWS."""
        self.change(instance, "terminate_instances", InstanceIds=[instance.instance_id])

    def set_metadata(
        self,
        instance: Instance,
        *,
        tokens: Literal["required", "version-1", "disabled"] = "required",
        role: str | None = "nodes",
    ) -> None:
        """Change an instance's metadata service, and the role that is there."""
        self._order("metadata", instance_id=instance.instance_id, tokens=tokens, role=role)

    def set_tpm(self, instance: Instance, keys: Mapping[KeyType, bytes]) -> None:
        """Give an instance a NitroTPM with these endorsement keys: SubjectPublicKeyInfo in DER by type."""
        encoded = {name: base64.b64encode(key).decode() for name, key in keys.items()}
        self._order("tpm", instance_id=instance.instance_id, keys=encoded)

    def answer(
        self, service: Service, mode: Literal["up", "throttle", "down", "hang"], *, seconds: float = 0.0
    ) -> None:
        """Let a service answer otherwise from now on."""
        self._order("answer", service=service, mode=mode, seconds=seconds)

    def calls(self) -> Mapping[str, int]:
        """Count what was asked so far: ``sts:GetCallerIdentity``, ``ec2:RequestLimitExceeded``."""
        return cast("Mapping[str, int]", self._order("calls"))

    def stop(self) -> None:
        """End it."""
        self.process.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _order(self, name: str, **arguments: object) -> object:
        # Loopback by plain HTTP, and no proxy on the way there.
        headers = {"Authorization": self._secret, "Content-Type": "application/json"}
        request = Request(f"{self._control}/{name}", json.dumps(arguments).encode(), headers)  # noqa: S310 - our own child
        with build_opener(ProxyHandler({})).open(request, timeout=_TIMEOUT) as answer:
            return json.loads(answer.read())
