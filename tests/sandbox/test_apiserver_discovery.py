"""What a node without credentials meets: cluster-info, headers and TokenReviews read as by the real server."""

from __future__ import annotations

import pytest
from apiserver_kit import RBAC, binding, refusal, role, rule, user
from polling import succeeds

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, text_at, texts_at
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.fleet import create_bootstrap_token

PUBLIC = "/api/v1/namespaces/kube-public/configmaps"
SIGNER = "kubeadm:bootstrap-signer-clusterinfo"
TOKEN_REVIEW = "/apis/authentication.k8s.io/v1/tokenreviews"
TOKEN = "anon00.0123456789abcdef"


@pytest.fixture
def anonymous(control_plane: ControlPlane) -> Client:
    return control_plane.client(control_plane.token_kubeconfig())


@pytest.fixture(scope="module")
def bearer(control_plane: ControlPlane) -> str:
    return control_plane.await_token(create_bootstrap_token(control_plane.client(), "heads0.0123456789abcdef"))


def test_cluster_info_is_read_by_anybody_once_it_is_bound_and_nothing_else_is(
    control_plane: ControlPlane, admin: Client, anonymous: Client
) -> None:
    path = f"{RBAC}/namespaces/kube-public"
    refused = refusal(lambda: anonymous.get(f"{PUBLIC}/cluster-info"))
    assert refused.code == 403
    assert text_at(refused.status, "message") == (
        'configmaps "cluster-info" is forbidden: User "system:anonymous" cannot get resource "configmaps" '
        'in API group "" in the namespace "kube-public"'
    )
    admin.create(PUBLIC, {"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": "x"}})
    admin.create(
        f"{path}/roles", role(SIGNER, rule(["get"], "", ["configmaps"], ["cluster-info"]), namespace="kube-public")
    )
    bound = binding(SIGNER, SIGNER, user("system:anonymous"), namespace="kube-public", cluster_role=False)
    admin.create(f"{path}/rolebindings", bound)
    try:
        found = succeeds(lambda: anonymous.get(f"{PUBLIC}/cluster-info"))
        assert found["data"] == {"kubeconfig": "x"}
        timed: JsonMap = anonymous.get(f"{PUBLIC}/cluster-info", timeout="10s")
        assert timed["data"] == {"kubeconfig": "x"}
        for other in (PUBLIC, f"{PUBLIC}/other", "/api/v1/namespaces/kube-system/configmaps/cluster-info"):
            assert refusal(lambda other=other: anonymous.get(other)).code == 403
        # The binding is to the user system:anonymous: whoever is known by a token is somebody else.
        create_bootstrap_token(admin, TOKEN)
        control_plane.await_token(TOKEN)
        known = control_plane.client(control_plane.token_kubeconfig(TOKEN))
        assert refusal(lambda: known.get(f"{PUBLIC}/cluster-info")).code == 403
        wrong = control_plane.client(control_plane.token_kubeconfig("anon00.fedcba9876543210"))
        assert refusal(lambda: wrong.get(f"{PUBLIC}/cluster-info")).code == 401
    finally:
        for gone in (f"{PUBLIC}/cluster-info", f"{path}/roles/{SIGNER}", f"{path}/rolebindings/{SIGNER}"):
            admin.send("DELETE", gone)


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("Bearer {}", 200),
        ("bearer {}", 200),
        ("BEARER {}", 200),
        (" Bearer {} ", 200),
        ("Bearer {} more", 200),
        ("Bearer  {}", 403),
        ("Bearer\t{}", 403),
        ("Bearer", 403),
        ("Bearer ", 403),
        ("Basic {}", 403),
        ("{}", 403),
        ("Bearer {},", 401),
        ("Bearer {}\t", 200),
        ("Bearer x{}", 401),
        ("Bearer {}0", 401),
        ("Bearer Bearer {}", 401),
    ],
)
def test_a_bearer_is_read_from_the_header_as_by_the_real_server(
    anonymous: Client, bearer: str, header: str, code: int
) -> None:
    try:
        got, _ = anonymous.send("GET", "/api", headers={"Authorization": header.format(bearer)})
    except ApiRefusal as refused:
        got = refused.code
    assert got == code


def reviewed(admin: Client, body: JsonMap) -> JsonMap:
    """Return a TokenReview's answer without managedFields, and without the null that servers before 1.34 write."""
    answer = admin.create(TOKEN_REVIEW, body)
    for name in ("managedFields", "creationTimestamp"):
        map_at(answer, "metadata").pop(name, None)
    return answer


NOBODY: JsonMap = {"user": {}, "error": "invalid bearer token"}


@pytest.mark.parametrize(
    ("token", "status"),
    [
        ("zzzzzz.0123456789abcdef", NOBODY),
        ("HEADS0.0123456789abcdef", NOBODY),
        ("heads0.0123456789abcde", NOBODY),
        ("heads0.0123456789abcdeg", NOBODY),
        ("Bearer heads0.0123456789abcdef", NOBODY),
        ("heads0.0123456789abcdef\n", None),
        ("heads0.0123456789abcdef and more", None),
        ("heads0.0123456789abcdef", None),
    ],
    ids=ascii,
)
def test_a_token_is_reviewed_as_the_header_of_a_request(
    admin: Client, bearer: str, token: str, status: JsonMap | None
) -> None:
    groups: JsonValue = [
        "system:bootstrappers",
        "system:bootstrappers:kubeadm:default-node-token",
        "system:authenticated",
    ]
    holder: JsonMap = {"username": f"system:bootstrap:{bearer[:6]}", "groups": groups}
    claimed: JsonMap = {"authenticated": True}
    answer = reviewed(admin, {"metadata": {"name": "n"}, "spec": {"token": token}, "status": claimed})
    audiences = map_at(answer, "status").pop("audiences", None)
    assert answer == {
        "kind": "TokenReview",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": "n"},
        "spec": {"token": token},
        "status": status or {"authenticated": True, "user": holder},
    }
    assert bool(audiences) is (status is None)


def test_a_token_is_reviewed_for_the_audience_that_is_asked(admin: Client, bearer: str) -> None:
    told = texts_at(reviewed(admin, {"spec": {"token": bearer}}), "status", "audiences")
    both: JsonMap = {"spec": {"token": bearer, "audiences": ["other", *told]}}
    assert texts_at(reviewed(admin, both), "status", "audiences") == told
    assert reviewed(admin, {"spec": {"token": bearer, "audiences": ["other"]}})["status"] == NOBODY


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "token is required for TokenReview in authentication"),
        ({"spec": {"token": ""}}, "token is required for TokenReview in authentication"),
        (
            {"apiVersion": "authentication.k8s.io/v1beta1", "kind": "TokenReview", "spec": {"token": "x"}},
            "does not match",
        ),
        ({"kind": "Other", "spec": {"token": "x"}}, "cannot be handled as a TokenReview"),
    ],
    ids=["nothing", "no token", "another version", "another kind"],
)
def test_what_is_no_token_review_is_a_bad_request(admin: Client, body: JsonMap, message: str) -> None:
    refused = refusal(lambda: admin.create(TOKEN_REVIEW, body))
    assert (refused.code, refused.reason) == (400, "BadRequest")
    assert message in text_at(refused.status, "message")
