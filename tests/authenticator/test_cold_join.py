"""What a cold join with a TPM costs, in counts: modules, files, connections, threads, processes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from agent_cluster import FakeApi
from agent_machine import COMMAND
from test_join import Joiner
from test_tpm_join import Controller

from nodeattest_sandbox.swtpm import SoftwareTpm

pytestmark = pytest.mark.swtpm

MAX_OWN_MODULES = 81
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
        "pathlib",
        "pyasn1",
        "shutil",
        "subprocess",
        "tempfile",
        "tpm2_pytss",
        "urllib.request",
        "yaml",
    }
)
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


@pytest.fixture
def joined(tmp_path: Path, api: FakeApi) -> Joined:
    with SoftwareTpm.create(tmp_path / "tpms", name="node") as tpm:
        api.on_create = Controller(api, tpm.endorsement_fingerprint())
        joiner = Joiner(tmp_path, api)
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


def test_a_cold_join_loads_these_many_modules_and_none_that_only_others_need(joined: Joined) -> None:
    assert "nodeattest_providers.tpm.node.device" in joined.modules
    assert joined.modules & NEVER == set()
    ours = {name for name in joined.modules if name.startswith("nodeattest_")}
    standard = {name for name in joined.modules if name.partition(".")[0] in sys.stdlib_module_names}
    assert len(ours) <= MAX_OWN_MODULES
    assert len(standard) <= MAX_STANDARD_MODULES


def test_a_cold_join_starts_nothing_and_writes_only_these_files(joined: Joined) -> None:
    assert [what for kind, what in joined.report if kind == "start"] == []
    written = Counter({what: count for (kind, what), count in joined.report.items() if kind == "write"})
    assert written == {
        "lock": 3,  # for the inputs, the certificate, and kubelet's files
        "device.lock": 1,
        "config.json.new": 1,
        "bootstrap-token.new": 1,
        "draft.new": 2,  # the first request, then the second
        "credential.new": 1,
        "kubelet.conf.new": 1,
    }


def test_a_cold_join_waits_for_the_disk_for_these_files_and_their_directories_alone(joined: Joined) -> None:
    """A draft is none of them: kill -9 leaves what was written, and after a power cut a new request is made."""
    assert Counter({what: count for (kind, what), count in joined.report.items() if kind == "sync"}) == {
        "config.json.new": 1,
        "host": 1,  # of config.json
        "bootstrap-token.new": 1,
        "credential.new": 1,
        "cache": 2,  # of both
        "kubelet.conf.new": 1,
        "etc": 1,
    }


def test_a_cold_join_connects_to_the_tpm_and_to_the_api_server_once_a_request_that_is_watched(joined: Joined) -> None:
    connections = [count for (kind, _), count in joined.report.items() if kind == "connect"]
    assert sorted(connections) == [1, 2]
