"""A dashboard that knows who looks at it: ``python dashboard.py [PORT] [ALLOWED.json]``, standard library only.

Promises: it holds nobody's credentials, and shows each caller the workloads of the namespaces that the list allows to
this caller or to one of the caller's groups. It believes ``X-Authenticated-User`` because it listens on 127.0.0.1 and
nothing but the sidecar in its pod reaches that; with none, or with two, it answers nobody.
The page is one document of relative links, so that it works below any path, and runs no script but its own.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

ADDRESS = "127.0.0.1"  # never another: the header would be anybody's to write
TICK = 1.0  # seconds between two looks of the live view
LONGEST = 3600  # looks of one live view; the sidecar ends it earlier, when the caller's token ends
STYLE = "body{font:16px sans-serif;margin:3em auto;max-width:42em}td,th{padding:.3em 1em;text-align:left}b{color:#06c}"
SCRIPT = """
const show = (id, text) => { document.getElementById(id).textContent = text };
const view = () => show("view", location.hash.slice(1) || "/");
addEventListener("hashchange", view);
view();
const live = new EventSource("events" + location.search);
live.onerror = () => show("state", "waiting for the dashboard …");
live.onmessage = event => {
  const told = JSON.parse(event.data);
  show("state", "live");
  show("user", told.user);
  show("groups", told.groups.join(", ") || "none");
  show("allowed", told.namespaces.join(", ") || "no namespace");
  show("seconds", told.seconds);
  document.getElementById("workloads").replaceChildren(...told.workloads.map(columns => {
    const row = document.createElement("tr");
    row.append(...columns.map(text => Object.assign(document.createElement("td"), {textContent: text})));
    return row;
  }));
};
"""
PAGE = f"""<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Dashboard</title><style>{STYLE}</style>
</head><body><h1>Dashboard</h1><p>You are <b id="user">…</b>, in the groups <span id="groups">…</span>.</p>
<p>View <code id="view"></code>, of what you may see: <span id="allowed">…</span>.</p>
<table><thead><tr><th>Namespace</th><th>Workload</th><th>Ready</th></tr></thead><tbody id="workloads"></tbody></table>
<p><small><span id="state">connecting …</span>; up for <span id="seconds">…</span> s</small></p>
<script>{SCRIPT}</script></body></html>
"""
WORKLOADS = (("kube-system", "coredns", "2/2"), ("payments", "ledger", "3/3"), ("shop", "cart", "1/2"))


def content_hash(text: str) -> str:
    """Name inline content for a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; script-src {content_hash(SCRIPT)}; "
    f"style-src {content_hash(STYLE)}; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",  # what one caller may see is in no cache for the next
}


@dataclass(frozen=True)
class Caller:
    """Who asks, as the sidecar says."""

    user: str
    groups: Sequence[str]

    def namespaces(self, allowed: Mapping[str, Sequence[str]]) -> list[str]:
        """Name what this caller may see: the dashboard's own authorization, apart from who the caller is."""
        names = [f"user:{self.user}", *(f"group:{group}" for group in self.groups)]
        return sorted({namespace for name in names for namespace in allowed.get(name, ())})


class Dashboard(BaseHTTPRequestHandler):
    """One caller's connection."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "dashboard", ""
    timeout = 30
    allowed: ClassVar[Mapping[str, Sequence[str]]] = {}

    def do_GET(self) -> None:
        """Answer one request."""
        caller, path = self._caller(), self.path.partition("?")[0]
        if caller is None:
            self._answer(HTTPStatus.UNAUTHORIZED, "text/plain", "nobody has said who you are: come by the sidecar\n")
        elif path == "/":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", PAGE)
        elif path == "/events":
            self._live(caller)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "expected / or /events\n")

    def _caller(self) -> Caller | None:
        users = self.headers.get_all("X-Authenticated-User", [])
        if len(users) != 1 or not users[0]:
            return None
        return Caller(users[0], self.headers.get_all("X-Authenticated-Groups", []))

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self._head(status, {"Content-Type": kind, "Content-Length": str(len(body))})
        self.wfile.write(body)

    def _live(self, caller: Caller) -> None:
        """Tell what the caller may see, again and again, until the connection ends."""
        self.close_connection = True
        self._head(HTTPStatus.OK, {"Content-Type": "text/event-stream", "Connection": "close"})
        namespaces, start = caller.namespaces(self.allowed), time.monotonic()
        rows = [row for row in WORKLOADS if row[0] in namespaces]
        told = {"user": caller.user, "groups": caller.groups, "namespaces": namespaces, "workloads": rows}
        with contextlib.suppress(OSError):  # the caller went away
            for _ in range(LONGEST):
                event = json.dumps(told | {"seconds": int(time.monotonic() - start)})
                self.wfile.write(f"data: {event}\n\n".encode())
                time.sleep(TICK)

    def _head(self, status: HTTPStatus, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log no request: the sidecar does, without query values."""


def main() -> None:
    """Serve until the process is ended."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8080
    if len(sys.argv) > 2:  # noqa: PLR2004 - the second argument
        Dashboard.allowed = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    ThreadingHTTPServer((ADDRESS, port), Dashboard).serve_forever()


if __name__ == "__main__":
    main()
