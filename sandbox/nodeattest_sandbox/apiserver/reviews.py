"""Reviews: questions about users and permissions, answered and not stored.

Promises: TokenReview, SelfSubjectReview, SubjectAccessReview and SelfSubjectAccessReview answer from the same
authenticator and authorizer that requests go through. Source: pkg/registry/{authentication,authorization}.
"""

from __future__ import annotations

from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, items_at, map_at, text_at, texts_at
from nodeattest_sandbox.apiserver.rbac import RequestInfo
from nodeattest_sandbox.apiserver.status_errors import ApiError, bad_request, unauthorized
from nodeattest_sandbox.apiserver.users import User
from nodeattest_sandbox.apiserver.writes import Cluster

AUDIENCE: Final = "https://kubernetes.default.svc.cluster.local"
"""Whom tokens are for where nobody says otherwise (``--api-audiences`` of kube-apiserver)."""


def review(cluster: Cluster, kind: str, api_version: str, body: JsonMap, user: User) -> JsonMap:
    """Return the review with its status filled."""
    metadata: JsonMap = {**map_at(body, "metadata"), "creationTimestamp": None}
    answer: JsonMap = {"kind": kind, "apiVersion": api_version, "metadata": metadata}
    if "spec" in body:
        answer["spec"] = body["spec"]
    answer["status"] = _status(cluster, kind, body, user)
    return answer


def _status(cluster: Cluster, kind: str, body: JsonMap, user: User) -> JsonMap:
    match kind:
        case "TokenReview":
            return _token_status(cluster, text_at(body, "spec", "token"), texts_at(body, "spec", "audiences"))
        case "SelfSubjectReview":
            return {"userInfo": _user(user)}
        case "SelfSubjectAccessReview":
            return {"allowed": cluster.authorizer.allows(user, _asked(body))}
        case _:
            name, groups = text_at(body, "spec", "user"), texts_at(body, "spec", "groups")
            if not name and not groups:
                raise bad_request('spec.user: Invalid value: "": at least one of user or group must be specified')
            return {"allowed": cluster.authorizer.allows(User(name, tuple(groups)), _asked(body))}


def _token_status(cluster: Cluster, token: str, audiences: list[str]) -> JsonMap:
    """Authenticate a token as the header of a request would be: the real server makes one up."""
    if not token:
        raise bad_request("token is required for TokenReview in authentication")
    try:
        if audiences and AUDIENCE not in audiences:
            raise unauthorized()
        found = cluster.authenticator.authenticate(None, f"Bearer {token}")
    except ApiError:
        return {"user": {}, "error": "invalid bearer token"}
    return {"authenticated": True, "user": _user(found), "audiences": [AUDIENCE]}


def _user(user: User) -> JsonMap:
    shown: JsonMap = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        shown["uid"] = user.uid
    if user.extra:
        shown["extra"] = {key: list(values) for key, values in user.extra.items()}
    return shown


def _asked(body: JsonMap) -> RequestInfo:
    asked = map_at(body, "spec", "resourceAttributes")
    path = map_at(body, "spec", "nonResourceAttributes")
    if bool(asked) is bool(path) or items_at(body, "spec", "resourceAttributes"):
        raise bad_request("exactly one of nonResourceAttributes or resourceAttributes must be specified")
    if path:
        return RequestInfo(text_at(path, "verb"), text_at(path, "path"))
    fields = ("verb", "group", "resource", "subresource", "namespace", "name")
    return RequestInfo(**{field: text_at(asked, field) for field in fields})
