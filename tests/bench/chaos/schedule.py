"""Which fault comes when: a function of the seed. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What goes wrong."""

    KILL_REPLICA = "replica killed (SIGKILL)"
    STOP_REPLICA = "replica stopped longer than its Lease (SIGSTOP)"
    DROP_MANAGEMENT = "replica and management cluster: packets lost"
    HANG_MANAGEMENT = "replica and management cluster: packets late"
    RESET_MANAGEMENT = "replica and management cluster: connections reset"
    ANSWERS_MANAGEMENT = "replica and management cluster: answers lost"
    DROP_WORKLOAD = "replica and workload cluster: packets lost"
    HANG_WORKLOAD = "replica and workload cluster: packets late"
    RESET_WORKLOAD = "replica and workload cluster: connections reset"
    ANSWERS_WORKLOAD = "replica and workload cluster: answers lost"
    CLOCK_AHEAD = "replica's clock 1 h ahead"
    CLOCK_BEHIND = "replica's clock 1 h behind"
    KILL_MANAGEMENT = "management API server killed (SIGKILL)"
    KILL_WORKLOAD = "workload API server killed (SIGKILL)"
    END_MANAGEMENT = "management API server restarted (SIGTERM)"
    END_WORKLOAD = "workload API server restarted (SIGTERM)"
    ETCD_MANAGEMENT = "management etcd killed (SIGKILL)"
    ETCD_WORKLOAD = "workload etcd killed (SIGKILL)"
    RESTORE_MANAGEMENT = "management etcd set back to a snapshot"
    RESTORE_WORKLOAD = "workload etcd set back to a snapshot"
    FULL_DISK = "disk of a node full"


RESTORES = (Kind.RESTORE_MANAGEMENT, Kind.RESTORE_WORKLOAD)


@dataclass(frozen=True)
class Fault:
    """One fault."""

    at: float
    """Seconds from the beginning."""
    kind: Kind
    on_owner: bool
    """Whether the replica that owns the cluster is meant, or the other one."""


def plan(seed: int, *, seconds: float, slot: float, kinds: tuple[Kind, ...] = tuple(Kind)) -> list[Fault]:
    """Fill the time with one fault a slot: every kind once, in a drawn order, before any comes again.

    Restores wait until snapshots are old enough: they come last of each round.
    """

    def draw(what: object) -> int:
        return hashlib.sha256(f"{seed}/{what}".encode()).digest()[0]

    found: list[Fault] = []
    rounds = 0
    while kinds:
        rounds += 1
        order = sorted((kind for kind in kinds if kind not in RESTORES), key=lambda kind: (draw((rounds, kind)), kind))
        for kind in (*order, *(kind for kind in RESTORES if kind in kinds)):
            at = slot * (len(found) + 0.5)
            if at + slot > seconds:
                return found
            found.append(Fault(at, kind, on_owner=draw((len(found), "owner")) < 192))  # three quarters
    return found
