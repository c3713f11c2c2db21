"""Asks kube-apiserver whether a user may make this request.

kube-apiserver decided the same a moment ago, by its own reading of the path. The second review, by our reading, closes
every gap between the two readings, and every way by which a front-proxy certificate reaches the gateway without
kube-apiserver's authorizer. All aggregated API servers do so (sample-apiserver, delegated authorization).

Promises: an allow is cached for ten seconds, a denial for two; one review at a time for the same question; without an
answer nobody is allowed.
Source: authorization.k8s.io/v1 SubjectAccessReview; apiserver pkg/authorization/authorizerfactory/delegating.go.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from nodeattest_identity.addon.expiring_cache import ExpiringCache
from nodeattest_identity.addon.gateway.errors import StatusError
from nodeattest_identity.addon.gateway.front_proxy import UserInfo
from nodeattest_identity.addon.gateway.target import GROUP, RESOURCE, SUBRESOURCE, VERSION, ServiceTarget
from nodeattest_kube.access_review import ResourceAttributes, ReviewedUser, is_access_allowed
from nodeattest_kube.client import ApiClient, ApiError
from nodeattest_providers.single_flight import SingleFlight

__all__ = ["SubjectAccessAuthorizer", "request_verb"]

_ALLOWED_SECONDS: Final = 10.0
"""Seconds; kube-apiserver itself decides each request anew, so this only bounds the second review."""
_DENIED_SECONDS: Final = 2.0
_MAX_CACHED: Final = 10_000
_VERBS: Final = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
"""requestinfo.go. Every other method becomes the empty verb, which only ``*`` allows."""

_log = logging.getLogger(__name__)

_Question = tuple[UserInfo, str, str, str]


def request_verb(method: str) -> str:
    """Return kube-apiserver's verb for a method."""
    return _VERBS.get(method, "")


class SubjectAccessAuthorizer:
    """Authorizes by SubjectAccessReview; answers are cached for seconds."""

    def __init__(self, client: ApiClient, *, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._cache: ExpiringCache[_Question, bool] = ExpiringCache(_MAX_CACHED, clock)
        self._in_flight: SingleFlight[_Question, bool] = SingleFlight()

    async def authorize(self, user: UserInfo, target: ServiceTarget, method: str) -> None:
        """Raise ``StatusError`` unless the user is allowed."""
        question = user, target.namespace, target.name, request_verb(method)
        allowed = self._cache.get(question)
        if allowed is None:
            allowed = await self._in_flight.share(question, lambda: self._review(question))
        if not allowed:
            raise StatusError(
                HTTPStatus.FORBIDDEN,
                f"expected a right to {question[3] or '*'} {RESOURCE}/{SUBRESOURCE} of {GROUP} here, got none",
            )

    async def _review(self, question: _Question) -> bool:
        user, namespace, name, verb = question
        who = ReviewedUser(name=user.user, groups=user.groups, uid=user.uid, extra=dict(user.extra))
        try:
            allowed = await is_access_allowed(self._client, _attributes(namespace, name, verb), who)
        except ApiError as error:
            _log.warning("cannot create a SubjectAccessReview: %s", error)
            raise StatusError(
                HTTPStatus.SERVICE_UNAVAILABLE, "cannot ask the API server what this user may do", {"Retry-After": "2"}
            ) from None
        self._cache.put(question, allowed, self._clock() + (_ALLOWED_SECONDS if allowed else _DENIED_SECONDS))
        return allowed


def _attributes(namespace: str, name: str, verb: str) -> ResourceAttributes:
    return ResourceAttributes(
        group=GROUP,
        version=VERSION,
        resource=RESOURCE,
        subresource=SUBRESOURCE,
        namespace=namespace,
        name=name,
        verb=verb,
    )
