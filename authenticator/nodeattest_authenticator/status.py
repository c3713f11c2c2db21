"""What an operator asks first: does this node have a certificate, until when, and what went wrong last."""

from __future__ import annotations

import time
from dataclasses import replace

from nodeattest_authenticator import memory
from nodeattest_authenticator.agent import Agent, usable
from nodeattest_authenticator.certificate import subject
from nodeattest_authenticator.errors import Failure
from nodeattest_providers.exchange import JsonObject, JsonValue

__all__ = ["moment", "status", "to_text"]


def status(agent: Agent) -> JsonObject:
    """Gather it without touching the network or any file; ``state`` is valid, renewal-due or none."""
    notes: list[JsonValue] = []
    quiet = replace(agent, tell=notes.append)
    try:
        found = usable(quiet)
    except Failure as failure:
        notes.append(failure.message)
        found = None
    now = agent.clock.now()
    certificate: JsonObject | None = None
    state = "none"
    if found is not None:
        credential = found.credential
        name, serial = subject(credential.certificate_pem)
        state = "renewal-due" if agent.settings.renewable and now >= credential.renew_at else "valid"
        certificate = {
            "subject": name,
            "serial": serial,
            "notBefore": moment(credential.not_before),
            "notAfter": moment(credential.not_after),
            "renewAt": moment(credential.renew_at) if agent.settings.renewable else None,
        }
    return {
        "node": agent.settings.node_name,
        "provider": agent.settings.provider,
        "signer": agent.settings.signer,
        "server": agent.settings.endpoint.url,
        "state": state,
        "certificate": certificate,
        "notes": notes,
        "lastFailure": _last_failure(agent),
    }


def to_text(document: JsonObject) -> str:
    """Write it for people."""
    lines: list[str] = []
    for name, value in document.items():
        if isinstance(value, dict):
            lines += [f"{name}:", *(f"  {inner}: {_shown(text)}" for inner, text in value.items())]
        elif isinstance(value, list):
            lines += [f"{name[:-1]}: {_shown(item)}" for item in value]
        else:
            lines.append(f"{name}: {_shown(value)}")
    return "\n".join(lines) + "\n"


def _last_failure(agent: Agent) -> JsonObject | None:
    last = memory.load(agent.storage, agent.identity)
    if last is None:
        return None
    return {
        "reason": last.reason,
        "message": last.text,
        "inARow": last.count,
        "nextAttempt": moment(last.until),
    }


def _shown(value: JsonValue) -> str:
    return "-" if value is None else str(value)


def moment(seconds: int) -> str:
    """Write a moment as RFC 3339 in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
