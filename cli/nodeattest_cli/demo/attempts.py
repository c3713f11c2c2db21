"""The impostors: what each tries with a stolen token, and the reason for which it must be refused.

Here stands what can be tried against every provider, and what against those without a device; the rest in
``attempts_<provider>``. What else is tried: docs/threat-model.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Final, cast

from nodeattest_cli.demo.attacker import Verdict, new_request
from nodeattest_cli.demo.equipment import Identity, Seat
from nodeattest_cli.demo.results import Refused
from nodeattest_cli.demo.scene import Attempt, Scene, by_agent, file_request, observed_proof, with_proof
from nodeattest_providers import envelope, pem
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import ProviderName
from nodeattest_providers.node_interface import Evidence

__all__ = ["attempts_for", "carry_out"]

_MODULES: Final = MappingProxyType(
    {
        "aws": "nodeattest_cli.demo.attempts_aws",
        "composite": "nodeattest_cli.demo.attempts_composite",
        "azure": "nodeattest_cli.demo.attempts_azure",
        "gcp": "nodeattest_cli.demo.attempts_gcp",
        "tpm": "nodeattest_cli.demo.attempts_tpm",
    }
)
"""Modules with ``ATTEMPTS`` by provider; imported when asked for, since a cloud's need its provider's libraries."""


def attempts_for(provider: ProviderName, discovery: str = "none") -> Sequence[Attempt]:
    """Choose the attempts that make sense against a provider and against a way of discovery."""
    return (*_against_provider(provider), *_against_discovery(discovery))


def _against_discovery(discovery: str) -> Sequence[Attempt]:
    if discovery == "none":
        return ()
    found: object = import_module("nodeattest_cli.demo.attempts_discovery").ATTEMPTS
    return cast("Sequence[Attempt]", found)


def _against_provider(provider: ProviderName) -> Sequence[Attempt]:
    if provider == "insecure":
        return _INSECURE
    if provider == "challenge":
        return (*_COMMON, *_CHALLENGE)
    own: object = import_module(_MODULES[provider]).ATTEMPTS
    return (*_COMMON, *cast("Sequence[Attempt]", own))


def carry_out(scene: Scene, attempt: Attempt) -> Refused:
    """Let an impostor try."""
    verdict = attempt.act(scene)
    return Refused(attempt=attempt.name, expected=attempt.expected, reason=verdict.reason, message=verdict.message)


def _strangers_secret(scene: Scene) -> Verdict:
    """Show a secret of the attacker's own."""
    return by_agent(scene, scene.victim.identity, scene.stranger)


def _members_secret(scene: Scene) -> Verdict:
    """Show a compromised node's secret for another Machine's identity."""
    return by_agent(scene, scene.victim.identity, scene.member.seat)


def _other_name(scene: Scene) -> Verdict:
    """Be an enrolled machine, honest in everything but its name."""
    identity = Identity(node=scene.victim.identity.node, provider_id=scene.member.identity.provider_id)
    return by_agent(scene, identity, scene.member.seat)


def _other_name_insecure(scene: Scene) -> Verdict:
    identity = Identity(node=scene.member.identity.node, provider_id=scene.victim.identity.provider_id)
    return by_agent(scene, identity, scene.victim.seat)


def _downgrade(scene: Scene) -> Verdict:
    """Ask the signer that demands no proof."""
    return by_agent(scene, scene.victim.identity, Seat(provider=ProviderName("insecure")))


def _second_key(scene: Scene) -> Verdict:
    """Be a machine that has joined, and bring another key."""
    return by_agent(scene, scene.member.identity, scene.member.seat, by=scene.insider)


def _other_token(scene: Scene) -> Verdict:
    """Show all that the victim has to show, and ask with the token of another machine."""
    return by_agent(scene, scene.victim.identity, scene.victim.seat, by=scene.insider)


def _without_evidence(scene: Scene) -> Verdict:
    """File a plain PKCS#10 request, as kubeadm's TLS bootstrap files it."""
    identity = scene.victim.identity
    _, csr_der = new_request(identity.node, identity.provider_id)
    return file_request(scene, pem.encode([(envelope.LABEL_CSR, csr_der)]), scene.victim.seat)


def _unknown_machine(scene: Scene) -> Verdict:
    """Claim a provider ID that no Machine has; the controller waits a little, for the Machine might yet appear."""
    identity = Identity(node="worker-nobody", provider_id="demo://rack-9/9")
    seat = scene.victim.seat
    return with_proof(scene, identity, seat, lambda _: Evidence(ProviderName("insecure"), 1, {}))


def _replay(scene: Scene) -> Verdict:
    """Put another node's proof, read where everybody may read it, around a key of the attacker's own."""
    evidence = observed_proof(scene)
    return with_proof(scene, scene.member.identity, scene.member.seat, lambda _: evidence, by=scene.insider)


_OTHER_TOKEN: Final = Attempt(
    name="another machine's token", expected=(Reason.TOKEN_NOT_THIS_MACHINES,), act=_other_token
)
_COMMON: Final = (
    Attempt(name="stolen token, no evidence", expected=(Reason.ENVELOPE_MALFORMED,), act=_without_evidence),
    Attempt(
        name="stolen token, the insecure signer",
        expected=(Reason.ATTESTOR_NOT_AUTHORIZED,),
        act=_downgrade,
    ),
    _OTHER_TOKEN,
    Attempt(
        name="enrolled machine, another node's name",
        expected=(Reason.NODE_NAME_MISMATCH,),
        act=_other_name,
    ),
    Attempt(
        name="replay of another node's proof with a new key",
        # The first request has another key; a secret that served a first join serves no second key; and what a cloud
        # confirms was made for another request.
        expected=(Reason.FIRST_REQUEST_MISMATCH, Reason.SECRET_USED, Reason.PLATFORM_PROOF_NOT_BOUND),
        act=_replay,
    ),
)
_CHALLENGE: Final = (
    Attempt(name="a secret of the attacker's own", expected=(Reason.PROOF_INVALID,), act=_strangers_secret),
    Attempt(name="another machine's secret", expected=(Reason.PROOF_INVALID,), act=_members_secret),
    Attempt(name="a joined machine's secret, a second key", expected=(Reason.SECRET_USED,), act=_second_key),
)
_INSECURE: Final = (
    Attempt(name="stolen token, no evidence", expected=(Reason.ENVELOPE_MALFORMED,), act=_without_evidence),
    _OTHER_TOKEN,
    Attempt(name="another node's name", expected=(Reason.NODE_NAME_MISMATCH,), act=_other_name_insecure),
    Attempt(name="a joined machine, a second key", expected=(Reason.MACHINE_ALREADY_BOUND,), act=_second_key),
    Attempt(name="a machine that nobody made", expected=(Reason.MACHINE_NOT_FOUND,), act=_unknown_machine),
)
