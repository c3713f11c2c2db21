"""Reviews: questions about users and permissions, answered and not stored.

Promises: TokenReview, SelfSubjectReview, SubjectAccessReview and SelfSubjectAccessReview answer from the same
authenticator and authorizer that requests go through. Source: pkg/registry/{authentication,authorization}.
"""

from __future__ import annotations

from nodeattest_sandbox.apiserver.cluster import Cluster
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, items_at, map_at, text_at, texts_at
from nodeattest_sandbox.apiserver.problems import bad_request
from nodeattest_sandbox.apiserver.rbac import Attributes
from nodeattest_sandbox.apiserver.users import User

__all__ = ["review"]


def review(cluster: Cluster, resource: str, body: JsonMap, user: User) -> JsonMap:
    """Return the review with its status filled."""
    answer: JsonMap = {**body, "metadata": {"creationTimestamp": None}}
    match resource:
        case "tokenreviews":
            found = cluster.authenticator.by_token(text_at(body, "spec", "token"))
            answer["status"] = {"authenticated": True, "user": _user(found)} if found else {"user": {}}
        case "selfsubjectreviews":
            answer["status"] = {"userInfo": _user(user)}
        case "selfsubjectaccessreviews":
            answer["status"] = {"allowed": cluster.authorizer.allows(_attributes(user, body))}
        case _:
            name, groups = text_at(body, "spec", "user"), texts_at(body, "spec", "groups")
            if not name and not groups:
                raise bad_request('spec.user: Invalid value: "": at least one of user or group must be specified')
            answer["status"] = {"allowed": cluster.authorizer.allows(_attributes(User(name, tuple(groups)), body))}
    return answer


def _user(user: User) -> JsonMap:
    shown: JsonMap = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        shown["uid"] = user.uid
    if user.extra:
        shown["extra"] = {key: list(values) for key, values in user.extra.items()}
    return shown


def _attributes(user: User, body: JsonMap) -> Attributes:
    asked = map_at(body, "spec", "resourceAttributes")
    path = map_at(body, "spec", "nonResourceAttributes")
    if bool(asked) is bool(path) or items_at(body, "spec", "resourceAttributes"):
        raise bad_request("exactly one of nonResourceAttributes or resourceAttributes must be specified")
    if path:
        return Attributes(user, text_at(path, "verb"), path=text_at(path, "path"))
    return Attributes(
        user,
        text_at(asked, "verb"),
        text_at(asked, "group"),
        text_at(asked, "resource"),
        text_at(asked, "subresource"),
        text_at(asked, "namespace"),
        text_at(asked, "name"),
    )
