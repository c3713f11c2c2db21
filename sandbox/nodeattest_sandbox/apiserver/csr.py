"""CertificateSigningRequests: what the API server sets and keeps on the main resource, on /approval and on /status.

The server takes any request that a real one may take; which it refuses, tests ask a real one.
Leaves the verbs ``approve`` and ``sign`` to admission.py.
Source: pkg/registry/certificates/certificates/strategy.go, pkg/apis/certificates/validation/validation.go.
"""

from __future__ import annotations

from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, child, map_at, maps_at, text_at
from nodeattest_sandbox.apiserver.status_errors import Cause, forbidden_field
from nodeattest_sandbox.apiserver.users import User

_DECISIONS: Final = frozenset({"Approved", "Denied"})


def prepare_create(value: JsonMap, user: User) -> None:
    """Put the requester in place of what the client wrote about itself, and empty the status."""
    spec = child(value, "spec")
    for key in ("uid", "extra"):
        spec.pop(key, None)
    spec["username"] = user.name
    spec["groups"] = list(user.groups)
    value["status"] = {}


def prepare_update(value: JsonMap, before: JsonMap, subresource: str, now: str) -> list[Cause]:
    """Restore what this door does not open, and return what is wrong with the change."""
    value["spec"] = before["spec"]
    if not subresource:
        value["status"] = before.get("status", {})
        return []
    new, old = list(maps_at(value, "status", "conditions")), list(maps_at(before, "status", "conditions"))
    if subresource == "approval":
        value["status"] = {**map_at(before, "status")}
    else:  # /status keeps decisions as they are
        others = [one for one in new if text_at(one, "type") not in _DECISIONS]
        new = [one for one in old if text_at(one, "type") in _DECISIONS] + others
    conditions: list[JsonValue] = [_timed(one, old, now) for one in new]
    if conditions:
        child(value, "status")["conditions"] = conditions
    kinds = [text_at(one, "type") for one in new]
    causes = [
        forbidden_field("status.conditions", f'updates may not remove a condition of type "{kind}"')
        for kind in (text_at(one, "type") for one in old)
        if kind not in kinds
    ]
    certificate, given = text_at(before, "status", "certificate"), text_at(value, "status", "certificate")
    if certificate not in {"", given}:
        causes.append(forbidden_field("status.certificate", "updates may not modify existing certificate content"))
    return causes


def _timed(condition: JsonMap, before: list[JsonMap], now: str) -> JsonMap:
    """Return a condition with both times; the transition's is kept while the status is the same."""
    known = ((text_at(one, "type"), text_at(one, "status"), text_at(one, "lastTransitionTime")) for one in before)
    same = (text_at(condition, "type"), text_at(condition, "status"))
    since = next((time for *one, time in known if tuple(one) == same and time), now)
    return {"lastUpdateTime": now, "lastTransitionTime": since, **condition}
