"""Open one Machine for a node that joined without attestation: an attestation record of who and why, an Event, a token.

Promises: the record stands before the token does; killed between the two, it is done again with another record. What
has certificates is never touched. Leaves to the controller: letting the machine in
(``was_reset`` in ``model/identity_rules``).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from nodeattest_cli.errors import StateError
from nodeattest_cli.machines.attestations import attestation_path, attestations_path
from nodeattest_cli.machines.rejoin import RejoinToken, issue_token
from nodeattest_cli.machines.reset import operator, record_event
from nodeattest_cli.machines.unattested import Unattested
from nodeattest_controller.model.attestation import attestation_name, parse_attestation
from nodeattest_controller.model.attestation_reset import new_for_adoption, reset
from nodeattest_kube.client import AlreadyExists, ApiClient, Conflict, NotFound
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.names import NodeName

__all__ = ["open_machine"]


async def open_machine(
    client: ApiClient,
    one: Unattested,
    *,
    reason: str,
    now: datetime,
    expires: datetime,
    choose: Callable[[str], str],
) -> tuple[str, RejoinToken]:
    """Write record and Event, and make the token; returns a log of that, and the token. Raises ``StateError``."""
    by = await operator(client)
    written = await _record(client, one, by=by, reason=reason, now=now)
    reported = await record_event(client, written, f"opened by {by}: {reason}", now, reason="AttestationOpened")
    trail = f"opened by {by}, on record in spec.resets" + (" and in an Event" if reported else "")
    return trail, await issue_token(client, written, expires=expires, choose=choose)


async def _record(client: ApiClient, one: Unattested, *, by: str, reason: str, now: datetime) -> JsonObject:
    member = one.member
    if member is None:
        raise StateError(f"node {one.node} has no Machine")
    fresh = new_for_adoption(member, NodeName(one.node), by=by, reason=reason, now=now)
    try:
        known = await client.get(attestation_path(fresh))
    except NotFound:
        known = None
    try:
        if known is None:
            return await client.create(attestations_path(member.namespace), fresh)
        if parse_attestation(known).issued:
            raise StateError(
                f"{attestation_name(member.cluster_name, member.provider_id)} has certificates by now: look again"
            )
        return await client.replace(attestation_path(known), reset(known, by=by, reason=reason, now=now))
    except (AlreadyExists, Conflict):
        raise StateError("its MachineAttestation changed meanwhile: check it and try again") from None
