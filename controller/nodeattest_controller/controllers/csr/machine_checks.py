"""Which machine a request is for: what the policy admits, the token, the provider ID (identity rules 0, 1 and 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nodeattest_controller.model import kubeadm_config, resolver
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.kubeadm_config import KeptConfig, bound_group, is_kubeadm_config
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import TokenBinding
from nodeattest_controller.verification.checks import declare
from nodeattest_controller.verification.facts import CSRFacts
from nodeattest_discovery.token import USER_PREFIX
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import ANNOTATION_PROVIDER_ID, Purpose
from nodeattest_providers.node_interface import check_supported

_MAX_LISTED: Final = 8
_CLUSTER_API_KINDS: Final = frozenset({"Machine", "MachinePool"})
_UNSTATED: Final = (
    "name the machine's token in its KubeadmConfig, or let the policy say tokenBinding: Preferred, which leaves "
    "machines without a named token to what their provider proves"
)


@declare("a token of no other machine", "identity rule 4")
async def bound_token(facts: CSRFacts) -> None:
    """A requester whose group binds it to a machine asks for that machine, and is bound to no other."""
    request = facts.request
    bound = {group for group in request.groups if group.startswith(kubeadm_config.BOUND_GROUP_PREFIX)}
    if bound and bound != {bound_group(facts.source.key, request.csr.provider_id)}:
        raise Denied(
            Reason.TOKEN_NOT_THIS_MACHINES,
            expected="a requester that is bound to the requested machine, or to none",
            got=f"{request.username}, bound to another machine",
            remedy="use the bootstrap token that was made for this machine",
        )


@declare("one policy", "identity rule 0")
async def policy(facts: CSRFacts) -> None:
    """Exactly one NodeAttestationPolicy selects the cluster, and it can be read."""
    await facts.policy()


@declare("attestor authorized", "identity rule 0")
async def attestor_authorized(facts: CSRFacts) -> None:
    """The policy's authorizedAttestors name the provider; an empty list names none."""
    attestors, provider = (await facts.policy()).attestors, facts.request.evidence.provider
    if provider not in attestors:
        named = ", ".join(sorted(attestors)) or "none (an empty list means none)"
        raise Denied(
            Reason.ATTESTOR_NOT_AUTHORIZED,
            expected=f"one of the policy's authorizedAttestors: {named}",
            got=provider,
            remedy="use an attestor that the cluster's policy names",
        )


@declare("evidence version and schema", "wire format")
async def evidence_version(facts: CSRFacts) -> None:
    """The controller knows the provider and the version of its evidence."""
    check_supported(facts.request.evidence, (await facts.verifier()).versions)


@declare("attested serving request", "serving certificates", purposes=[Purpose.SERVING])
async def serving_allowed(facts: CSRFacts) -> None:
    """The policy signs attested serving requests, the provider is secure, and the node itself asks."""
    if not (await facts.policy()).signs_serving:
        remedy = "use kubelet's serverTLSBootstrap, or let the policy sign"
        raise _not_served("a policy with serving.attested: Sign", "one with Refuse", remedy)
    if not (await facts.verifier()).secure:
        remedy = "use a secure attestation provider for serving certificates"
        raise _not_served("a secure provider", facts.request.evidence.provider, remedy)
    if not facts.request.is_renewal:
        remedy = "join first, and ask for serving certificates with the node's own client certificate"
        raise _not_served("a request of the node itself", "one of a bootstrap token", remedy)


@declare("round of the request", "wire format")
async def first_request_named(facts: CSRFacts) -> None:
    """The evidence tells whether the request is a first one or which first request it answers."""
    await facts.ref()


@declare("one Machine, alive and ready", "identity rule 1")
async def one_machine(facts: CSRFacts) -> None:
    """Bootstrap token and provider ID name one machine, the same: it stays, is not paused, has its bootstrap data."""
    by_provider_id, by_token = await facts.by_provider_id(), await facts.by_token()
    if not by_provider_id:
        _check_owner_of_record(facts)
    binding = (await facts.policy()).token_binding
    if not by_token or (binding is TokenBinding.OFF and by_provider_id):
        resolver.find_machine(facts.request, by_provider_id)
        return
    if len(by_token) > 1:
        raise Denied(
            Reason.MACHINE_AMBIGUOUS,
            expected="a bootstrap token that one Machine's bootstrap configuration names",
            got=", ".join(sorted(f"{one.kind} {one.name}" for one in by_token[:_MAX_LISTED])),
            remedy="let the bootstrap provider make a token for each Machine: name none in the template",
        )
    _check_same(facts, by_token[0], [one for one in by_provider_id if one.uid != by_token[0].uid])
    resolver.check_machine_ready(by_token[0])


def _check_owner_of_record(facts: CSRFacts) -> None:
    """Refuse a node whose Machine has another provider ID by now."""
    inventory, key = facts.source.inventory, facts.source.key
    record = inventory.attestation(key, facts.request.csr.provider_id)
    owner = inventory.machine_by_uid(key, record.owner_uid) if record is not None else None
    if record is None or owner is None or owner.provider_id == record.provider_id or not facts.request.is_renewal:
        return
    raise resolver.provider_id_changed(owner, record.provider_id, f"{owner.provider_id} ({owner.provider_id_source})")


def _check_same(facts: CSRFacts, machine: MachineView, others: Sequence[MachineView]) -> None:
    """Refuse a token of one Machine with a provider ID that others have."""
    if not others:
        return
    if machine.provider_id == facts.request.csr.provider_id:
        raise Denied(
            Reason.MACHINE_AMBIGUOUS,
            expected="one Machine with this provider ID",
            got=", ".join(f"{one.kind} {one.name} ({one.provider_id_source})" for one in (machine, others[0])),
            remedy="delete the Machine that has it wrongly, or correct its infrastructure objects",
        )
    raise Denied(
        Reason.TOKEN_NOT_THIS_MACHINES,
        expected=f"the provider ID of {machine.kind} {machine.name}, whose bootstrap configuration names the token",
        got=f"{facts.request.csr.provider_id!r}, the provider ID of {others[0].kind} {others[0].name}",
        remedy="let each machine use its own bootstrap data",
    )


@declare("the Machine's provider ID", "identity rule 1")
async def own_provider_id(facts: CSRFacts) -> None:
    """The provider ID is the one that the Machine has, or that its infrastructure objects give it."""
    machine, expected = await facts.selected_machine(), await facts.expected_provider_id()
    what = f"{machine.kind} {machine.name}"
    if expected is None:
        raise Unavailable(
            Reason.MACHINE_NOT_FOUND,
            f"{what} has no provider ID yet: not in spec.providerID, not in its infrastructure machine, and no "
            "expression for that kind gives one",
            remedy="wait until the infrastructure provider sets it, or add an expression for the kind to the policy's "
            "spec.infrastructure.providerIDs",
        )
    requested = facts.request.csr.provider_id
    if not requested:
        remedy = "file another request with the provider ID in the annotation; the agent does so by itself"
        if expected.is_prefix:  # kubelet needs the same suffix, and nobody tells it one
            remedy = f"give agent and kubelet one provider ID that begins with {expected.value}"
        raise Denied(
            Reason.PROVIDER_ID_REQUIRED,
            expected=f"a request with the provider ID of {what}",
            got="a request without one",
            remedy=remedy,
            annotations={} if expected.is_prefix else {ANNOTATION_PROVIDER_ID: expected.value},
        )
    if not expected.matches(requested):
        raise Denied(
            Reason.PROVIDER_ID_MISMATCH,
            expected=f"{expected.value}{'*' if expected.is_prefix else ''} ({expected.source})",
            got=requested,
            remedy=f"give the node the provider ID of {what}, or none: then the controller tells it",
        )


@declare("one provider ID for one Machine", "identity rule 1")
async def one_provider_id(facts: CSRFacts) -> None:
    """The Machine joined with no other provider ID; until Cluster API confirms it, no other object has it."""
    machine = await facts.machine()
    owned = facts.source.inventory.attestations_of_owner(facts.source.key, machine.uid)
    record = resolver.record_of_other_id(machine, owned)
    if record is not None:
        got = f"{machine.provider_id} ({machine.provider_id_source})"
        raise resolver.provider_id_changed(machine, record.provider_id, got)
    if machine.is_confirmed:
        return
    if not (await facts.verifier()).secure:
        raise resolver.not_ready(
            f"{machine.kind} {machine.name} has no spec.providerID; until it has, certificates last "
            f"{resolver.UNCONFIRMED_LIFETIME // 3600} hours, and a provider that is not secure renews none",
            "use a secure provider, or wait until Cluster API sets the Machine's spec.providerID",
        )
    others = [] if (await facts.attestation()).has_joined else await facts.source.others_with_provider_id(machine)
    if others:
        raise Denied(
            Reason.MACHINE_AMBIGUOUS,
            expected=f"a provider ID of {machine.kind} {machine.name} alone",
            got=f"{machine.provider_id}, which {', '.join(sorted(others)[:_MAX_LISTED])} has, too",
            remedy="delete the object that has it wrongly",
        )


@declare("not bound otherwise", "identity rules 3 and 4")
async def not_bound_otherwise(facts: CSRFacts) -> None:
    """A machine that is bound already is not bound again by the holder of a token."""
    machine, secure = await facts.machine(), (await facts.verifier()).secure
    attestation = await facts.attestation()
    if attestation.resource_version and attestation.owner_uid != machine.uid and not await facts.owns_record():
        raise resolver.not_ready("the attestation record of this machine's predecessor is not collected yet", "wait")
    if facts.request.is_renewal or attestation.entry_for(facts.request.csr.spki_sha256) is not None:
        return
    if machine.node_ref_name and not attestation.has_joined and not attestation.was_reset:
        raise unattested("a Machine with a nodeRef and no attestation record", "re-create the Machine")
    if not secure and attestation.has_joined:
        raise Denied(
            Reason.MACHINE_ALREADY_BOUND,
            expected="the key that this machine joined with",
            got="another key, and an insecure provider cannot tell whose",
            remedy="nodeattest machines reset, or re-create the Machine",
        )


@declare("a joined machine", "serving certificates", purposes=[Purpose.SERVING])
async def joined_machine(facts: CSRFacts) -> None:
    """The node's client certificate is on record, by the same provider, and has a key of its own."""
    recorded: Attestation = facts.source.recorded_attestation(await facts.machine())
    provider = facts.request.evidence.provider
    if recorded.live(facts.source.now()) is None:
        remedy = "let the node renew its client certificate with evidence first"
        raise _not_served("a machine with a client certificate of the ledger", "one without", remedy)
    if recorded.provider != provider:
        attested = f"the provider that attested the client certificate, {recorded.provider}"
        raise _not_served(attested, provider, "attest the serving certificate by the provider of the client's")
    if recorded.serves_otherwise(facts.request.csr.spki_sha256, Purpose.SERVING):
        raise Denied(
            Reason.KEY_REUSED,
            expected="a key of its own for the serving certificate",
            got="the key of a client certificate",
            remedy="make a new key",
        )


@declare("a token that the machine's bootstrap configuration names", "identity rule 4")
async def own_token(facts: CSRFacts) -> None:
    """A bootstrap token is the one in the machine's own bootstrap configuration, as the policy's tokenBinding says."""
    request, binding = facts.request, (await facts.policy()).token_binding
    machine = facts.source.inventory.bootstrap_owner(facts.source.key, await facts.machine())  # of a pool: the pool
    # A token of our own group is bound to the machine already. A record that names no token is bound by it alone.
    is_bound = bound_group(facts.source.key, machine.provider_id) in request.groups
    names_one = machine.kind in _CLUSTER_API_KINDS or bool(machine.bootstrap_token_id)
    if binding is TokenBinding.OFF or request.is_renewal or is_bound or not names_one:
        return
    token_id, what = request.username.removeprefix(USER_PREFIX), f"{machine.kind} {machine.name}"
    named = await _named_tokens(facts, machine, token_id)
    if named is not None and token_id in named.ids:
        return
    if named is not None and named.ids:
        raise Denied(
            Reason.TOKEN_NOT_THIS_MACHINES,
            expected=f"the bootstrap token of {what}: {', '.join(sorted(named.ids))}",
            got=f"the token {token_id}",
            remedy="let the node use its own machine's token, from the Machine's bootstrap data or its MachineRecord",
        )
    if binding is TokenBinding.PREFERRED:
        return
    if named is not None and not named.settled:
        raise Unavailable(
            Reason.BOOTSTRAP_CONFIG_UNREADABLE,
            f"the KubeadmConfig of {what} names no token yet",
            remedy="wait for the bootstrap provider, which writes the token there",
        )
    raise _not_named(machine, named)


async def _named_tokens(facts: CSRFacts, machine: MachineView, token_id: str) -> KeptConfig | None:
    """Return the tokens that a machine's configuration names; None where none can be read, now or ever."""
    if is_kubeadm_config(machine):
        return await facts.source.named_tokens(machine, token_id)
    if machine.of_pool and machine.bootstrap is None:
        raise Unavailable(
            Reason.BOOTSTRAP_CONFIG_UNREADABLE,
            f"{machine.kind} {machine.name} is of a MachinePool, and no one pool lists its provider ID yet",
            remedy="let the infrastructure provider list it in the pool's providerIDList",
        )
    own = machine.bootstrap_token_id  # of a MachineRecord
    return KeptConfig(ids=frozenset({own}), settled=True) if own else None


def _not_named(machine: MachineView, named: KeptConfig | None) -> Denied:
    remedy = _UNSTATED
    if named is not None and named.token_lost:
        remedy = kubeadm_config.DELETE_UNNAMED
        if machine.kind == "MachinePool":
            remedy = "give the MachinePool a new KubeadmConfig (bootstrap.configRef)"
    if named is not None:
        got = f"one that {kubeadm_config.LOST_TOKEN}" if named.token_lost else "one without a token"
    elif machine.bootstrap is None:
        got = "no reference to a bootstrap configuration"
    else:
        got = f"a {machine.bootstrap.kind} of {machine.bootstrap.group}"
    expected = f"a KubeadmConfig of {machine.kind} {machine.name} that names its bootstrap token"
    return Denied(Reason.TOKEN_NOT_NAMED, expected=expected, got=got, remedy=remedy)


def unattested(got: str, otherwise: str) -> Denied:
    expected = "a Machine without a node, or one whose node joined attested"
    remedy = f"adopt the node (kubelet-authenticator adopt on it, or nodeattest machines adopt --open), or {otherwise}"
    return Denied(Reason.MACHINE_ALREADY_BOUND, expected=expected, got=got, remedy=remedy)


def _not_served(expected: str, got: str, remedy: str) -> Denied:
    return Denied(Reason.SERVING_NOT_ALLOWED, expected=expected, got=got, remedy=remedy)
