"""An operator's reset of an attestation record: what it forgets, what it keeps, and the trail that it leaves. Pure.

Promises: the machine may bind itself anew by the policy's rules, as a new one; no key that was certified is certified
again, and none answers a first request that another key answered; who reset it, when and why stays in
``spec.resets``. Fields that are not named here are kept as they are.
Leaves to others: writing the object with the resourceVersion that was read (a controller that evaluated the older one
then loses its own compare-and-swap); certificates, which live until they end: nothing revokes them.
Source: docs/wire-format.md §4.5 (TPM2_Clear zeroes resetCount); docs/decisions.md.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from nodeattest_controller.model.attestation import GROUP_VERSION, attestation_name, parse_attestation, retired_key
from nodeattest_controller.model.machine_view import CLUSTER_LABEL, MachineView
from nodeattest_controller.model.objects import items, mapping, rfc3339, text_map
from nodeattest_controller.model.retired_keys import render_retired, retire
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.names import NodeName

__all__ = ["MAX_REASON", "new_for_adoption", "reset"]

KEEP_RESETS: Final = 16
"""Resets kept, newest last; a machine that needs more has another problem."""
MAX_REASON: Final = 512
"""Characters, as the CRD's schema has it."""
_MAX_NAME: Final = 256
_FORGOTTEN: Final = frozenset({"fingerprints", "boot", "issued", "expires"})


def reset(attestation: JsonObject, *, by: str, reason: str, now: datetime) -> JsonObject:
    """Return the attestation record without pins, boot state and certificates; its keys go to ``retiredKeys``.

    ``by`` is the operator's user name.
    """
    known, spec = parse_attestation(attestation), mapping(attestation, "spec")
    kept = {name: value for name, value in spec.items() if name not in _FORGOTTEN}
    entry: JsonObject = {
        "time": rfc3339(now),
        "by": by[:_MAX_NAME],
        "reason": reason[:MAX_REASON],
        "fingerprints": dict[str, JsonValue](text_map(spec, "fingerprints")),
    }
    retired = retire(known.retired, map(retired_key, known.issued), now)
    verdict: JsonObject = {"verdict": "Reset", "reason": "AttestationReset", "time": rfc3339(now)}
    resets: list[JsonValue] = [*items(spec, "resets"), entry]
    added: JsonObject = {"resets": resets[-KEEP_RESETS:], "lastVerdict": verdict}
    if retired:
        added["retiredKeys"] = [*render_retired(retired)]
    return {**attestation, "spec": {**kept, **added}}


def new_for_adoption(member: MachineView, node_name: NodeName, *, by: str, reason: str, now: datetime) -> JsonObject:
    """Make the attestation record of a machine whose node joined without attestation: as one that was reset.

    It binds the node's name to the machine, so that nobody else takes it meanwhile.
    """
    owner: JsonObject = {"apiVersion": member.api_version, "kind": member.kind, "name": member.name, "uid": member.uid}
    fresh: JsonObject = {
        "apiVersion": GROUP_VERSION,
        "kind": "MachineAttestation",
        "metadata": {
            "name": attestation_name(member.cluster_name, member.provider_id),
            "namespace": member.namespace,
            "labels": {CLUSTER_LABEL: member.cluster_name},
            "ownerReferences": [owner],
        },
        "spec": {
            "clusterName": member.cluster_name,
            "machineName": member.name,
            "providerID": member.provider_id,
            "nodeName": node_name,
        },
    }
    return reset(fresh, by=by, reason=reason, now=now)
