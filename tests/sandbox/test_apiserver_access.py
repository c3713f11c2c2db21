"""Who a client is and what it may, on the sandbox and on the real server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from apiserver_kit import RBAC, encoded, grant, refusal
from polling import succeeds

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at, texts_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane, StartControlPlane
from nodeattest_sandbox.fleet import create_bootstrap_token

SECRETS = "/api/v1/namespaces/kube-system/secrets"
REVIEW = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
TOKEN_REVIEW = "/apis/authentication.k8s.io/v1/tokenreviews"


def token_for(unique: str) -> str:
    return f"{unique:0>6.6}.0123456789abcdef"


def review_token(admin: Client, token: str) -> JsonMap:
    return map_at(admin.create(TOKEN_REVIEW, {"spec": {"token": token}}), "status")


def is_known(admin: Client, token: str) -> None:
    assert review_token(admin, token).get("authenticated") is True


def test_anonymous_may_nothing_else(control_plane: ControlPlane) -> None:
    anonymous = control_plane.client(control_plane.token_kubeconfig())
    refused = refusal(lambda: anonymous.get("/api/v1/nodes"))
    assert refused.code == 403
    assert text_at(refused.status, "message") == (
        'nodes is forbidden: User "system:anonymous" cannot list resource "nodes" in API group "" at the cluster scope'
    )
    path = refusal(lambda: anonymous.get("/apis"))
    assert text_at(path.status, "message") == 'forbidden: User "system:anonymous" cannot get path "/apis"'


def test_unknown_token_is_unauthorized(control_plane: ControlPlane) -> None:
    stranger = control_plane.client(control_plane.token_kubeconfig("abcdef.fedcba9876543210"))
    assert refusal(lambda: stranger.get("/version")).code == 401


def test_bootstrap_token_gives_its_user_and_groups(admin: Client, unique: str) -> None:
    token = create_bootstrap_token(
        admin, token_for(unique), groups=("system:bootstrappers:b", "system:bootstrappers:a")
    )
    succeeds(lambda: is_known(admin, token))
    who = map_at(review_token(admin, token), "user")
    assert text_at(who, "username") == f"system:bootstrap:{token[:6]}"
    groups = texts_at(who, "groups")
    assert groups[:3] == ["system:bootstrappers", "system:bootstrappers:a", "system:bootstrappers:b"]


@pytest.mark.parametrize(
    "spoilt",
    [
        {"usage-bootstrap-authentication": "false"},
        {"expiration": "2020-01-01T00:00:00Z"},
        {"expiration": "soon"},
        {"auth-extra-groups": "system:masters"},
        {"token-id": "zzzzzz"},
        {"token-secret": "fedcba9876543210"},
    ],
    ids=str,
)
def test_spoilt_bootstrap_token_is_nobody(admin: Client, unique: str, spoilt: dict[str, str]) -> None:
    token_id, token_secret = f"bad{unique[-3:]:0>3}", "0123456789abcdef"
    data = {"token-id": token_id, "token-secret": token_secret, "usage-bootstrap-authentication": "true", **spoilt}
    secret: JsonMap = {
        "metadata": {"name": f"bootstrap-token-{token_id}"},
        "type": "bootstrap.kubernetes.io/token",
        "data": {key: encoded(text.encode()) for key, text in data.items()},
    }
    admin.create(SECRETS, secret)
    good = create_bootstrap_token(admin, token_for(unique), expiration=datetime.now(UTC) + timedelta(days=1))
    succeeds(lambda: is_known(admin, good))
    assert "authenticated" not in review_token(admin, f"{token_id}.{token_secret}")


def test_nothing_binds_the_bootstrappers_by_default(start_control_plane: StartControlPlane) -> None:
    with start_control_plane("untouched") as plane:
        bindings = plane.client().list(f"{RBAC}/clusterrolebindings")
    names = {text_at(item, "roleRef", "name") for item in bindings}
    assert "system:node-bootstrapper" not in names
    assert not [name for name in names if "nodeclient" in name]


def test_rules_are_evaluated_by_verb_name_subresource_and_group(admin: Client, unique: str) -> None:
    rules = (
        ("get", "", "secrets", "one"),
        ("update", "", "nodes/status"),
        ("*", "a.example", "*"),
        ("list", "", "*/log"),
    )
    grant(admin, unique, "Group", unique, *rules)

    def may(*groups: str, **attributes: str) -> bool:
        asked: JsonMap = {"user": "x", "groups": [*groups], "resourceAttributes": dict(attributes)}
        return map_at(admin.create(REVIEW, {"spec": asked}), "status")["allowed"] is True

    def is_bound() -> None:
        assert may(unique, verb="get", resource="secrets", name="one")

    succeeds(is_bound)
    for wanted, verb, resource, subresource, group, name in (
        (False, "get", "secrets", "", "", "two"),
        (False, "list", "secrets", "", "", ""),
        (False, "get", "secrets", "status", "", "one"),
        (True, "update", "nodes", "status", "", ""),
        (False, "update", "nodes", "", "", ""),
        (True, "fly", "kites", "tail", "a.example", ""),
        (False, "fly", "kites", "", "b.example", ""),
        (True, "list", "pods", "log", "", ""),
    ):
        asked = {"verb": verb, "resource": resource, "subresource": subresource, "group": group, "name": name}
        assert may(unique, **asked) is wanted, asked
    assert not may("others", verb="get", resource="secrets", name="one")
    assert may("system:masters", verb="fly", resource="kites")


def test_node_may_register_and_update_itself_only(control_plane: ControlPlane, unique: str) -> None:
    client = control_plane.client(control_plane.client_kubeconfig(f"system:node:{unique}", ("system:nodes",)))
    client.create("/api/v1/nodes", {"metadata": {"name": unique}, "spec": {"providerID": "x://1"}})
    client.patch(f"/api/v1/nodes/{unique}/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    other = refusal(lambda: client.create("/api/v1/nodes", {"metadata": {"name": f"{unique}-b"}}))
    assert other.code == 403
    assert "is not allowed to modify node" in str(other)
    assert refusal(lambda: client.delete(f"/api/v1/nodes/{unique}")).code == 403
