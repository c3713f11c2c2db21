"""Writes down what both API servers show, while it happens, so that a control plane that is set back hides nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime

from bench.chaos.fleet import UNREACHABLE
from bench.chaos.history import History, LedgerSeen, Write, written_certificates
from bench.chaos.servers import Replica
from nodeattest_demo.world import NAMESPACE, USER, World
from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.control_plane import AuditEntry, ControlPlane

LEDGERS = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/machineattestations"
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
WINDOW = 2
"""Seconds of one watch."""


class Collector:
    """Lists and watches requests and ledgers until ``end``."""

    def __init__(self, world: World, history: History) -> None:
        self._world, self._history = world, history
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._follow, args=(world.workload, CSRS, self._add_request), daemon=True),
            threading.Thread(target=self._follow, args=(world.management, LEDGERS, self._add_ledger), daemon=True),
        ]

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self, replicas: list[Replica]) -> None:
        """Read everything once more, and what only the end shows: the last ledgers, and writes in the audit log."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.sweep()
        self._history.final_ledgers += [_ledger(obj) for obj in self._world.management.client().list(LEDGERS)]
        names = {replica.address: replica.name for replica in replicas}
        for entry in self._world.management.requests():
            what = write_of(entry)
            if what and entry.user == USER and entry.source in names:
                moments = (datetime.fromisoformat(each).timestamp() for each in (entry.received, entry.completed))
                self._history.writes.append(Write(names[entry.source], what, *moments))

    def sweep(self) -> None:
        """Read everything that is there now."""
        for csr in self._world.workload.client().list(CSRS):
            self._add_request(csr)
        for obj in self._world.management.client().list(LEDGERS):
            self._add_ledger(obj)

    def _follow(self, plane: ControlPlane, path: str, add: Callable[[JsonObject], None]) -> None:
        version = ""
        while not self._stop.is_set():
            try:
                client = plane.client(timeout=WINDOW + 10.0)
                if not version:
                    version = text(client.get(path), "metadata", "resourceVersion")
                    for obj in client.list(path):
                        add(obj)
                for event in client.watch(path, WINDOW, resourceVersion=version):
                    if text(event, "type") == "ERROR":
                        version = ""
                        break
                    add(mapping(event, "object"))
                    version = text(event, "object", "metadata", "resourceVersion")
            except UNREACHABLE:
                version = ""
                self._stop.wait(1.0)

    def _add_request(self, csr: JsonObject) -> None:
        with self._lock:
            self._history.add_request(csr, time.time())

    def _add_ledger(self, obj: JsonObject) -> None:
        with self._lock:
            self._history.ledgers.add(_ledger(obj))


def _ledger(obj: JsonObject) -> LedgerSeen:
    return LedgerSeen(
        name=text(obj, "metadata", "name"),
        provider_id=text(obj, "spec", "providerID"),
        node=text(obj, "spec", "nodeName"),
        certificates=tuple(written_certificates(obj)),
    )


def write_of(entry: AuditEntry) -> str:
    """Name a successful write that only the leader makes, or that makes a leader; others are empty."""
    if entry.verb not in {"create", "update", "patch"} or entry.code not in range(200, 300):
        return ""
    return {"leases": "lease", "machineattestations": "ledger"}.get(entry.resource, "")
