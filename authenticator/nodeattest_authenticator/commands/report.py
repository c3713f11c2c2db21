"""Shows the node's certificates and last failures, and the evidence that this machine would send.

The PKCS#10 request of the evidence is over a key that is discarded, so nobody can use the output to join.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import replace

from nodeattest_authenticator import kubelet_serving
from nodeattest_authenticator.certificate import ca_pins, select_ca_pin, subject
from nodeattest_authenticator.console import moment
from nodeattest_authenticator.context import AgentContext, FailureRecord
from nodeattest_authenticator.enrollment import provider_id
from nodeattest_authenticator.enrollment.enroll import CertificateSpec, new_pending_request
from nodeattest_authenticator.enrollment.issue import attestor_of
from nodeattest_authenticator.errors import AgentError, attestation_unavailable
from nodeattest_authenticator.settings import Settings
from nodeattest_authenticator.state.records import load_provider_id
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_providers.identifiers import evidence_block
from nodeattest_providers.node_interface import Attestor, Binding, JsonObject, JsonValue


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
        "lastFailure": _last_failure(context.last_failure()),
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
    found: kubelet_serving.ServingEnrollment | None = None
    try:
        found = kubelet_serving.stored(context)
    except AgentError as failure:
        context.log(failure.message)
    if found is None and context.settings.serving is None:
        return None
    names, last = found.names if found else None, None
    with contextlib.suppress(AgentError):  # use the names of the certificate
        names = kubelet_serving.wanted_names(context.settings)
    if names is not None:
        identified = replace(context, config_fingerprint=kubelet_serving.identity_of(context, names))
        last = identified.last_failure(name=kubelet_serving.FAILURE_FILE)
    document: JsonObject = {"state": "none", "file": f"{context.storage.path}/{kubelet_serving.FILE}"}
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


def evidence(settings: Settings) -> JsonObject:
    """Return the evidence of a first request. Raises ``AgentError``."""
    with attestor_of(settings.provider, settings.provider_settings) as attestor:
        spec = CertificateSpec(
            node_name=settings.node_name,
            provider_id=provider_id.resolve(settings.provider_id, attestor),  # None: the controller tells it
            signer=settings.signer,
            ca_pem=settings.ca_pem,
            pin=select_ca_pin(settings.ca_pem),
        )
        pending = new_pending_request(spec, version=attestor.versions[0])
        try:
            block = evidence_block(attestor.provider, attestor.versions[0])
            made = attestor.attest(Binding(block, spec.pin, spec.signer, hashlib.sha256(pending.csr_der).digest()))
        except (Denied, Unavailable) as error:
            raise attestation_unavailable(error) from None
        document: JsonObject = {
            "node": spec.node_name,
            "providerID": spec.provider_id,
            "signer": spec.signer,
            "clusterPin": spec.pin,
            "provider": made.block,
            "data": made.data,
        }
        return fingerprint(attestor) | document


def fingerprint(attestor: Attestor) -> JsonObject:
    """Return the endorsement key's fingerprint and the provider ID, as far as the provider knows them.

    Raises ``AgentError``.
    """
    found: JsonObject = {}
    try:
        for part in provider_id.parts_of(attestor):
            if "endorsementFingerprint" not in found and (key := part.endorsement_fingerprint()) is not None:
                found["endorsementFingerprint"] = key
        for part in provider_id.parts_of(attestor):
            if "providerID" not in found and (machine := part.provider_id()) is not None:
                found["providerID"] = machine
    except (Denied, Unavailable) as error:
        raise attestation_unavailable(error) from None
    return found
