"""What the run registers, and registers again where a control plane forgot it: machines and bootstrap tokens.

Every call is repeated until it succeeds or the run ends, as Cluster API's controllers do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import TypeVar

from bench.chaos.history import Truth
from nodeattest_demo.world import CLUSTER, NAMESPACE, World, new_token
from nodeattest_parsing.objects import text
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.fleet import create_bootstrap_token, create_machine

T = TypeVar("T")

RETRY = 1.0
"""Seconds between two tries of a write."""
UNREACHABLE = (OSError, HTTPException, ApiRefusal, ValueError)
"""What a client raises while a server is down, starts, or ends in the middle of an answer."""


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
    machines: dict[str, Registered] = field(default_factory=dict[str, Registered])
    """By node."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def register(self, truth: Truth, token: str = "") -> Registered:
        """Create a Machine and its token; returns when both clusters have them."""
        one = Registered(truth, f"{CLUSTER}-{truth.node}", token or new_token())
        with self._lock:
            self.machines[truth.node] = one
        self.until_done(lambda: self._create(one))
        self.until_done(lambda: self._await_token(one.token))
        return one

    def register_again(self) -> None:
        """Create what a control plane has lost since it was set back."""
        with self._lock:
            machines = list(self.machines.values())
        for one in machines:
            self.until_done(lambda one=one: self._create(one))

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
