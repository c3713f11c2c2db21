"""Policies judged without a cluster: everything that the controller would refuse is found, all of it at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from nodeattest_cli.main import main
from nodeattest_cli.policy.check import notes, problems
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.fields import RenderOptions
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.render import render
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.identifiers import ProviderName


def made(**spec: JsonValue) -> JsonObject:
    return {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "NodeAttestationPolicy",
        "metadata": {"name": "blue"},
        "spec": {"authorizedAttestors": ["tpm"], **spec},
    }


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (
            made(certificateLifetim="1h"),
            "spec.certificateLifetim: unknown field; the nearest known one is certificateLifetime",
        ),
        (
            made(tpm={"endorsmentKeys": []}),
            "spec.tpm.endorsmentKeys: unknown field; the nearest known one is endorsementKeys",
        ),
        (
            made(challenge={"createSecret": True}),
            "spec.challenge.createSecret: unknown field; the nearest known one is",
        ),
        (made(authorizedAttestors=["tpm", "insecure"]), "expected secure attestors alone, or insecure alone"),
        (made(authorizedAttestors="tpm"), "spec.authorizedAttestors in body must be of type array"),
        (made(certificateLifetime="59s"), "certificateLifetime from 1m to 8760h"),
        (made(enforcement="Warn"), "spec.enforcement"),
        (made(tpm={"endorsementKeys": [{"providerID": "a", "sha256": "0a"}]}), "spec.tpm.endorsementKeys[0].sha256"),
        (made(tpm={"endorsementCAs": "no certificate"}), "spec.tpm.endorsementCAs"),
        (made(tpm={"pcrs": {"selection": [0], "values": {"7": ["ab" * 32]}}}), "PCRs of the selection [0]"),
        ({**made(), "apiVersion": "v1"}, "apiVersion: expected attestation.cluster.x-k8s.io/v1alpha1, got v1"),
        ({**made(), "metadata": {}}, "metadata.name: expected a name"),
        ({"kind": "NodeAttestationPolicy"}, "spec: Required"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(policy: JsonObject, said: str) -> None:
    assert any(said in problem for problem in problems(policy)), list(problems(policy))


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (made(authorizedAttestors=[]), "no node can join"),
        (made(authorizedAttestors=["insecure"]), "insecure proves nothing"),
        (made(authorizedAttestors=["tpm", "challenge"]), "tpm, challenge are alternatives"),
        (made(tpm={}), "only TPMs that infrastructure machines"),
        (made(tpm={"trustOnFirstUse": True, "endorsementKeys": []}), "the first TPM that claims it is believed"),
        (made(authorizedAttestors=["challenge"], tpm={"endorsementKeys": []}), "the section tpm is without effect"),
        (made(serving={"attested": "Refuse"}), "serving.kubelet is not Approve"),
    ],
)
def test_what_may_surprise_is_noted(policy: JsonObject, said: str) -> None:
    assert list(problems(policy)) == []
    assert any(said in note for note in notes(policy))


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (made(tpm={"trustOnFirstUse": True}), "only TPMs that infrastructure machines"),
        (made(tpm={"endorsementKeysFrom": {"ec2": {}}}), "only TPMs that infrastructure machines"),
        (made(authorizedAttestors=["challenge"], tpm={"trustOnFirstUse": True}), "trustOnFirstUse"),
        (made(authorizedAttestors=["challenge"], tpm={"eventLog": "Require"}), "eventLog Require"),
    ],
)
def test_no_note_contradicts_another(policy: JsonObject, said: str) -> None:
    assert not any(said in note for note in notes(policy))


def test_every_file_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(yaml.safe_dump(made(enforcement="Warn")))
    second.write_text(yaml.safe_dump({**made(), "metadata": {"name": "green"}}))
    assert main(["policy", "check", "-f", str(first), "-f", str(second)]) == 1
    said = capsys.readouterr().out
    assert "blue: spec.enforcement" in said
    assert "green: valid" in said


def test_the_command_tells_by_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policies.yaml"
    path.write_text(yaml.safe_dump_all([made(), {"kind": "ConfigMap"}]))
    assert main(["policy", "check", "-f", str(path)]) == 0
    assert "blue: valid; admits tpm" in capsys.readouterr().out
    path.write_text(yaml.safe_dump_all([made(), made(enforcement="Warn")]))
    assert main(["policy", "check", "-f", str(path)]) == 1
    path.write_text("kind: ConfigMap")
    assert main(["policy", "check", "-f", str(path)]) == 2
    assert "expected a NodeAttestationPolicy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("labels", "enforcement", "is_noted"),
    [
        (None, "Enforce", True),
        ({}, "Enforce", True),
        ({"attestation.cluster.x-k8s.io/bootstrap-config": "enabled"}, "Enforce", False),
        ({"attestation.cluster.x-k8s.io/bootstrap-config": "disabled"}, "Enforce", False),
        (None, "Audit", False),
    ],
    ids=["no Namespace", "no label", "enabled", "disabled", "an audit"],
)
def test_a_namespace_without_the_webhooks_label_is_noted_with_the_command(
    labels: JsonObject | None,
    enforcement: str,
    is_noted: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    policy = {**made(enforcement=enforcement), "metadata": {"name": "blue", "namespace": "fleet"}}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fleet", "labels": labels}}
    file = tmp_path / "policy.yaml"
    file.write_text(yaml.safe_dump_all([policy] if labels is None else [policy, namespace]))
    assert main(["policy", "check", "-f", str(file)]) == 0
    said = "kubectl label namespace fleet attestation.cluster.x-k8s.io/bootstrap-config=enabled"
    assert (said in capsys.readouterr().out) == is_noted


@pytest.mark.parametrize(
    "spec",
    [
        {"authorizedAttestors": ["tpmm"]},
        {"authorizedAttestors": ["tpm", "tpmm"]},
        {"authorizedAttestors": ["composite"], "composite": {"anyOf": [{"allOf": ["tpm", "tpmm"]}]}},
    ],
)
def test_a_provider_that_does_not_exist_is_refused_with_the_nearest(tmp_path: Path, spec: JsonObject) -> None:
    code, said = checked(tmp_path, made(**spec))
    assert code == 1
    assert "expected a provider that exists, got 'tpmm'; the nearest one is tpm" in said
    assert not list(problems(made(**spec), ("tpmm",)))


def cluster(name: str, labels: dict[str, str], **spec: JsonValue) -> JsonObject:
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "metadata": {"name": name, "namespace": "fleet", "labels": dict(labels)},
        "spec": spec,
    }


def checked(tmp_path: Path, *documents: JsonObject) -> tuple[int, str]:
    """Check a file of several documents by the command itself, in a process of its own."""
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    command = [Path(sys.prefix) / "bin" / "nodeattest", "policy", "check", "-f", file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


GOLD: JsonValue = {"matchLabels": {"tier": "gold"}}


def test_clusters_of_the_file_are_told_who_rules_them(tmp_path: Path) -> None:
    code, said = checked(
        tmp_path, made(clusterSelector=GOLD), cluster("blue", {"tier": "gold"}), cluster("grey", {"tier": "none"})
    )
    assert code == 0
    assert "Cluster blue: ruled by blue, admits tpm" in said
    assert "Cluster grey: no policy of this file selects it" in said


def test_two_policies_that_select_one_cluster_are_an_error(tmp_path: Path) -> None:
    rival: JsonObject = {**made(), "metadata": {"name": "rival"}}
    code, said = checked(tmp_path, made(), rival, cluster("blue", {}))
    assert code == 1
    assert "Cluster blue: blue, rival select it: the one goes on that most of its machines joined under" in said


def test_a_policy_of_another_namespace_is_not_beside_the_cluster(tmp_path: Path) -> None:
    elsewhere: JsonObject = {**made(), "metadata": {"name": "rival", "namespace": "other"}}
    code, said = checked(tmp_path, made(), elsewhere, cluster("blue", {}))
    assert code == 0
    assert "Cluster blue: ruled by blue" in said


@pytest.mark.parametrize("enforcement", ["Enforce", "Audit"])
def test_joiners_that_are_not_rendered_are_listed_control_planes_included(tmp_path: Path, enforcement: str) -> None:
    spec: JsonObject = {"joinConfiguration": {}}
    template: JsonObject = {
        "apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1",
        "kind": "KubeadmConfigTemplate",
        "metadata": {"name": "workers", "namespace": "fleet"},
        "spec": {"template": {"spec": spec}},
    }
    control_plane: JsonObject = {
        "apiVersion": "controlplane.cluster.x-k8s.io/v1beta1",
        "kind": "KubeadmControlPlane",
        "metadata": {"name": "masters", "namespace": "fleet"},
        "spec": {"version": "v1.36.0", "kubeadmConfigSpec": spec},
    }
    plan = RenderOptions(provider=ProviderName("tpm"), provider_id="metal://rack-1/node-7")
    done: JsonObject = {**template, "metadata": {"name": "done", "namespace": "fleet"}}
    code, said = checked(tmp_path, made(enforcement=enforcement), template, control_plane, render(done, plan))
    assert code == 0
    listed = [line.partition(": note: not rendered")[0] for line in said.splitlines() if "not rendered" in line]
    assert listed == (
        ["KubeadmConfigTemplate fleet/workers", "KubeadmControlPlane fleet/masters"] if enforcement == "Enforce" else []
    )


MUST, WRONG = "must choose one of challenge, tpm", "expected one of challenge, tpm, got 'nonsense'"
