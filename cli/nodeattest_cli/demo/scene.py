"""What every impostor works with: who is there, a real agent under a false identity, a request filed by hand.

Promises: each attempt is a real agent process or a real client of the API server; none has help from inside.
Leaves what is tried to ``attempts`` and its provider's module.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from nodeattest_cli.demo.attacker import Attacker, Verdict, new_request
from nodeattest_cli.demo.children import Children
from nodeattest_cli.demo.equipment import Identity, Seat
from nodeattest_cli.demo.fleet import DemoMachine, run_join
from nodeattest_cli.demo.grounds import Ground
from nodeattest_cli.demo.node_client import DemoFailure
from nodeattest_cli.demo.world import World
from nodeattest_controller.model.objects import text
from nodeattest_providers import envelope
from nodeattest_providers.binding import Binding
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import Evidence

__all__ = ["Attempt", "Scene", "by_agent", "file_request", "new_name", "observed_proof", "thief_of", "with_proof"]

_SECOND_PHASE: Final = 2
_NUMBERS = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Who is there when the impostors come."""

    world: World
    ground: Ground
    """Where the machines stand: what else an attacker can get there."""
    children: Children
    agent: Path
    directory: Path
    attacker: Attacker
    """With the victim's token."""
    insider: Attacker
    """With the member's token: who got hold of what that machine keeps."""
    victim: DemoMachine
    """A Machine that is provisioned and has not joined: nothing in the ledger protects it yet."""
    member: DemoMachine
    """A machine that has joined."""
    stranger: Seat
    """What an attacker's own machine has to show: a genuine TPM that nobody registered, an instance of the cloud."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One thing that an impostor tries."""

    name: str
    expected: tuple[Reason, ...]
    act: Callable[[Scene], Verdict]


def thief_of(world: World, machine: DemoMachine) -> Attacker:
    """Make somebody with a machine's token."""
    return Attacker(
        client=world.workload.client(world.workload.token_kubeconfig(machine.token)),
        token=machine.token,
        ca_pem=world.workload.ca_certificate.read_bytes(),
    )


def by_agent(scene: Scene, identity: Identity, seat: Seat, *, by: Attacker | None = None) -> Verdict:
    """Join with the agent; the answer is read from the API server, not from what the agent says."""
    attacker = by or scene.attacker
    known = attacker.own_names()
    root = scene.directory / new_name()
    run_join(scene.world, scene.children, scene.agent, root, identity=identity, seat=seat, token=attacker.token)
    return attacker.verdict_besides(known)


def with_proof(
    scene: Scene,
    identity: Identity,
    seat: Seat,
    prove: Callable[[Binding], Evidence],
    *,
    by: Attacker | None = None,
) -> Verdict:
    """File a request with a fresh key and with evidence made by hand over its binding."""
    _, csr_der = new_request(identity.node, identity.provider_id)
    evidence = prove(scene.attacker.binding(seat.signer, csr_der))
    return file_request(scene, envelope.encode(csr_der, evidence), seat, by=by)


def file_request(scene: Scene, request: bytes, seat: Seat, *, by: Attacker | None = None) -> Verdict:
    """File a request's bytes and wait for the answer."""
    attacker, name = by or scene.attacker, new_name()
    attacker.file(name, request, seat.signer)
    return attacker.verdict(name)


def observed_proof(scene: Scene) -> Evidence:
    """Read the joined machine's proof where everybody may read it; a request that asks for a challenge is none."""
    for csr in scene.attacker.observed():
        try:
            node, evidence = envelope.decode(base64.b64decode(text(csr, "spec", "request")))
        except Denied:
            continue
        is_proof = evidence.data.get("phase", _SECOND_PHASE) == _SECOND_PHASE
        if node.node_name == scene.member.identity.node and is_proof:
            return evidence
    raise DemoFailure(f"no proof of {scene.member.identity.node} can be observed")


def new_name() -> str:
    """Name a request, or a folder."""
    return f"impostor-{next(_NUMBERS)}"
