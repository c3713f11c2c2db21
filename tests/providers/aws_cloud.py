"""AWS over TLS on loopback: STS that checks signatures, EC2 by moto; calls are counted, answers can be spoilt."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs

import boto3
from aws_signing import TIMESTAMP, RoleSession, signed_right
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
from worlds import T1

from nodeattest_providers.node_interface import JsonValue
from nodeattest_sandbox.pki import server_tls

ACCOUNT = "123456789012"
"""moto's own."""
REGION = "us-east-1"
ROLE = "nodes.capa.example"

Answer = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class Principal:
    """Whose an access key is."""

    session: RoleSession
    account: str
    arn: str
    user_id: str


def node_role(instance_id: str, *, role: str = ROLE, account: str = ACCOUNT, partition: str = "aws") -> Principal:
    """What EC2 gives an instance."""
    arn = f"arn:{partition}:sts::{account}:assumed-role/{role}/{instance_id}"
    return Principal(RoleSession(), account, arn, f"AROAEXAMPLEEXAMPLE000:{instance_id}")


@dataclass(slots=True)
class Cloud:
    """A running one."""

    url: str
    ca: Path
    now: datetime = T1
    principal: Principal | None = None
    """Whom STS knows."""
    asked: list[str] = field(default_factory=list[str])
    """Actions, in order."""
    hosts: list[str] = field(default_factory=list[str])
    spoil: Callable[[str], Answer | None] = lambda _: None
    """Answers in place of AWS, by action."""
    _operators: dict[str, Any] = field(default_factory=dict[str, Any])

    def reset(self) -> None:
        self.asked.clear()
        self.hosts.clear()
        self.principal, self.spoil, self.now = None, (lambda _: None), T1

    @property
    def settings(self) -> dict[str, JsonValue]:
        """``platforms.aws`` for it."""
        return {"endpoints": {"sts": self.url, "ec2": self.url}, "caBundle": str(self.ca)}

    def ec2(self, region: str = REGION) -> Any:
        """A client of an operator, who starts and stops instances."""
        if region not in self._operators:
            self._operators[region] = cast("Any", boto3).client(
                "ec2",
                region_name=region,
                endpoint_url=self.url,
                verify=str(self.ca),
                aws_access_key_id="AKIAOPERATOREXAMPLE0",
                aws_secret_access_key="x",
            )
        return self._operators[region]

    def close(self) -> None:
        for client in self._operators.values():
            client.close()

    def start(self, tags: dict[str, str] | None = None, count: int = 1, region: str = REGION) -> list[str]:
        """Start instances."""
        specification = (
            [{"ResourceType": "instance", "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}] if tags else []
        )
        made = self.ec2(region).run_instances(
            ImageId="ami-12c6146b",
            MinCount=count,
            MaxCount=count,
            TagSpecifications=specification,
            Placement={"AvailabilityZone": f"{region}a"},
        )
        return [instance["InstanceId"] for instance in made["Instances"]]


StartResponse = Callable[[str, list[tuple[str, str]]], object]


class _Front:
    """Takes every request: STS's are answered here, EC2's by moto."""

    def __init__(self) -> None:
        self.cloud: Cloud | None = None
        self._moto = cast("Any", DomainDispatcherApplication(create_backend_app))

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        cloud = self.cloud
        assert cloud is not None
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        action = parse_qs(body.decode()).get("Action", [""])[0]
        cloud.asked.append(action)
        cloud.hosts.append(environ["HTTP_HOST"])
        answer = cloud.spoil(action)
        if answer is None and action == "GetCallerIdentity":
            answer = _verified(cloud, environ, body)
        if answer is None:
            environ["wsgi.input"] = io.BytesIO(body)
            return self._moto(environ, start_response)
        kind = "application/json" if answer[1].startswith(b"{") else "text/xml"
        start_response(
            f"{answer[0]} Said",
            [("Content-Type", kind), ("Content-Length", str(len(answer[1]))), ("Location", "/away")],
        )
        return [answer[1]]


def refusal(code: str, message: str = "", status: int = 403) -> Answer:
    """What STS says when it refuses."""
    return status, json.dumps(
        {"Error": {"Code": code, "Message": message, "Type": "Sender"}, "RequestId": "r"}
    ).encode()


def _verified(cloud: Cloud, environ: dict[str, Any], body: bytes) -> Answer:
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_") or name == "CONTENT_TYPE"
    }
    principal = cloud.principal
    at = datetime.strptime(headers["x-amz-date"], TIMESTAMP).replace(tzinfo=UTC)
    if abs(at - cloud.now) > timedelta(minutes=5):
        return refusal("SignatureDoesNotMatch", "Signature expired: it is too old")
    if principal is None or headers["x-amz-security-token"] != principal.session.token:
        return refusal("InvalidClientTokenId", "The security token included in the request is invalid.")
    if not signed_right(headers["host"], headers, body, principal.session):
        return refusal("SignatureDoesNotMatch", "The request signature we calculated does not match")
    result = {"Account": principal.account, "Arn": principal.arn, "UserId": principal.user_id}
    said = {"GetCallerIdentityResponse": {"GetCallerIdentityResult": result, "ResponseMetadata": {"RequestId": "r"}}}
    return 200, json.dumps(said).encode()


class _KeepsAlive(WSGIRequestHandler):
    """Connections stay, as AWS's do, and whoever opened them closes them."""

    protocol_version = "HTTP/1.1"


@contextmanager
def cloud(folder: Path) -> Generator[Cloud]:
    """Run one until the block ends."""
    ca, context = server_tls(folder, "loopback")
    front = _Front()
    server = make_server(
        "127.0.0.1", 0, cast("Any", front), threaded=True, ssl_context=context, request_handler=_KeepsAlive
    )
    server.daemon_threads = True  # type: ignore[attr-defined]
    front.cloud = Cloud(f"https://127.0.0.1:{server.server_port}", ca)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield front.cloud
    finally:
        front.cloud.close()
        server.shutdown()
        thread.join()
        server.server_close()


def another_ca(folder: Path) -> Path:
    """Write the certificate of a CA that certified nothing here."""
    return server_tls(folder / "another", "loopback")[0]
