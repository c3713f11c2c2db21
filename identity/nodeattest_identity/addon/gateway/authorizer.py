"""Asks kube-apiserver whether a user may do what the gateway is about to do.

kube-apiserver decided the same a moment ago, by its own reading of the path. Asking again by ours closes every gap
between the two readings, and every way by which a front-proxy certificate reaches the gateway but its requests did not
pass kube-apiserver's authorizer. All aggregated API servers do so (sample-apiserver, delegated authorization).

Promises: a yes is good for ten seconds, a no for two; one question at a time for the same thing; no answer is no.
Source: authorization.k8s.io/v1 SubjectAccessReview; apiserver pkg/authorization/authorizerfactory/delegating.go.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from nodeattest_identity.addon.gateway.api_group import GROUP, RESOURCE, SUBRESOURCE, VERSION
from nodeattest_identity.addon.gateway.errors import StatusError
from nodeattest_identity.addon.gateway.front_proxy import UserInfo
from nodeattest_identity.addon.gateway.target import ServiceTarget
from nodeattest_kube.client import ApiClient, ApiError
from nodeattest_kube.jsontypes import JsonObject, dig

__all__ = ["SubjectAccessAuthorizer", "request_verb"]

_PATH: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_ALLOWED_FOR: Final = 10.0
"""Seconds; kube-apiserver itself decides each request anew, so this only bounds our own second opinion."""
_DENIED_FOR: Final = 2.0
_MOST: Final = 10_000
_VERBS: Final = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
"""requestinfo.go; of every other method kube-apiserver makes the empty verb, which only ``*`` allows."""

_log = logging.getLogger(__name__)

_Question = tuple[UserInfo, str, str, str]


def request_verb(method: str) -> str:
    """Return the verb that kube-apiserver makes of a method."""
    return _VERBS.get(method, "")


class SubjectAccessAuthorizer:
    """Answers by SubjectAccessReview, remembered for a moment."""

    def __init__(self, client: ApiClient, *, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._known: OrderedDict[_Question, tuple[bool, float]] = OrderedDict()
        self._asking: dict[_Question, asyncio.Task[bool]] = {}

    async def require(self, identity: UserInfo, target: ServiceTarget, method: str) -> None:
        """Raise ``StatusError`` unless the user may."""
        question = identity, target.namespace, target.name, request_verb(method)
        if not await self._may(question):
            raise StatusError(
                HTTPStatus.FORBIDDEN,
                f"expected a right to {question[3] or '*'} {RESOURCE}/{SUBRESOURCE} of {GROUP} here, got none",
            )

    async def _may(self, question: _Question) -> bool:
        known = self._known.get(question)
        if known is not None and self._clock() < known[1]:
            return known[0]
        task = self._asking.get(question)
        if task is None:
            task = self._asking[question] = asyncio.get_running_loop().create_task(self._ask(question))
            task.add_done_callback(lambda done: self._asked(question, done))
        return await asyncio.shield(task)  # whoever goes away leaves the question to the others

    def _asked(self, question: _Question, done: asyncio.Task[bool]) -> None:
        """Forget a question that was answered; whoever asked may have gone, so its error is taken note of here."""
        self._asking.pop(question, None)
        if not done.cancelled():
            done.exception()

    async def _ask(self, question: _Question) -> bool:
        try:
            answer = await self._client.create(_PATH, _body(*question))
        except ApiError as error:
            _log.warning("cannot ask what a user may do: %s", error)
            raise StatusError(
                HTTPStatus.SERVICE_UNAVAILABLE, "cannot ask the API server what this user may do", {"Retry-After": "2"}
            ) from None
        allowed = dig(answer, "status", "allowed") is True and dig(answer, "status", "denied") is not True
        self._known[question] = allowed, self._clock() + (_ALLOWED_FOR if allowed else _DENIED_FOR)
        self._known.move_to_end(question)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        return allowed


def _body(identity: UserInfo, namespace: str, name: str, verb: str) -> JsonObject:
    attributes: JsonObject = {
        "group": GROUP,
        "version": VERSION,
        "resource": RESOURCE,
        "subresource": SUBRESOURCE,
        "namespace": namespace,
        "name": name,
        "verb": verb,
    }
    spec: JsonObject = {"user": identity.user, "groups": list(identity.groups), "resourceAttributes": attributes}
    if identity.uid:
        spec["uid"] = identity.uid
    if identity.extra:
        spec["extra"] = {key: list(values) for key, values in identity.extra}
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
