"""The exec plugin: what its paths import, serve and refuse to serve; its cache, and its renewals beside the answer."""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_machine import NODE, Discoverer, Machine, certificate
from hypothesis import given
from hypothesis import strategies as st
from lying_servers import Ca
from needs import ONLY_ROOT
from polling import eventually

from nodeattest_authenticator.errors import AgentError, FailureKind
from nodeattest_authenticator.exec_plugin import background_renewal
from nodeattest_authenticator.exec_plugin.fast_path import credential_arguments, lookup
from nodeattest_authenticator.exec_plugin.handle import credential
from nodeattest_authenticator.formats import client_go
from nodeattest_authenticator.settings import Settings
from nodeattest_authenticator.settings import parse as parse_settings
from nodeattest_authenticator.state import credential_cache
from nodeattest_authenticator.state.cache_files import parse_header
from nodeattest_authenticator.state.credential_cache import CachedCredential, CacheEntry
from nodeattest_authenticator.state.storage import exclusive
from nodeattest_discovery.node.clock import Clock, Deadline

# The cache: tests/attacks has the files that somebody spoilt


def path(machine: Machine) -> Path:
    return machine.cache / "credential"


def found(machine: Machine, said: list[str], *, ahead: float = 0) -> CacheEntry | None:
    agent = machine.agent(said=said, clock=Clock(now=lambda: time.time() + ahead))
    with agent.storage:
        return agent.load_valid_credential()


def later(machine: Machine) -> None:
    head, _, rest = path(machine).read_bytes().partition(b"\n")
    fields = head.split(b" ")
    fields[4] = b"%d" % (int(fields[4]) + 1)
    machine.write("credential", b" ".join(fields) + b"\n" + rest)


def directory(machine: Machine) -> None:
    path(machine).unlink()
    path(machine).mkdir()


def pipe(machine: Machine) -> None:
    path(machine).unlink()
    os.mkfifo(path(machine), 0o600)


BAD: list[tuple[Callable[[Machine], object], str]] = [
    (directory, "file type"),
    (pipe, "file type"),
    (later, "times"),
    (lambda machine: path(machine).chmod(0o640), "mode 0640"),
]


def give_away(machine: Machine) -> None:
    os.chown(path(machine), 65534, 65534)


@pytest.mark.parametrize(("spoil", "says"), [*BAD, pytest.param(give_away, "belongs to user 65534", marks=ONLY_ROOT)])
def test_a_bad_cache_is_not_used_says_why_and_is_replaced(
    machine: Machine, spoil: Callable[[Machine], object], says: str
) -> None:
    machine.store()
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
        assert found(machine, []) is not None


def test_a_clock_set_back_is_named_and_costs_nothing(machine: Machine) -> None:
    machine.store()
    with pytest.raises(AgentError, match="ClockOff"):
        found(machine, [], ahead=-3600)
    assert found(machine, []) is not None


@given(
    responses=st.lists(st.tuples(st.binary(max_size=50), st.binary(max_size=50)), max_size=4, unique_by=lambda p: p[0])
)
def test_what_is_saved_is_loaded(responses: list[tuple[bytes, bytes]]) -> None:
    key = b"-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n"
    made = CachedCredential(certificate_pem=b"c\n", key_pem=key, not_before=1, renew_at=2, not_after=3)
    cached = CacheEntry(credential=made, config_fingerprint=b"1.2.3.4", responses=tuple(responses))
    assert credential_cache.parse(credential_cache.render(cached)) == cached


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"kubelet-authenticator/1\n",
        b"kubelet-authenticator/2 0000000030 1 2 3 i\n",
        b"kubelet-authenticator/1 0000000099 1 2 3 i\n",
        b"kubelet-authenticator/1 x 1 2 3 i\n",
        b"kubelet-authenticator/1 0000000041 1 2 3 i -1 1\n",
        b"kubelet-authenticator/1 0000000039 1 2 3 i 900 1\n",
        b"kubelet-authenticator/1 0000000039 1 2 3 i 1\n",
    ],
)
def test_a_header_that_does_not_fit_its_file_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_header(data)


def test_a_cache_on_a_full_disk_still_answers(machine: Machine) -> None:
    # A directory in the way of the temporary file fails every write as a full disk would.
    machine.cache.joinpath("credential.new").mkdir()
    done = machine.run()
    assert done.returncode == 0
    assert certificate(done.stdout)
    assert "cannot be stored" in done.stderr
    assert certificate(machine.run().stdout) == certificate(done.stdout)
    assert machine.api.posts() == 2  # the second found the first's object


def test_nothing_secret_is_ever_told(machine: Machine) -> None:
    machine.api.on_create = lambda api, name: api.deny(name, "MachineNotFound")
    said = machine.run().stderr + machine.run().stderr + machine.do("status").stdout
    assert "0123456789abcdef" not in said
    assert "PRIVATE KEY" not in said


def test_a_call_that_waited_while_another_was_denied_repeats_its_denial_without_a_request(machine: Machine) -> None:
    holder, held = machine.agent(), contextlib.ExitStack()
    held.enter_context(exclusive(holder.storage, Deadline.after(holder.clock, 5)))

    def denied(_seconds: float) -> None:
        holder.remember_failure(AgentError("MachineNotFound", "the cluster refused", remedy="create it"), None)
        held.close()

    waiting = machine.agent(clock=Clock(sleep=denied))
    with pytest.raises(AgentError, match="MachineNotFound: still refused"):
        credential(waiting, machine.info().encode())
    assert machine.api.posts() == 0


# Renewals beside the answer


@pytest.fixture
def due(machine: Machine) -> Machine:
    """A machine whose certificate is to be renewed."""
    machine.challenged()
    assert machine.run().returncode == 0
    machine.make_due()
    return machine


def test_a_due_renewal_happens_beside_the_answer_and_shows_in_the_next_one(due: Machine) -> None:
    old = due.stored()
    assert certificate(due.run().stdout).encode() in due.file("credential")
    eventually(lambda: due.stored() != old)
    assert certificate(due.run().stdout).encode() in due.file("credential")
    users = {item["spec"]["username"] for item in due.api.objects.values()}
    assert users == {"system:bootstrap:abcdef", f"system:node:{NODE}"}


def test_a_due_renewal_that_could_not_be_kept_is_not_asked_for(due: Machine) -> None:
    due.cache.joinpath("probe.new").mkdir()
    sent = due.api.posts()
    assert due.run().returncode == 0
    log = due.cache / "renewal.log"
    eventually(lambda: log.exists() and "postponed" in log.read_text())
    assert due.api.posts() == sent


def test_a_denied_renewal_keeps_the_old_certificate_and_asks_again_later(due: Machine) -> None:
    old = due.stored()
    due.api.on_create = lambda api, name: api.deny(name, "MachineDeleting")
    due.run()
    eventually(lambda: due.cache.joinpath("failure").exists())
    sent = due.api.posts()
    assert [due.run().returncode for _ in range(2)] == [0, 0]
    assert (due.stored(), due.api.posts()) == (old, sent)
    users = [one["spec"]["username"] for one in due.api.objects.values()]
    assert users[2:] == [f"system:node:{NODE}"]  # the token is no second try
    assert "MachineDeleting" in due.cache.joinpath("renewal.log").read_text()
    assert "MachineDeleting" in due.do("status").stdout


def test_a_renewal_whose_certificate_is_not_accepted_falls_back_to_the_token(due: Machine) -> None:
    old = due.stored()
    due.api.not_accepted.add(f"system:node:{NODE}")
    due.run()
    eventually(lambda: due.stored() != old)


def no_fork() -> int:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def test_a_renewal_that_cannot_be_started_costs_no_valid_credential(
    due: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fork", no_fork)
    said: list[str] = []
    agent = due.agent(said=said)
    with agent.storage:
        answer = json.loads(credential(agent, due.info().encode()))
    assert answer["status"]["clientCertificateData"]
    assert said == ["the renewal is postponed: cannot start a process: Resource temporarily unavailable"]


def test_a_refresh_that_cannot_be_started_leaves_the_renewal_alone(
    node: Discoverer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = node.stored()
    node.make_due()
    monkeypatch.setattr(os, "fork", no_fork)
    said: list[str] = []
    agent = node.agent(said=said)
    with agent.storage:
        background_renewal.run(agent)
    assert node.stored() != before
    assert said[0].startswith("the refresh before the renewal failed: cannot start a process")
    sent = node.api.posts()
    background_renewal.run(node.agent())  # it is not due any more
    assert node.api.posts() == sent


# The warm path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ("/var/lib/kubelet-authenticator", "/etc/kubernetes/kubelet-authenticator.json")),
        (["credential"], ("/var/lib/kubelet-authenticator", "/etc/kubernetes/kubelet-authenticator.json")),
        (["credential", "--config", "c", "--cache-dir", "d"], ("d", "c")),
        (["credential", "--cache-dir=d", "--config=c"], ("d", "c")),
        (["--cache-dir=d"], ("d", "/etc/kubernetes/kubelet-authenticator.json")),
        (["credential", "--config"], None),
        (["credential", "--help"], None),
        (["join"], None),
        (["status", "--cache-dir=d"], None),
    ],
)
def test_only_plain_credential_calls_are_warm(words: list[str], expected: tuple[str, str] | None) -> None:
    assert credential_arguments(["kubelet-authenticator", *words]) == expected


def warm(machine: Machine, *, info: str | None = None, now: float | None = None) -> tuple[int, bytes] | None:
    moment = time.time() if now is None else now
    return lookup(str(machine.cache), str(machine.config), (info or machine.info()).encode(), moment)


def test_a_warm_answer_is_for_this_call_this_configuration_and_this_moment(machine: Machine) -> None:
    infos = (machine.info(), machine.info() + " ")
    cold = [(0, machine.run(info=info).stdout.encode()) for info in infos]
    assert [warm(machine, info=info) for info in infos] == cold
    assert warm(machine, info=machine.info() + "  ") is None
    (not_before, renew_at, _), *_ = parse_header(machine.file("credential"))
    moments = (renew_at - 5, renew_at + 5, not_before - 305)
    assert [warm(machine, now=moment) is not None for moment in moments] == [True, False, False]
    machine.prepare(timeoutSeconds=11)
    assert warm(machine) is None
    machine.run()
    assert warm(machine) is not None
    assert warm(machine, info=infos[1]) is None  # answered under another configuration


def test_a_refusal_is_repeated_warm_once_the_certificate_has_expired(machine: Machine) -> None:
    machine.run()
    (_, _, not_after), config_fingerprint, *_ = parse_header(machine.file("credential"))
    until = not_after + 60
    machine.write(
        "failure", b"kubelet-authenticator-failure/1 %d %b 1\nrefused\nreason\ntext" % (until, config_fingerprint)
    )
    assert warm(machine, now=not_after + 1) == (1, b"refused (next attempt in 60 s)\n")
    assert warm(machine, now=not_after - 1) == warm(machine)
    assert warm(machine, now=until + 1) is None
    machine.cache.joinpath("credential").unlink()
    assert warm(machine, now=until - 3599) is not None
    assert warm(machine, now=until - 3700) is None  # written before the clock was set back


# The call: tests/attacks has those for another cluster


OURS, OTHER = Ca(), Ca("other")


def settings(**changes: object) -> Settings:
    document = {
        "apiVersion": "config.nodeattest.x-k8s.io/v1alpha1",
        "kind": "KubeletAuthenticatorConfiguration",
        "server": "https://API.example:6443/",
        "certificateAuthority": OURS.pem.decode(),
        "provider": {"name": "insecure"},
    }
    return parse_settings(json.dumps(document | changes).encode(), hostname="host")


def encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


def check(configured: Settings, **cluster: object) -> None:
    """Check a call for this cluster, as it is spelt here."""
    good = {"server": "https://api.example:6443", "certificate-authority-data": encoded(OURS.pem)}
    spec = {"cluster": {name: value for name, value in (good | cluster).items() if value is not None}}
    call = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "spec": spec}
    info = client_go.parse_exec_info(json.dumps(call).encode())
    client_go.check_cluster(info, configured.cluster, configured.previous_clusters)


@pytest.mark.parametrize(
    "cluster",
    [
        {},
        {"server": "https://API.EXAMPLE:6443/"},
        {"certificate-authority-data": encoded(OTHER.pem + OURS.pem)},
        {"config": {"anything": 1}, "disable-compression": True},
    ],
)
def test_our_cluster_is_recognised_however_it_is_spelt(cluster: dict[str, Any]) -> None:
    check(settings(), **cluster)


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        ({"server": "https://api.example:6443/other"}, "server"),
        ({"server": "https://[broken"}, "server"),
        ({"certificate-authority-data": None}, "none of the configured CAs"),
        ({"certificate-authority-data": encoded(b"-----BEGIN CERTIFICATE-----\nx")}, "none"),
        ({"certificate-authority-data": "%"}, "KUBERNETES_EXEC_INFO"),
    ],
)
def test_another_cluster_is_refused(cluster: dict[str, Any], says: str) -> None:
    with pytest.raises(AgentError, match="ExecInfoRefused") as caught:
        check(settings(), **cluster)
    assert says in str(caught.value)
    assert caught.value.kind is FailureKind.USAGE


def test_the_configured_server_name_must_be_the_callers() -> None:
    check(settings(tlsServerName="kubernetes"), **{"tls-server-name": "kubernetes"})
    with pytest.raises(AgentError, match="tls-server-name"):
        check(settings(tlsServerName="kubernetes"))
