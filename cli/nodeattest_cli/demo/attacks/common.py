"""The table of attacks, those that fit every provider, and those against providers without a device.

Leaves to others: attacks on one provider (a module each), attacks on discovery (``discovery``), all other attacks
(docs/threat-model.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Final, cast

from nodeattest_cli.demo.attacker import CsrOutcome, new_request
from nodeattest_cli.demo.attacks.context import (
    Attack,
    AttackContext,
    join_with_agent,
    observed_evidence,
    submit_request,
    submit_with_evidence,
)
from nodeattest_cli.demo.machine_spec import AttestorSettings, ClaimedIdentity
from nodeattest_cli.demo.results import AttackResult
from nodeattest_providers import envelope, pem
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import ProviderName
from nodeattest_providers.node_interface import Evidence

__all__ = ["attacks_for", "run_attack"]

_MODULES: Final = MappingProxyType(
    {
        "aws": "nodeattest_cli.demo.attacks.aws",
        "composite": "nodeattest_cli.demo.attacks.composite",
        "azure": "nodeattest_cli.demo.attacks.azure",
        "gcp": "nodeattest_cli.demo.attacks.gcp",
        "tpm": "nodeattest_cli.demo.attacks.tpm",
    }
)
"""Modules with ``ATTACKS`` by provider; imported on demand, since a cloud's attacks need its libraries."""


def attacks_for(provider: ProviderName, discovery: str = "none") -> Sequence[Attack]:
    """Return the attacks for a provider and a discovery method."""
    return (*_against_provider(provider), *_against_discovery(discovery))


def _against_discovery(discovery: str) -> Sequence[Attack]:
    if discovery == "none":
        return ()
    found: object = import_module("nodeattest_cli.demo.attacks.discovery").ATTACKS
    return cast("Sequence[Attack]", found)


def _against_provider(provider: ProviderName) -> Sequence[Attack]:
    if provider == "insecure":
        return _INSECURE
    if provider == "challenge":
        return (*_COMMON, *_CHALLENGE)
    own: object = import_module(_MODULES[provider]).ATTACKS
    return (*_COMMON, *cast("Sequence[Attack]", own))


def run_attack(context: AttackContext, attempt: Attack) -> AttackResult:
    """Run one attack."""
    outcome = attempt.run(context)
    return AttackResult(attempt=attempt.name, expected=attempt.expected, reason=outcome.reason, message=outcome.message)


def _own_secret(context: AttackContext) -> CsrOutcome:
    """Show a secret of the attacker's own."""
    return join_with_agent(context, context.victim.identity, context.unregistered)


def _members_secret(context: AttackContext) -> CsrOutcome:
    """Show a compromised node's secret for another Machine's identity."""
    return join_with_agent(context, context.victim.identity, context.member.attestor)


def _other_name(context: AttackContext) -> CsrOutcome:
    """Be an enrolled machine, honest in everything but its name."""
    identity = ClaimedIdentity(node=context.victim.identity.node, provider_id=context.member.identity.provider_id)
    return join_with_agent(context, identity, context.member.attestor, by=context.insider)


def _other_name_insecure(context: AttackContext) -> CsrOutcome:
    identity = ClaimedIdentity(node=context.member.identity.node, provider_id=context.victim.identity.provider_id)
    return join_with_agent(context, identity, context.victim.attestor)


def _downgrade(context: AttackContext) -> CsrOutcome:
    """Ask the signer that demands no proof."""
    return join_with_agent(context, context.victim.identity, AttestorSettings(provider=ProviderName("insecure")))


def _second_key(context: AttackContext) -> CsrOutcome:
    """Be a machine that has joined, and bring another key."""
    return join_with_agent(context, context.member.identity, context.member.attestor, by=context.insider)


def _other_token(context: AttackContext) -> CsrOutcome:
    """Show all that the victim has to show, and ask with the token of another machine."""
    return join_with_agent(context, context.victim.identity, context.victim.attestor, by=context.insider)


def _without_evidence(context: AttackContext) -> CsrOutcome:
    """File a plain PKCS#10 request, as kubeadm's TLS bootstrap files it."""
    identity = context.victim.identity
    _, csr_der = new_request(identity.node, identity.provider_id)
    return submit_request(context, pem.encode([(envelope.LABEL_CSR, csr_der)]), context.victim.attestor)


def _unknown_machine(context: AttackContext) -> CsrOutcome:
    """Claim a provider ID that no Machine has, with the token of a Machine that has another."""
    identity = ClaimedIdentity(node="worker-nobody", provider_id="demo://rack-9/9")
    attestor = context.victim.attestor
    return submit_with_evidence(context, identity, attestor, lambda _: Evidence(ProviderName("insecure"), 1, {}))


def _replay(context: AttackContext) -> CsrOutcome:
    """Put another node's proof, read where everybody may read it, around a key of the attacker's own."""
    evidence = observed_evidence(context)
    return submit_with_evidence(
        context, context.member.identity, context.member.attestor, lambda _: evidence, by=context.insider
    )


_OTHER_TOKEN: Final = Attack(
    name="another machine's token", expected=(Reason.TOKEN_NOT_THIS_MACHINES,), run=_other_token
)
_COMMON: Final = (
    Attack(name="stolen token, no evidence", expected=(Reason.ENVELOPE_MALFORMED,), run=_without_evidence),
    Attack(
        name="stolen token, the insecure signer",
        expected=(Reason.ATTESTOR_NOT_AUTHORIZED,),
        run=_downgrade,
    ),
    _OTHER_TOKEN,
    Attack(
        name="enrolled machine, another node's name",
        expected=(Reason.NODE_NAME_MISMATCH,),
        run=_other_name,
    ),
    Attack(
        name="replay of another node's proof with a new key",
        # The first request has another key; a secret that served a first join serves no second key; and what a cloud
        # confirms was made for another request.
        expected=(Reason.FIRST_REQUEST_MISMATCH, Reason.SECRET_USED, Reason.PLATFORM_PROOF_NOT_BOUND),
        run=_replay,
    ),
)
_CHALLENGE: Final = (
    Attack(name="a secret of the attacker's own", expected=(Reason.PROOF_INVALID,), run=_own_secret),
    Attack(name="another machine's secret", expected=(Reason.PROOF_INVALID,), run=_members_secret),
    Attack(name="a joined machine's secret, a second key", expected=(Reason.SECRET_USED,), run=_second_key),
)
_INSECURE: Final = (
    Attack(name="stolen token, no evidence", expected=(Reason.ENVELOPE_MALFORMED,), run=_without_evidence),
    _OTHER_TOKEN,
    Attack(name="another node's name", expected=(Reason.NODE_NAME_MISMATCH,), run=_other_name_insecure),
    Attack(name="a joined machine, a second key", expected=(Reason.MACHINE_ALREADY_BOUND,), run=_second_key),
    Attack(name="a machine that nobody made", expected=(Reason.PROVIDER_ID_MISMATCH,), run=_unknown_machine),
)
