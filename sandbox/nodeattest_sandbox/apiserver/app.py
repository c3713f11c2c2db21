"""HTTP on top of the cluster: who asks, may they, and what is the answer; and the audit log.

Promises: authentication, then authorization, then the request; every refusal is a Status; every request is one line of
the audit log, at level Metadata: no body, no token, no certificate. Paths that are no resources are health, version and
discovery; all else is a 404.
Out of scope: TLS and signals (__main__.py).
Source: the handler chain of k8s.io/apiserver/pkg/server/config.go; k8s.io/apiserver/pkg/apis/audit/v1/types.go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO, cast

from aiohttp import web

from nodeattest_sandbox.apiserver import reviews, writes
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, dump, load, map_at, text_at
from nodeattest_sandbox.apiserver.kinds import Kind, Kinds
from nodeattest_sandbox.apiserver.rbac import RequestInfo, read_request
from nodeattest_sandbox.apiserver.reads import (
    Match,
    Pager,
    WatchRequest,
    list_body,
    object_body,
    read_number,
    read_selectors,
    watch_lines,
)
from nodeattest_sandbox.apiserver.status_errors import (
    ApiError,
    bad_request,
    forbidden,
    method_not_allowed,
    unknown_path,
    unsupported_media_type,
)
from nodeattest_sandbox.apiserver.store import Stored
from nodeattest_sandbox.apiserver.users import User
from nodeattest_sandbox.apiserver.writes import Cluster, Write, merge_patch


class AuditLog:
    """Appends to the file, line by line; no file, no log."""

    def __init__(self, path: Path | None, timestamp: Callable[[], str]) -> None:
        self._timestamp = timestamp
        self._file: TextIO | None = path.open("a", encoding="utf-8", buffering=1) if path else None

    def record(self, user: User | None, info: RequestInfo, uri: str, code: int) -> None:
        """Write one line."""
        if self._file is None:
            return
        line: JsonMap = {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "stage": "ResponseComplete",
            "requestURI": uri,
            "verb": info.verb,
            "user": {"username": user.name, "groups": list(user.groups)} if user else {},
            "responseStatus": {"metadata": {}, "code": code},
            "stageTimestamp": self._timestamp(),
        }
        if info.resource:
            line["objectRef"] = {
                "resource": info.resource,
                "namespace": info.namespace,
                "name": info.name,
                "apiGroup": info.group,
                "apiVersion": info.version,
                "subresource": info.subresource,
            }
        self._file.write(dump(line).decode() + "\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


# Virtual resources: (group, plural) to kind. They answer and store nothing.
REVIEWS: Final = {
    ("authentication.k8s.io", "tokenreviews"): "TokenReview",
    ("authentication.k8s.io", "selfsubjectreviews"): "SelfSubjectReview",
    ("authorization.k8s.io", "subjectaccessreviews"): "SubjectAccessReview",
    ("authorization.k8s.io", "selfsubjectaccessreviews"): "SelfSubjectAccessReview",
}
_VERBS: Final = ("create", "delete", "get", "list", "patch", "update", "watch")
_HEALTH: Final = frozenset({"/healthz", "/livez", "/readyz"})
_VERSION: Final[JsonMap] = {"major": "1", "minor": "37", "gitVersion": "v1.37.0+nodeattest.sandbox"}


def answer(kinds: Kinds, path: str) -> tuple[bytes, str]:
    """Return the answer and its content type; raises 404."""
    if path in _HEALTH:
        return b"ok", "text/plain"
    found = _document(kinds, path.strip("/").split("/"))
    if found is None:
        raise unknown_path()
    return dump(found), "application/json"


def _document(kinds: Kinds, parts: list[str]) -> JsonMap | None:  # noqa: PLR0911 - one a path
    match parts:
        case ["version"]:
            return _VERSION
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            names = dict.fromkeys([*(kind.group for kind in kinds if kind.group), *(group for group, _ in REVIEWS)])
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(kinds, name) for name in names]}
        case ["apis", name] if _versions(kinds, name):
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(kinds, name)}
        case ["api", version]:
            return _resources(kinds, "", version)
        case ["apis", name, version] if version in _versions(kinds, name):
            return _resources(kinds, name, version)
        case _:
            return None


def _resources(kinds: Kinds, group: str, version: str) -> JsonMap:
    found: list[JsonValue] = []
    for kind in (kind for kind in kinds if (kind.group, kind.version) == (group, version)):
        for name in (kind.plural, *(f"{kind.plural}/{part}" for part in sorted(kind.subresources))):
            verbs: list[JsonValue] = ["get", "patch", "update"] if "/" in name else [*_VERBS]
            found.append({"name": name, "namespaced": kind.namespaced, "kind": kind.kind, "verbs": verbs})
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": found}


def _versions(kinds: Kinds, name: str) -> list[str]:
    """Return a group's versions, the stored one first."""
    served = sorted((kind for kind in kinds if kind.group == name), key=lambda kind: not kind.storage)
    reviews = ["v1" for group, _ in REVIEWS if group == name]
    return list(dict.fromkeys([*(kind.version for kind in served), *reviews]))


def _group(kinds: Kinds, name: str) -> JsonMap:
    versions: list[JsonValue] = [
        {"groupVersion": f"{name}/{version}", "version": version} for version in _versions(kinds, name)
    ]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


BODY_LIMIT: Final = 3 * 1024 * 1024  # bytes, MaxRequestBodyBytes of k8s.io/apiserver
_WATCH_TIMEOUT: Final = 1800  # seconds, --min-request-timeout of kube-apiserver
_JSON: Final = "application/json"
_MERGE_PATCH: Final = "application/merge-patch+json"


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
    """Answers the requests of one cluster."""

    def __init__(self, cluster: Cluster, audit: AuditLog) -> None:
        self._cluster = cluster
        self._audit = audit
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

    def _authenticate(self, request: web.Request) -> User:
        tls = request.get_extra_info("ssl_object")
        certificate = cast("bytes | None", tls.getpeercert(binary_form=True)) if tls else None
        return self._cluster.authenticator.authenticate(certificate, request.headers.get("Authorization"))

    def _authorize(self, user: User, info: RequestInfo) -> None:
        if not self._cluster.authorizer.allows(user, info):
            raise _forbidden(user, info)

    async def _answer(self, request: web.Request, info: RequestInfo, user: User) -> web.StreamResponse:
        if not info.resource:
            body, content_type = answer(self._cluster.kinds, info.path)
            return web.Response(body=body, content_type=content_type)
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
        write = asked.write(self._cluster)
        before, patch = writes.find(write), _decode(await asked.http.read())
        if asked.http.content_type != _MERGE_PATCH:
            raise unsupported_media_type(_MERGE_PATCH)
        value = map_at(merge_patch(load(object_body(asked.kind, before)), patch))
        return self._one(asked, writes.update(write, value, before))

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

    def _one(self, asked: Asked, stored: Stored, status: int = 200) -> web.Response:
        return web.Response(body=object_body(asked.kind, stored), status=status, content_type=_JSON)

    def _list(self, asked: Asked) -> web.Response:
        page = self._pager.list(asked.kind, asked.info, asked.http.query, _match(asked))
        return web.Response(body=list_body(asked.kind, page), content_type=_JSON)

    async def _watch(self, asked: Asked) -> web.StreamResponse:
        request = self._watch_request(asked)
        response = web.StreamResponse(headers={"Content-Type": _JSON})
        response.enable_chunked_encoding()
        await response.prepare(asked.http)
        try:
            async for line in watch_lines(self._cluster.store, request):
                await response.write(line)
            await response.write_eof()
        except ConnectionResetError:
            pass  # The client has gone; nobody is left to tell.
        return response

    def _watch_request(self, asked: Asked) -> WatchRequest:
        query = asked.http.query
        return WatchRequest(
            kind=asked.kind,
            namespace=asked.info.namespace if asked.kind.namespaced else "",
            name=asked.info.name,
            match=_match(asked),
            version=read_number(query.get("resourceVersion", "")),
            bookmarks=query.get("allowWatchBookmarks") in {"1", "true"},
            timeout=read_number(query.get("timeoutSeconds", "")) or _WATCH_TIMEOUT,
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


def _decode(data: bytes) -> JsonValue:
    try:
        return load(data)
    except (ValueError, RecursionError) as problem:
        raise bad_request(f"the object provided is unrecognized: {type(problem).__name__}") from problem


async def _body(request: web.Request) -> JsonMap:
    if request.content_type not in {_JSON, "application/octet-stream"}:
        raise unsupported_media_type(_JSON)
    value = _decode(await request.read())
    if not isinstance(value, dict):
        raise bad_request("the object provided is unrecognized: not an object")
    return value


async def _options(request: web.Request) -> JsonMap:
    data = await request.read()
    return map_at(_decode(data)) if data and request.content_type == _JSON else {}
