"""The laws, each a pure function of the whole history.

A law names what breaks it. A run is sound if no law has a violation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass

from bench.chaos_history import History, Write, all_certificates, node_of


@dataclass(frozen=True)
class Verdict:
    """What one law found."""

    law: str
    checked: int
    violations: tuple[str, ...]


_Findings = Iterator[str]


def check(history: History) -> list[Verdict]:
    """Apply every law."""
    return [Verdict(law, len(seen(history)), tuple(find(history))) for law, seen, find in LAWS]


def _attested(history: History) -> _Findings:
    """Each certificate was asked for by a second request whose first one showed the registered machine's TPM.

    1. The name is a registered machine's that joins.
    2. The key is the one of the request.
    3. The request answers a first one of the same name and key.
    4. The endorsement key of the first one is the machine's registered one.
    """
    for uid, found in history.certificates.items():
        request = history.requests[uid]
        for one in found.values():
            where = f"{one.where}: certificate {one.serial} of {node_of(one)}"
            truth = history.machines.get(node_of(one))
            if truth is None or not truth.joins:  # 1
                yield f"{where}: no honest machine has this name"
                continue
            if (request.node, request.spki) != (truth.node, one.spki):  # 2
                yield f"{where}: the request is for {request.node} and {request.spki}"
                continue
            first = history.requests.get(request.first_uid)
            if first is None:  # 3
                yield f"{where}: the request answers no first one that was seen"
                continue
            if (first.node, first.spki) != (request.node, request.spki):
                yield f"{where}: the first request is for {first.node} and {first.spki}"
            if first.endorsement_key != truth.endorsement_key:  # 4
                yield f"{where}: the first request shows {first.endorsement_key}, registered is {truth.endorsement_key}"


def _no_attacker(history: History) -> _Findings:
    for one in set(all_certificates(history)):
        if one.spki in history.attacker_keys:
            yield f"{one.where}: certificate {one.serial} of {one.node} has an attacker's key"


def _one_name(history: History) -> _Findings:
    nodes = defaultdict[str, set[str]](set)
    for one in all_certificates(history):
        nodes[one.spki] |= {one.node} - {""}
    yield from _several(nodes, "nodes")


def _one_certificate_for_a_key(history: History) -> _Findings:
    serials, keys = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for one in all_certificates(history):
        serials[one.spki].add(one.serial)
        keys[one.serial].add(one.spki)
    yield from [*_several(serials, "serial numbers"), *_several(keys, "keys")]


def _several(found: Mapping[str, set[str]], what: str) -> list[str]:
    return [f"{name} has the {what} {', '.join(sorted(each))}" for name, each in found.items() if len(each) > 1]


def _one_certificate_for_a_request(history: History) -> _Findings:
    for uid, found in history.certificates.items():
        if len(found) > 1:
            serials = ", ".join(sorted(one.serial for one in found.values()))
            yield f"{history.requests[uid].name} was signed {len(found)} times: {serials}"


def _one_machine_for_a_name(history: History) -> _Findings:
    """No name has ledgers of two machines, now or in any version, and none but its own machine's."""
    owners = defaultdict[str, set[str]](set)
    for ledger in history.ledgers:
        if ledger.node and ledger.certificates:
            owners[ledger.node].add(ledger.provider_id)
    for node, ids in owners.items():
        truth = history.machines.get(node)
        if truth is None or ids != {truth.provider_id}:
            yield f"{node} has the machines {', '.join(sorted(ids))}, registered is {truth and truth.provider_id}"


def _ledger_holds_what_was_issued(history: History) -> _Findings:
    kept = {(one.spki, one.serial) for ledger in history.final_ledgers for one in ledger.certificates}
    for found in history.certificates.values():
        for one in found.values():
            if (one.spki, one.serial) not in kept:
                yield f"{one.where}: certificate {one.serial} of {node_of(one)} is not in the ledger"


def _one_replica(history: History) -> _Findings:
    """A replica writes only while it is the last that wrote the Lease.

    A request that was received before the Lease changed hands was sent by the leader.
    """
    renewals = sorted((write for write in history.writes if write.what == "lease"), key=lambda write: write.completed)
    for write in history.writes:
        if write.what == "lease":
            continue
        last = _last_before(renewals, write.received)
        if last is None:
            yield f"{write.replica} wrote {write.what} at {write.received:.3f}, and no leader was seen before"
        elif last.replica != write.replica:
            yield (
                f"{write.replica} wrote {write.what} at {write.received:.3f}, {write.received - last.completed:.3f} s "
                f"after {last.replica} had written the Lease"
            )


def _last_before(renewals: list[Write], moment: float) -> Write | None:
    return next((one for one in reversed(renewals) if one.completed <= moment), None)


def _every_node_ends_well(history: History) -> _Findings:
    for node, truth in history.machines.items():
        if truth.joins and (wrong := history.ends.get(node, "nobody looked")):
            yield f"{node}: {wrong}"


LAWS: tuple[tuple[str, Callable[[History], Sized], Callable[[History], _Findings]], ...] = (
    ("nobody is certified without the proof of its registered TPM", lambda seen: seen.certificates, _attested),
    ("no attacker's key is certified", lambda seen: seen.attacker_keys, _no_attacker),
    ("no key is certified for two names", lambda seen: seen.certificates, _one_name),
    ("no key is certified twice", lambda seen: seen.certificates, _one_certificate_for_a_key),
    ("no request is signed twice", lambda seen: seen.certificates, _one_certificate_for_a_request),
    ("no two machines have one node name", lambda seen: seen.ledgers, _one_machine_for_a_name),
    ("every certificate is in the ledger", lambda seen: seen.certificates, _ledger_holds_what_was_issued),
    ("one replica at a time writes", lambda seen: seen.writes, _one_replica),
    ("every honest node ends with a valid certificate", lambda seen: seen.ends, _every_node_ends_well),
)
"""Each with what a run must have seen for the law to say anything."""
