"""``nodeattest render``: YAML in, YAML out; what it changes, what it leaves to the byte, and how it refuses."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from nodeattest_cli.main import main

OTHERS = """\
# A Secret of somebody else.
apiVersion: v1
kind: Secret
metadata: {name: "s"}   # as it stands
stringData:
  text: |
    --- no document begins here
"""
WORKER = """\
apiVersion: bootstrap.cluster.x-k8s.io/v1beta2
kind: KubeadmConfigTemplate
metadata:
  name: "md-0"
  namespace: 'fleet'
spec:
  template:
    spec:
      joinConfiguration:
        nodeRegistration:
          name: '{{ ds.meta_data.local_hostname }}'
          kubeletExtraArgs:
          - {name: node-labels, value: "rack=7"}
      files:
      - path: /etc/motd
        content: |
          hello
          ${CLUSTER_NAME}
      preKubeadmCommands: ["echo a", 'echo b']
"""
CONTROL_PLANE = """\
apiVersion: controlplane.cluster.x-k8s.io/v1beta1
kind: KubeadmControlPlane
metadata: {name: blue, namespace: fleet}
spec:
  replicas: ${REPLICAS}
  version: "v1.37.2"
  kubeadmConfigSpec: {}
"""
POLICY = """\
apiVersion: attestation.cluster.x-k8s.io/v1alpha1
kind: NodeAttestationPolicy
metadata: {name: p, namespace: fleet}
spec: {authorizedAttestors: [aws], serving: {kubelet: Approve}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("policy.yaml").write_text(POLICY)
    return tmp_path


def run(folder: Path, *documents: str, flags: tuple[str, ...] = ("--provider", "aws")) -> tuple[int, list[Any], str]:
    """Render to a file; returns exit code, documents and text."""
    folder.joinpath("in.yaml").write_text("---\n".join(documents))
    out = folder / "out.yaml"
    out.unlink(missing_ok=True)
    code = main(["render", "-f", "in.yaml", "-o", "out.yaml", *flags])
    text = out.read_text() if out.exists() else ""
    return code, list(yaml.safe_load_all(text)), text


def test_a_changed_document_keeps_its_order_and_its_texts(folder: Path) -> None:
    _, [document], text = run(folder, WORKER)
    assert "          hello\n          ${CLUSTER_NAME}\n" in text
    assert text.index("joinConfiguration") < text.index("files") < text.index("preKubeadmCommands")
    spec = document["spec"]["template"]["spec"]
    assert spec["joinConfiguration"]["nodeRegistration"]["name"] == "{{ ds.meta_data.local_hostname }}"
    assert spec["preKubeadmCommands"][-1].startswith("kubelet-authenticator join ")


def test_rendering_a_rendered_file_changes_no_byte(folder: Path) -> None:
    _, _, once = run(folder, WORKER, OTHERS, CONTROL_PLANE)
    folder.joinpath("in.yaml").write_text(once)
    assert main(["render", "-f", "in.yaml", "-o", "out.yaml", "--provider", "aws"]) == 0
    assert folder.joinpath("out.yaml").read_text() == once
    assert main(["render", "-f", "in.yaml", "--check", "--provider", "aws"]) == 0


def test_a_list_is_taken_apart_and_objects_of_others_pass_in_their_order(folder: Path) -> None:
    listed = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(WORKER), {"kind": "X"}]})
    code, documents, _ = run(folder, OTHERS, listed, OTHERS)
    assert (code, documents[0]) == (0, documents[3])
    assert [document["kind"] for document in documents] == ["Secret", "KubeadmConfigTemplate", "X", "Secret"]
    assert documents[0] == yaml.safe_load(OTHERS)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "there is no --policy"),
        (("--policy", "policy.yaml", "--provider", "tpm"), "authorizes aws"),
        (("--policy", "in.yaml"), "expected one NodeAttestationPolicy"),
        (("--provider", "tpm", "--provider-id", "x", "--provider-id-file", "y"), "one of"),
        (("--provider", "aws", "--set", "x"), "KEY=VALUE"),
    ],
)
def test_what_was_typed_wrongly_is_one_line(
    folder: Path, capfd: pytest.CaptureFixture[str], flags: tuple[str, ...], said: str
) -> None:
    assert run(folder, WORKER, flags=flags)[0] == 2
    assert said in capfd.readouterr().err


def test_every_contradiction_of_every_document_is_named(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = WORKER.replace("name: node-labels", "name: rotate-certificates").replace("rack=7", "true")
    other = wrong.replace("md-0", "md-1")
    items = [yaml.safe_load(wrong), yaml.safe_load(other)]
    listed = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items})
    said = "in KubeadmConfigTemplate fleet/md-0: joinConfiguration kubeletExtraArgs rotate-certificates"
    for documents in ((wrong, OTHERS, other), (listed,)):
        assert run(folder, *documents)[:2] == (1, [])
        error = capfd.readouterr().err
        assert [said in error, "remove it" in error, "fleet/md-1" in error, error.count("\n")] == [True] * 3 + [2]


@pytest.mark.parametrize(("begin", "end"), [("", ""), ("\ufeff---\n", "\n...\n")])
def test_several_files_are_one_stream(folder: Path, begin: str, end: str) -> None:
    folder.joinpath("a.yaml").write_text(OTHERS.removesuffix("\n") + end)
    folder.joinpath("b.yaml").write_text(begin + WORKER)
    folder.joinpath("c.yaml").write_text(begin + OTHERS)
    assert main(["render", "-f", "a.yaml", "-f", "b.yaml", "-f", "c.yaml", "-o", "out.yaml", "--provider", "aws"]) == 0
    documents = yaml.safe_load_all(folder.joinpath("out.yaml").read_text())
    assert [one["kind"] for one in documents if one] == ["Secret", "KubeadmConfigTemplate", "Secret"]
    assert "\ufeff" not in folder.joinpath("out.yaml").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["render", "-f", "-", "-f", "-", "--provider", "aws"],
        ["render", "-f", "-", "--policy", "-"],
        ["policy", "check", "-f", "-", "-f", "-"],
        ["policy", "simulate", "-f", "-", "-f", "-"],
    ],
)
def test_standard_input_is_read_once(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(f"{POLICY}---\n{WORKER}".encode())))
    assert main(words) == 2
    out, error = capfd.readouterr()
    assert (out, "expected standard input (-) once" in error) == ("", True)


def test_annotations_choose_provider_and_provider_id_for_each_object(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder.joinpath("policy.yaml").write_text(POLICY.replace("[aws]", "[challenge, tpm]"))
    flags = ("--policy", "policy.yaml")
    own = "metadata: {annotations: {attestation.cluster.x-k8s.io/attestor: tpm, \
attestation.cluster.x-k8s.io/provider-id: 'kubevirt://{hostname}'}}"
    code, _, text = run(folder, WORKER.replace("    spec:", f"    {own}\n    spec:"), flags=flags)
    assert code == 0
    assert "--provider tpm --provider-id ''kubevirt://{hostname}''" in text
    code, _, _ = run(folder, WORKER, flags=flags)
    assert code == 2
    assert "md-0: which provider?" in capfd.readouterr().err


def test_a_secret_that_the_controller_creates_is_not_rendered_by_hand(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = "challenge: {createSecrets: true}, authorizedAttestors: [challenge]"
    folder.joinpath("policy.yaml").write_text(POLICY.replace("authorizedAttestors: [aws]", spec))
    assert run(folder, WORKER, flags=("--policy", "policy.yaml"))[0] == 2
    assert "the webhook alone" in capfd.readouterr().err


def test_check_writes_nothing_and_tells_by_its_exit_code(folder: Path) -> None:
    assert run(folder, WORKER, flags=("--provider", "aws", "--check")) == (1, [], "")
