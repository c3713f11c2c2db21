"""The warm path: what it imports, what it serves, what it refuses to serve."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from agent_machine import Machine

from nodeattest_authenticator.exec_plugin.fast_path import credential_arguments, lookup
from nodeattest_authenticator.state.credential_format import parse_header


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
        "nodeattest_authenticator.state.credential_format",
        "nodeattest_authenticator.state.private_files",
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
