"""Asks an API server whether somebody may do something: SubjectAccessReview, and for oneself SelfSubjectAccessReview.

Only a plain ``allowed`` is a yes. Raises ``ApiError`` if there is no answer.
Source: kubernetes staging/src/k8s.io/api/authorization/v1/types.go (ResourceAttributes, SubjectAccessReviewStatus).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_parsing.objects import dig
from nodeattest_parsing.values import JsonObject

_API: Final = ("authorization.k8s.io", "v1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceAttributes:
    """What is to be done; what is empty is not asked for."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    version: str = ""
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewedUser:
    """Who is to do it."""

    name: str
    groups: Sequence[str]
    uid: str = ""
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])


async def is_access_allowed(client: ApiClient, asked: ResourceAttributes, user: ReviewedUser | None = None) -> bool:
    """Ask for a user, None: for the client's own."""
    needed = {"verb", "group", "resource"}
    attributes: JsonObject = {name: value for name, value in asdict(asked).items() if value or name in needed}
    spec: JsonObject = {"resourceAttributes": attributes}
    if user is None:
        return await review_access(client, spec, kind="SelfSubjectAccessReview")
    spec |= {"user": user.name, "groups": [*user.groups]}
    if user.uid:
        spec["uid"] = user.uid
    if user.extra:
        spec["extra"] = {key: [*values] for key, values in user.extra.items()}
    return await review_access(client, spec)


async def review_access(client: ApiClient, spec: JsonObject, *, kind: str = "SubjectAccessReview") -> bool:
    """Ask by a review's whole ``spec``."""
    body: JsonObject = {"apiVersion": "/".join(_API), "kind": kind, "spec": spec}
    answer = await client.create(paths.collection_path(*_API, f"{kind.lower()}s"), body)
    return dig(answer, "status", "allowed") is True and dig(answer, "status", "denied") is not True
