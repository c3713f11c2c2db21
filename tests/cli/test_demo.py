"""The demo as its user runs it: a process, its exit code, its one JSON object, and nothing left behind.

The demo itself compares each attack's Reason with the table, and its exit code says whether all are right.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
from polling import eventually

from nodeattest_controller.controllers.auto_approval.decide import CLOSED_REASONS
from nodeattest_demo.attacks import attacks_for
from nodeattest_parsing.objects import items, text
from nodeattest_parsing.values import JsonObject

TREE = Path(__file__).parents[2]
COMMAND = Path(sys.executable).parent / "nodeattest"


def environment(folder: Path, **more: str) -> Mapping[str, str]:
    """Give the demo a folder of our own for its temporary files, so that what it leaves there is seen."""
    kept = {name: value for name, value in os.environ.items() if name != "KUBEBUILDER_ASSETS"}
    return {**kept, "TMPDIR": str(folder), **more}


def start(folder: Path, *arguments: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(COMMAND), "demo", *arguments],
        env=environment(folder, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, provider: str, *arguments: str, nodes: int, **more: str) -> None:
    """Run the demo, which must end well, have tried every attack, and leave nothing."""
    words = ["--json", f"--nodes={nodes}", f"--provider={provider}", *arguments]
    process = start(folder, *words, **more)
    output, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    assert list(folder.iterdir()) == []
    found: JsonObject = json.loads(output)
    attacks = {attack.name: attack.expected for attack in attacks_for(provider)}
    tried = {text(entry, "attempt"): text(entry, "reason") for entry in items(found, "refused")}
    assert tried.keys() == attacks.keys()
    assert all(reason in attacks[attempt] for attempt, reason in tried.items())
    assert {text(entry, "provider") for entry in items(found, "joined")} == {provider}
    assert len(items(found, "joined")) == nodes
    assert text(found, "automaticApproval") in CLOSED_REASONS


def running_below(folder: Path) -> list[str]:
    """Name the processes whose command line mentions the folder."""
    lines: list[bytes] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            lines.append(path.read_bytes())
    return [line.decode(errors="replace") for line in lines if str(folder).encode() in line]


def test_machines_join_and_every_attacker_is_refused_for_its_reason(tmp_path: Path) -> None:
    run(tmp_path, "challenge", nodes=1)


@pytest.mark.conformance
@pytest.mark.swtpm
def test_the_same_happens_on_a_real_api_server(tmp_path: Path, assets: Path) -> None:
    run(tmp_path, "tpm", "--real", nodes=2, KUBEBUILDER_ASSETS=str(assets))


def test_a_signal_ends_every_process_and_removes_every_file(tmp_path: Path) -> None:
    process = start(tmp_path, "--provider", "challenge")
    eventually(
        lambda: any("run" in line and "controller" in line for line in running_below(tmp_path)),
        "its start",
    )
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert running_below(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.swtpm
def test_machines_with_tpms_join_as_the_readme_shows(
    tmp_path: Path,
) -> None:
    process = start(tmp_path, "--sandbox", "--keep")
    try:
        said = kept(process)
        (folder,) = tmp_path.glob("nodeattest-*")  # beside the folders of running software TPMs
        listed, explained, adopted, rejoined = printed_commands(said)
        log = (folder / "controller/controller.log").read_text()
        refused = [line for line in log.splitlines() if "403 Forbidden" in line]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    shown = (TREE / "README.md").read_text().partition("```text\nautomatic")[2].partition("\n```")[0].splitlines()
    assert len(shown) == 13
    assert [line for line in shown if line not in said] == []
    assert said.index("joined   worker-1") < said.index("NODE ") < said.index("3 joined, 8 refused, as it must be.")
    kubelet = cast("JsonObject", json.loads((folder / "nodes/worker-1/etc/kubernetes/kubelet.conf").read_bytes()))
    assert text(items(kubelet, "users")[0], "user", "exec", "command").endswith("kubelet-authenticator")
    assert "4 machines, 3 attested" in listed
    assert "NotYetAttested" in explained
    assert "0 of 3 nodes are not in the ledger" in adopted
    assert "bootstrap token for demo-md-1" in rejoined
    assert refused == []  # the shipped RBAC suffices
    assert process.returncode == 0
    assert running_below(tmp_path) == []
    assert folder.is_dir()


def kept(process: subprocess.Popen[str]) -> str:
    """Read what a demo says until it is kept, and how to look at it."""
    said = ""
    assert process.stdout is not None
    while "kubelet.conf get node" not in said:
        line = process.stdout.readline()
        assert line, "the demo ended instead of keeping"
        said += line
    return said


def printed_commands(said: str) -> list[str]:
    """Run our commands that a kept demo prints, as a shell does, and return what each says."""
    (setting,) = [line.strip() for line in said.splitlines() if line.startswith("  export KUBECONFIG=")]
    commands = [line.strip() for line in said.splitlines() if "nodeattest " in line and line.startswith("  ")]
    answers: list[str] = []
    for command in commands:
        shell = ["/bin/sh", "-c", f"{setting}; {command}"]
        done = subprocess.run(shell, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == ((1 if " explain " in command else 0), ""), command
        answers.append(done.stdout)
    return answers


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (["--real"], {}, "--real needs KUBEBUILDER_ASSETS"),
        ([], {"KUBEBUILDER_ASSETS": "/nowhere"}, "etcd and kube-apiserver in /nowhere"),
    ],
)
def test_what_is_missing_is_said_in_one_line(
    tmp_path: Path, arguments: list[str], variables: dict[str, str], said: str
) -> None:
    process = start(tmp_path, *arguments, **variables)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert said in errors
    assert errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_set_up_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    assets, temporary = tmp_path / "assets", tmp_path / "tmp"
    for folder in (assets, temporary):
        folder.mkdir()
    for name in ("etcd", "kube-apiserver"):
        (assets / name).write_text("#!/bin/sh\necho no such luck >&2\nexit 3\n")
        (assets / name).chmod(0o755)
    process = start(temporary, "--provider", "challenge", "--assets", str(assets))
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "the demo could not be set up" in output
    assert "no such luck" in output
    assert list(temporary.iterdir()) == []
