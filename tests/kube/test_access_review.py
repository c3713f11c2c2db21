"""access_review: what is asked of an API server, and which answer is a yes."""

from __future__ import annotations

import json

import pytest
from scripted import Server, answers, refuses

from nodeattest_kube.access_review import ResourceAttributes, ReviewedUser, is_access_allowed
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Forbidden
from nodeattest_parsing.values import JsonObject, JsonValue

ASKED = ResourceAttributes(verb="create", group="certificates.k8s.io", resource="certificatesigningrequests")
ATTRIBUTES = {"verb": "create", "group": "certificates.k8s.io", "resource": "certificatesigningrequests"}
YES: JsonObject = {"status": {"allowed": True}}


async def asked(server: Server, client: ApiClient, attributes: ResourceAttributes, user: ReviewedUser | None) -> object:
    server.script = [answers(YES)]
    assert await is_access_allowed(client, attributes, user)
    body = json.loads(server.bodies[-1])
    assert server.requests[-1].path == f"/apis/authorization.k8s.io/v1/{body['kind'].lower()}s"
    assert body["apiVersion"] == "authorization.k8s.io/v1"
    return body["kind"], body["spec"]


async def test_without_a_user_the_clients_own_right_is_asked_for(server: Server, client: ApiClient) -> None:
    assert await asked(server, client, ASKED, None) == (
        "SelfSubjectAccessReview",
        {"resourceAttributes": ATTRIBUTES},
    )


async def test_a_users_right_is_asked_for_with_all_that_identifies_him(server: Server, client: ApiClient) -> None:
    named = ResourceAttributes(
        verb="get", group="g", resource="r", subresource="s", version="v1", namespace="n", name="one"
    )
    user = ReviewedUser(name="u", groups=("a", "b"), uid="1", extra={"scopes": ("x",)})
    assert await asked(server, client, named, user) == (
        "SubjectAccessReview",
        {
            "user": "u",
            "groups": ["a", "b"],
            "uid": "1",
            "extra": {"scopes": ["x"]},
            "resourceAttributes": {
                "verb": "get",
                "group": "g",
                "resource": "r",
                "subresource": "s",
                "version": "v1",
                "namespace": "n",
                "name": "one",
            },
        },
    )


@pytest.mark.parametrize(
    "status", [{}, {"allowed": False}, {"allowed": "true"}, {"allowed": 1}, {"allowed": True, "denied": True}, None]
)
async def test_only_a_plain_yes_is_one(server: Server, client: ApiClient, status: JsonValue) -> None:
    server.script = [answers({"status": status})]
    assert not await is_access_allowed(client, ASKED)


async def test_no_answer_is_no_denial(server: Server, client: ApiClient) -> None:
    server.script = [refuses(403, "Forbidden")]
    with pytest.raises(Forbidden):
        await is_access_allowed(client, ASKED)
