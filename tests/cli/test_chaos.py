"""The checker of the chaos bench finds each broken law in a history that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bench.chaos_laws import LAWS, History, LedgerSeen, Request, Signed, Truth, Write, check


def sound() -> History:
    """Return a history of two machines, each certified once, by two replicas one after the other."""
    history = History()
    for number, node in enumerate(("a", "b")):
        spki, serial, provider_id = f"key-{node}", f"{number + 10:x}", f"demo://{node}"
        history.machines[node] = Truth(node, provider_id, f"ek-{node}")
        first = Request(f"first-{node}", f"f-{node}", "u", node, spki, f"ek-{node}")
        second = Request(f"second-{node}", f"s-{node}", "u", node, spki, first_uid=first.uid)
        history.requests |= {first.uid: first, second.uid: second}
        issued = Signed(second.name, node, spki, serial)
        history.certificates[second.uid] = {"digest": issued}
        history.seen_at[serial] = 100.0 + number
        history.ends[node] = ""
        entry = replace(issued, where=f"ledger-{node}")
        history.ledgers.add(LedgerSeen(f"ledger-{node}", provider_id, node, (entry,)))
    history.machines["victim"] = Truth("victim", "demo://victim", "ek-victim", joins=False)
    history.final_ledgers = sorted(history.ledgers, key=lambda one: one.name)
    history.attacker_keys.add("key-thief")
    history.writes = [
        Write("replica-1", "lease", 1.0, 1.1),
        Write("replica-1", "ledger", 2.0, 2.1),
        Write("replica-1", "ledger", 2.9, 3.3),  # it was sent before the Lease changed hands
        Write("replica-2", "lease", 3.0, 3.1),
        Write("replica-2", "ledger", 4.0, 4.1),
    ]
    return history


Spoil = Callable[[History], object]


def certificate(machine: str, **changes: str) -> Spoil:
    """Let a machine's certificate say something else."""

    def spoil(history: History) -> None:
        issued = history.certificates[f"second-{machine}"]
        issued["digest"] = replace(issued["digest"], **changes)

    return spoil


def request(name: str, **changes: Any) -> Spoil:
    return lambda history: history.requests.update({name: replace(history.requests[name], **changes)})


def ledger(name: str, spki: str, serial: str) -> Spoil:
    """Let a ledger that was seen have a certificate of node a."""
    entry = Signed(name, "a", spki, serial)
    seen = LedgerSeen(name, f"demo://{name.removeprefix('ledger-')}", "a", (entry,))
    return lambda history: history.ledgers.add(seen)


def signed_twice(history: History) -> None:
    issued = history.certificates["second-a"]
    issued["other"] = replace(issued["digest"], serial="dd")


BROKEN: dict[str, tuple[Spoil, int]] = {
    "the victim's name": (certificate("a", node="victim"), 0),
    "another key than asked": (certificate("a", spki="key-other"), 0),
    "no proof": (request("second-a", first_uid=""), 0),
    "a first request that nobody saw": (lambda history: history.requests.pop("first-a"), 0),
    "another TPM": (request("first-a", endorsement_key="ek-b"), 0),
    "the first request of another": (request("second-a", first_uid="first-b"), 0),
    "a thief's certificate": (lambda history: history.attacker_keys.add("key-a"), 1),
    "a thief in a ledger only": (ledger("ledger-a", "key-thief", "ff"), 1),
    "one key, two names": (certificate("b", spki="key-a"), 2),
    "one key, two serials": (ledger("ledger-a", "key-a", "ee"), 3),
    "signed twice": (signed_twice, 4),
    "the name of two machines": (ledger("ledger-c", "key-a", "a"), 5),
    "not in a ledger": (lambda history: history.final_ledgers.pop(0), 6),
    "the old leader writes": (lambda history: history.writes.append(Write("replica-1", "ledger", 5.0, 5.1)), 7),
    "no credential": (lambda history: history.ends.update(b="its certificate is over"), 8),
    "never looked at": (lambda history: history.ends.pop("b"), 8),
}


def test_a_sound_history_breaks_no_law() -> None:
    for verdict in check(sound()):
        assert verdict.violations == (), verdict.law
        assert verdict.checked, verdict.law


@pytest.mark.parametrize("way", list(BROKEN))
def test_a_history_that_breaks_a_law_is_caught_by_it(way: str) -> None:
    spoil, law = BROKEN[way]
    history = sound()
    spoil(history)
    assert check(history)[law].violations


def test_every_law_has_a_history_that_breaks_it() -> None:
    assert {law for _, law in BROKEN.values()} == set(range(len(LAWS)))
