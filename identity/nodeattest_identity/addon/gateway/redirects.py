"""Replaces the redirects of an add-on, for which kube-apiserver answers 502 (CVE-2022-3172). Pure.

A browser gets a page that leads on by a relative reference, but only below the add-on's own path. The reference goes up
to the root, because kube-apiserver decodes paths: a browser may be less deep than the gateway sees. Everybody else gets
an error that says where to ask. A ``Location`` of another status becomes relative, too.
Source: apimachinery pkg/util/proxy/upgradeaware.go (RejectForwardingRedirects) and transport.go (rewriteURL); RFC 3986
§5.2, RFC 9110 §15.4; URL Standard (WHATWG) for encoded dots and backslashes; HTML Standard, "Refresh".
"""

from __future__ import annotations

import html
import re
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from aiohttp import hdrs, web

from nodeattest_identity.proxy.refusals import RefusalError
from nodeattest_identity.proxy.request import RequestTarget

_SPLIT: Final = re.compile(r"(?:([^:/?#]+):)?(?://([^/?#]*))?([^?#]*)(\?[^#]*)?(#.*)?", re.DOTALL)
"""Scheme, authority, path, query, fragment (RFC 3986 appendix B)."""
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f\\]")
"""Browsers remove some control characters, and take a backslash for a slash."""
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_KEPT: Final = "%/:@!$&()*+,;=~-._?#"
"""Characters that are not percent-encoded, letters and digits aside; no quotes and no angle brackets."""
_REDIRECTS: Final = range(300, 400)
_CHANGES_POST: Final = frozenset({300, 301, 302})
"""Clients repeat a POST as GET after these, and any method after 303; 307 and 308 keep it (RFC 9110 §15.4)."""
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_HTML: Final = re.compile(r"\s*(?:text/html|application/xhtml\+xml)\s*(?:;|$)", re.IGNORECASE)
_PAGE: Final = (
    '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Redirect</title>'
    '<meta http-equiv="refresh" content="0; url={0}"></head><body><p><a href="{0}">Continue</a></p></body></html>\n'
)
_HEADERS: Final = {
    hdrs.CACHE_CONTROL: "no-store",
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    hdrs.SERVER: "nodeattest",
}


def own_reference(location: str, *, target: RequestTarget, root: str, host: str) -> str | None:
    """Return a relative reference to the place of a ``Location``; None if that is not the add-on's own.

    ``target`` is the request that was sent to the add-on at ``host``, ``root`` the path that it was below. The
    reference begins with ``../`` and stays below ``root``: a way up ends there, as on a server of its own.
    """
    found = _SPLIT.fullmatch(location)
    if found is None or _FORBIDDEN.search(location) is not None:
        return None
    scheme, authority, path, query, fragment = found.groups()
    if scheme is not None and (scheme.lower() not in _DEFAULT_PORTS or authority is None):
        return None
    if authority is not None and not _is_host(authority, (scheme or "").lower(), host):
        return None
    if not path and authority is None:
        path, query = target.path, query or (f"?{target.query}" if target.query else "")
    elif not path.startswith("/"):
        path = "/" if authority is not None else target.path.rpartition("/")[0] + "/" + path
    return _reference(root + target.path, f"{root}{_without_dots(path)}{query or ''}{fragment or ''}")


def _reference(asked: str, place: str) -> str:
    """Refer from one path to another by way of the root, at which browsers stop however often they go up."""
    return quote("../" * (asked.count("/") - 1) + place[1:], safe=_KEPT)


def replace_redirect(
    sent: web.StreamResponse, *, request: web.BaseRequest, target: RequestTarget, root: str
) -> web.StreamResponse:
    """Return the response to send in place of an add-on's: itself, if it is no redirect."""
    locations = [each for each in sent.headers.popall(hdrs.LOCATION, []) if each]
    if not locations or sent.status == HTTPStatus.NOT_MODIFIED:
        return sent
    is_redirect = sent.status in _REDIRECTS
    reference = None
    if len(locations) == 1:
        reference = own_reference(locations[0], target=target, root=root, host=request.headers.get(hdrs.HOST, ""))
        if not is_redirect:
            sent.headers[hdrs.LOCATION] = reference or locations[0]
    if not is_redirect:
        return sent
    made = _instead(request, sent.status, reference)
    for cookie in sent.headers.getall(hdrs.SET_COOKIE, []):
        made.headers.add(hdrs.SET_COOKIE, cookie)
    return made


def to_slash(request: web.BaseRequest, *, root: str) -> web.Response:
    """Lead from ``…/proxy`` to ``…/proxy/``: the links of a page are relative to it."""
    query = request.raw_path.partition("?")[2]
    reference = _reference(root, f"{root}/?{query}" if query else f"{root}/")
    return _instead(request, HTTPStatus.PERMANENT_REDIRECT, reference)


def _instead(request: web.BaseRequest, status: int, reference: str | None) -> web.Response:
    """Make the page or the error in place of a redirect; ``reference``: None for a place that is not the add-on's."""
    method = request.method
    with_get = method in _SAFE_METHODS or status == HTTPStatus.SEE_OTHER
    with_get = with_get or (method == "POST" and status in _CHANGES_POST)
    if reference is not None and with_get and _accepts_html(request):
        page = _PAGE.format(html.escape(reference))
        return web.Response(text=page, content_type="text/html", charset="utf-8", headers=_HEADERS)
    if reference is None:
        remedy = "to a place that is not the add-on's own: let the add-on link to it in a page"
    elif with_get:
        remedy = f"ask for {reference}, relative to this path, or accept text/html"
    else:
        remedy = f"send the {method} to {reference}, relative to this path"
    made = HTTPStatus.NOT_ACCEPTABLE if reference is not None and with_get else HTTPStatus.NOT_FOUND
    message = f"expected an answer, got a redirect ({status}), which kube-apiserver does not pass on: {remedy}"
    body = RefusalError(made, message).reply().body
    return web.Response(status=made, body=body, content_type="application/json", headers=_HEADERS)


def _accepts_html(request: web.BaseRequest) -> bool:
    """Whether a page is asked for by name, as browsers do when they navigate; ``*/*`` is said by programs, too."""
    return any(_HTML.match(part) for value in request.headers.getall(hdrs.ACCEPT, []) for part in value.split(","))


def _is_host(authority: str, scheme: str, host: str) -> bool:
    port = _DEFAULT_PORTS.get(scheme, "")
    return authority.lower().removesuffix(port) == host.lower().removesuffix(port)


def _without_dots(path: str) -> str:
    """Remove dot segments, also encoded ones, and stop at the root (RFC 3986 §5.2.4)."""
    kept: list[str] = []
    segments = path.split("/")[1:]
    for index, segment in enumerate(segments, 1):
        plain = segment.lower().replace("%2e", ".")
        if plain not in {".", ".."}:
            kept.append(segment)
            continue
        if plain == "..":
            del kept[-1:]
        if index == len(segments):
            kept.append("")
    return "/" + "/".join(kept)
