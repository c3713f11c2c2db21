"""HTTP on top of the cluster: who asks, may they, and what is the answer.

Promises: authentication, then authorization, then the request; every refusal is a Status; every request is audited.
Leaves TLS and signals to __main__.py. Source: the handler chain of k8s.io/apiserver/pkg/server/config.go.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import yaml
from aiohttp import web

from nodeattest_sandbox.apiserver import paths, reviews, writes
from nodeattest_sandbox.apiserver.audit import AuditLog
from nodeattest_sandbox.apiserver.cluster import Cluster
from nodeattest_sandbox.apiserver.discovery import REVIEWS
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, dump, load, map_at, text_at
from nodeattest_sandbox.apiserver.kinds import Kind
from nodeattest_sandbox.apiserver.patch import json_patch, merge_patch, strategic_merge_patch
from nodeattest_sandbox.apiserver.rbac import Attributes
from nodeattest_sandbox.apiserver.reads import Pager, list_body, object_body, read_version
from nodeattest_sandbox.apiserver.requestinfo import RequestInfo, read_request
from nodeattest_sandbox.apiserver.selectors import Match, read_selectors
from nodeattest_sandbox.apiserver.status_errors import (
    ApiError,
    bad_request,
    forbidden,
    method_not_allowed,
    unknown_path,
    unsupported_media_type,
)
from nodeattest_sandbox.apiserver.store import Key, Stored
from nodeattest_sandbox.apiserver.tables import table, wants_table
from nodeattest_sandbox.apiserver.users import User
from nodeattest_sandbox.apiserver.watch import WatchRequest, watch_lines
from nodeattest_sandbox.apiserver.writes import Write

__all__ = ["BODY_LIMIT", "ApiServer"]

BODY_LIMIT: Final = 3 * 1024 * 1024  # bytes, MaxRequestBodyBytes of k8s.io/apiserver
_WATCH_TIMEOUT: Final = 1800  # seconds, --min-request-timeout of kube-apiserver
_HANG_POLL: Final = 0.02  # seconds between checks of the hang file
_NO_INITIAL_EVENTS: Final = (
    "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch "
    "unless the WatchList feature gate is enabled"
)
_JSON: Final = "application/json"
_YAML: Final = "application/yaml"
_PATCHES: Final = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One authorized request for a resource."""

    http: web.Request
    info: RequestInfo
    user: User
    kind: Kind

    def write(self, cluster: Cluster) -> Write:
        """Return the request as a write."""
        return Write(cluster, self.kind, self.info, self.user, dry_run=self.http.query.get("dryRun") == "All")


class ApiServer:
    """Answers the requests of one cluster; while ``hang_file`` exists, every request waits."""

    def __init__(self, cluster: Cluster, audit: AuditLog, *, hang_file: Path | None, bookmark_interval: float) -> None:
        self._cluster = cluster
        self._audit = audit
        self._hang_file = hang_file
        self._bookmark_interval = bookmark_interval
        self._pager = Pager(cluster.store)

    def application(self) -> web.Application:
        """Return the server as an aiohttp application."""
        application = web.Application(client_max_size=BODY_LIMIT)
        application.router.add_route("*", "/{path:.*}", self.handle)
        return application

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        info = read_request(request.method, request.path, request.query)
        user: User | None = None
        code = 500
        try:
            await self._hold()
            user = self._authenticate(request)
            self._authorize(user, info)
            response = await self._answer(request, info, user)
            code = response.status
        except ApiError as problem:
            code = problem.code
            response = web.Response(body=dump(problem.status), status=code, content_type=_JSON)
        finally:
            self._audit.record(user, info, request.path_qs, code)
        return response

    async def _hold(self) -> None:
        while self._hang_file is not None and self._hang_file.exists():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(_HANG_POLL)

    def _authenticate(self, request: web.Request) -> User:
        tls = request.get_extra_info("ssl_object")
        certificate = cast("bytes | None", tls.getpeercert(binary_form=True)) if tls else None
        return self._cluster.authenticator.authenticate(certificate, request.headers.get("Authorization"))

    def _authorize(self, user: User, info: RequestInfo) -> None:
        asked = Attributes(
            user, info.verb, info.group, info.resource, info.subresource, info.namespace, info.name, info.path
        )
        if not self._cluster.authorizer.allows(asked):
            raise _forbidden(user, info)

    async def _answer(self, request: web.Request, info: RequestInfo, user: User) -> web.StreamResponse:
        if not info.resource:
            return self._non_resource(request, info)
        if (info.group, info.resource) in REVIEWS:
            return await self._review(request, info, user)
        kind = self._cluster.kinds.get(info.group, info.version, info.resource)
        if kind is None or (info.subresource and info.subresource not in kind.subresources):
            raise unknown_path()
        if info.namespace and not kind.namespaced and kind.plural != "namespaces":
            raise unknown_path()
        if kind.namespaced and not info.namespace and info.verb not in {"list", "watch"}:
            raise method_not_allowed()
        return await self._resource(Asked(request, info, user, kind))

    def _non_resource(self, request: web.Request, info: RequestInfo) -> web.Response:
        if info.path == paths.COMPACT:
            if request.method != "POST":
                raise method_not_allowed()
            self._cluster.store.compact()
            self._pager.forget()
        body, content_type = paths.body(self._cluster.kinds, info.path, request.headers.get("Accept", ""))
        return web.Response(body=body, content_type=content_type)

    async def _review(self, request: web.Request, info: RequestInfo, user: User) -> web.Response:
        if info.verb != "create" or info.version != "v1":
            raise unknown_path()
        kind, api_version = REVIEWS[(info.group, info.resource)], f"{info.group}/{info.version}"
        answer = reviews.review(self._cluster, kind, api_version, await _body(request), user)
        return web.Response(body=dump(answer), status=201, content_type=_JSON)

    async def _resource(self, asked: Asked) -> web.StreamResponse:  # noqa: PLR0911 - one a verb
        match asked.info.verb:
            case "get":
                return self._one(asked, writes.find(asked.write(self._cluster)))
            case "list":
                return self._list(asked)
            case "watch":
                return await self._watch(asked)
            case "create" if not asked.info.name:
                created = writes.create(asked.write(self._cluster), await _body(asked.http))
                return self._one(asked, created, status=201)
            case "update":
                return await self._update(asked)
            case "patch":
                return await self._patch(asked)
            case "delete":
                return await self._delete(asked)
            case "deletecollection":
                return await self._delete_collection(asked)
            case _:
                raise method_not_allowed()

    async def _update(self, asked: Asked) -> web.Response:
        body, write = await _body(asked.http), asked.write(self._cluster)
        try:
            before = writes.find(write)
        except ApiError:
            if not asked.kind.create_on_update or asked.info.subresource:
                raise
            return self._one(asked, writes.create(write, body), status=201)
        return self._one(asked, writes.update(write, body, before))

    async def _patch(self, asked: Asked) -> web.Response:
        content_type = asked.http.content_type
        if content_type not in _PATCHES or (content_type == _PATCHES[2] and asked.kind.custom):
            raise unsupported_media_type(", ".join(_PATCHES))
        patch, write = (
            _decode(await asked.http.read(), _YAML if content_type == _PATCHES[3] else _JSON),
            asked.write(self._cluster),
        )
        try:
            before = writes.find(write)
        except ApiError:
            if content_type != _PATCHES[3] or asked.info.subresource:
                raise
            return self._one(asked, writes.create(write, map_at(patch)), status=201)
        return self._one(asked, writes.update(write, _patched(asked.kind, before, patch, content_type), before))

    async def _delete(self, asked: Asked) -> web.Response:
        options, write = await _options(asked.http), asked.write(self._cluster)
        before = writes.find(write)
        last, gone = writes.delete(write, before, options)
        if not gone or asked.kind.plural == "namespaces":
            return self._one(asked, last)
        details: JsonMap = {"name": asked.info.name, **({"group": asked.kind.group} if asked.kind.group else {}),
                            "kind": asked.kind.plural, "uid": text_at(before.value, "metadata", "uid")}  # fmt: skip
        status: JsonMap = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": details,
        }
        return web.Response(body=dump(status), content_type=_JSON)

    async def _delete_collection(self, asked: Asked) -> web.Response:
        options, write = await _options(asked.http), asked.write(self._cluster)
        page = self._pager.list(asked.kind, asked.info, {}, _match(asked))
        for stored in page.objects:
            if self._cluster.store.get(asked.kind.collection, _key(stored)) is not None:
                writes.delete(write, stored, options)
        return web.Response(body=list_body(asked.kind, page), content_type=_JSON)

    def _one(self, asked: Asked, stored: Stored, status: int = 200) -> web.Response:
        if wants_table(asked.http.headers.get("Accept", "")):
            body = dump(table(asked.kind, [stored], stored.version, self._cluster.now()))
        else:
            body = object_body(asked.kind, stored)
        return web.Response(body=body, status=status, content_type=_JSON)

    def _list(self, asked: Asked) -> web.Response:
        page = self._pager.list(asked.kind, asked.info, asked.http.query, _match(asked))
        if wants_table(asked.http.headers.get("Accept", "")):
            shown = table(asked.kind, page.objects, page.version, self._cluster.now())
            if page.next_token:
                shown["metadata"] = {"resourceVersion": str(page.version), "continue": page.next_token}
            return web.Response(body=dump(shown), content_type=_JSON)
        return web.Response(body=list_body(asked.kind, page), content_type=_JSON)

    async def _watch(self, asked: Asked) -> web.StreamResponse:
        request = self._watch_request(asked)
        response = web.StreamResponse(headers={"Content-Type": _JSON})
        response.enable_chunked_encoding()
        await response.prepare(asked.http)
        try:
            async for line in watch_lines(self._cluster.store, request):
                await self._hold()
                await response.write(line)
            await response.write_eof()
        except ConnectionResetError:
            pass  # The client has gone; nobody is left to tell.
        return response

    def _watch_request(self, asked: Asked) -> WatchRequest:
        query = asked.http.query
        if "sendInitialEvents" in query:
            raise ApiError(422, "Invalid", _NO_INITIAL_EVENTS)
        seconds = query.get("timeoutSeconds", "")
        if seconds and not seconds.isdigit():
            raise bad_request(f'strconv.ParseInt: parsing "{seconds}": invalid syntax')

        def render(stored: Stored) -> bytes:
            return dump(table(asked.kind, [stored], stored.version, self._cluster.now()))

        return WatchRequest(
            kind=asked.kind,
            namespace=asked.info.namespace if asked.kind.namespaced else "",
            name=asked.info.name,
            match=_match(asked),
            version=read_version(query.get("resourceVersion", "")),
            bookmarks=query.get("allowWatchBookmarks") in {"1", "true"},
            timeout=int(seconds) if seconds and int(seconds) else _WATCH_TIMEOUT,
            bookmark_interval=self._bookmark_interval,
            render=render if wants_table(asked.http.headers.get("Accept", "")) else None,
        )


def _forbidden(user: User, info: RequestInfo) -> ApiError:
    if not info.resource:
        return forbidden("", "", "", f'User "{user.name}" cannot {info.verb} path "{info.path}"')
    scope = f'in the namespace "{info.namespace}"' if info.namespace else "at the cluster scope"
    why = f'User "{user.name}" cannot {info.verb} resource "{info.full_resource}" in API group "{info.group}" {scope}'
    return forbidden(info.group, info.resource, info.name, why)


def _match(asked: Asked) -> Match | None:
    query = asked.http.query
    return read_selectors(asked.kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))


def _patched(kind: Kind, before: Stored, patch: JsonValue, content_type: str) -> JsonMap:
    value = map_at(load(object_body(kind, before)))
    if content_type == _PATCHES[0]:
        return json_patch(value, patch)
    if not isinstance(patch, dict):
        raise bad_request("error decoding patch: not an object")
    if content_type == _PATCHES[2]:
        return strategic_merge_patch(kind.kind, value, patch)
    return map_at(merge_patch(value, patch))


def _decode(data: bytes, content_type: str) -> JsonValue:
    try:
        return cast("JsonValue", yaml.safe_load(data)) if content_type == _YAML else load(data)
    except (ValueError, yaml.YAMLError, RecursionError) as problem:
        raise bad_request(f"the object provided is unrecognized: {type(problem).__name__}") from problem


async def _body(request: web.Request) -> JsonMap:
    content_type = _JSON if request.content_type == "application/octet-stream" else request.content_type
    if content_type not in {_JSON, _YAML}:
        raise unsupported_media_type(f"{_JSON}, {_YAML}")
    value = _decode(await request.read(), content_type)
    if not isinstance(value, dict):
        raise bad_request("the object provided is unrecognized: not an object")
    return value


async def _options(request: web.Request) -> JsonMap:
    data = await request.read()
    return map_at(_decode(data, _JSON)) if data and request.content_type == _JSON else {}


def _key(stored: Stored) -> Key:
    return Key(text_at(stored.value, "metadata", "namespace"), text_at(stored.value, "metadata", "name"))
