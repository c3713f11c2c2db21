"""Attackers who hold a machine's bootstrap token and ask for the names of others, as well as they can.

They answer every challenge that they get; what they cannot do is decrypt one that is for another TPM.
"""

from __future__ import annotations

import base64
import hashlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from bench.chaos.fleet import UNREACHABLE, Fleet, Registered, Stopped
from bench.chaos.history import History, Truth
from bench.chaos.nodes import SIGNER
from bench.environment import BenchEnvironment
from bench.software_tpm import SoftwareAttestor
from nodeattest_demo.forged_tpm import ForgedTpm
from nodeattest_demo.scene import Attacker, new_request
from nodeattest_parsing.objects import condition, items, text
from nodeattest_providers import envelope
from nodeattest_providers.binding import Binding
from nodeattest_providers.identifiers import ANNOTATION_CHALLENGE, evidence_block
from nodeattest_providers.node_interface import Evidence, PublishedChallenge
from nodeattest_providers.tpm.protocol import Challenge

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
LIMIT = 45.0
"""Seconds that an attacker waits for an answer before it tries something else."""
POLL = 0.5


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


@dataclass(frozen=True)
class Loot:
    """What attackers hold: machines that never join, with their tokens and public keys, and one that is theirs."""

    victims: tuple[tuple[Registered, ec.EllipticCurvePublicKey], ...]
    own: Registered
    own_attestor: SoftwareAttestor


class Attackers:
    """Threads that attack until the run ends."""

    def __init__(self, env: BenchEnvironment, fleet: Fleet, history: History, *, gap: float) -> None:
        self.outcomes = Counter[str]()
        self._env, self._fleet, self._history, self._gap = env, fleet, history, gap
        self._number = 0
        self._threads: list[threading.Thread] = []
        self._loot: Loot | None = None

    def begin(self) -> None:
        """Register victims, and an attacker's own machine, which may join as itself only and never does."""
        victims: list[tuple[Registered, ec.EllipticCurvePublicKey]] = []
        for number in range(3):
            attestor = SoftwareAttestor()
            victims.append((self._register(f"victim-{number}", attestor), attestor.endorsement_key.public_key()))
        own = SoftwareAttestor()
        self._loot = Loot(tuple(victims), self._register("insider", own), own)
        kinds: tuple[Callable[[Loot, int], None], ...] = (self._unregistered, self._forged, self._insider, self._copied)
        for kind in kinds:
            thread = threading.Thread(target=self._loop, args=(kind, self._loot), daemon=True)
            thread.start()
            self._threads.append(thread)

    def end(self) -> None:
        for thread in self._threads:
            thread.join()

    def _register(self, node: str, attestor: SoftwareAttestor) -> Registered:
        truth = Truth(node, f"demo://{node}", attestor.fingerprint, joins=False)
        self._history.machines[node] = truth
        return self._fleet.register(truth)

    def _loop(self, kind: Callable[[Loot, int], None], loot: Loot) -> None:
        number = 0
        while not self._fleet.stop.wait(self._gap):
            number += 1
            try:
                kind(loot, number)
            except (*UNREACHABLE, Stopped):
                self.outcomes["no answer"] += 1

    def _unregistered(self, loot: Loot, number: int) -> None:
        """A TPM that nobody registered."""
        victim, _ = loot.victims[number % len(loot.victims)]
        self._attack(victim, victim, SoftwareAttestor())

    def _forged(self, loot: Loot, number: int) -> None:
        """The victim's public key, and nothing else of its TPM."""
        victim, key = loot.victims[number % len(loot.victims)]
        self._attack(victim, victim, StolenKeyAttestor(key))

    def _insider(self, loot: Loot, number: int) -> None:
        """A registered machine's TPM and token, for another name."""
        victim, _ = loot.victims[number % len(loot.victims)]
        self._attack(loot.own, victim, loot.own_attestor)

    def _copied(self, loot: Loot, number: int) -> None:
        """The bytes of another's request, from another user."""
        attacker = self._attacker(loot.own)
        for csr in attacker.observed()[-3:]:
            name = self._name()
            attacker.submit(name, base64.b64decode(text(csr, "spec", "request")), SIGNER)
            self._await(attacker, name, challenge=False)

    def _attack(self, thief: Registered, victim: Registered, attestor: SoftwareAttestor) -> None:
        attacker = self._attacker(thief)
        key, der = new_request(victim.truth.node, victim.truth.provider_id)
        spki = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        fingerprint = "sha256:" + hashlib.sha256(spki).hexdigest()
        self._history.attacker_keys.add(fingerprint)
        binding = attacker.binding(evidence_block(attestor.provider, attestor.versions[0]), SIGNER, der)
        name = self._name()
        request = envelope.encode(der, attestor.attest(binding))
        uid = text(attacker.submit(name, request, SIGNER), "metadata", "uid")
        found = self._await(attacker, name, challenge=True)
        if found is None:
            return
        asked = PublishedChallenge(
            name=name,
            uid=uid,
            csr_sha256=hashlib.sha256(der).digest(),
            text=found,
            spki_sha256=fingerprint,
        )
        self._answer(attacker, der, attestor, binding, asked)

    def _answer(
        self, attacker: Attacker, der: bytes, attestor: SoftwareAttestor, binding: Binding, asked: PublishedChallenge
    ) -> None:
        try:
            evidence: Evidence = attestor.attest(binding, asked)
        except ValueError:  # a challenge that is for another curve
            self.outcomes["could not answer"] += 1
            return
        second = self._name()
        attacker.submit(second, envelope.encode(der, evidence), SIGNER)
        self._await(attacker, second, challenge=False)

    def _await(self, attacker: Attacker, name: str, *, challenge: bool) -> str | None:
        """Wait for a decision, or for a challenge, which is returned."""
        end = time.monotonic() + LIMIT
        while time.monotonic() < end and not self._fleet.stop.wait(POLL):
            csr = attacker.client.get(f"{REQUESTS}/{name}")
            found = text(csr, "metadata", "annotations", ANNOTATION_CHALLENGE)
            if found and challenge:
                return found
            if text(csr, "status", "certificate"):
                self.outcomes["certified"] += 1
                return None
            for kind in ("Denied", "Failed"):
                decided = condition(items(csr, "status", "conditions"), kind)
                if decided is not None:
                    self.outcomes[str(decided.get("reason", ""))] += 1
                    return None
        self.outcomes["no answer"] += 1
        return None

    def _attacker(self, thief: Registered) -> Attacker:
        workload = self._env.world.workload
        client = workload.client(workload.token_kubeconfig(thief.token), timeout=10.0)
        return Attacker(client=client, token=thief.token, ca_pem=workload.ca_certificate.read_bytes())

    def _name(self) -> str:
        self._number += 1
        return f"attack-{self._number}-{os.urandom(4).hex()}"
