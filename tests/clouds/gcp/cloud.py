"""The whole sandbox cloud: projects with instances, who may read them, and switches for what goes wrong in clouds.

Promises: the Compute API answers only to tokens that its token endpoint or a metadata server issued, of accounts that
may read the project; every call is written down. It ends with ``stop``, and with its process at the latest.
Source: Compute Engine API v1; Google, "Compute Engine API: errors" (form of refusals).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Self

from clouds.gcp.instances import CloudInstance, filtered, masked
from clouds.gcp.metadata import answer_metadata
from clouds.gcp.oauth import TokenServer
from clouds.serving import Reply, Request, Serving, as_json
from nodeattest_sandbox.child_process import LOOPBACK
from nodeattest_sandbox.pki import server_tls

_INSTANCES: Final = re.compile(
    r"/compute/v1/projects/(?P<project>[^/]+)/zones/(?P<zone>[^/]+)/instances"
    r"(?:/(?P<name>[^/]+)(?P<identity>/getShieldedInstanceIdentity)?)?"
)
_TOKEN: Final = "/token"
_MOST: Final = 500


@dataclass(slots=True)
class CloudSwitches:
    """Projects whose Compute API misbehaves, by how."""

    down: set[str] = field(default_factory=set[str])
    """The connection is cut."""
    failing: set[str] = field(default_factory=set[str])
    """HTTP status 503."""
    throttled: set[str] = field(default_factory=set[str])
    """HTTP status 429, with Retry-After."""
    garbled: set[str] = field(default_factory=set[str])
    """Answers that are no JSON."""
    redirecting: dict[str, str] = field(default_factory=dict[str, str])
    """Project to another place where the answer is said to be."""
    swapping: dict[str, CloudInstance] = field(default_factory=dict[str, CloudInstance])
    """Project to the instance that is answered whichever is asked for."""


class GoogleCloud:
    """A running cloud."""

    def __init__(self, directory: Path) -> None:
        self.switches = CloudSwitches()
        self.instances: list[CloudInstance] = []
        self.readers: dict[str, set[str]] = {}
        """Which service accounts may read a project's instances."""
        self.calls: list[str] = []
        """Every request to the Compute API that had a token: its path, and how many names its filter has."""
        self.tokens = TokenServer()
        self._directory = directory
        self._lock = threading.Lock()
        self.ca_file, context = server_tls(directory, "google-cloud")
        self._serving = Serving(self._answer, context)
        self._metadata: dict[str, Serving] = {}
        self.tokens.url = f"{self.endpoint}{_TOKEN}"

    @property
    def endpoint(self) -> str:
        """The Compute API's."""
        return f"https://{LOOPBACK}:{self._serving.port}"

    def account(self, email: str, *, project: str, reads: tuple[str, ...]) -> Path:
        """Make a service account that may read projects; return the file with its key."""
        for one in reads:
            self.readers.setdefault(one, set()).add(email)
        path = self._directory / f"{email.partition('@')[0]}.json"
        path.touch(mode=0o600)
        path.write_text(self.tokens.account_key(email, project), encoding="ascii")
        return path

    def add(self, instance: CloudInstance) -> CloudInstance:
        """Create an instance; one of the same name in the same zone is deleted."""
        with self._lock:
            self.instances = [one for one in self.instances if one.provider_id != instance.provider_id]
            self.instances.append(instance)
        return instance

    def metadata_endpoint(self, instance: CloudInstance) -> str:
        """Start an instance's metadata server, if it has none yet, and tell where it is."""
        with self._lock:
            serving = self._metadata.get(instance.number)
            if serving is None:
                serving = Serving(partial(answer_metadata, instance, self.tokens))
                self._metadata[instance.number] = serving
        return f"http://{LOOPBACK}:{serving.port}"

    def stop(self) -> None:
        """End every server."""
        for serving in (self._serving, *self._metadata.values()):
            serving.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answer(self, request: Request) -> Reply:
        if request.path == _TOKEN:
            return self.tokens.answer(request)
        holder = self.tokens.holder(request.headers.get("authorization", ""))
        match = _INSTANCES.fullmatch(request.path)
        if holder is None:
            return _error(401, "Request had invalid authentication credentials.", "authError")
        if match is None or request.method != "GET":
            return _error(404, "Not found", "notFound")
        return self._permitted(request, match, holder)

    def _permitted(self, request: Request, match: re.Match[str], holder: str) -> Reply:
        expression = request.parameters.get("filter", "")
        self.calls.append(f"{request.path} {expression.count('name =')}".removesuffix(" 0"))
        project = match["project"]
        if (trouble := self._trouble(project)) is not None:
            return trouble
        if holder not in self.readers.get(project, set()):
            return _error(403, "Required 'compute.instances.list' permission", "forbidden")
        if match["name"] is None:
            return self._list(project, match["zone"], request)
        return self._get(project, match["zone"], match["name"], identity=bool(match["identity"]))

    def _trouble(self, project: str) -> Reply | None:
        """Misbehave as switched."""
        switches = self.switches
        replies: tuple[tuple[bool, Callable[[], Reply]], ...] = (
            (project in switches.down, lambda: Reply(0)),
            (project in switches.failing, lambda: _error(503, "Backend error", "backendError")),
            (project in switches.throttled, _throttled),
            (project in switches.garbled, lambda: Reply(200, b"<html>")),
            (project in switches.redirecting, lambda: Reply(302, b"", {"Location": switches.redirecting[project]})),
        )
        return next((make() for applies, make in replies if applies), None)

    def _list(self, project: str, zone: str, request: Request) -> Reply:
        try:
            names = filtered(request.parameters.get("filter", ""))
            start = int(request.parameters.get("pageToken", "0"))
            size = min(int(request.parameters.get("maxResults", _MOST)), _MOST)
        except ValueError:
            return _error(400, "Invalid value for field", "invalid")
        with self._lock:
            here = [one for one in self.instances if (one.project, one.zone) == (project, zone)]
        found = [one.resource() for one in here if names is None or one.name in names]
        if project in self.switches.swapping:
            found = [self.switches.swapping[project].resource()]
        answer: dict[str, object] = {"kind": "compute#instanceList", "items": found[start : start + size]}
        if start + size < len(found):
            answer["nextPageToken"] = str(start + size)
        return as_json(masked(answer, request.parameters.get("fields", "")))

    def _get(self, project: str, zone: str, name: str, *, identity: bool) -> Reply:
        with self._lock:
            here = [one for one in self.instances if (one.project, one.zone) == (project, zone)]
        found = next((one for one in here if name in {one.name, one.number}), None)
        if found is None:
            return _error(404, f"The resource 'instances/{name}' was not found", "notFound")
        if identity and not found.vtpm:
            return _error(400, "The instance has no vTPM", "invalid")
        return as_json(found.identity() if identity else found.resource())


def _throttled() -> Reply:
    reply = _error(429, "Quota exceeded for quota metric 'Read requests'", "rateLimitExceeded")
    return Reply(reply.status, reply.body, {**reply.headers, "Retry-After": "7"})


def _error(code: int, message: str, reason: str) -> Reply:
    errors = [{"message": message, "domain": "global", "reason": reason}]
    return as_json({"error": {"code": code, "message": message, "errors": errors}}, code)
