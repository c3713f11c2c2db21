"""Shows the node's certificates and last failures."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from nodeattest_authenticator.certificate import ca_pins, subject
from nodeattest_authenticator.console import moment
from nodeattest_authenticator.context import AgentContext
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.kubelet_serving import (
    FAILURE_FILE,
    FILE,
    ServingEnrollment,
    identity_of,
    stored,
    wanted_names,
)
from nodeattest_authenticator.state import failure_backoff
from nodeattest_authenticator.state.failure_backoff import FailureRecord
from nodeattest_authenticator.state.records import load_provider_id
from nodeattest_providers.node_interface import JsonObject, JsonValue


def status(context: AgentContext) -> JsonObject:
    """Return the status; ``state`` is valid, renewal-due or none. Nothing is written or sent, except DNS queries."""
    notes: list[JsonValue] = []
    quiet = replace(context, log=notes.append)
    try:
        found = quiet.load_valid_credential()
    except AgentError as failure:
        notes.append(failure.message)
        found = None
    now = context.clock.now()
    certificate: JsonObject | None = None
    state = "none"
    if found is not None:
        credential = found.credential
        name, serial = subject(credential.certificate_pem)
        state = "renewal-due" if context.settings.renewable and now >= credential.renew_at else "valid"
        certificate = {
            "subject": name,
            "serial": serial,
            "notBefore": moment(credential.not_before),
            "notAfter": moment(credential.not_after),
            "renewAt": moment(credential.renew_at) if context.settings.renewable else None,
        }
    section = context.settings.discovery
    discovery: JsonObject | None = {"servers": [one.url for one in section.servers]} if section is not None else None
    return {
        "node": context.settings.node_name,
        "provider": context.settings.provider,
        "assignedProviderID": load_provider_id(context.storage, ca_pins(context.settings.all_ca_pem)),
        "signer": context.settings.signer,
        "server": context.settings.endpoint.url,
        "caPins": list[JsonValue](ca_pins(context.settings.ca_pem)),
        "discovery": discovery,
        "state": state,
        "certificate": certificate,
        "serving": _serving(quiet),
        "notes": notes,
        "lastFailure": _last_failure(failure_backoff.load(context.storage, context.config_fingerprint)),
    }


def to_lines(document: JsonObject) -> list[str]:
    """Format the status for people."""
    lines: list[str] = []
    for name, value in document.items():
        if isinstance(value, dict):
            lines += [f"{name}:", *("  " + line for line in to_lines(value))]
        elif isinstance(value, list):
            one = name.removesuffix("es") if name.endswith("sses") else name.removesuffix("s")
            lines += [f"{one}: {_shown(item)}" for item in value]
        else:
            lines.append(f"{name}: {_shown(value)}")
    return lines


def _serving(context: AgentContext) -> JsonObject | None:
    """Return the serving certificate's status. None if there is no certificate and none is configured."""
    found: ServingEnrollment | None = None
    try:
        found = stored(context)
    except AgentError as failure:
        context.log(failure.message)
    if found is None and context.settings.serving is None:
        return None
    names, last = found.names if found else None, None
    with contextlib.suppress(AgentError):  # use the names of the certificate
        names = wanted_names(context.settings)
    if names is not None:
        last = failure_backoff.load(context.storage, identity_of(context, names), name=FAILURE_FILE)
    document: JsonObject = {"state": "none", "file": f"{context.storage.path}/{FILE}"}
    if found is not None:
        due = context.clock.now() >= found.credential.renew_at
        document |= {
            "state": "names-changed" if found.names != names else "renewal-due" if due else "valid",
            "dnsNames": [*found.names.dns_names],
            "ipAddresses": [*found.names.ip_addresses],
            "notAfter": moment(found.credential.not_after),
            "renewAt": moment(found.credential.renew_at),
        }
    document["lastFailure"] = _last_failure(last)
    return document


def _last_failure(last: FailureRecord | None) -> JsonObject | None:
    if last is None:
        return None
    return {"reason": last.reason, "message": last.text, "inARow": last.count, "nextAttempt": moment(last.until)}


def _shown(value: JsonValue) -> str:
    return "-" if value is None else str(value)
