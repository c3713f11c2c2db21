"""The demo as its user runs it: a process, its exit code, its one JSON object, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest
from polling import eventually

from nodeattest_cli.demo.attacks.common import attacks_for
from nodeattest_cli.demo.platforms import PROVIDERS
from nodeattest_cli.demo.results import AttackResult
from nodeattest_controller.controllers.auto_approval.decide import CLOSED_REASONS
from nodeattest_controller.model.objects import items, text
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import ProviderName
from tools import demo_picture

DOCS = Path(__file__).parents[2] / "docs"
COMMAND = Path(sys.executable).parent / "nodeattest"
TPM_REASONS = {
    "stolen token, no evidence": "EnvelopeMalformed",
    "stolen token, the insecure signer": "AttestorNotAuthorized",
    "another machine's token": "TokenNotThisMachines",
    "enrolled machine, another node's name": "NodeNameMismatch",
    "replay of another node's proof with a new key": "FirstRequestMismatch",
    "genuine TPM that nobody registered": "EndorsementKeyUntrusted",
    "another machine's TPM": "EndorsementKeyUntrusted",
    "forged TPM: software key and quote": "ProofInvalid",
}
AWS_REASONS = {
    "stolen token, no evidence": "EnvelopeMalformed",
    "stolen token, the insecure signer": "AttestorNotAuthorized",
    "another machine's token": "TokenNotThisMachines",
    "enrolled machine, another node's name": "NodeNameMismatch",
    "replay of another node's proof with a new key": "PlatformProofNotBound",
    "an instance of another account": "PlatformAccountNotAllowed",
    "another instance of the same account": "PlatformInstanceMismatch",
    "a joined machine's instance": "PlatformInstanceMismatch",
    "stolen identity document, a role not listed": "PlatformRoleNotAllowed",
    "stolen identity document, a person in the role": "PlatformInstanceMismatch",
    "stolen identity document, another node's role": "PlatformInstanceMismatch",
    "self-made identity document": "PlatformDocumentSignatureInvalid",
    "altered identity document": "PlatformDocumentMismatch",
}
AZURE_REASONS = {
    "stolen token, no evidence": "EnvelopeMalformed",
    "stolen token, the insecure signer": "AttestorNotAuthorized",
    "another machine's token": "TokenNotThisMachines",
    "enrolled machine, another node's name": "NodeNameMismatch",
    "replay of another node's proof with a new key": "PlatformProofNotBound",
    "genuine machine of another subscription": "PlatformInstanceMismatch",
    "genuine machine of the group that nobody registered": "PlatformInstanceMismatch",
    "another node's metadata service": "PlatformInstanceMismatch",
    "document of ten minutes ago": "PlatformProofExpired",
    "document signed by a chain of one's own": "PlatformDocumentSignatureInvalid",
}
GCP_REASONS = {
    "stolen token, no evidence": "EnvelopeMalformed",
    "stolen token, the insecure signer": "AttestorNotAuthorized",
    "another machine's token": "TokenNotThisMachines",
    "enrolled machine, another node's name": "NodeNameMismatch",
    "replay of another node's proof with a new key": "FirstRequestMismatch",
    "vTPM of an instance that is no Machine's": "EndorsementKeyUntrusted",
    "a joined machine's vTPM": "EndorsementKeyUntrusted",
    "an instance of another project": "PlatformAccountNotAllowed",
    "a stopped instance": "PlatformInstanceNotRunning",
    "the victim's own vTPM, the tpm signer": "AttestorNotAuthorized",
    "an instance identity token": "EvidenceMalformed",
    "forged vTPM: software key and quote": "ProofInvalid",
}

DISCOVERY_REASONS = {
    "a server that stole the token, its own CA": "CANotPinned",
    "a server that stole the token, both CAs in one bundle": "ServerNotTrusted",
    "a server that knows the token's id only": "ClusterInfoSignatureInvalid",
}
COMPOSITE_REASONS = {
    "stolen token, no evidence": "EnvelopeMalformed",
    "stolen token, the insecure signer": "AttestorNotAuthorized",
    "another machine's token": "TokenNotThisMachines",
    "enrolled machine, another node's name": "NodeNameMismatch",
    "replay of another node's proof with a new key": "FirstRequestMismatch",
    "one of two proofs, alone": "AttestorNotAuthorized",
    "one of two proofs, and something else": "ProofMissing",
    "the right TPM, another machine's secret": "ProofInvalid",
    "the right secret, another machine's TPM": "EndorsementKeyUntrusted",
}


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


def outcome(folder: Path, *arguments: str, **more: str) -> JsonObject:
    """Run the demo and return its object; it must end well and leave nothing."""
    process = start(folder, "--json", *arguments, **more)
    output, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    assert list(folder.iterdir()) == []
    return cast("JsonObject", json.loads(output))


def reasons(found: JsonObject) -> dict[str, str]:
    return {text(entry, "attempt"): text(entry, "reason") for entry in items(found, "refused")}


def running_below(folder: Path) -> list[str]:
    """Name the processes whose command line mentions the folder."""
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    return [line.decode(errors="replace") for line in lines if str(folder).encode() in line]


@pytest.mark.swtpm
def test_machines_with_tpms_join_and_every_attacker_is_refused_for_its_reason(tmp_path: Path) -> None:
    found = outcome(tmp_path, "--nodes", "2")
    assert [entry["node"] for entry in items(found, "joined")] == ["worker-1", "worker-2"]
    assert {text(entry, "signer") for entry in items(found, "joined")} == {
        "cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm"
    }
    assert {text(entry, "provider") for entry in items(found, "joined")} == {"tpm"}
    assert all(set(entry) == {"node", "machine", "provider", "signer", "notAfter"} for entry in items(found, "joined"))
    assert reasons(found) == TPM_REASONS
    assert all(set(entry) == {"attempt", "reason", "message"} and entry["message"] for entry in items(found, "refused"))


def test_machines_with_secrets_join_and_other_secrets_do_not(tmp_path: Path) -> None:
    found = outcome(tmp_path, "--nodes", "1", "--provider", "challenge")
    assert [entry["machine"] for entry in items(found, "joined")] == ["demo-md-1"]
    assert reasons(found) == {
        "stolen token, no evidence": "EnvelopeMalformed",
        "stolen token, the insecure signer": "AttestorNotAuthorized",
        "another machine's token": "TokenNotThisMachines",
        "enrolled machine, another node's name": "NodeNameMismatch",
        "replay of another node's proof with a new key": "SecretUsed",
        "a secret of the attacker's own": "ProofInvalid",
        "another machine's secret": "ProofInvalid",
        "a joined machine's secret, a second key": "SecretUsed",
    }


@pytest.mark.swtpm
def test_machines_with_two_proofs_join_and_one_proof_or_two_machines_do_not(tmp_path: Path) -> None:
    found = outcome(tmp_path, "--nodes", "1", "--provider", "composite")
    assert [entry["provider"] for entry in items(found, "joined")] == ["composite"]
    assert reasons(found) == COMPOSITE_REASONS


def test_the_insecure_provider_still_refuses_other_names_and_second_keys(tmp_path: Path) -> None:
    found = outcome(tmp_path, "--nodes", "1", "--provider", "insecure")
    assert reasons(found) == {
        "stolen token, no evidence": "EnvelopeMalformed",
        "another machine's token": "TokenNotThisMachines",
        "another node's name": "NodeNameMismatch",
        "a joined machine, a second key": "MachineAlreadyBound",
        "a machine that nobody made": "ProviderIDMismatch",
    }


def test_instances_of_aws_join_and_every_attacker_is_refused_for_its_reason(tmp_path: Path) -> None:
    whoever_runs_it = {"AWS_PROFILE": "of-mine", "AWS_ENDPOINT_URL": "https://127.0.0.1:1", "AWS_CA_BUNDLE": "/mine"}
    found = outcome(tmp_path, "--nodes", "1", "--provider", "aws", **whoever_runs_it)
    assert [entry["machine"] for entry in items(found, "joined")] == ["demo-md-1"]
    assert all(text(entry, "node").endswith(".ec2.internal") for entry in items(found, "joined"))
    assert reasons(found) == AWS_REASONS


def test_an_aws_that_lacks_its_libraries_names_them_and_how_to_install_them() -> None:
    program = """
import sys
sys.modules["moto"] = sys.modules["boto3"] = None
from nodeattest_cli.demo.platforms.aws import AwsDemoPlatform
print(*AwsDemoPlatform.missing())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("boto3 and moto (install requirements-sandbox.txt of the release: docs/install.md)")
    assert "choose another --provider" in done.stdout


@pytest.mark.conformance
def test_the_same_happens_to_instances_on_a_real_api_server(tmp_path: Path, assets: Path) -> None:
    found = outcome(tmp_path, "--nodes", "1", "--provider", "aws", "--real", KUBEBUILDER_ASSETS=str(assets))
    assert len(items(found, "joined")) == 1
    assert reasons(found) == AWS_REASONS


def test_machines_of_azure_join_and_every_attacker_is_refused_for_its_reason(tmp_path: Path) -> None:
    found = outcome(tmp_path, "--nodes", "1", "--provider", "azure")
    assert [text(entry, "node") for entry in items(found, "joined")] == ["worker-1"]
    assert reasons(found) == AZURE_REASONS


@pytest.mark.conformance
def test_the_same_happens_to_machines_of_azure_on_a_real_api_server(tmp_path: Path, assets: Path) -> None:
    found = outcome(tmp_path, "--nodes", "1", "--provider", "azure", "--real", KUBEBUILDER_ASSETS=str(assets))
    assert len(items(found, "joined")) == 1
    assert reasons(found) == AZURE_REASONS


@pytest.mark.swtpm
def test_shielded_vms_of_google_cloud_join_and_every_attacker_is_refused_for_its_reason(tmp_path: Path) -> None:
    found = outcome(tmp_path, "--nodes", "1", "--provider", "gcp")
    assert [text(entry, "node") for entry in items(found, "joined")] == ["worker-1"]
    assert reasons(found) == GCP_REASONS


@pytest.mark.conformance
@pytest.mark.swtpm
def test_the_same_happens_to_shielded_vms_on_a_real_api_server(tmp_path: Path, assets: Path) -> None:
    found = outcome(tmp_path, "--nodes", "1", "--provider", "gcp", "--real", KUBEBUILDER_ASSETS=str(assets))
    assert len(items(found, "joined")) == 1
    assert reasons(found) == GCP_REASONS


@pytest.mark.conformance
@pytest.mark.swtpm
def test_the_same_happens_on_a_real_api_server(tmp_path: Path, assets: Path) -> None:
    found = outcome(tmp_path, "--nodes", "2", "--real", KUBEBUILDER_ASSETS=str(assets))
    assert len(items(found, "joined")) == 2
    assert reasons(found) == TPM_REASONS


@pytest.mark.swtpm
def test_machines_find_their_cluster_by_their_token_and_no_other_cluster_fools_them(tmp_path: Path) -> None:
    found = outcome(tmp_path, "--nodes", "2", "--discovery", "token")
    assert len(items(found, "joined")) == 2
    assert reasons(found) == TPM_REASONS | DISCOVERY_REASONS


@pytest.mark.conformance
@pytest.mark.swtpm
def test_the_same_happens_to_machines_that_find_a_real_cluster(tmp_path: Path, assets: Path) -> None:
    found = outcome(tmp_path, "--nodes", "2", "--discovery", "token", "--real", KUBEBUILDER_ASSETS=str(assets))
    assert len(items(found, "joined")) == 2
    assert reasons(found) == TPM_REASONS | DISCOVERY_REASONS


@pytest.mark.swtpm
def test_the_picture_and_the_first_page_show_the_steps_of_a_run(
    tmp_path: Path,
) -> None:
    """``python -m tools.demo_picture docs/demo.svg`` draws it anew."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = start(temporary, *demo_picture.COMMAND[1:])
    output, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    assert json.loads(output)["automaticApproval"] in CLOSED_REASONS  # whether the nodes' renewal was closed, too
    seen = demo_picture.steps(errors)
    assert [line for line in seen if "automatic approval" in line] == [
        "automatic approval is open, as kubeadm leaves it: a stolen token gets any node's certificate",
        "closed   automatic approval: the API server allows it to no token any more",
    ]
    assert demo_picture.steps(demo_picture.drawn((DOCS / "demo.svg").read_text())) == seen
    assert demo_picture.steps((DOCS / "start.md").read_text()) == seen


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_every_process_and_removes_every_file(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, "--provider", "challenge")
    eventually(
        lambda: any("run" in line and "controller" in line for line in running_below(tmp_path)),
        "its start",
    )
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert running_below(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def kept(process: subprocess.Popen[str]) -> str:
    """Read what a demo says until it is kept, and how to look at it."""
    said = ""
    assert process.stdout is not None
    while "kubelet.conf get node" not in said:
        line = process.stdout.readline()
        assert line, "the demo ended instead of keeping"
        said += line
    return said


@pytest.mark.swtpm
def test_the_commands_that_a_kept_demo_prints_work_and_its_controller_lacks_no_right(tmp_path: Path) -> None:
    process = start(tmp_path, "--nodes", "1", "--keep")
    try:
        said = kept(process)
        (log,) = tmp_path.glob("*/controller/controller.log")
        listed, explained, adopted, rejoined = printed_commands(said)
        refused = [line for line in log.read_text().splitlines() if "403 Forbidden" in line]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert "2 machines, 1 attested" in listed
    assert "NotYetAttested" in explained
    assert "0 of 1 nodes are not in the ledger" in adopted
    assert "bootstrap token for demo-md-1" in rejoined
    assert refused == []


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


def test_a_kept_demo_ends_in_plain_tables_can_be_looked_at_and_ends_with_a_signal(tmp_path: Path) -> None:
    process = start(tmp_path, "--provider", "challenge", "--nodes", "1", "--keep", TERM="xterm")
    said = kept(process)
    assert "\x1b" not in said
    assert said.index("joined   worker-1") < said.index("| node ") < said.index("1 joined, 8 refused, as it must be.")
    (folder,) = tmp_path.iterdir()
    kubelet = json.loads((folder / "nodes/worker-1/etc/kubernetes/kubelet.conf").read_bytes())
    assert kubelet["users"][0]["user"]["exec"]["command"].endswith("kubelet-authenticator")
    listed = subprocess.run(
        [str(COMMAND), "machines", "-A", "-o", "json", "--kubeconfig", str(folder / "management/admin.kubeconfig")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    machines = json.loads(listed.stdout)["machines"]  # the attackers' target never joins
    assert [entry["node"] for entry in machines if entry["node"]] == ["worker-1"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert running_below(tmp_path) == []
    assert folder.is_dir()


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (["--real"], {}, "--real needs KUBEBUILDER_ASSETS"),
        ([], {"KUBEBUILDER_ASSETS": "/nowhere"}, "etcd and kube-apiserver in /nowhere"),
        (["--nodes", "0"], {}, "--nodes"),
        (["--provider", "null"], {}, "--provider"),
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


@pytest.mark.parametrize(
    ("reason", "is_right"), [("ProofInvalid", True), ("Issued", False), ("EnvelopeMalformed", False), ("", False)]
)
def test_only_the_expected_reason_is_right(reason: str, is_right: bool) -> None:
    entry = AttackResult(attempt="a", expected=(Reason.PROOF_INVALID,), reason=reason, message="")
    assert entry.is_right is is_right


def test_every_expected_reason_of_an_attempt_is_one_of_the_contract() -> None:
    for provider in PROVIDERS:
        attempts = attacks_for(ProviderName(provider))
        assert len(attempts) >= 4
        assert all(set(attempt.expected) <= set(Reason) for attempt in attempts)
        assert len({attempt.name for attempt in attempts}) == len(attempts)
