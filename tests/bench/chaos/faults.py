"""Injects the faults of a schedule, one after the other, and says when each began and ended."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.chaos.collector import LEASE, Collector
from bench.chaos.fleet import UNREACHABLE, Fleet
from bench.chaos.history import History, Loss
from bench.chaos.link import Link, Mode
from bench.chaos.nodes import Nodes
from bench.chaos.replicas import FAKETIME, Replica, Replicas
from bench.chaos.schedule import Fault, Kind
from bench.environment import BenchEnvironment
from nodeattest_parsing.objects import text
from nodeattest_sandbox.child_process import StartFailed
from nodeattest_sandbox.control_plane import ControlPlane

HOUR = 3600
KEPT = 4
"""Snapshots of each control plane."""
PARTITIONS = {
    Kind.DROP_MANAGEMENT: Mode.DROP,
    Kind.HANG_MANAGEMENT: Mode.HANG,
    Kind.RESET_MANAGEMENT: Mode.RESET,
    Kind.ANSWERS_MANAGEMENT: Mode.ANSWERS,
    Kind.DROP_WORKLOAD: Mode.DROP,
    Kind.HANG_WORKLOAD: Mode.HANG,
    Kind.RESET_WORKLOAD: Mode.RESET,
    Kind.ANSWERS_WORKLOAD: Mode.ANSWERS,
}
PARTS = {
    Kind.KILL_MANAGEMENT: ("kube-apiserver", signal.SIGKILL),
    Kind.KILL_WORKLOAD: ("kube-apiserver", signal.SIGKILL),
    Kind.END_MANAGEMENT: ("kube-apiserver", signal.SIGTERM),
    Kind.END_WORKLOAD: ("kube-apiserver", signal.SIGTERM),
    Kind.ETCD_MANAGEMENT: ("etcd", signal.SIGKILL),
    Kind.ETCD_WORKLOAD: ("etcd", signal.SIGKILL),
}
MANAGEMENT = frozenset(kind for kind in Kind if "management" in kind)


@dataclass
class Injected:
    """One fault as it was."""

    kind: Kind
    on: str
    began: float
    """Unix time."""
    ended: float = 0.0
    """When nothing was wrong any more."""
    note: str = ""


@dataclass
class Injector:
    """Holds everything that can be broken."""

    env: BenchEnvironment
    replicas: Replicas
    nodes: Nodes
    fleet: Fleet
    collector: Collector
    history: History
    lease: int
    age: float
    """Seconds that a snapshot is old when it is restored."""
    done: list[Injected] = field(default_factory=list[Injected])
    _snapshots: dict[str, list[tuple[float, Path]]] = field(default_factory=dict[str, list[tuple[float, Path]]])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, faults: list[Fault], began: float) -> None:
        """Inject them at their times (``began`` is of the monotonic clock)."""
        for number, fault in enumerate(faults):
            time.sleep(max(0.0, began + fault.at - time.monotonic()))
            self._inject(fault, number)

    def _inject(self, fault: Fault, number: int) -> None:
        owner = self.replicas.owner(self._holder)
        replica = owner if fault.on_owner else self.replicas.other(owner)
        plane = self.env.world.management if fault.kind in MANAGEMENT else self.env.world.workload
        one = Injected(fault.kind, plane.name, time.time())
        say(f"{fault.kind} begins" + (f": {replica.name}" if "replica" in fault.kind else ""))
        if fault.kind in PARTITIONS:
            one.on = replica.name
            self._partition(replica, plane, PARTITIONS[fault.kind])
        elif fault.kind in PARTS:
            self._end_part(plane, *PARTS[fault.kind])
        elif fault.kind in {Kind.RESTORE_MANAGEMENT, Kind.RESTORE_WORKLOAD}:
            one.note = self._restore(plane)
        elif fault.kind is Kind.FULL_DISK:
            one.note = self._full_disk(number)
        else:
            one.on = replica.name
            one.note = self._of_process(replica, fault.kind)
        one.ended = time.time()
        self.done.append(one)
        say(f"{fault.kind} ended" + (f" ({one.note})" if one.note else ""))

    def _partition(self, replica: Replica, plane: ControlPlane, mode: Mode) -> None:
        link: Link = self.replicas.management if plane is self.env.world.management else self.replicas.workload
        link.set(replica.address, mode)
        try:
            time.sleep(self.lease * 1.7)
        finally:
            link.set(replica.address, Mode.OPEN)

    def _end_part(self, plane: ControlPlane, part: str, number: signal.Signals) -> None:
        with self._lock:  # no snapshot while there is a process less
            revive(plane, ())
            os.kill(plane.pids[part], number)
            time.sleep(self.lease / 3)
            revive(plane, (part,))

    def _of_process(self, replica: Replica, kind: Kind) -> str:
        match kind:
            case Kind.KILL_REPLICA:
                replica.send(signal.SIGKILL)
            case Kind.STOP_REPLICA:
                replica.send(signal.SIGSTOP)
                time.sleep(self.lease * 1.7)
                replica.send(signal.SIGCONT)
            case _ if not FAKETIME.exists():
                return "left out: libfaketime is not installed"
            case _:
                replica.set_clock(HOUR if kind is Kind.CLOCK_AHEAD else -HOUR)
                time.sleep(self.lease * 2)
                replica.set_clock(0)
        return ""

    def _full_disk(self, number: int) -> str:
        filler = self.nodes.fill_disk(number)
        if filler is None:
            return "left out: no file system could be mounted"
        time.sleep(self.lease * 2)
        filler.unlink()
        return filler.parts[-5]

    def snapshot(self) -> None:
        """Take a snapshot of each control plane, as a storage system does: etcd's folder at one moment."""
        for plane in (self.env.world.management, self.env.world.workload):
            with self._lock:
                target = self.env.directory / "snapshots" / f"{plane.name}-{time.time():.0f}"
                with suppress(OSError), _stopped(plane.pids["etcd"]):
                    shutil.copytree(plane.etcd_directory, target)
                    kept = self._snapshots.setdefault(plane.name, [])
                    kept.append((time.time(), target))
                    for _, old in kept[:-KEPT]:
                        shutil.rmtree(old)
                    del kept[:-KEPT]

    def _restore(self, plane: ControlPlane) -> str:
        with self._lock:
            old = [one for one in self._snapshots.get(plane.name, []) if one[0] <= time.time() - self.age]
            if not old:
                return "left out: no snapshot is old enough"
            taken, folder = old[-1]
            for each in (self.env.world.management, self.env.world.workload):
                revive(each, ())  # one that ended by itself would keep the sweep from seeing what is about to be lost
            self.collector.sweep()
            for part in ("kube-apiserver", "etcd"):
                os.kill(plane.pids[part], signal.SIGKILL)
            await_end(plane, ("kube-apiserver", "etcd"))
            shutil.rmtree(plane.etcd_directory)
            shutil.copytree(folder, plane.etcd_directory)
            for moment, other in self._snapshots[plane.name]:
                if moment > taken:
                    shutil.rmtree(other)
            self._snapshots[plane.name] = [one for one in self._snapshots[plane.name] if one[0] <= taken]
            lost = time.time() - taken
            revive(plane, ())
            self.history.losses.append(Loss(plane.name, taken, time.time()))
        self.fleet.register_again()
        return f"{lost:.0f} s lost"

    def _holder(self) -> str:
        with suppress(*UNREACHABLE):
            return text(self.env.world.management.client(timeout=5.0).get(LEASE), "spec", "holderIdentity")
        return ""


@contextmanager
def _stopped(pid: int) -> Generator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def await_end(plane: ControlPlane, parts: tuple[str, ...], seconds: float = 15.0) -> None:
    """Wait until processes that were told to end have ended; as a kubelet does, kill those that take longer.

    One that is left alone would not be started again, and then end.
    """
    for last in (False, True):
        end = time.monotonic() + seconds
        while any(_lives(plane.pids[part]) for part in parts) and time.monotonic() < end:
            time.sleep(0.05)
        for pid in (plane.pids[part] for part in parts if not last and _lives(plane.pids[part])):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def revive(plane: ControlPlane, parts: tuple[str, ...]) -> None:
    """Start again what was ended; a server that meets a port still in use is started again."""
    await_end(plane, parts)
    for left in range(4, -1, -1):
        try:
            plane.revive()
        except StartFailed:
            if not left:
                raise
            time.sleep(1.0)
        else:
            return


def every(seconds: float, act: Callable[[], None], stop: threading.Event) -> threading.Thread:
    """Repeat something in a thread until ``stop``."""

    def loop() -> None:
        while not stop.wait(seconds):
            act()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    return thread


def say(what: str) -> None:
    """Log a line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)
