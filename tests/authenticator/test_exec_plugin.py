"""The exec plugin: what its paths import, serve and refuse to serve; its cache, and the call of client-go."""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_cluster import Authority
from agent_machine import NODE, Machine
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from discovered_cluster import Discoverer
from hypothesis import given
from hypothesis import strategies as st
from needs import ONLY_ROOT
from test_credential import challenge_then_sign, make_due
from test_discovery_refresh import certificate

from nodeattest_authenticator.config.settings import Settings
from nodeattest_authenticator.config.settings import parse as parse_settings
from nodeattest_authenticator.errors import AgentError, FailureKind
from nodeattest_authenticator.exec_plugin import background_renewal
from nodeattest_authenticator.exec_plugin.fast_path import credential_arguments, lookup
from nodeattest_authenticator.exec_plugin.handle import credential
from nodeattest_authenticator.formats import exec_credential
from nodeattest_authenticator.state import credential_cache
from nodeattest_authenticator.state.cache_files import parse_header
from nodeattest_authenticator.state.credential_cache import CachedCredential, CacheEntry
from nodeattest_authenticator.state.storage import Storage
from nodeattest_discovery.node.clock import Clock

# The cache


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


def pipe(machine: Machine) -> None:
    path(machine).unlink()
    os.mkfifo(path(machine), 0o600)


def give_away(machine: Machine) -> None:
    os.chown(path(machine), 65534, 65534)


BAD: list[tuple[str, Callable[[Machine], object], str]] = [
    ("world-readable", lambda m: path(m).chmod(0o644), "mode 0644"),
    ("group-readable", lambda m: path(m).chmod(0o640), "mode 0640"),
    ("symbolic link", link, "plain file"),
    ("directory", directory, "file type"),
    ("pipe", pipe, "file type"),
    ("half-written", cut, "whole"),
    ("empty", lambda m: m.write("credential", b""), "whole"),
    ("not ours", lambda m: m.write("credential", b"{}"), "whole"),
    ("huge", lambda m: m.write("credential", b"x" * (1 << 20)), "larger"),
    ("other key", lambda m: store(m, key=pem_key(ec.generate_private_key(ec.SECP256R1()))), "key is not the node's"),
    ("other CA", lambda m: store(m, authority=Authority()), "no CA of the cluster"),
    ("other node", lambda m: store(m, node="node-1"), "subject"),
    ("other times", later, "times"),
]
FOREIGN = pytest.param(give_away, "belongs to user 65534", marks=ONLY_ROOT, id="other owner")


@pytest.mark.parametrize(("spoil", "says"), [*(pytest.param(*row[1:], id=row[0]) for row in BAD), FOREIGN])
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
    assert said == ["the renewal is postponed: cannot start a process: Resource temporarily unavailable"]


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
    assert said[0].startswith("the refresh before the renewal failed: cannot start a process")


# The warm path


def test_the_warm_path_imports_itself_and_nothing_that_a_bare_interpreter_has_not(machine: Machine) -> None:
    assert machine.run().returncode == 0
    show = "print(*sorted(sys.modules), sep='\\n', file=sys.stderr)"
    bare = modules(machine, f"import os, sys, time; {show}")
    program = (
        "import os, sys, time\n"
        "from nodeattest_authenticator.exec_plugin.fast_path import run\n"
        f"sys.argv = ['x', *{machine.arguments()[1:]!r}]\n"
        f"assert run(sys.argv) == 0\n{show}"
    )
    warm = modules(machine, program)
    assert warm - bare == {
        "nodeattest_authenticator",
        "nodeattest_authenticator.exec_plugin",
        "nodeattest_authenticator.exec_plugin.fast_path",
        "nodeattest_authenticator.state",
        "nodeattest_authenticator.state.cache_files",
    }


def modules(machine: Machine, program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=machine.environment(machine.info()),
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.split())


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


def warm(machine: Machine, *, info: str | None = None, ahead: float = 0) -> bytes | None:
    found = lookup(str(machine.cache), str(machine.config), (info or machine.info()).encode(), time.time() + ahead)
    assert found is None or found[0] == 0
    return found[1] if found else None


def test_each_exec_info_is_served(machine: Machine) -> None:
    infos = (machine.info(), machine.info() + " ")
    cold = [machine.run(info=info).stdout.encode() for info in infos]
    assert [warm(machine, info=info) for info in infos] == cold
    assert warm(machine, info=machine.info() + "  ") is None


def test_nothing_is_served_from_the_renewal_moment_on_or_before_the_certificate_begins(machine: Machine) -> None:
    machine.run()
    (not_before, renew_at, _), *_ = parse_header(machine.cache.joinpath("credential").read_bytes())
    now = time.time()
    assert warm(machine, ahead=renew_at - now - 5) is not None
    assert warm(machine, ahead=renew_at - now + 5) is None
    assert warm(machine, ahead=not_before - 300 - now - 5) is None


def test_a_changed_configuration_is_not_served_from_the_old_credential(machine: Machine) -> None:
    machine.run()
    machine.prepare(timeoutSeconds=11)
    assert warm(machine) is None


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


def test_a_refusal_is_repeated_warm_once_the_certificate_has_expired(machine: Machine) -> None:
    machine.run()
    (_, _, not_after), config_fingerprint, *_ = parse_header(machine.cache.joinpath("credential").read_bytes())
    until = not_after + 60
    machine.write(
        "failure", b"kubelet-authenticator-failure/1 %d %b 1\nrefused\nreason\ntext" % (until, config_fingerprint)
    )
    where = (str(machine.cache), str(machine.config), machine.info().encode())
    found = lookup(*where, not_after + 1)
    assert found is not None
    assert found[0] == 1
    assert found[1].startswith(b"refused (next attempt in ")
    assert lookup(*where, not_after - 1) == (0, warm(machine))
    assert lookup(*where, until + 1) is None
    machine.cache.joinpath("credential").unlink()
    assert lookup(*where, until - 3599) is not None
    assert lookup(*where, until - 3700) is None  # written before the clock was set back


# The call


OURS, OTHER = Authority(), Authority("other")


def settings(**changes: object) -> Settings:
    document = {
        "apiVersion": "config.nodeattest.x-k8s.io/v1alpha1",
        "kind": "KubeletAuthenticatorConfiguration",
        "server": "https://API.example:6443/",
        "certificateAuthority": OURS.pem.decode(),
        "nodeName": "node-0",
        "provider": {"name": "insecure"},
    }
    return parse_settings(json.dumps(document | changes).encode(), hostname="host")


def info(**cluster: object) -> bytes:
    good = {
        "server": "https://api.example:6443",
        "certificate-authority-data": base64.b64encode(OURS.pem).decode(),
    }
    spec = {"cluster": {name: value for name, value in (good | cluster).items() if value is not None}}
    return json.dumps(
        {
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "spec": spec | {"interactive": True},
        }
    ).encode()


@pytest.mark.parametrize(
    "cluster",
    [
        {},
        {"server": "https://API.EXAMPLE:6443/"},
        {"certificate-authority-data": base64.b64encode(OTHER.pem + OURS.pem).decode()},
        {"config": {"anything": 1}, "disable-compression": True},
    ],
)
def test_our_cluster_is_recognised_however_it_is_spelt(cluster: dict[str, Any]) -> None:
    exec_credential.check_cluster(exec_credential.parse(info(**cluster)), settings().cluster, ())


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1"])
def test_a_call_in_another_version_is_refused_and_names_the_field_to_correct(version: str) -> None:
    call = {"apiVersion": f"client.authentication.k8s.io/{version}", "kind": "ExecCredential"}
    says = r"apiVersion must be client\.authentication\.k8s\.io/v1; set users\[\]\.user\.exec\.apiVersion to"
    with pytest.raises(AgentError, match=says):
        exec_credential.parse(json.dumps(call).encode())


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        ({"server": "https://api.example:6444"}, "server"),
        ({"server": "https://api.example.evil:6443"}, "server"),
        ({"server": "http://api.example:6443"}, "server"),
        ({"server": "https://api.example:6443/other"}, "server"),
        ({"server": "https://[broken"}, "server"),
        ({"insecure-skip-tls-verify": True}, "insecure-skip-tls-verify"),
        ({"tls-server-name": "evil"}, "tls-server-name"),
        ({"certificate-authority-data": None}, "none of the configured CAs"),
        ({"certificate-authority-data": base64.b64encode(OTHER.pem).decode()}, "none of the configured CAs"),
        ({"certificate-authority-data": base64.b64encode(b"-----BEGIN CERTIFICATE-----\nx").decode()}, "none"),
        ({"certificate-authority-data": "%"}, "KUBERNETES_EXEC_INFO"),
    ],
)
def test_another_cluster_is_refused(cluster: dict[str, Any], says: str) -> None:
    with pytest.raises(AgentError, match="ExecInfoRefused") as caught:
        exec_credential.check_cluster(exec_credential.parse(info(**cluster)), settings().cluster, ())
    assert says in str(caught.value)
    assert caught.value.kind is FailureKind.USAGE


def test_the_configured_server_name_must_be_the_callers() -> None:
    named = settings(tlsServerName="kubernetes")
    exec_credential.check_cluster(
        exec_credential.parse(info(**{"tls-server-name": "kubernetes"})), named.cluster, named.previous_clusters
    )
    with pytest.raises(AgentError, match="tls-server-name"):
        exec_credential.check_cluster(exec_credential.parse(info()), named.cluster, named.previous_clusters)


@given(
    document=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["apiVersion", "kind", "spec", "cluster", "server", "certificate-authority-data"]),
                inner,
            )
        ),
    )
)
def test_any_json_gives_a_call_or_a_failure(document: object) -> None:
    good = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "spec": document}
    for value in (document, good):
        with contextlib.suppress(AgentError):
            assert isinstance(exec_credential.parse(json.dumps(value).encode()), exec_credential.ExecInfo)


# Start-up cost


JOIN = """
import nodeattest_authenticator.enrollment.issue, nodeattest_authenticator.state.records
from nodeattest_authenticator.commands import cli, join, status
"""
"""The modules of a join; what they need comes along."""
CREDENTIAL = """
import nodeattest_authenticator.enrollment.issue, nodeattest_authenticator.state.records
from nodeattest_authenticator.exec_plugin import handle
from nodeattest_authenticator.exec_plugin import background_renewal
"""
"""The modules of a credential call that the fast path does not answer."""
OTHERS = {
    "difflib",
    "nodeattest_providers.tpm.boot_state",  # the node sends its log unread
    "nodeattest_discovery.clusterinfo",
    "nodeattest_discovery.node.client",
    "pyasn1",
    "subprocess",
    "tpm2_pytss",  # docs/decisions.md
    "yaml",  # for those who discover
}


def test_a_join_imports_neither_the_controllers_half_nor_what_only_a_mistake_needs() -> None:
    loaded = modules_of(f"{JOIN}\nimport nodeattest_providers.tpm.attestor")
    assert "nodeattest_providers.node_interface" in loaded
    assert not loaded & OTHERS


def test_a_credential_call_imports_nothing_of_the_commands_that_people_type() -> None:
    loaded = modules_of(CREDENTIAL)
    assert "cryptography" in loaded
    assert not loaded & {
        *OTHERS,
        "argparse",
        "nodeattest_authenticator.kubelet_serving",
        "nodeattest_authenticator.commands.status",
    }


def test_a_node_answers_without_what_discovers() -> None:
    loaded = modules_of(CREDENTIAL)
    assert "nodeattest_authenticator.config.settings" in loaded
    assert not loaded & OTHERS


def modules_of(imports: str) -> set[str]:
    program = f"import sys\n{imports}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())
