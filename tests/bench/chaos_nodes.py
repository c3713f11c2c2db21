"""Honest nodes, which join all the time, so that a pause is seen at once; and attackers with a machine's token.

Both run the agent's own code in threads, with TPMs in software. Attackers ask for the names of others, and answer every
challenge that they get as well as they can.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from cryptography.hazmat.primitives.asymmetric import ec

from bench.burst import cluster_of, provision_in
from bench.chaos_laws import History, Truth
from bench.chaos_servers import UNREACHABLE
from bench.joiner import Kind, Node, Pending, SoftwareAttestor, attest
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.state.records import PendingRequest
from nodeattest_demo.forged_tpm import ForgedTpm
from nodeattest_demo.world import World
from nodeattest_providers.pkcs10 import parse_csr
from nodeattest_providers.tpm.protocol import Challenge

ONE_JOIN = 60.0
"""Seconds of one try; the agent's own limit."""
ONE_ATTACK = 45.0
VICTIMS = 3
JOINERS = 4


class StolenKeyAttestor(SoftwareAttestor):
    """Shows the public endorsement key of another machine, and does the rest in software."""

    def __init__(self, victim: ec.EllipticCurvePublicKey) -> None:
        super().__init__()
        self._victim = victim

    @property
    def tpm(self) -> ForgedTpm:
        return ForgedTpm(self._victim, self.attestation_key)

    def _activate(self, challenge: Challenge) -> bytes:
        del challenge
        return os.urandom(32)  # a guess


@dataclass
class Crowd:
    """Threads of honest nodes and of attackers."""

    world: World
    history: History
    stop: threading.Event
    joined: list[float] = field(default_factory=list[float])
    """Seconds of each join."""
    failures: list[str] = field(default_factory=list[str])
    """What tries said that were repeated."""
    attacks: int = 0
    last: threading.Event = field(default_factory=threading.Event)
    """Set when no further join may begin; those that began go on."""
    _numbers: count[int] = field(default_factory=lambda: count(1))
    _threads: list[threading.Thread] = field(default_factory=list[threading.Thread])

    def begin(self) -> None:
        """Start both; the attackers' machines are registered and never join."""
        insider, *victims = [self._register(joins=False) for _ in range(VICTIMS + 1)]

        def forged() -> None:
            victim = victims[self.attacks % VICTIMS]
            stolen = StolenKeyAttestor(SoftwareAttestor(victim.number).endorsement_key.public_key())
            self._attack(victim, victim.token, stolen)

        def unregistered() -> None:
            self._attack(victims[0], victims[0].token, SoftwareAttestor())

        def by_insider() -> None:
            self._attack(victims[0], insider.token, SoftwareAttestor(insider.number))

        loops = [(2.0, self.last, self._join)] * JOINERS
        loops += [(4.0, self.stop, attack) for attack in (forged, unregistered, by_insider)]
        for loop in loops:
            thread = threading.Thread(target=self._loop, args=loop, daemon=True)
            thread.start()
            self._threads.append(thread)

    def end(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()

    def _loop(self, gap: float, stop: threading.Event, act: Callable[[], None]) -> None:
        while not stop.wait(gap):
            try:
                act()
            except UNREACHABLE:
                continue  # a server restarts; what is half registered never joins

    def _register(self, *, joins: bool) -> Node:
        number = next(self._numbers)
        [node] = provision_in(self.world, Kind.TPM, [number])
        truth = Truth(node.name, node.provider_id, SoftwareAttestor(number).fingerprint, joins=joins)
        self.history.machines[node.name] = truth
        return node

    def _join(self) -> None:
        node, pending, began = self._register(joins=True), Pending(), time.monotonic()
        self.history.ends[node.name] = "it did not join in time"
        while not self.stop.is_set():
            try:
                self._attest(node, SoftwareAttestor(node.number), pending, ONE_JOIN)
            except (AgentError, OSError) as error:
                self.failures.append(str(error))
                self.stop.wait(1.0)
                continue
            self.joined.append(time.monotonic() - began)
            self.history.ends[node.name] = ""
            return

    def _attack(self, victim: Node, token: str, attestor: SoftwareAttestor) -> None:
        """Ask for the victim's name with a stolen token; what came of it, the checker decides."""

        def note(pending: PendingRequest) -> None:
            self.history.attacker_keys.add(parse_csr(pending.csr_der).spki_sha256)

        self.attacks += 1
        try:
            self._attest(Node(0, victim.name, victim.provider_id, token), attestor, Pending(note), ONE_ATTACK)
        except AgentError:
            return

    def _attest(self, node: Node, attestor: SoftwareAttestor, pending: Pending, seconds: float) -> None:
        attest(cluster_of(self.world.workload), node, attestor, pending, seconds)
