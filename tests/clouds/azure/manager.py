"""The authority that gives tokens, and the Resource Manager that takes them, at one port over TLS.

Promises: a token is given for a federated one of the sandbox's own cluster only, and for the Resource Manager; each of
the Manager's answers needs such a token in force. Lists come in pages. Faults are switched on by ``State.switches``.
Source: Microsoft identity platform, "OAuth 2.0 client credentials flow"; Azure REST API.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qs, urlsplit

from clouds.azure.state import SandboxMachine, State
from clouds.serving import Reply, Request

AUDIENCE: Final = "https://management.azure.com"
_LIFE: Final = 3600
"""Seconds of a token."""
_HUGE: Final = 9 * 1024 * 1024
_UNITS: Final = {
    "virtualMachines": (re.compile(r"Microsoft\.Compute/(?:virtualMachineScaleSets/(?P<set>[^/]+)/)?virtualMachines")),
    "networkInterfaces": (
        re.compile(
            r"(?:Microsoft\.Network/|Microsoft\.Compute/virtualMachineScaleSets/(?P<set>[^/]+)/)networkInterfaces"
        )
    ),
}
_LIST: Final = re.compile(
    r"/subscriptions/(?P<subscription>[^/]+)/resourceGroups/(?P<group>[^/]+)/providers/(?P<unit>.+)"
)


@dataclass
class Directory:
    """A tenant: its one client, and the tokens that it gave."""

    tenant: str
    client: str
    federated: str
    """What a cluster projects into the client's pod."""
    tokens: set[str] = field(default_factory=set[str])

    def token_for(self, form: dict[str, str]) -> dict[str, object] | None:
        """Exchange a token; None for anybody but the one client."""
        right = {"grant_type": "client_credentials", "client_id": self.client, "client_assertion": self.federated}
        if any(form.get(name) != value for name, value in right.items()) or form.get("scope") != f"{AUDIENCE}/.default":
            return None
        return {"token_type": "Bearer", "expires_in": _LIFE, "access_token": self._token()}

    def managed_token(self, resource: str) -> dict[str, object] | None:
        """Give a token of a machine's managed identity; None for another resource than the Resource Manager."""
        if resource != AUDIENCE:
            return None
        times = {"expires_in": str(_LIFE), "expires_on": str(int(time.time()) + _LIFE)}
        return {"token_type": "Bearer", "resource": resource, "access_token": self._token(), **times}

    def _token(self) -> str:
        self.tokens.add(secrets.token_urlsafe())
        return max(self.tokens)

    def admits(self, authorization: str) -> bool:
        """Return whether a header bears a token of ours."""
        return authorization.removeprefix("Bearer ") in self.tokens


def answer_manager(state: State, directory: Directory, request: Request) -> Reply:
    """Answer the authority's and the Resource Manager's requests."""
    state.calls.append(request.target)
    if request.method == "POST":
        form = {name: values[-1] for name, values in parse_qs(request.body.decode()).items()}
        token = directory.token_for(form) if request.target == f"/{directory.tenant}/oauth2/v2.0/token" else None
        refused: dict[str, object] = {"error": "invalid_client", "error_description": "AADSTS70021"}
        status, answer, headers = HTTPStatus.OK if token else HTTPStatus.UNAUTHORIZED, token or refused, {}
    else:
        own = f"https://{request.headers['host']}"
        status, answer, headers = _answer(
            state, directory, request.target, request.headers.get("authorization", ""), own
        )
    body = json.dumps(answer).encode() + (b" " * _HUGE if state.switches.huge else b"")
    headers = {"Content-Type": "application/json", **headers}
    return Reply(status, body, headers)


def _answer(
    state: State, directory: Directory, target: str, authorization: str, own: str
) -> tuple[HTTPStatus, dict[str, object], dict[str, str]]:
    """Answer a request, or fail as the switches say."""
    switches = state.switches
    if switches.redirect:
        return HTTPStatus.FOUND, {}, {"Location": switches.redirect}
    if switches.down:
        return HTTPStatus.SERVICE_UNAVAILABLE, {"error": {"code": "ServerTimeout"}}, {}
    if switches.throttled:
        headers = {"Retry-After": str(switches.throttled)}
        return HTTPStatus.TOO_MANY_REQUESTS, {"error": {"code": "TooManyRequests"}}, headers
    if not directory.admits(authorization):
        return HTTPStatus.UNAUTHORIZED, {"error": {"code": "AuthenticationFailed"}}, {}
    if switches.forbidden:
        return HTTPStatus.FORBIDDEN, {"error": {"code": "AuthorizationFailed"}}, {}
    status, answer = _list(state, target, own)
    return status, answer, {}


def _list(state: State, target: str, own: str) -> tuple[HTTPStatus, dict[str, object]]:
    """Answer a list, one page of it."""
    parts = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    match = _LIST.fullmatch(parts.path)
    if match is None or "api-version" not in query:
        return HTTPStatus.BAD_REQUEST, {"error": {"code": "InvalidRequest"}}
    in_group = [one for one in state.machines if _is_in(one, match["subscription"], match["group"])]
    if not in_group:
        return HTTPStatus.NOT_FOUND, {"error": {"code": "ResourceGroupNotFound"}}
    unit = next(((name, found) for name, form in _UNITS.items() if (found := form.fullmatch(match["unit"]))), None)
    if unit is None:
        return HTTPStatus.NOT_FOUND, {"error": {"code": "InvalidResourceType"}}
    scale_set = (unit[1]["set"] or "").lower()
    machines = [one for one in in_group if one.exists and (one.scale_set or "").lower() == scale_set]
    values = [one.in_list() if unit[0] == "virtualMachines" else one.interface() for one in machines]
    start, size = int(query.get("$skiptoken", "0")), state.switches.page
    answer: dict[str, object] = {"value": values[start : start + size]}
    if start + size < len(values):
        more = f"{parts.path}?api-version={query['api-version']}&$skiptoken={start + size}"
        answer["nextLink"] = (state.switches.elsewhere or own) + more
    return HTTPStatus.OK, answer


def _is_in(machine: SandboxMachine, subscription: str, group: str) -> bool:
    return machine.subscription == subscription.lower() and machine.group.lower() == group.lower()
