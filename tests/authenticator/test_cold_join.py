"""What calls cost, in counts: the modules of each path; a cold join's files, connections, threads and processes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from agent_cluster import FakeApi
from agent_machine import COMMAND, Joiner, Machine
from test_tpm_join import Controller

from nodeattest_sandbox.swtpm import SoftwareTpm

MAX_OWN_MODULES = 74
MAX_CREDENTIAL_MODULES = 53
MAX_STANDARD_MODULES = 130
"""126 in Python 3.11, of which http.client needs 8."""
NEVER = frozenset(
    {
        "asyncio",
        "bz2",
        "difflib",
        "encodings.idna",
        "importlib.metadata",
        "logging",
        "lzma",
        "multiprocessing",
        "nodeattest_discovery.clusterinfo",  # for those who discover
        "nodeattest_discovery.node.client",
        "nodeattest_providers.tpm.boot_state",  # the node sends its log unread
        "pathlib",
        "pyasn1",
        "shutil",
        "subprocess",
        "tempfile",
        "tpm2_pytss",  # docs/decisions.md
        "urllib.request",
        "yaml",
    }
)
PEOPLE = frozenset({"argparse", "nodeattest_authenticator.commands", "nodeattest_authenticator.kubelet_serving"})
"""For commands that people type."""


def modules(program: str, machine: Machine | None = None) -> set[str]:
    """Run a program and return the modules that it loaded."""
    command = [sys.executable, "-c", f"import sys\n{program}\nprint(*sys.modules, sep='\\n', file=sys.stderr)"]
    environment = machine.environment(machine.info()) if machine else None
    return set(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr.split())


def ours(loaded: set[str]) -> set[str]:
    return {name for name in loaded if name.startswith("nodeattest_")}


def test_the_warm_path_imports_itself_and_nothing_that_a_bare_interpreter_has_not(machine: Machine) -> None:
    assert machine.run().returncode == 0
    bare = modules("import os, sys, time", machine)
    warm = modules(
        "import os, sys, time\n"
        "from nodeattest_authenticator.exec_plugin.fast_path import run\n"
        f"sys.argv = ['x', *{machine.arguments()[1:]!r}]\n"
        "assert run(sys.argv) == 0",
        machine,
    )
    assert warm - bare == {
        "nodeattest_authenticator",
        "nodeattest_authenticator.exec_plugin",
        "nodeattest_authenticator.exec_plugin.fast_path",
        "nodeattest_authenticator.state",
        "nodeattest_authenticator.state.cache_files",
    }


def test_a_credential_call_imports_nothing_of_the_commands_that_people_type() -> None:
    loaded = modules(
        "import nodeattest_authenticator.enrollment.issue, nodeattest_authenticator.state.records\n"
        "from nodeattest_authenticator.exec_plugin import handle, background_renewal"
    )
    assert "cryptography" in loaded
    assert not loaded & (NEVER | PEOPLE)
    assert len(ours(loaded)) <= MAX_CREDENTIAL_MODULES


OBSERVED = """
import sys
import os
out, command, *words = sys.argv[1:]
report = open(out, "w", buffering=1)

def hook(event, arguments):
    if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR):
        report.write(f"write {arguments[0]}\\n")
    elif event in {"_thread.start_new_thread", "os.fork", "os.posix_spawn", "subprocess.Popen", "os.exec"}:
        report.write(f"start {event}\\n")
    elif event == "socket.connect":
        report.write(f"connect {arguments[1]}\\n")

def observed_fsync(descriptor, fsync=os.fsync):
    report.write(f"sync {os.readlink(f'/proc/self/fd/{descriptor}')}\\n")
    fsync(descriptor)

os.fsync = observed_fsync
sys.addaudithook(hook)
sys.argv = [command, *words]
exec(compile(open(command).read(), command, "exec"))
"""
"""Runs the command; writes down which files it opens to write and syncs, what it starts, and to whom it connects."""


@dataclass(frozen=True)
class Joined:
    modules: set[str]
    report: Counter[tuple[str, str]]

    def of(self, kind: str) -> Counter[str]:
        return Counter({what: count for (found, what), count in self.report.items() if found == kind})


@pytest.fixture
def joined(tmp_path: Path, api: FakeApi, joiner: Joiner) -> Joined:
    with SoftwareTpm.create(tmp_path / "tpms", name="node") as tpm:
        api.on_create = Controller(api, tpm.endorsement_fingerprint())
        report = tmp_path / "report"
        words = ["join", *joiner.words(provider="tpm"), "--tcti", tpm.tcti]
        observed = [sys.executable, "-IB", "-X", "importtime", "-c", OBSERVED, str(report), str(COMMAND), *words]
        done = subprocess.run(observed, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert joiner.kubeconfig.exists()
    lines = (line.split(" ", 1) for line in report.read_text().splitlines())
    return Joined(
        modules=set(re.findall(r"^import time: .*\| +(\S+)$", done.stderr, re.MULTILINE)),
        report=Counter((kind, Path(what).name if kind in {"write", "sync"} else what) for kind, what in lines),
    )


@pytest.mark.swtpm
def test_a_cold_join_loads_these_many_modules_and_none_that_only_others_need(joined: Joined) -> None:
    assert "nodeattest_providers.tpm.node.device" in joined.modules
    assert joined.modules & NEVER == set()
    assert len(ours(joined.modules)) <= MAX_OWN_MODULES
    standard = {name for name in joined.modules if name.partition(".")[0] in sys.stdlib_module_names}
    assert len(standard) <= MAX_STANDARD_MODULES


@pytest.mark.swtpm
def test_a_cold_join_starts_nothing_and_waits_for_few_files_and_connections(joined: Joined) -> None:
    assert not joined.of("start")
    assert joined.of("write") == {
        "lock": 3,  # for the inputs, the certificate, and kubelet's files
        "device.lock": 1,
        "config.json.new": 1,
        "bootstrap-token.new": 1,
        "draft.new": 2,  # the first request, then the second
        "credential.new": 1,
        "kubelet.conf.new": 1,
    }
    # No draft: kill -9 leaves what was written, and after a power cut a new request is made.
    assert joined.of("sync") == {
        "config.json.new": 1,
        "host": 1,  # of config.json
        "bootstrap-token.new": 1,
        "credential.new": 1,
        "cache": 2,  # of both
        "kubelet.conf.new": 1,
        "etc": 1,
    }
    # To the TPM once, and to the API server once more for each request that is watched.
    assert sorted(joined.of("connect").values()) == [1, 2]
