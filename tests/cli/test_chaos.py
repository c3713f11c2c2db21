"""The chaos bench's checker finds each broken law in a history that breaks it; schedule and links do what they say."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from bench.chaos.checker import LAWS, check
from bench.chaos.history import History, LedgerSeen, Proof, Request, Signed, Truth, Write, read_request
from bench.chaos.run import Kind, plan
from bench.chaos.servers import Link, Mode
from bench.joiner import SoftwareAttestor
from nodeattest_parsing.values import JsonObject
from nodeattest_providers import envelope
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import Evidence
from nodeattest_providers.pkcs10 import build_csr

QUOTE = b"a quote"
AK = ec.derive_private_key(77, ec.SECP256R1())


def coordinates(key: ec.EllipticCurvePrivateKey) -> bytes:
    numbers = key.public_key().public_numbers()
    return numbers.x.to_bytes(32, "big") + numbers.y.to_bytes(32, "big")


def signature(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return TPMT_SIGNATURE over the quote."""
    r, s = decode_dss_signature(key.sign(QUOTE, ec.ECDSA(hashes.SHA256())))
    return b"\x00\x18\x00\x0b" + b"".join(b"\x00\x20" + part.to_bytes(32, "big") for part in (r, s))


SIGNATURE = signature(AK)


def sound() -> History:
    """Return a history of two machines, each certified once, by two replicas one after the other."""
    history = History()
    for number, node in enumerate(("a", "b")):
        spki, serial, provider_id = f"key-{node}", f"{number + 10:x}", f"demo://{node}"
        history.machines[node] = Truth(node, provider_id, f"ek-{node}")
        first = Request(f"first-{node}", f"f-{node}", "u", node, spki, f"ek-{node}", coordinates(AK))
        second = Request(f"second-{node}", f"s-{node}", "u", node, spki, proof=Proof(first.uid, QUOTE, SIGNATURE))
        history.requests |= {first.uid: first, second.uid: second}
        issued = Signed(second.name, f"system:node:{node}", spki, serial)
        history.certificates[second.uid] = {"digest": issued}
        history.seen_at[serial] = (100.0 + number, node)
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
    entry = Signed(name, "system:node:a", spki, serial)
    seen = LedgerSeen(name, f"demo://{name.removeprefix('ledger-')}", "a", (entry,))
    return lambda history: history.ledgers.add(seen)


def signed_twice(history: History) -> None:
    issued = history.certificates["second-a"]
    issued["other"] = replace(issued["digest"], serial="dd")
    history.seen_at["dd"] = (200.0, "a")


QUOTED_BY_ANOTHER = Proof("first-a", QUOTE, signature(ec.derive_private_key(78, ec.SECP256R1())))
BROKEN: dict[str, tuple[Spoil, int]] = {
    "the victim's name": (certificate("a", node="system:node:victim"), 0),
    "another key than asked": (certificate("a", spki="key-other"), 0),
    "no proof": (request("second-a", proof=None), 0),
    "a first request that nobody saw": (lambda history: history.requests.pop("first-a"), 0),
    "another TPM": (request("first-a", endorsement_key="ek-b"), 0),
    "the first request of another": (request("second-a", proof=Proof("first-b", QUOTE, SIGNATURE)), 0),
    "a quote by another key": (request("second-a", proof=QUOTED_BY_ANOTHER), 0),
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


def test_a_request_is_read_as_its_machine_is_registered() -> None:
    attestor, key = SoftwareAttestor(), ec.derive_private_key(79, ec.SECP256R1())
    der = build_csr(key, "a", "demo://a")
    csr: JsonObject = {"metadata": {"uid": "u", "name": "r"}, "spec": {"username": "x"}}
    request = envelope.encode(der, Evidence(ProviderName("tpm"), 1, attestor.tpm.first().to_json()))
    csr["spec"] = {"username": "x", "request": base64.b64encode(request).decode()}
    found = read_request(csr)
    assert (found.node, found.endorsement_key) == ("a", attestor.fingerprint)
    assert found.attestation_key == coordinates(attestor.attestation_key)
    csr["spec"] = {"username": "x", "request": base64.b64encode(b"no envelope").decode()}
    assert read_request(csr) == Request("u", "r", "x")


def test_a_schedule_is_its_seeds_and_has_every_kind_once_before_any_comes_again() -> None:
    assert plan(7, 40) == plan(7, 40)
    assert plan(7, 40) != plan(8, 40)
    assert set(plan(7, len(Kind))) == set(Kind)


@contextmanager
def linked(target: int) -> Generator[tuple[Link, socket.socket]]:
    link = Link(target, "127.0.0.9")
    with socket.create_connection(("127.0.0.1", link.port), timeout=60) as client:
        client.sendall(b"hello")
        assert client.makefile("rb").read(14) == b"127.0.0.9hello"
        yield link, client


@pytest.fixture
def target() -> Generator[int]:
    """A server that answers the address that it sees, and then what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        yield server.getsockname()[1]


def accept(server: socket.socket) -> None:
    while True:
        try:
            connection, address = server.accept()
        except OSError:
            return
        connection.sendall(address[0].encode())
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def echo(connection: socket.socket) -> None:
    with connection:
        try:
            while data := connection.recv(1024):
                connection.sendall(data)
        except OSError:
            pass


def test_what_hangs_arrives_later_from_the_links_own_address(target: int) -> None:
    with linked(target) as (link, client):
        link.set(Mode.HANG)
        client.sendall(b"late")
        link.set(Mode.OPEN)
        assert client.recv(4) == b"late"


@pytest.mark.parametrize("mode", [Mode.DROP, Mode.ANSWERS])
def test_a_connection_that_lost_bytes_ends_with_the_fault(mode: Mode, target: int) -> None:
    with linked(target) as (link, client):
        link.set(mode)
        client.sendall(b"lost")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(4)
        client.settimeout(60)
        link.set(Mode.OPEN)
        with pytest.raises(ConnectionResetError):
            client.recv(4)


def test_a_reset_ends_what_is_open_and_what_comes(target: int) -> None:
    with linked(target) as (link, client):
        link.set(Mode.RESET)
        with pytest.raises(ConnectionResetError):
            client.recv(4)
        with (
            pytest.raises(ConnectionResetError),  # while it connects or when it reads
            socket.create_connection(("127.0.0.1", link.port), timeout=60) as late,
        ):
            late.recv(1)
