"""Every check of an attested request, in the order in which they run: the one list of controller and ``explain``.

Cheap first: what the request itself says, then memory, then the provider's verification and live reads; last, under
the issuer's reservation, the rules about keys and certificates. Numbers of rules are those of
docs/identity-rules.md. The rules are pure functions of ``model``; a check here says which facts they get.
The parser (``model.csr_request``) comes before all of these: without a ``NodeRequest`` there is nothing to check.
Leaves to others: where a fact comes from (``verification.facts``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from nodeattest_controller.model.identity_rules import (
    check_adoption,
    check_binding,
    check_fingerprints,
    check_machine_name,
    check_node_name,
    check_pool_instance,
    check_takeover,
)
from nodeattest_controller.model.issuance_rules import (
    check_approval_known,
    check_bound_token,
    check_challenge_answered_once,
    check_first_request_pending,
    check_key_is_new,
    check_live_certificates,
    check_not_answered,
    check_pinned_fingerprints,
    check_replacement_interval,
)
from nodeattest_controller.model.node_names import NameStrength, claim_to, is_named, node_names
from nodeattest_controller.model.policy import check_authorized
from nodeattest_controller.model.resolver import (
    check_provider_id,
    check_provider_id_free,
    check_record_owner,
    check_recorded_provider_id,
    check_renewable,
    select_machine,
)
from nodeattest_controller.model.serving_names import check_client_certificate, check_serving_allowed
from nodeattest_controller.model.token_binding import check_token_binding
from nodeattest_controller.verification.checks import RequestCheck, Round, Stage, declare
from nodeattest_controller.verification.facts import CSRFacts
from nodeattest_controller.verification.shared_checks import (
    active_cluster,
    machine_now,
    names_listed_now,
    names_on_record,
    names_unclaimed,
    names_unclaimed_now,
    no_other_node,
)
from nodeattest_parsing.objects import key_of
from nodeattest_providers import evidence_versions
from nodeattest_providers.identifiers import NodeName, Purpose
from nodeattest_providers.platform import provable_names

EVIDENCE: Final = "evidence version and schema"
ROUND: Final = "round of the request"
VERIFICATION: Final = "the provider's verification"
_SERVING: Final = [Purpose.SERVING]


@declare("a token of no other machine", "identity rule 4")
async def bound_token(facts: CSRFacts) -> None:
    """A requester whose group binds it to a machine asks for that machine, and is bound to no other."""
    check_bound_token(facts.request, facts.source.key)


@declare("one policy", "identity rule 0")
async def policy(facts: CSRFacts) -> None:
    """Exactly one NodeAttestationPolicy selects the cluster, and it can be read."""
    await facts.policy()


@declare("attestor authorized", "identity rule 0")
async def attestor_authorized(facts: CSRFacts) -> None:
    """The policy's authorizedAttestors name the provider; an empty list names none."""
    check_authorized(await facts.policy(), facts.request.evidence.provider)


@declare(EVIDENCE, "wire format")
async def evidence_version(facts: CSRFacts) -> None:
    """The controller knows the provider and the version of its evidence."""
    evidence_versions.check(facts.request.evidence, (await facts.verifier()).versions)


@declare("attested serving request", "serving certificates", purposes=_SERVING)
async def serving_allowed(facts: CSRFacts) -> None:
    """The policy signs attested serving requests, the provider is secure, and the node itself asks."""
    check_serving_allowed(facts.request, await facts.policy(), secure=(await facts.verifier()).secure)


@declare(ROUND, "wire format")
async def first_request_named(facts: CSRFacts) -> None:
    """The evidence says whether the request is a first one or which first request it answers."""
    await facts.ref()


@declare("one Machine, alive and ready", "identity rule 1")
async def one_machine(facts: CSRFacts) -> None:
    """Bootstrap token and provider ID name exactly one machine of the cluster, and the same.

    It stays, is not paused, and has its bootstrap data.
    """
    by_provider_id, by_token = await facts.by_provider_id(), await facts.by_token()
    recorded = facts.source.inventory.attestation(facts.source.key, facts.request.csr.provider_id)
    if recorded is not None and not by_provider_id:
        owner = facts.source.inventory.machine_by_uid(facts.source.key, recorded.owner_uid)
        check_record_owner(facts.request, recorded, owner)
    select_machine(facts.request, by_provider_id, by_token, (await facts.policy()).token_binding)


@declare("the Machine's provider ID", "identity rule 1")
async def own_provider_id(facts: CSRFacts) -> None:
    """The provider ID is the one that the Machine has, or that its infrastructure objects give it."""
    check_provider_id(facts.request, await facts.selected_machine(), await facts.expected_provider_id())


@declare("one provider ID for one Machine", "identity rule 1")
async def one_provider_id(facts: CSRFacts) -> None:
    """The Machine joined with no other provider ID; until Cluster API confirms it, no other object has it."""
    machine = await facts.machine()
    check_recorded_provider_id(machine, facts.source.inventory.attestations_of_owner(facts.source.key, machine.uid))
    if not machine.is_confirmed:
        check_renewable(machine, secure=(await facts.verifier()).secure)
    if not machine.is_confirmed and not (await facts.attestation()).has_joined:
        check_provider_id_free(machine, await facts.source.others_with_provider_id(machine))


@declare("not bound otherwise", "identity rules 3 and 4")
async def not_bound_otherwise(facts: CSRFacts) -> None:
    """A machine that is bound already is not bound again by the holder of a token."""
    machine, secure = await facts.machine(), (await facts.verifier()).secure
    attestation = await facts.attestation()
    is_owned = facts.source.inventory.is_owner(facts.source.key, machine.provider_id, attestation.owner_uid)
    check_binding(facts.request, machine, attestation, secure=secure, is_owned=is_owned)


@declare("a joined machine", "serving certificates", purposes=_SERVING)
async def joined_machine(facts: CSRFacts) -> None:
    """The node's client certificate is on record, by the same provider, and has a key of its own."""
    recorded = facts.source.recorded_attestation(await facts.machine())
    check_client_certificate(facts.request, recorded, facts.source.now())


@declare("the Machine's node name", "identity rule 2")
async def own_node_name(facts: CSRFacts) -> None:
    """The requested name is this machine's, or could be proven to be, and no other machine's."""
    # Before a platform is asked about it: a name that nothing but a proof could make this machine's may pass here.
    provable = provable_names(await facts.verifier(), (await facts.policy()).sections)
    proven = facts.node_name if provable is None else provable.get(facts.request.csr.provider_id)
    await _check_node_name(facts, proven)


async def _check_node_name(facts: CSRFacts, proven: NodeName | None) -> None:
    registered = await facts.registered_names()
    around = await facts.name_context()
    machines = (
        machine for machine, own in registered.items() if is_named(own, facts.node_name, short=around.short_names)
    )
    around = replace(around, registered=frozenset(machines))
    machine, sources = await facts.machine(), await facts.name_sources(proven)
    claims = node_names(machine, sources)
    if machine.is_pool_instance and not claims:
        check_pool_instance(machine, has_machines=await facts.pool_makes_machines())
    claim = claim_to(claims, facts.node_name, short_names=around.short_names)
    if claim is not None and claim.strength is not NameStrength.REGISTERED:
        around = replace(around, hosts=await facts.source.hosts_with_name(machine, facts.node_name))
    check_node_name(facts.request, machine, around, sources)


@declare("first request not answered", "two steps", rounds=[Round.FIRST])
async def not_answered(facts: CSRFacts) -> None:
    """No certificate was issued for an answer to this first request."""
    check_not_answered(facts.request, await facts.attestation())


@declare("a token that the machine's bootstrap configuration names", "identity rule 4")
async def own_token(facts: CSRFacts) -> None:
    """A bootstrap token is the one in the machine's own bootstrap configuration, as the policy's tokenBinding says."""
    configured = facts.source.inventory.bootstrap_owner(facts.source.key, await facts.machine())
    binding = (await facts.policy()).token_binding
    await check_token_binding(facts.request, configured, binding, facts.source.named_tokens)


@declare("first request still pending", "two steps", rounds=[Round.FINAL])
async def first_request_pending(facts: CSRFacts) -> None:
    """The first request that is answered was not decided before."""
    if await facts.ref() is None:  # a provider of one round
        return
    request, attestation, first = facts.request, await facts.attestation(), await facts.first()
    summary = facts.source.summary(await facts.first_object(), request, attestation)
    if first is None or summary is None or first.csr.der != request.csr.der:
        return  # the provider's verification says what is wrong with it
    check_first_request_pending(request, summary, key_of(await facts.first_object() or {}), attestation)


@declare(VERIFICATION, "identity rule 6")
async def verified(facts: CSRFacts) -> None:
    """The provider's verifier proves that the machine asks, bound to this request, signer and cluster."""
    await facts.attested()


@declare("the node name as proven", "identity rule 2")
async def proven_node_name(facts: CSRFacts) -> None:
    """The requested name is this machine's by its own sources, or the provider proved it."""
    await _check_node_name(facts, (await facts.attested()).proven_node_name)


@declare("the Machine as proven", "identity rule 7")
async def proven_machine(facts: CSRFacts) -> None:
    """The Machine that the evidence proves, if it proves one, is the one that the provider ID names."""
    proven = (await facts.verifier()).machine_name(facts.request, await facts.attested())
    check_machine_name(await facts.machine(), proven)


@declare("hardware of no other machine", "identity rule 3")
async def own_hardware(facts: CSRFacts) -> None:
    """The TPM or secret that the machine proved itself by proves no other machine of the cluster."""
    check_fingerprints(await facts.machine(), await facts.name_context(), await facts.holders_of_fingerprints())


@declare("no takeover of a node", "identity rules 3 and 4")
async def no_takeover(facts: CSRFacts) -> None:
    """A token does not take over a Node whose machine never joined attested."""
    check_takeover(facts.request, await facts.attestation(), await facts.node())


@declare("adoption of the machine's own node", "identity rules 3 and 4")
async def adoption(facts: CSRFacts) -> None:
    """A node that never joined attested is the one that its machine has."""
    check_adoption(facts.request, await facts.machine(), await facts.attestation(), await facts.node())


@declare("approval by this controller", "issuing", stage=Stage.ISSUE)
async def approval_known(facts: CSRFacts) -> None:
    """A request that is approved already has a certificate on record."""
    check_approval_known(facts.request, await facts.attestation(), facts.state)


@declare("a key that was never certified", "issuing", stage=Stage.ISSUE)
async def new_key(facts: CSRFacts) -> None:
    """The key has no certificate: not of this machine, not of another, not for the other purpose."""
    holders = facts.source.inventory.key_holders(facts.source.key, facts.request.csr.spki_sha256)
    check_key_is_new(facts.request, await facts.machine(), await facts.attestation(), holders)


@declare("one key for one challenge", "two steps", stage=Stage.ISSUE)
async def answered_once(facts: CSRFacts) -> None:
    """The first request was not answered with another key."""
    check_challenge_answered_once(facts.request, await facts.attestation(), await facts.attested())


@declare("time between two keys", "issuing", stage=Stage.ISSUE)
async def replacement_interval(facts: CSRFacts) -> None:
    """Outside renewal a machine replaces a live key at most every ten minutes."""
    check_replacement_interval(facts.request, await facts.attestation(), facts.source.now())


@declare("number of live certificates", "issuing", stage=Stage.ISSUE)
async def live_certificates(facts: CSRFacts) -> None:
    """A machine has a bounded number of live certificates."""
    check_live_certificates(facts.purpose, await facts.attestation(), facts.source.now())


@declare("fingerprints as pinned", "identity rule 3", stage=Stage.ISSUE)
async def pinned_fingerprints(facts: CSRFacts) -> None:
    """What was pinned for the machine is what it proved itself by."""
    check_pinned_fingerprints(await facts.attestation(), await facts.attested())


CHECKS: Final[tuple[RequestCheck[CSRFacts], ...]] = (
    bound_token,
    active_cluster,
    policy,
    attestor_authorized,
    evidence_version,
    serving_allowed,
    first_request_named,
    one_machine,
    own_provider_id,
    machine_now,
    not_bound_otherwise,
    joined_machine,
    names_unclaimed,
    names_on_record,
    own_node_name,
    not_answered,
    own_token,
    one_provider_id,
    first_request_pending,
    verified,
    proven_machine,
    proven_node_name,
    own_hardware,
    no_other_node,
    no_takeover,
    adoption,
    names_unclaimed_now,
    names_listed_now,
    approval_known,
    new_key,
    answered_once,
    replacement_interval,
    live_certificates,
    pinned_fingerprints,
)
"""In the order in which they run."""
