"""What may be wrong with the cache, row by row, and what becomes of it."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_cluster import Authority
from agent_machine import NODE, Machine
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from discovered_cluster import Discoverer
from hypothesis import given
from hypothesis import strategies as st
from test_credential import challenge_then_sign, make_due
from test_discovery_refresh import certificate

from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.exec_plugin import background_renewal
from nodeattest_authenticator.exec_plugin.handle import credential
from nodeattest_authenticator.state import credential_cache
from nodeattest_authenticator.state.credential_cache import CachedCredential, CacheEntry
from nodeattest_authenticator.state.storage import Storage
from nodeattest_discovery.node.clock import Clock

IDENTITY = b"1.2.3.4"


def pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def store(machine: Machine, *, authority: Authority | None = None, node: str = NODE, key: bytes | None = None) -> None:
    """Write a whole credential file, good unless told otherwise."""
    private = ec.generate_private_key(ec.SECP256R1())
    certificate = (authority or machine.api.authority).client(private.public_key(), node)
    leaf = x509.load_pem_x509_certificate(certificate)
    made = CachedCredential(
        certificate_pem=certificate,
        key_pem=key or pem_key(private),
        not_before=int(leaf.not_valid_before_utc.timestamp()),
        renew_at=int(time.time()) + 1000,
        not_after=int(leaf.not_valid_after_utc.timestamp()),
    )
    with Storage(str(machine.cache)) as storage:
        credential_cache.save(storage, CacheEntry(credential=made, config_fingerprint=IDENTITY))


def found(machine: Machine, said: list[str], *, ahead: float = 0) -> CacheEntry | None:
    agent = machine.agent(said=said, clock=Clock(now=lambda: time.time() + ahead))
    with agent.storage:
        return agent.load_valid_credential()


def path(machine: Machine) -> Path:
    return machine.cache / "credential"


def cut(machine: Machine) -> None:
    machine.write("credential", path(machine).read_bytes()[:-100])


def link(machine: Machine) -> None:
    path(machine).rename(machine.folder / "elsewhere")
    path(machine).symlink_to(machine.folder / "elsewhere")


def later(machine: Machine) -> None:
    head, _, rest = path(machine).read_bytes().partition(b"\n")
    fields = head.split(b" ")
    fields[4] = b"%d" % (int(fields[4]) + 1)
    machine.write("credential", b" ".join(fields) + b"\n" + rest)


def directory(machine: Machine) -> None:
    path(machine).unlink()
    path(machine).mkdir()


BAD: list[tuple[str, Callable[[Machine], object], str]] = [
    ("world-readable", lambda m: path(m).chmod(0o644), "mode 0644"),
    ("group-readable", lambda m: path(m).chmod(0o640), "mode 0640"),
    ("symbolic link", link, "plain file"),
    ("directory", directory, "file type"),
    ("half-written", cut, "whole"),
    ("empty", lambda m: m.write("credential", b""), "whole"),
    ("not ours", lambda m: m.write("credential", b"{}"), "whole"),
    ("huge", lambda m: m.write("credential", b"x" * (1 << 20)), "larger"),
    ("other key", lambda m: store(m, key=pem_key(ec.generate_private_key(ec.SECP256R1()))), "another key"),
    ("other CA", lambda m: store(m, authority=Authority()), "no CA of the cluster"),
    ("other node", lambda m: store(m, node="node-1"), "subject"),
    ("other times", later, "times"),
    ("other owner", lambda m: os.chown(path(m), 65534, 65534), "belongs to user 65534"),
]


@pytest.mark.parametrize(("spoil", "says"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_bad_cache_is_not_used_says_why_and_is_replaced(
    machine: Machine, spoil: Callable[[Machine], object], says: str
) -> None:
    store(machine)
    said: list[str] = []
    assert found(machine, said) is not None
    assert not said
    spoil(machine)
    assert found(machine, said) is None
    assert says in said[0]
    agent = machine.agent(said=said)
    with agent.storage:
        answer = credential(agent, machine.info().encode())
    assert json.loads(answer)["status"]["clientKeyData"]
    if path(machine).is_dir():  # nothing replaces a directory; the answer is good all the same
        assert "cannot be stored" in said[-1]
    else:
        assert path(machine).stat().st_mode & 0o777 == 0o600
        assert not path(machine).is_symlink()
        assert found(machine, []) is not None


def test_a_clock_set_back_is_named_and_costs_nothing(machine: Machine) -> None:
    store(machine)
    with pytest.raises(AgentError, match="ClockOff"):
        found(machine, [], ahead=-3600)
    assert found(machine, []) is not None


@given(
    responses=st.lists(st.tuples(st.binary(max_size=50), st.binary(max_size=50)), max_size=4, unique_by=lambda p: p[0])
)
def test_what_is_saved_is_loaded(
    responses: list[tuple[bytes, bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    key = b"-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n"
    credential = CachedCredential(certificate_pem=b"c\n", key_pem=key, not_before=1, renew_at=2, not_after=3)
    cached = CacheEntry(credential=credential, config_fingerprint=IDENTITY, responses=tuple(responses))
    with Storage(str(folder / "new")) as storage:
        credential_cache.save(storage, cached)
        assert credential_cache.load(storage) == cached


def no_fork() -> int:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def test_a_renewal_that_cannot_be_started_costs_no_valid_credential(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.challenged()
    machine.api.on_create = challenge_then_sign
    assert machine.run().returncode == 0
    make_due(machine)
    monkeypatch.setattr(os, "fork", no_fork)
    said: list[str] = []
    agent = machine.agent(said=said)
    with agent.storage:
        answer = json.loads(credential(agent, machine.info().encode()))
    assert answer["status"]["clientCertificateData"]
    assert said == ["the renewal waits: no process can be started for it: Resource temporarily unavailable"]


def test_a_refresh_that_cannot_be_started_leaves_the_renewal_alone(
    node: Discoverer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = certificate(node)
    make_due(node.installed)
    monkeypatch.setattr(os, "fork", no_fork)
    said: list[str] = []
    agent = node.installed.agent(said=said)
    with agent.storage:
        background_renewal.run(agent)
    assert certificate(node) != before
    assert said[0].startswith("the cluster was not asked what changed: no process can be started")
