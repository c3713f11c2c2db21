"""Honest nodes, which join all the time, so that a pause is seen at once; and attackers with a machine's token.

Both run the agent's own code in threads, with TPMs in software. Attackers ask for the names of others, and answer every
challenge that they get as well as they can.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric import ec

from bench.burst import server_of
from bench.chaos.history import History, Truth
from bench.chaos.servers import UNREACHABLE
from bench.joiner import Node, SoftwareAttestor, attest
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.state.records import PendingRequest, PendingRequestFile
from nodeattest_demo.forged_tpm import ForgedTpm
from nodeattest_demo.world import CLUSTER, NAMESPACE, World, new_token
from nodeattest_parsing.objects import text
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY
from nodeattest_providers.pkcs10 import parse_csr
from nodeattest_providers.tpm.protocol import Challenge
from nodeattest_sandbox.fleet import create_bootstrap_token, create_machine

T = TypeVar("T")

RETRY = 1.0
"""Seconds between two tries of a write."""


class Stopped(Exception):
    """The run ended first."""


@dataclass(frozen=True)
class Registered:
    """One machine."""

    truth: Truth
    name: str
    """Of its Machine."""
    token: str = field(repr=False)


@dataclass
class Fleet:
    """Registers machines."""

    world: World
    stop: threading.Event

    def register(self, truth: Truth) -> Registered:
        """Create a Machine and its token; returns when both clusters have them."""
        one = Registered(truth, f"{CLUSTER}-{truth.node}", new_token())
        self.until_done(lambda: self._create(one))
        self.until_done(lambda: self._await_token(one.token))
        return one

    def until_done(self, act: Callable[[], T]) -> T:
        """Repeat what fails while servers restart."""
        while True:
            try:
                return act()
            except UNREACHABLE:
                if self.stop.wait(RETRY):
                    raise Stopped from None

    def _create(self, one: Registered) -> None:
        create_bootstrap_token(self.world.workload.client(timeout=5.0), one.token)
        client = self.world.management.client(timeout=5.0)
        path = f"/apis/{text(self.world.cluster, 'apiVersion')}/namespaces/{NAMESPACE}/machines/{one.name}"
        found = client.find(path)
        if found is not None and text(found, "status", "phase"):
            return
        if found is not None:
            client.delete(path)  # a server died between the writes of one machine
        annotations: Mapping[str, str] = {ANNOTATION_TPM_ENDORSEMENT_KEY: one.truth.endorsement_key}
        for kind in ("devmachines", "kubeadmconfigs"):
            _remove(self.world, kind, one.name)
        create_machine(
            client,
            one.name,
            cluster=self.world.cluster,
            provider_id=one.truth.provider_id,
            addresses=[("Hostname", one.truth.node)],
            infrastructure_annotations=annotations,
            bootstrap_token=one.token,
        )

    def _await_token(self, token: str) -> None:
        workload = self.world.workload
        workload.client(workload.token_kubeconfig(token), timeout=5.0).send("GET", "/api")


def _remove(world: World, kind: str, name: str) -> None:
    """Remove what an interrupted creation left behind."""
    group = "infrastructure" if kind == "devmachines" else "bootstrap"
    version = text(world.cluster, "apiVersion").rpartition("/")[2]
    path = f"/apis/{group}.cluster.x-k8s.io/{version}/namespaces/{NAMESPACE}/{kind}/{name}"
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}-bootstrap"
    client = world.management.client(timeout=5.0)
    for each in (path, secret):
        if client.find(each) is not None:
            client.delete(each)


ONE_JOIN = 60.0
"""Seconds of one try; the agent's own limit."""
ONE_ATTACK = 45.0
VICTIMS = 3


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


class Pending(PendingRequestFile):
    """Keeps a request between tries, as the agent does in a file: a new key for each try would wait ten minutes."""

    def __init__(self, on_key: Callable[[PendingRequest], None] = lambda _pending: None) -> None:
        self._request: PendingRequest | None = None
        self._on_key = on_key

    def load(self) -> PendingRequest | None:
        return self._request

    def save(self, pending: PendingRequest) -> None:
        self._request = pending
        self._on_key(pending)

    def discard(self) -> None:
        self._request = None


@dataclass
class Crowd:
    """Threads of honest nodes and of attackers."""

    fleet: Fleet
    history: History
    joined: list[float] = field(default_factory=list[float])
    """Seconds of each join."""
    failures: list[str] = field(default_factory=list[str])
    """What tries said that were repeated."""
    attacks: int = 0
    last: threading.Event = field(default_factory=threading.Event)
    """Set when no further join may begin; those that began go on."""
    _numbers: count[int] = field(default_factory=lambda: count(1))
    _threads: list[threading.Thread] = field(default_factory=list[threading.Thread])

    def begin(self, *, nodes: int = 4) -> None:
        """Start both; the attackers' machines are registered and never join."""
        attestors = [SoftwareAttestor() for _ in range(VICTIMS + 1)]
        insider, *victims = [
            self._register(f"victim-{number}", attestor, joins=False) for number, attestor in enumerate(attestors)
        ]

        def forged() -> None:
            number = next(self._numbers) % VICTIMS
            stolen = StolenKeyAttestor(attestors[1 + number].endorsement_key.public_key())
            self._attack(victims[number], victims[number], stolen)

        def unregistered() -> None:
            self._attack(victims[0], victims[0], SoftwareAttestor())

        def by_insider() -> None:
            self._attack(insider, victims[0], attestors[0])

        loops = [(2.0, self.last, self._join)] * nodes
        loops += [(4.0, self.fleet.stop, attack) for attack in (forged, unregistered, by_insider)]
        for loop in loops:
            thread = threading.Thread(target=self._loop, args=loop, daemon=True)
            thread.start()
            self._threads.append(thread)

    def end(self) -> None:
        for thread in self._threads:
            thread.join()

    def _loop(self, gap: float, stop: threading.Event, act: Callable[[], None]) -> None:
        while not stop.wait(gap):
            try:
                act()
            except Stopped:
                return

    def _register(self, node: str, attestor: SoftwareAttestor, *, joins: bool) -> Registered:
        truth = Truth(node, f"demo://{node}", attestor.fingerprint, joins=joins)
        self.history.machines[node] = truth
        return self.fleet.register(truth)

    def _join(self) -> None:
        attestor, node = SoftwareAttestor(), f"node-{next(self._numbers)}"
        self.history.ends[node] = "it did not join in time"
        machine, pending, began = self._register(node, attestor, joins=True), Pending(), time.monotonic()
        while True:
            try:
                self._attest(machine.truth, machine.token, attestor, pending, ONE_JOIN)
            except (AgentError, OSError) as error:
                self.failures.append(str(error))
                if self.fleet.stop.wait(1.0):
                    raise Stopped from None
                continue
            self.joined.append(time.monotonic() - began)
            self.history.ends[node] = ""
            return

    def _attack(self, thief: Registered, victim: Registered, attestor: SoftwareAttestor) -> None:
        """Ask for the victim's name with the thief's token; what came of it, the checker decides."""

        def note(pending: PendingRequest) -> None:
            self.history.attacker_keys.add(parse_csr(pending.csr_der).spki_sha256)

        self.attacks += 1
        try:
            self._attest(victim.truth, thief.token, attestor, Pending(note), ONE_ATTACK)
        except (AgentError, *UNREACHABLE):
            return

    def _attest(self, wanted: Truth, token: str, attestor: SoftwareAttestor, pending: Pending, seconds: float) -> None:
        node = Node(0, wanted.node, wanted.provider_id, token)
        attest(server_of(self.fleet.world.workload), node, attestor, pending, seconds)
