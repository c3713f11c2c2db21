"""The node half on a metadata service: the sandbox's, and such as answer wrongly."""

from __future__ import annotations

import dataclasses
import json
import logging
import ssl
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from http.client import HTTPSConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nodeattest_providers.aws.attestor import AwsAttestor
from nodeattest_providers.aws.protocol import AwsEvidence, parse_evidence, sts_request
from nodeattest_providers.binding import Binding
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.names import ClusterPin, EvidenceBlock, SignerName
from nodeattest_providers.node_interface import JsonValue
from nodeattest_sandbox.clouds.aws.cloud import Credentials, Instance, SandboxAws

BINDING = Binding(
    EvidenceBlock("aws/v1"), ClusterPin("sha256:" + "a1" * 32), SignerName("cluster.x-k8s.io/x"), bytes(32)
)
ROLES = "/latest/meta-data/iam/security-credentials/"
DOCUMENT = "/latest/dynamic/instance-identity/document"
SIGNATURE = "/latest/dynamic/instance-identity/rsa2048"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
TOKEN = "FwoGZXIvYXdzEXAMPLE"
KEYS = {
    "Code": "Success",
    "Type": "AWS-HMAC",
    "AccessKeyId": "ASIAEXAMPLEEXAMPLE00",
    "SecretAccessKey": SECRET,
    "Token": TOKEN,
    "Expiration": "2099-01-01T00:00:00Z",
}
PLACE = {"region": "us-east-1", "availabilityZone": "us-east-1a", "instanceId": "i-0123456789abcdef0"}

Answers = Mapping[str, tuple[int, bytes]]
GOOD: Answers = {
    "PUT /latest/api/token": (200, b"session-token=="),
    ROLES: (200, b"nodes"),
    ROLES + "nodes": (200, json.dumps(KEYS).encode()),
    DOCUMENT: (200, json.dumps(PLACE).encode()),
    SIGNATURE: (200, b"MAA="),
}


@contextmanager
def service(answers: Answers, *, seen: list[str] | None = None) -> Generator[str]:
    """Serve answers by path; whatever is asked besides is told in ``seen``."""

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self._answer(f"PUT {self.path}")

        def do_GET(self) -> None:
            self._answer(self.path)

        def _answer(self, what: str) -> None:
            if seen is not None:
                seen.append(f"{what} {self.headers.get('X-aws-ec2-metadata-token', '')}".strip())
            status, body = answers.get(what, (404, b""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def instance(aws: SandboxAws) -> Instance:
    return aws.launch()


def attestor(endpoint: str) -> AwsAttestor:
    return AwsAttestor({"metadataEndpoint": endpoint}, sleep=lambda _: None)


def evidence_of(instance: Instance) -> AwsEvidence:
    return parse_evidence(attestor(instance.metadata_endpoint).attest(BINDING).data)


def test_the_provider_id_is_zone_and_instance(instance: Instance) -> None:
    assert attestor(instance.metadata_endpoint).provider_id() == f"aws:///{instance.zone}/{instance.instance_id}"


def test_the_evidence_holds_the_document_its_signature_in_der_and_a_request_that_sts_answers(
    aws: SandboxAws, instance: Instance
) -> None:
    found = evidence_of(instance)
    assert json.loads(found.document)["instanceId"] == instance.instance_id
    assert found.pkcs7[0] == 0x30
    assert found.pkcs7[1] != 0x80
    assert found.document in found.pkcs7
    answer = send_as_controller(aws, found, BINDING)
    assert f"assumed-role/nodes/{instance.instance_id}" in answer


def test_the_signature_is_for_this_binding_and_no_other(aws: SandboxAws, instance: Instance) -> None:
    found = evidence_of(instance)
    for other in (
        dataclasses.replace(BINDING, csr_sha256=b"\x01" * 32),
        dataclasses.replace(BINDING, cluster_pin=ClusterPin("sha256:" + "b2" * 32)),
        dataclasses.replace(BINDING, signer_name=SignerName("cluster.x-k8s.io/y")),
    ):
        assert "SignatureDoesNotMatch" in send_as_controller(aws, found, other)


def send_as_controller(aws: SandboxAws, found: AwsEvidence, binding: Binding) -> str:
    """Rebuild the request as the controller does, and send it."""
    request = sts_request(found.region, binding)
    travelled = {"authorization": found.sts.authorization, "x-amz-date": found.sts.date}
    travelled["x-amz-security-token"] = found.sts.security_token
    tls = ssl.create_default_context(cafile=str(aws.ca_file))
    with closing(HTTPSConnection(aws.front.removeprefix("https://"), timeout=60, context=tls)) as connection:
        connection.request("POST", "/", request.body, {**request.headers, **travelled})
        return connection.getresponse().read().decode()


def test_the_time_of_the_signature_is_the_clocks(instance: Instance) -> None:
    then = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
    at_noon = AwsAttestor({"metadataEndpoint": instance.metadata_endpoint}, now=lambda: then)
    assert parse_evidence(at_noon.attest(BINDING).data).sts.date == "20260301T120000Z"


def test_everything_is_asked_with_a_token_and_the_secret_leaves_in_no_form(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []
    with service(GOOD, seen=seen) as endpoint:
        made = attestor(endpoint).attest(BINDING)
    assert seen[0] == "PUT /latest/api/token"
    assert all(one.endswith(" session-token==") for one in seen[1:])
    assert {one.partition(" ")[0] for one in seen[1:]} == {DOCUMENT, SIGNATURE, ROLES, ROLES + "nodes"}
    assert SECRET not in json.dumps(made.data)
    assert not any(word in caplog.text for word in (SECRET, TOKEN, "session-token"))
    assert TOKEN not in repr((made, parse_evidence(made.data)))


Row = tuple[Answers, type[Exception], Reason, str]
WRONG: dict[str, Row] = {
    "a service that knows version 1 only": (
        {"PUT /latest/api/token": (405, b"")}, Denied, Reason.PLATFORM_DOCUMENT_MALFORMED, "IMDSv2"),
    "a service without the token's path": (
        {"PUT /latest/api/token": (404, b"")}, Denied, Reason.PLATFORM_DOCUMENT_MALFORMED, "IMDSv2"),
    "a token that is a page": (
        {"PUT /latest/api/token": (200, b"<html>\n</html>")}, Denied, Reason.PLATFORM_DOCUMENT_MALFORMED, "IMDSv2"),
    "an endpoint that is switched off": (
        {"PUT /latest/api/token": (403, b"")}, Unavailable, Reason.PLATFORM_UNAVAILABLE, "switched off"),
    "a service that fails": (
        {"PUT /latest/api/token": (500, b"")}, Unavailable, Reason.PLATFORM_UNAVAILABLE, "status 500"),
    "no instance profile": ({ROLES: (404, b"")}, Denied, Reason.PLATFORM_ROLE_NOT_ALLOWED, "instance profile"),
    "an empty list of roles": ({ROLES: (200, b"\n")}, Denied, Reason.PLATFORM_ROLE_NOT_ALLOWED, "instance profile"),
    "two roles": ({ROLES: (200, b"a\nb")}, Denied, Reason.PLATFORM_DOCUMENT_MALFORMED, "one role"),
    "a role that is a path": ({ROLES: (200, b"../x")}, Denied, Reason.PLATFORM_DOCUMENT_MALFORMED, "one role"),
    "a list that needs another token": ({ROLES: (401, b"")}, Unavailable, Reason.PLATFORM_UNAVAILABLE, "status 401"),
    "no document": ({DOCUMENT: (404, b"")}, Unavailable, Reason.PLATFORM_UNAVAILABLE, "status 404"),
    "a signature that is no base64": (
        {SIGNATURE: (200, b"*")}, Denied, Reason.PLATFORM_DOCUMENT_MALFORMED, "base64"),
    "a role that EC2 may not assume": (
        {ROLES + "nodes": (200, json.dumps({**KEYS, "Code": "AssumeRoleUnauthorizedAccess"}).encode())},
        Denied, Reason.PLATFORM_PROOF_REFUSED, "ec2.amazonaws.com"),
    "credentials that have ended": (
        {ROLES + "nodes": (200, json.dumps({**KEYS, "Expiration": "2020-01-01T00:00:00Z"}).encode())},
        Unavailable, Reason.PLATFORM_UNAVAILABLE, "clock"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_missing_is_told_in_one_line_with_what_to_do(what: str) -> None:
    answers, kind, reason, said = WRONG[what]
    with service({**GOOD, **answers}) as endpoint, pytest.raises(kind) as caught:
        attestor(endpoint).attest(BINDING)
    assert isinstance(caught.value, Denied | Unavailable)
    assert caught.value.reason is reason
    assert said in str(caught.value)
    assert not any(word in str(caught.value) for word in ("\n", SECRET, TOKEN, "session-token"))


def test_nobody_at_the_address_is_told_with_the_hop_limit(aws: SandboxAws, instance: Instance) -> None:
    with pytest.raises(Unavailable) as caught:
        attestor("http://127.0.0.1:1").provider_id()
    assert "the EC2 instance metadata service at 127.0.0.1:1 cannot be reached" in caught.value.detail
    assert "on the node itself" in caught.value.remedy
    assert "HttpPutResponseHopLimit of 1" in caught.value.remedy
    aws.set_metadata(instance, tokens="version-1")
    with pytest.raises(Denied, match="IMDSv2"):
        attestor(instance.metadata_endpoint).provider_id()
    aws.set_metadata(instance)


def test_the_roles_credentials_are_new_when_the_old_ones_end(aws: SandboxAws) -> None:
    changed = aws.launch()
    before = evidence_of(changed).sts.authorization
    aws.set_metadata(changed, role="workers")
    assert "assumed-role/workers/" in send_as_controller(aws, evidence_of(changed), BINDING)
    assert before.split("/")[0] != evidence_of(changed).sts.authorization.split("/")[0]


@pytest.mark.parametrize(
    "settings",
    [{"endpoint": "http://x"}, {"metadataEndpoint": 80}, {"metadataEndpoint": "https://x"}, {"metadataEndpoint": ""}],
)
def test_a_setting_that_is_not_known_is_refused(settings: dict[str, JsonValue]) -> None:
    with pytest.raises(Denied) as caught:
        AwsAttestor(settings)
    assert caught.value.reason is Reason.POLICY_INVALID


def test_botocore_comes_when_something_is_signed_and_not_before() -> None:
    with service(GOOD) as endpoint:
        program = f"""
import sys
from nodeattest_providers.aws.attestor import AwsAttestor
from nodeattest_providers.binding import Binding
made = AwsAttestor({{"metadataEndpoint": {endpoint!r}}})
assert made.provider_id() == "aws:///us-east-1a/i-0123456789abcdef0"
before = {{name.partition(".")[0] for name in sys.modules}}
assert not before & {{"botocore", "boto3", "urllib3", "jmespath", "dateutil", "pyasn1", "cryptography"}}, before
made.attest(Binding("aws/v1", "sha256:00", "x", bytes(32)))
assert "botocore.auth" in sys.modules
assert not set(sys.modules) & {{"boto3", "botocore.session", "botocore.client"}}
"""
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_what_the_sandbox_hands_out_shows_no_secret() -> None:
    keys = Credentials(access_key_id="ASIA", secret=SECRET, token=TOKEN)
    assert not any(word in repr(keys) for word in (SECRET, TOKEN))
