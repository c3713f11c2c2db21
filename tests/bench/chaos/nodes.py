"""Honest nodes. Some are whole machines: the agent's program, a TPM process, and a kubelet that lives on the result.

Others only join: the agent's own code in a thread, with a TPM in software. They come all the time, so that a pause in
joining is seen at once.
"""

from __future__ import annotations

import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.chaos.fleet import Fleet, Registered, Stopped
from bench.chaos.history import History, Truth
from bench.chaos.kubelet import Kubelet
from bench.environment import BenchEnvironment
from bench.joins import installed
from bench.software_tpm import SoftwareAttestor
from nodeattest_authenticator import certificate
from nodeattest_authenticator.enrollment.enroll import CertificateSpec, enroll
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.state.pending_request import PendingRequest
from nodeattest_authenticator.transport.api_client import ApiServerClient, Credentials
from nodeattest_demo.machines import Children, MachineSpec, node_kubeconfig
from nodeattest_demo.platforms import TpmDemoPlatform
from nodeattest_demo.world import run_join
from nodeattest_discovery.node.clock import Clock, Deadline, random_unit
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.identifiers import (
    ANNOTATION_TPM_ENDORSEMENT_KEY,
    NodeName,
    ProviderID,
    ProviderName,
    Purpose,
    signer_for,
)

SIGNER = signer_for(ProviderName("tpm"), Purpose.CLIENT)
MOUNT, UNMOUNT = "/usr/bin/mount", "/usr/bin/umount"
DISK = "256k"
"""Of a node's state: a file system of its own, which can be filled."""
ONE_JOIN = 60.0
"""Seconds of one try; the agent's own limit."""
FIRST_PROBE = 10_000


class Nodes:
    """Whole machines."""

    def __init__(self, env: BenchEnvironment, fleet: Fleet, history: History, *, beat: float) -> None:
        self.kubelets: dict[str, Kubelet] = {}
        self._env, self._fleet, self._history, self._beat = env, fleet, history, beat
        self._children = Children(installed(env.directory))
        env.stack.callback(self._children.close)
        self._platform = TpmDemoPlatform(env.directory, env.stack)
        self._threads: list[threading.Thread] = []
        self._disks: list[Path] = []
        self.tries: list[int] = []
        """Calls of ``join`` that each machine needed."""

    def add(self, first: int, count: int) -> None:
        """Switch machines on; they join and live on in threads of their own."""
        with ThreadPoolExecutor(4) as pool:
            for spec in pool.map(self._platform.create_machine, range(first, first + count)):
                self._history.machines[spec.identity.node] = _truth(spec)
                thread = threading.Thread(target=self._live, args=(spec,), name=spec.identity.node, daemon=True)
                thread.start()
                self._threads.append(thread)

    def _live(self, spec: MachineSpec) -> None:
        try:
            one = self._fleet.register(_truth(spec))
            root = self._env.directory / "nodes" / spec.identity.node
            cache = root / "var/lib/kubelet-authenticator"
            self._mount(cache)
            self._join(spec, one, root)
        except Stopped:
            return
        kubelet = Kubelet(spec.identity.node, node_kubeconfig(root), cache, self._children, beat=self._beat)
        self.kubelets[spec.identity.node] = kubelet
        kubelet.run(self._fleet.stop)

    def _join(self, spec: MachineSpec, one: Registered, root: Path) -> None:
        """Call the program until it succeeds, as cloud-init and a unit with Restart= do."""
        for tries in range(1, 1000):
            ended = run_join(
                self._env.world,
                self._children,
                self._env.tools.agent,
                root,
                identity=spec.identity,
                attestor=spec.attestor,
                token=one.token,
            )
            if ended.code == 0:
                self.tries.append(tries)
                return
            if self._fleet.stop.wait(2.0):
                raise Stopped

    def _mount(self, cache: Path) -> None:
        cache.mkdir(parents=True)
        cache.chmod(0o700)
        command = [MOUNT, "-t", "tmpfs", "-o", f"size={DISK},mode=0700", "tmpfs", str(cache)]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            self._disks.append(cache)

    def fill_disk(self, number: int) -> Path | None:
        """Fill the disk of one node's state; returns the file to remove, None where no disk could be made."""
        if not self._disks:
            return None
        filler = self._disks[number % len(self._disks)] / "filler"
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return filler

    def state(self, node: str, *, since: float) -> str:
        """Say what is wrong with a node's credential; empty when the API server accepted it after ``since``."""
        kubelet = self.kubelets.get(node)
        if kubelet is None:
            return "it has not joined"
        if kubelet.diary.accepted_at > since:
            return ""
        return f"no accepted credential; {'; '.join(kubelet.diary.lost[-1:])} {kubelet.diary.last_words}"

    def end(self) -> None:
        """Wait for the kubelets."""
        for thread in self._threads:
            thread.join()

    def unmount(self) -> None:
        for disk in self._disks:
            subprocess.run([UNMOUNT, "--lazy", str(disk)], capture_output=True, check=False)


def _truth(spec: MachineSpec) -> Truth:
    identity = spec.identity
    return Truth(identity.node, identity.provider_id, spec.annotations[ANNOTATION_TPM_ENDORSEMENT_KEY])


class Pending:
    """Keeps a request between tries, as the agent does in a file: a new key for each try would wait ten minutes."""

    def __init__(self) -> None:
        self._request: PendingRequest | None = None

    def load(self) -> PendingRequest | None:
        return self._request

    def save(self, pending: PendingRequest) -> None:
        self._request = pending

    def discard(self) -> None:
        self._request = None


class Probes:
    """Joins, one after the other, from several threads."""

    def __init__(self, env: BenchEnvironment, fleet: Fleet, history: History, *, gap: float) -> None:
        self.joined: list[tuple[float, float]] = []
        """Unix time of the beginning, and seconds."""
        self.failures: list[str] = []
        """What tries said that were repeated."""
        self._env, self._fleet, self._history, self._gap = env, fleet, history, gap
        self._number = FIRST_PROBE
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.last = threading.Event()
        """Set when no further join may begin; those that began go on."""

    def begin(self, at_once: int = 4) -> None:
        for _ in range(at_once):
            thread = threading.Thread(target=self._loop, daemon=True)
            thread.start()
            self._threads.append(thread)

    def end(self) -> None:
        for thread in self._threads:
            thread.join()

    def _loop(self) -> None:
        try:
            while not self.last.wait(self._gap):
                self._one()
        except Stopped:
            pass

    def _one(self) -> None:
        with self._lock:
            self._number += 1
            number = self._number
        attestor = SoftwareAttestor()
        truth = Truth(f"probe-{number}", f"demo://probes/{number}", attestor.fingerprint)
        self._history.machines[truth.node] = truth
        self._history.ends[truth.node] = "it did not join in time"
        one = self._fleet.register(truth)
        began = time.time()
        ca_pem = self._env.world.workload.ca_certificate.read_bytes()
        spec, pending = specify(truth, ca_pem), Pending()
        while not self._fleet.stop.is_set():
            try:
                self._enroll(spec, one, attestor, pending)
            except (AgentError, OSError) as error:
                self.failures.append(str(error))
                if self._fleet.stop.wait(1.0):
                    raise Stopped from None
                continue
            self.joined.append((began, time.time() - began))
            self._history.ends[truth.node] = ""
            return
        raise Stopped

    def _enroll(self, spec: CertificateSpec, one: Registered, attestor: SoftwareAttestor, pending: Pending) -> None:
        deadline = Deadline.after(Clock(), ONE_JOIN)
        login = Credentials(username=f"system:bootstrap:{one.token[:6]}", token=one.token)
        server = Endpoint.parse(self._env.world.workload.server)
        client = ApiServerClient(server, login, ca_pem=spec.ca_pem, deadline=deadline)
        try:
            enroll(spec, attestor=attestor, client=client, store=pending, deadline=deadline, random=random_unit)
        finally:
            client.close()


def specify(truth: Truth, ca_pem: bytes) -> CertificateSpec:
    """Say which certificate a machine asks for."""
    return CertificateSpec(
        node_name=NodeName(truth.node),
        provider_id=ProviderID(truth.provider_id),
        signer=SIGNER,
        ca_pem=ca_pem,
        pin=certificate.select_ca_pin(ca_pem),
    )
