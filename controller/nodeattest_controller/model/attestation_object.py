"""MachineAttestation objects: how the ledger is read and written, and an operator's reset of it. Pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

from nodeattest_controller.model import attestation_status as status
from nodeattest_controller.model.attestation import Attestation, IssuedCertificate, RetiredKey, new_attestation, retire
from nodeattest_controller.model.machine_view import CLUSTER_LABEL, MachineView
from nodeattest_parsing.objects import flag, items, mapping, moment, number, rfc3339, text, text_map
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName, Purpose
from nodeattest_providers.verifier_interface import BootState

GROUP_VERSION: Final = "attestation.cluster.x-k8s.io/v1alpha1"
KEEP_RESETS: Final = 16
MAX_REASON: Final = 512
"""Characters, as the CRD's schema has it."""
_MAX_NAME: Final = 256
_FORGOTTEN: Final = frozenset({"fingerprints", "boot", "issued", "expires"})
_MACHINES: Final = ("cluster.x-k8s.io/Machine", "cluster.x-k8s.io/MachinePool")
_OWNERS: Final = (*_MACHINES, "attestation.cluster.x-k8s.io/MachineRecord")
"""Group and kind of what an attestation record is about."""
_PCRS: Final = 24
_PCR: Final = re.compile(r"1?\d|2[0-3]", re.ASCII)
_KEY_TEXTS: Final = {"spki": "spki", "serial": "serial", "first_request_uid": "firstRequestUID"}
"""Attributes and what the object calls them."""
_ENTRY_TEXTS: Final = {
    **_KEY_TEXTS,
    "request_name": "requestName",
    "request_uid": "requestUID",
    "certificate": "certificate",
    "policy": "policy",
}


def parse_attestation(obj: JsonObject) -> Attestation:
    """Read a MachineAttestation; controller and operators write these, and the CRD's schema holds their shape."""
    spec = mapping(obj, "spec")
    issued = tuple(entry for item in items(spec, "issued") if (entry := _entry(item)) is not None)
    return Attestation(
        name=text(obj, "metadata", "name"),
        namespace=text(obj, "metadata", "namespace"),
        resource_version=text(obj, "metadata", "resourceVersion"),
        cluster_name=text(spec, "clusterName"),
        provider_id=ProviderID(text(spec, "providerID")),
        owner_uid=text(owner_of(obj), "uid"),
        node_name=NodeName(text(spec, "nodeName")),
        provider=ProviderName(text(spec, "provider")),
        provider_id_source=sys.intern(text(spec, "providerIDSource")),  # few texts, of many machines
        sources={name: sys.intern(source) for name, source in text_map(spec, "sources").items()},
        fingerprints=text_map(spec, "fingerprints"),
        boot=_boot(mapping(spec, "boot")),
        issued=issued,
        retired=tuple(key for item in items(spec, "retiredKeys") if (key := _retired(item)) is not None),
        # A reset forgets all certificates, and nothing else removes the last one.
        was_reset=bool(items(spec, "resets")) and not any(entry.purpose is Purpose.CLIENT for entry in issued),
        verdict=status.parse_last_decision(spec),
        treatment=status.parse_remediation(spec),
        refusals=status.parse_refusals(obj),
    )


def owner_of(obj: JsonObject) -> JsonObject:
    """Return the owner reference to the Machine, pool or record; empty when there is none."""
    for owner in items(obj, "metadata", "ownerReferences"):
        if f"{text(owner, 'apiVersion').partition('/')[0]}/{text(owner, 'kind')}" in _OWNERS:
            return owner
    return {}


def _boot(boot: JsonObject) -> BootState | None:
    clock, resets, restarts = (number(boot, name) for name in ("clock", "resetCount", "restartCount"))
    if clock is None or resets is None:
        return None
    return BootState(
        clock=clock,
        reset_count=resets,
        restart_count=restarts or 0,
        safe=flag(boot, "safe"),
        pcr_digest=text(boot, "pcrDigest"),
        bank=text(boot, "bank"),
        pcrs={int(pcr): value for pcr, value in text_map(boot, "pcrs").items() if _PCR.fullmatch(pcr)},
    )


def _purpose(item: JsonObject) -> Purpose:
    return Purpose.SERVING if text(item, "purpose") == Purpose.SERVING else Purpose.CLIENT


def _retired(item: JsonObject) -> RetiredKey | None:
    not_after = moment(text(item, "notAfter"))
    if not_after is None or not text(item, "spki"):
        return None
    texts = {name: text(item, key) for name, key in _KEY_TEXTS.items()}
    return RetiredKey(**texts, not_after=not_after, purpose=_purpose(item))


def _entry(item: JsonObject) -> IssuedCertificate | None:
    begin, end, issued = (moment(text(item, name)) for name in ("notBefore", "notAfter", "issuedAt"))
    if begin is None or end is None or issued is None:
        return None
    texts = {name: text(item, key) for name, key in _ENTRY_TEXTS.items()}
    return IssuedCertificate(**texts, not_before=begin, not_after=end, issued_at=issued, purpose=_purpose(item))


def render_attestation(attestation: Attestation, member: MachineView, signer_name: str) -> JsonObject:
    """Write a record as an object, owned by its Machine, so that it is moved and collected with it.

    For a record that exists this is a merge patch: what others wrote (labels, owners, resets) stays.
    """
    meta: JsonObject = {
        "name": attestation.name,
        "namespace": attestation.namespace,
        "labels": {CLUSTER_LABEL: attestation.cluster_name},
    }
    if attestation.resource_version:
        meta["resourceVersion"] = attestation.resource_version
    else:
        owner: JsonObject = {"apiVersion": member.api_version, "kind": member.kind}
        meta["ownerReferences"] = [{**owner, "name": member.name, "uid": member.uid}]
    spec: JsonObject = {
        "clusterName": attestation.cluster_name,
        "machineName": member.name,
        "providerID": attestation.provider_id,
        "providerIDSource": member.provider_id_source,
        "nodeName": attestation.node_name,
        "provider": attestation.provider,
        "signerName": signer_name,
        "sources": dict[str, JsonValue](attestation.sources),
        "fingerprints": dict[str, JsonValue](attestation.fingerprints),
        "issued": [*map(_render_entry, attestation.issued)],
    }
    if attestation.retired:
        spec["retiredKeys"] = [_render(key, _KEY_TEXTS) for key in attestation.retired]
    if attestation.newest_client is not None:
        spec["expires"] = rfc3339(attestation.newest_client.not_after)
    if attestation.issued:
        approved_at = attestation.issued[-1].issued_at
        spec["lastVerdict"] = status.LastDecision(status.APPROVED, "Attested", approved_at).render()
    if attestation.boot is not None:
        spec["boot"] = _render_boot(attestation.boot, is_patch=bool(attestation.resource_version))
    return {"apiVersion": GROUP_VERSION, "kind": "MachineAttestation", "metadata": meta, "spec": spec}


def _render_boot(boot: BootState, *, is_patch: bool) -> JsonObject:
    body: JsonObject = {
        "clock": boot.clock,
        "resetCount": boot.reset_count,
        "restartCount": boot.restart_count,
        "safe": boot.safe,
        "pcrDigest": boot.pcr_digest,
    }
    if boot.pcrs:
        body["bank"] = boot.bank
        numbers = range(_PCRS) if is_patch else boot.pcrs  # a merge patch removes what it calls null, and nothing else
        body["pcrs"] = {str(pcr): boot.pcrs.get(pcr) for pcr in numbers}
    return body


def _render_entry(entry: IssuedCertificate) -> JsonObject:
    times = {"notBefore": rfc3339(entry.not_before), "issuedAt": rfc3339(entry.issued_at)}
    return {**_render(entry, _ENTRY_TEXTS), **times}


def _render(key: RetiredKey, names: Mapping[str, str]) -> JsonObject:
    purpose: JsonObject = {"purpose": str(key.purpose)} if key.purpose is Purpose.SERVING else {}
    texts = {kept: value for name, kept in names.items() if (value := getattr(key, name))}
    return {**texts, **purpose, "notAfter": rfc3339(key.not_after)}


def reset(attestation: JsonObject, *, by: str, reason: str, now: datetime) -> JsonObject:
    """Return the record without pins, boot state and certificates; its keys go to ``retiredKeys``."""
    known, spec = parse_attestation(attestation), mapping(attestation, "spec")
    kept = {name: value for name, value in spec.items() if name not in _FORGOTTEN}
    entry: JsonObject = {
        "time": rfc3339(now),
        "by": by[:_MAX_NAME],
        "reason": reason[:MAX_REASON],
        "fingerprints": dict[str, JsonValue](text_map(spec, "fingerprints")),
    }
    verdict: JsonObject = status.LastDecision(status.RESET, "AttestationReset", now).render()
    resets: list[JsonValue] = [*items(spec, "resets"), entry]
    added: JsonObject = {"resets": resets[-KEEP_RESETS:], "lastVerdict": verdict}
    retired = retire(known.retired, (entry.key for entry in known.issued), now)
    if retired:
        added["retiredKeys"] = [_render(key, _KEY_TEXTS) for key in retired]
    return {**attestation, "spec": {**kept, **added}}


def new_for_adoption(member: MachineView, node_name: NodeName, *, by: str, reason: str, now: datetime) -> JsonObject:
    """Make the record of a machine whose node joined without attestation: as one that was reset, with its name."""
    fresh = render_attestation(replace(new_attestation(member), node_name=node_name), member, "")
    fresh["spec"] = {name: value for name, value in mapping(fresh, "spec").items() if value}
    return reset(fresh, by=by, reason=reason, now=now)
