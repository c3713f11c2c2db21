"""Bootstrap configurations, their reviews, and a rendering whose versions can be told apart."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, cast

import jsonpatch
from aiohttp.base_protocol import BaseProtocol
from aiohttp.streams import StreamReader
from aiohttp.test_utils import make_mocked_request
from fake_api import FakeApi
from virtual import advance

from nodeattest_controller.controllers.bootstrap_config.config_reviewer import PATH, FactReader
from nodeattest_controller.controllers.bootstrap_config.decide import Subject, subject_of
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig import DROP_IN
from nodeattest_controller.controllers.bootstrap_config.server import MAX_WAIT, AdmissionHandler
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.policy import Policy, parse_attestation_policy
from nodeattest_kube.client import ApiClient
from nodeattest_kube.events import EventRecorder
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason
from nodeattest_serving.http_server import Reply

AGENT: Final = DROP_IN
GROUPS: Final = {
    "KubeadmConfig": "bootstrap.cluster.x-k8s.io",
    "KubeadmControlPlane": "controlplane.cluster.x-k8s.io",
}
CLUSTER: JsonObject = {
    "metadata": {"name": "prod", "namespace": "fleet", "labels": {"env": "prod"}},
    "spec": {"controlPlaneRef": {"kind": "KubeadmControlPlane", "name": "prod-control-plane"}},
}


def versioned(subject: Subject, policy: Policy, cluster: JsonObject) -> JsonObject:
    """Put one file into a configuration, in version 1; refuse ``/conflict`` and ``/unfit``."""
    assert text(cluster, "metadata", "name")
    assert policy.attestors
    files = items(subject.spec, "files")
    if any(text(file, "path") == "/conflict" for file in files):
        raise Denied(Reason.POLICY_INVALID, expected="no /conflict", got="/conflict", remedy="remove it")
    if any(text(file, "path") == "/unfit" for file in files):
        raise Denied(Reason.BOOTSTRAP_CONFIG_REFUSED, expected="no /unfit", got="/unfit", remedy="take it out")
    kept = [file for file in files if text(file, "path") != AGENT]
    return {**subject.spec, "files": [*kept, agent()]}


def agent(version: int = 1) -> JsonObject:
    return {"path": AGENT, "content": str(version)}


def enforce() -> Policy:
    return parse_attestation_policy({"metadata": {"name": "tpm"}, "spec": {"authorizedAttestors": ["tpm"]}})


def audit() -> Policy:
    return parse_attestation_policy(
        {"metadata": {"name": "tpm"}, "spec": {"authorizedAttestors": ["tpm"], "enforcement": "Audit"}}
    )


def config(
    *files: JsonObject,
    token: str = "",
    labels: dict[str, JsonValue] | None = None,
    status: JsonObject | None = None,
    **spec: JsonValue,
) -> JsonObject:
    made: JsonObject = {"joinConfiguration": {"nodeRegistration": {}}, **spec}
    if files:
        made["files"] = list[JsonValue](files)
    if token:
        made["joinConfiguration"] = {"nodeRegistration": {}, "discovery": {"bootstrapToken": {"token": token}}}
    named: JsonObject = {"cluster.x-k8s.io/cluster-name": "prod"} if labels is None else labels
    return {
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta2",
        "kind": "KubeadmConfig",
        "metadata": {"name": "prod-md-0", "namespace": "fleet", "labels": named},
        "spec": made,
        "status": status or {},
    }


def control_plane(
    *files: JsonObject, replicas: int = 0, spec: JsonObject | None = None, labels: dict[str, JsonValue] | None = None
) -> JsonObject:
    configuration: JsonObject = {"initConfiguration": {}, "joinConfiguration": {}}
    if files:
        configuration["files"] = list[JsonValue](files)
    return {
        "apiVersion": "controlplane.cluster.x-k8s.io/v1beta2",
        "kind": "KubeadmControlPlane",
        "metadata": {"name": "prod-control-plane", "namespace": "fleet", "labels": labels or {}},
        "spec": {"version": "v1.34.0", "replicas": 3, "kubeadmConfigSpec": configuration, **(spec or {})},
        "status": {"replicas": replicas},
    }


def subject(whole: JsonObject) -> Subject:
    kind = text(whole, "kind")
    name, namespace = text(whole, "metadata", "name"), text(whole, "metadata", "namespace")
    found = subject_of(whole, group=GROUPS[kind], kind=kind, namespace=namespace, name=name)
    assert found is not None
    return found


def made_of(whole: JsonObject, patch: list[JsonObject]) -> JsonObject:
    return cast("JsonObject", jsonpatch.apply_patch(whole, patch))


def review(whole: JsonObject, before: JsonObject | None = None, /, **request: JsonValue) -> JsonObject:
    """An AdmissionReview as kube-apiserver writes it; ``request`` replaces its fields."""
    kind = text(whole, "kind")
    group, _, version = text(whole, "apiVersion").partition("/")
    asked: JsonObject = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": group, "version": version, "kind": kind},
        "resource": {"group": group, "version": version, "resource": kind.lower() + "s"},
        "namespace": text(whole, "metadata", "namespace"),
        "name": text(whole, "metadata", "name"),
        "operation": "CREATE" if before is None else "UPDATE",
        "userInfo": {"username": "system:serviceaccount:capi-system:capi-manager"},
        "object": whole,
        "oldObject": before,
        "dryRun": False,
        "options": {},
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {**asked, **request}}


def handler_of(
    api: ApiClient | None = None,
    *,
    reader: Callable[[ApiClient], FactReader] | None = None,
    namespace: str | None = None,
    max_wait: float = MAX_WAIT,
    verifies_clients: bool = False,
) -> AdmissionHandler:
    """Make a handler without a server; ``reader`` in the place of that of a management cluster."""
    client = api or FakeApi()
    return AdmissionHandler(
        reader(client) if reader is not None else FactReader(client, namespace=namespace, now=now),
        versioned,
        Metrics(),
        EventRecorder(client, component="t", instance="t", now=now),
        clock=lambda: 0.0,
        verifies_clients=verifies_clients,
        max_wait=max_wait,
    )


def now() -> datetime:
    """The test CA's certificates are good from their making."""
    return datetime.now(UTC)


async def handled(
    handler: AdmissionHandler,
    client: str,
    body: bytes,
    comes_after: float = 0.0,
    *,
    path: str = PATH,
    method: str = "POST",
    kind: str = "application/json",
    encoding: str = "identity",
) -> Reply:
    """Send a review whose last byte comes so many seconds after the others, as a client at an address."""
    loop = asyncio.get_running_loop()
    protocol = BaseProtocol(loop)
    protocol.connection_made(asyncio.Transport())
    content = StreamReader(protocol, 1 << 23, loop=loop)
    content.feed_data(body[:-1])
    headers = {"Content-Type": kind, "Content-Encoding": encoding}
    request = make_mocked_request(method, path, headers=headers, payload=content)
    answer = asyncio.create_task(handler.handle(request, client))
    await (advance(comes_after) if comes_after else asyncio.sleep(0))
    content.feed_data(body[-1:])
    content.feed_eof()
    return await answer


def answer_of(body: bytes) -> JsonObject:
    document = cast("JsonObject", json.loads(body))
    assert (document["apiVersion"], document["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    return mapping(document, "response")


def patched(whole: JsonObject, response: JsonObject) -> JsonObject:
    if "patch" not in response:
        return whole
    assert response["patchType"] == "JSONPatch"
    return made_of(whole, cast("list[JsonObject]", json.loads(base64.b64decode(text(response, "patch")))))
