"""Every check of an attested request, in the order in which they run: the one list of controller and ``explain``.

Cheap first: what the request itself contains, then memory, then the provider's verification and live reads; last, under
the issuer's reservation, the rules about keys and certificates. Rules have the numbers of docs/identity-rules.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from nodeattest_controller.controllers.csr import machine_checks
from nodeattest_controller.model.attestation import KEEP_ISSUED, MAX_LIVE, Attestation, first_uid_of, live_keys
from nodeattest_controller.model.csr_request import RequestState, Round
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.node_names import NameStrength, check_node_name, claim_to, is_named, node_names
from nodeattest_controller.model.resolver import not_ready
from nodeattest_controller.verification import checks as shared
from nodeattest_controller.verification.checks import RequestCheck, Stage, declare
from nodeattest_controller.verification.facts import CSRFacts
from nodeattest_parsing.objects import key_of, text
from nodeattest_providers.config_fields import pins_for, split_pin
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import NodeName, printable

REPLACEMENT_INTERVAL: Final = timedelta(minutes=10)
"""A machine that proved itself but lost its key may replace a live one this often."""
_RESTARTS: Final = MappingProxyType({str(reason): reason for reason in (Reason.SUPERSEDED, Reason.CHALLENGE_EXPIRED)})
"""What may have become of a first request whose agent may begin anew: an answer can wait too long for its turn."""


# Names and nodes


@declare("the Machine's node name", "identity rule 2")
async def own_node_name(facts: CSRFacts) -> None:
    """The requested name is this machine's, or could be proven to be, and no other machine's."""
    # No platform is asked yet: a name that only a proof could make this machine's may pass here.
    provable = (await facts.verifier()).provable_names((await facts.policy()).sections)
    proven = facts.node_name if provable is None else provable.get(facts.request.csr.provider_id)
    await _check_node_name(facts, proven)


async def _check_node_name(facts: CSRFacts, proven: NodeName | None) -> None:
    registered, around = await facts.registered_names(), await facts.name_context()
    short = around.short_names
    named = frozenset(machine for machine, own in registered.items() if is_named(own, facts.node_name, short=short))
    machine, sources = await facts.machine(), await facts.name_sources(proven)
    claims = node_names(machine, sources)
    if machine.is_pool_instance and not claims and await facts.source.makes_machines(machine):
        detail = f"no Machine has provider ID {machine.provider_id!r}, which MachinePool {machine.name} lists"
        remedy = "wait until Cluster API has made the instance's Machine"
        raise Unavailable(Reason.MACHINE_NOT_FOUND, detail, remedy=remedy)
    claim = claim_to(claims, facts.node_name, short_names=short)
    needs_hosts = claim is not None and claim.strength is not NameStrength.REGISTERED
    hosts = await facts.source.hosts_with_name(machine, facts.node_name) if needs_hosts else ()
    check_node_name(facts.node_name, machine, replace(around, registered=named, hosts=hosts), sources)


@declare("the node name as proven", "identity rule 2")
async def proven_node_name(facts: CSRFacts) -> None:
    """The requested name is this machine's by its own sources, or the provider proved it."""
    await _check_node_name(facts, (await facts.attested()).proven_node_name)


@declare("the Machine as proven", "identity rule 7")
async def proven_machine(facts: CSRFacts) -> None:
    """The evidence proves the requested provider ID by the request's provider, and no Machine of another name."""
    attested, machine = await facts.attested(), await facts.machine()
    proven = (await facts.verifier()).machine_name(facts.request, attested)
    if (attested.provider, attested.provider_id) != (facts.request.evidence.provider, machine.provider_id):
        got = f"evidence of provider {attested.provider} for provider ID {printable(attested.provider_id)}"
    elif proven is not None and (proven != machine.name or machine.is_pool_instance):
        got = f"evidence of Machine {printable(proven)}"
    else:
        return
    raise Denied(
        Reason.EVIDENCE_FOR_OTHER_MACHINE,
        expected=f"evidence of {machine.kind} {machine.name}, which has provider ID {machine.provider_id}",
        got=got,
        remedy="let each machine attest itself, and correct the provider ID of whichever Machine has the wrong one",
    )


@declare("hardware of no other machine", "identity rule 3")
async def own_hardware(facts: CSRFacts) -> None:
    """The TPM or secret that the machine proved itself by proves no other machine of the cluster."""
    machine, around = await facts.machine(), await facts.name_context()
    others = [one for one in await facts.holders_of_fingerprints() if one.provider_id != machine.provider_id]
    if any(around.is_alive(other) for other in others):
        raise Denied(
            Reason.MACHINE_AMBIGUOUS,
            expected="a TPM or secret of this Machine alone",
            got="one that another Machine is bound to",
            remedy="register each machine's own TPM or secret; a cloned one is refused",
        )
    if others:
        raise not_ready("the attestation record of this hardware's former machine is not collected yet", "wait")


@declare("no takeover of a node", "identity rules 3 and 4")
async def no_takeover(facts: CSRFacts) -> None:
    """A token does not take over a Node whose machine never joined attested."""
    # A Machine gets its nodeRef late, and a MachineRecord none. The Node is read live.
    attestation, node = await facts.attestation(), await facts.node()
    if facts.request.is_renewal or node is None or attestation.has_joined or attestation.was_reset:
        return
    raise machine_checks.unattested(
        f"Node {facts.node_name} stands, and no attestation record", "delete the Node if nothing runs there any more"
    )


@declare("adoption of the machine's own node", "identity rules 3 and 4")
async def adoption(facts: CSRFacts) -> None:
    """A node that never joined attested is the one that its machine has."""
    # Its certificate was signed in-tree, where nobody asked which machine gets it. The provider proves the machine now.
    machine, attestation, node = await facts.machine(), await facts.attestation(), await facts.node()
    if not facts.request.is_renewal or attestation.has_joined or attestation.was_reset:
        return
    what, name = f"{machine.kind} {machine.name}", facts.node_name
    if machine.given_name is not None and machine.node_ref_name is None:  # an operator's record names the node
        if node is not None and text(node, "spec", "providerID") == machine.provider_id:
            return
        raise not_ready(
            f"no Node {name} with the provider ID of {what} is in the cluster, so it cannot be adopted",
            "let kubelet register the Node with --provider-id, or name the Node in the record's status.nodeRef",
        )
    if machine.node_ref_name is None and not machine.is_pool_instance:  # whose instances have no nodeRef of their own
        remedy = "let Cluster API find the Node: its provider ID must be the Machine's"
        raise not_ready(f"{what} has no nodeRef, so its node cannot be adopted yet", remedy)
    if node is None:
        raise not_ready(f"no Node {name} is in the cluster, so it cannot be adopted", "let kubelet register the Node")


# Two steps; these hold across an operator's reset


@declare("first request not answered", "two steps", rounds=[Round.FIRST])
async def not_answered(facts: CSRFacts) -> None:
    """No certificate was issued for an answer to this first request."""
    if (await facts.attestation()).keys_answering(facts.request.uid):
        raise Denied(
            Reason.SUPERSEDED,
            expected="a first request that nobody answered yet",
            got="one whose second request was certified",
            remedy="nothing to do",
        )


@declare("first request still pending", "two steps", rounds=[Round.FINAL])
async def first_request_pending(facts: CSRFacts) -> None:
    """The first request that is answered was not decided before."""
    if await facts.ref() is None:  # a provider of one round
        return
    request, attestation, first = facts.request, await facts.attestation(), await facts.first()
    summary = facts.source.summary(await facts.first_object(), request, attestation)
    if first is None or summary is None or first.csr.der != request.csr.der:
        return  # the provider's verification says what is wrong with it
    # A copy of the second request that was handled earlier closes the first one. The honest one must not be denied.
    known = attestation.entry_for(request.csr.spki_sha256, request.purpose)
    if summary.state is not RequestState.PENDING and known is None:
        raise Denied(
            _RESTARTS.get(summary.denial_reason, Reason.FIRST_REQUEST_MISMATCH),
            expected="a first request that is still pending",
            got=f"{key_of(await facts.first_object() or {})} is {summary.state}",
            remedy="file a new first request",
        )


@declare("the provider's verification", "identity rule 6")
async def verified(facts: CSRFacts) -> None:
    """The provider's verifier proves that the machine asks, bound to this request, signer and cluster."""
    await facts.attested()


# Issuing: while key, node name and fingerprints are reserved


@declare("approval by this controller", "issuing", stage=Stage.ISSUE)
async def approval_known(facts: CSRFacts) -> None:
    """A request that is approved already has a certificate on record."""
    known = (await facts.attestation()).entry_for(facts.request.csr.spki_sha256, facts.purpose)
    if facts.state is RequestState.APPROVED and known is None:
        raise Denied(
            Reason.APPROVED_ELSEWHERE,
            expected="an approval by this controller",
            got="an approval that the ledger does not know",
            remedy="leave the approval of these signers to the controller, and let the node file anew",
        )


@declare("a key that was never certified", "issuing", stage=Stage.ISSUE)
async def new_key(facts: CSRFacts) -> None:
    """The key has no certificate: not of this machine, not of another, not for the other purpose."""
    # The machine's own may have got the key during the verification: then the write conflicts.
    spki, attestation = facts.request.csr.spki_sha256, await facts.attestation()
    used = attestation.entry_for(spki, facts.purpose) is not None or attestation.has_retired(spki)
    if used or attestation.serves_otherwise(spki, facts.purpose):
        raise _key_reused("a key with another certificate")
    check_key_of_one_machine(await facts.machine(), facts.source.inventory.key_holders(facts.source.key, spki))


def check_key_of_one_machine(machine: MachineView, holders: Sequence[Attestation]) -> None:
    """Refuse a key that another machine of the cluster has a certificate for, also one that is on record already."""
    if any(holder.provider_id != machine.provider_id for holder in holders):
        raise _key_reused("a key of another machine")


def _key_reused(got: str) -> Denied:
    return Denied(Reason.KEY_REUSED, expected="a key that was never certified", got=got, remedy="make a new key")


@declare("one key for one challenge", "two steps", stage=Stage.ISSUE)
async def answered_once(facts: CSRFacts) -> None:
    """The first request was not answered with another key."""
    keys = (await facts.attestation()).keys_answering(first_uid_of(await facts.attested()))
    if keys - {facts.request.csr.spki_sha256}:
        raise Denied(
            Reason.REPLAYED,
            expected="one key for one answered challenge",
            got="a second key",
            remedy="file a new first request",
        )


@declare("time between two keys", "issuing", stage=Stage.ISSUE)
async def replacement_interval(facts: CSRFacts) -> None:
    """Outside renewal a machine replaces a live key at most every ten minutes."""
    now = facts.source.now()
    live = (await facts.attestation()).live(now)
    if facts.request.is_renewal or live is None or now - live.issued_at >= REPLACEMENT_INTERVAL:
        return
    raise Denied(
        Reason.MACHINE_ALREADY_BOUND,
        expected=f"at most one new key in {REPLACEMENT_INTERVAL.seconds // 60} minutes outside renewal",
        got=f"another key {int((now - live.issued_at).total_seconds())} s after the last",
        remedy="try again in ten minutes; the agent keeps its key until its certificate arrives",
    )


@declare("number of live certificates", "issuing", stage=Stage.ISSUE)
async def live_certificates(facts: CSRFacts) -> None:
    """A machine has a bounded number of live certificates."""
    purpose, most = facts.purpose, MAX_LIVE[facts.purpose]
    if live_keys((await facts.attestation()).retired, purpose, facts.source.now()) >= most:
        raise Denied(
            Reason.MACHINE_ALREADY_BOUND,
            expected=f"at most {most} live {purpose} certificates of one machine, beside the last {KEEP_ISSUED}",
            got="one more",
            remedy="find out what asks on this machine again and again; it is served when older certificates end",
        )


@declare("fingerprints as pinned", "identity rule 3", stage=Stage.ISSUE)
async def pinned_fingerprints(facts: CSRFacts) -> None:
    """What was pinned for the machine is what it proved itself by."""
    attestation = await facts.attestation()
    for pin, value in (await facts.attested()).pins.items():  # the provider compared them: this is the last line
        provider, kind = split_pin(pin)
        if pins_for(attestation.fingerprints, provider).get(kind, value) != value:
            raise Denied(
                Reason.MACHINE_ALREADY_BOUND,
                expected=f"the pinned {kind}",
                got="another",
                remedy="if the hardware was replaced: nodeattest machines reset, or re-create the Machine",
            )


CHECKS: Final[tuple[RequestCheck[CSRFacts], ...]] = (
    machine_checks.bound_token,
    shared.active_cluster,
    machine_checks.policy,
    machine_checks.attestor_authorized,
    machine_checks.evidence_version,
    machine_checks.serving_allowed,
    machine_checks.first_request_named,
    machine_checks.one_machine,
    machine_checks.own_provider_id,
    shared.machine_now,
    machine_checks.not_bound_otherwise,
    machine_checks.joined_machine,
    shared.names_unclaimed,
    shared.names_on_record,
    own_node_name,
    not_answered,
    machine_checks.own_token,
    machine_checks.one_provider_id,
    first_request_pending,
    verified,
    proven_machine,
    proven_node_name,
    own_hardware,
    shared.no_other_node,
    no_takeover,
    adoption,
    shared.names_unclaimed_now,
    shared.names_listed_now,
    approval_known,
    new_key,
    answered_once,
    replacement_interval,
    live_certificates,
    pinned_fingerprints,
)
