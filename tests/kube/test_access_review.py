"""access_review: what is asked of an API server, and which answer is a yes."""

from __future__ import annotations

import json

import pytest
from scripted import Server, answers

from nodeattest_kube.access_review import ResourceAttributes, ReviewedUser, is_access_allowed
from nodeattest_kube.client import ApiClient
from nodeattest_parsing.values import JsonObject, JsonValue

ASKED = ResourceAttributes(verb="create", group="certificates.k8s.io", resource="certificatesigningrequests")
YES: JsonObject = {"status": {"allowed": True}}


async def test_a_users_right_is_asked_for_with_all_that_identifies_him(server: Server, client: ApiClient) -> None:
    server.script = [answers(YES)]
    place = {"subresource": "s", "version": "v1", "namespace": "n", "name": "one"}
    user = ReviewedUser(name="u", groups=("a", "b"), uid="1", extra={"scopes": ("x",)})
    assert await is_access_allowed(client, ResourceAttributes(verb="get", group="g", resource="r", **place), user)
    body = json.loads(server.bodies[-1])
    assert server.requests[-1].path == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    attributes = {"verb": "get", "group": "g", "resource": "r", **place}
    asks = {"user": "u", "groups": ["a", "b"], "uid": "1", "extra": {"scopes": ["x"]}}
    assert body["spec"] == {**asks, "resourceAttributes": attributes}


@pytest.mark.parametrize(
    "status", [{}, {"allowed": False}, {"allowed": "true"}, {"allowed": 1}, {"allowed": True, "denied": True}, None]
)
async def test_only_a_plain_yes_is_one(server: Server, client: ApiClient, status: JsonValue) -> None:
    server.script = [answers({"status": status})]
    assert not await is_access_allowed(client, ASKED)
