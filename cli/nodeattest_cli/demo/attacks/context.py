"""What attacks are made of: the clusters and machines, an agent with a false identity, a request made manually.

Each attack is a real agent process or a real client of the API server, without access to anything else.
Leaves the attacks to ``common`` and the provider's module.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from nodeattest_cli.demo.attacker import Attacker, CsrOutcome, new_request
from nodeattest_cli.demo.children import Children
from nodeattest_cli.demo.fleet import DemoMachine, run_join
from nodeattest_cli.demo.machine_spec import AttestorSettings, ClaimedIdentity
from nodeattest_cli.demo.node_client import DemoFailure
from nodeattest_cli.demo.platforms import DemoPlatform
from nodeattest_cli.demo.world import World
from nodeattest_controller.model.objects import text
from nodeattest_providers import envelope
from nodeattest_providers.binding import Binding
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.names import evidence_block
from nodeattest_providers.node_interface import Evidence

__all__ = [
    "Attack",
    "AttackContext",
    "attacker_with_token_of",
    "join_with_agent",
    "new_name",
    "observed_evidence",
    "submit_request",
    "submit_with_evidence",
]

_SECOND_PHASE: Final = 2
_VERSION: Final = 1
"""Of every provider's evidence."""
_NUMBERS = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackContext:
    """The clusters, the machines and the stolen tokens."""

    world: World
    platform: DemoPlatform
    """Where an attacker can get further machines."""
    children: Children
    agent: Path
    directory: Path
    attacker: Attacker
    """With the victim's token."""
    insider: Attacker
    """With the token and the files of the member."""
    victim: DemoMachine
    """A Machine that is provisioned and has not joined: no MachineAttestation protects it yet."""
    member: DemoMachine
    """A machine that has joined."""
    unregistered: AttestorSettings
    """An attacker's own machine: a genuine TPM that is not registered, or an instance of the cloud."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack and the Reasons that may refuse it."""

    name: str
    expected: tuple[Reason, ...]
    run: Callable[[AttackContext], CsrOutcome]


def attacker_with_token_of(world: World, machine: DemoMachine) -> Attacker:
    """Make an attacker with a machine's token."""
    return Attacker(
        client=world.workload.client(world.workload.token_kubeconfig(machine.token)),
        token=machine.token,
        ca_pem=world.workload.ca_certificate.read_bytes(),
    )


def join_with_agent(
    context: AttackContext, identity: ClaimedIdentity, attestor: AttestorSettings, *, by: Attacker | None = None
) -> CsrOutcome:
    """Join with the agent; the outcome is read from the API server, not from the agent."""
    attacker = by or context.attacker
    known = attacker.own_names()
    root = context.directory / new_name()
    run_join(
        context.world, context.children, context.agent, root, identity=identity, attestor=attestor, token=attacker.token
    )
    return attacker.outcome_of_new_request(known)


def submit_with_evidence(
    context: AttackContext,
    identity: ClaimedIdentity,
    attestor: AttestorSettings,
    prove: Callable[[Binding], Evidence],
    *,
    by: Attacker | None = None,
) -> CsrOutcome:
    """Submit a request with a fresh key and with evidence made manually over its binding."""
    _, csr_der = new_request(identity.node, identity.provider_id)
    block = evidence_block(attestor.provider, _VERSION)
    evidence = prove(context.attacker.binding(block, attestor.signer, csr_der))
    return submit_request(context, envelope.encode(csr_der, evidence), attestor, by=by)


def submit_request(
    context: AttackContext, request: bytes, attestor: AttestorSettings, *, by: Attacker | None = None
) -> CsrOutcome:
    """Submit a request's bytes and wait for the outcome."""
    attacker, name = by or context.attacker, new_name()
    attacker.submit(name, request, attestor.signer)
    return attacker.outcome(name)


def observed_evidence(context: AttackContext) -> Evidence:
    """Read the joined machine's evidence from its request; first requests, which ask for a challenge, do not count."""
    for csr in context.attacker.observed():
        try:
            node, evidence = envelope.decode(base64.b64decode(text(csr, "spec", "request")))
        except Denied:
            continue
        is_proof = evidence.data.get("phase", _SECOND_PHASE) == _SECOND_PHASE
        if node.node_name == context.member.identity.node and is_proof:
            return evidence
    raise DemoFailure(f"no proof of {context.member.identity.node} can be observed")


def new_name() -> str:
    """Make a name for a request or a folder."""
    return f"attack-{next(_NUMBERS)}"
