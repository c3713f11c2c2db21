"""The second opinion: what RBAC says of the very attributes that the gateway read."""

from __future__ import annotations

import asyncio

from polling import succeeds

from nodeattest_identity.addon.gateway.errors import StatusError
from nodeattest_identity.addon.gateway.front_proxy import UserInfo
from nodeattest_identity.addon.gateway.service import SubjectAccessAuthorizer
from nodeattest_identity.addon.gateway.target import GROUP, ROOT, ServiceTarget, parse
from nodeattest_kube.client import ApiClient
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, value_at
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.fleet import create_namespace

RBAC = "rbac.authorization.k8s.io"
DEVELOPER = ("devs", "system:authenticated")
"""Groups as they reach the gateway: kube-apiserver adds the second to whoever it knows."""
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def target(name: str, namespace: str) -> ServiceTarget:
    return parse(f"{ROOT}/namespaces/{namespace}/services/{name}/proxy/")


def allow(plane: ControlPlane, namespace: str, name: str) -> None:
    admin = plane.client()
    create_namespace(admin, namespace)
    rule: JsonMap = {
        "apiGroups": [GROUP], "resources": ["services/proxy"], "verbs": ["get"], "resourceNames": [name],
    }  # fmt: skip
    root, metadata = f"/apis/{RBAC}/v1/namespaces/{namespace}", JsonMap(name="user")
    admin.create(f"{root}/roles", {"metadata": metadata, "rules": [rule]})
    role: JsonMap = {"apiGroup": RBAC, "kind": "Role", "name": "user"}
    subject: JsonMap = {"apiGroup": RBAC, "kind": "Group", "name": "devs"}
    admin.create(f"{root}/rolebindings", {"metadata": metadata, "roleRef": role, "subjects": [subject]})
    asked: JsonMap = {
        "verb": "get", "group": GROUP, "resource": "services", "subresource": "proxy", "namespace": namespace,
        "name": name,
    }  # fmt: skip
    review: JsonMap = {"spec": {"resourceAttributes": asked, "user": "tests", "groups": [*DEVELOPER]}}

    def allowed() -> None:
        """Ask RBAC: a real API server learns of bindings by a watch."""
        assert value_at(admin.create(REVIEWS, review), "status", "allowed") is True

    succeeds(allowed)


async def refused(reviews: SubjectAccessAuthorizer, who: UserInfo, wanted: ServiceTarget, method: str) -> int | None:
    try:
        await reviews.authorize(who, wanted, method)
    except StatusError as error:
        return error.status.value
    return None


async def test_a_right_is_one_of_verb_service_and_namespace(control_plane: ControlPlane) -> None:
    allow(control_plane, "gateway-review", "dashboard:80")
    dev = UserInfo(user="jane", uid="7", groups=DEVELOPER, extra=(("scopes", ("a",)),))
    async with ApiClient.from_kubeconfig_file(control_plane.admin_kubeconfig) as client:
        reviews = SubjectAccessAuthorizer(client, clock=lambda: 0.0)
        wanted = target("dashboard:80", "gateway-review")
        assert await refused(reviews, dev, wanted, "GET") is None
        assert await refused(reviews, dev, wanted, "HEAD") is None
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"):
            assert await refused(reviews, dev, wanted, method) == 403
        assert await refused(reviews, dev, target("dashboard", "gateway-review"), "GET") == 403
        assert await refused(reviews, dev, target("dashboard:80", "kube-system"), "GET") == 403
        assert await refused(reviews, UserInfo(user="jane", groups=("others",)), wanted, "GET") == 403
        assert await refused(reviews, UserInfo(user="devs"), wanted, "GET") == 403


async def test_many_at_once_ask_once_and_a_yes_is_good_for_ten_seconds(control_plane: ControlPlane) -> None:
    allow(control_plane, "gateway-review-cache", "dashboard")
    dev, now = UserInfo(user="jane", groups=DEVELOPER), 0.0
    async with ApiClient.from_kubeconfig_file(control_plane.admin_kubeconfig) as client:
        reviews = SubjectAccessAuthorizer(client, clock=lambda: now)
        wanted = target("dashboard", "gateway-review-cache")
        await asyncio.gather(*(reviews.authorize(dev, wanted, "GET") for _ in range(20)))
        assert client.requests == 1
        control_plane.client().delete(f"/apis/{RBAC}/v1/namespaces/gateway-review-cache/rolebindings/user")
        now = 9.9
        await reviews.authorize(dev, wanted, "GET")
        now = 10.0
        while await refused(reviews, dev, wanted, "GET") is None:  # a real API server learns of it by a watch
            now += 10.0
        assert await refused(reviews, dev, wanted, "GET") == 403


async def test_without_an_answer_nobody_may(control_plane: ControlPlane) -> None:
    async with ApiClient.from_kubeconfig_file(control_plane.client_kubeconfig("nobody-in-particular")) as client:
        reviews = SubjectAccessAuthorizer(client, clock=lambda: 0.0)
        assert await refused(reviews, UserInfo(user="jane"), target("dashboard", "default"), "GET") == 503
