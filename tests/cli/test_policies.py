"""Policies judged without a cluster: everything that the controller would refuse is found, all of it at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from builders import make_policy

from nodeattest_cli.main import main
from nodeattest_cli.policy.check import notes, problems
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig import RenderOptions
from nodeattest_controller.controllers.bootstrap_config.render import render
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.identifiers import ProviderName

LABEL = "attestation.cluster.x-k8s.io/bootstrap-config"
GOLD: JsonValue = {"matchLabels": {"tier": "gold"}}
EC2: JsonObject = {"accounts": ["123456789012"]}
Check = Callable[..., tuple[int, str]]


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """Check files of the given documents by the command; returns exit code and output."""

    def run(*files: list[JsonObject]) -> tuple[int, str]:
        words = ["policy", "check"]
        for number, documents in enumerate(files):
            path = tmp_path / f"{number}.yaml"
            path.write_text(yaml.safe_dump_all(documents))
            words += ["-f", str(path)]
        code = main(words)
        return code, "".join(capsys.readouterr())

    return run


def named(name: str, namespace: str = "", **spec: JsonValue) -> JsonObject:
    return {**make_policy(**spec), "metadata": {"name": name, **({"namespace": namespace} if namespace else {})}}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"certificateLifetim": "1h"},
            "spec.certificateLifetim: unknown field; the nearest known one is certificate",
        ),
        (
            {"tpm": {"endorsmentKeys": []}},
            "spec.tpm.endorsmentKeys: unknown field; the nearest known one is endorsem",
        ),
        ({"challenge": {"createSecret": True}}, "spec.challenge.createSecret: unknown field; the nearest known one is"),
        ({"authorizedAttestors": ["tpm", "insecure"]}, "expected secure attestors alone, or insecure alone"),
        ({"authorizedAttestors": "tpm"}, "spec.authorizedAttestors in body must be of type array"),
        ({"certificateLifetime": "59s"}, "certificateLifetime from 1m to 8760h"),
        ({"enforcement": "Warn"}, "spec.enforcement"),
        ({"tpm": {"endorsementKeys": [{"providerID": "a", "sha256": "0a"}]}}, "spec.tpm.endorsementKeys[0].sha256"),
        ({"tpm": {"endorsementCAs": "no certificate"}}, "spec.tpm.endorsementCAs"),
        ({"tpm": {"pcrs": {"selection": [0], "values": {"7": ["ab" * 32]}}}}, "PCRs of the selection [0]"),
    ],
)
def test_what_is_wrong_in_a_spec_is_said_with_its_place(spec: JsonObject, said: str) -> None:
    found = list(problems(make_policy(**spec)))
    assert any(said in problem for problem in found), found


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({**make_policy(), "apiVersion": "v1"}, "apiVersion: expected attestation.cluster.x-k8s.io/v1alpha1, got v1"),
        ({**make_policy(), "metadata": {}}, "metadata.name: expected a name"),
        ({"kind": "NodeAttestationPolicy"}, "spec: Required"),
    ],
)
def test_an_object_that_is_no_policy_is_told(policy: JsonObject, said: str) -> None:
    assert any(said in problem for problem in problems(policy))


@pytest.mark.parametrize(
    ("spec", "said", "is_noted"),
    [
        ({"authorizedAttestors": []}, "no node can join", True),
        ({"authorizedAttestors": ["insecure"]}, "insecure proves nothing", True),
        ({"authorizedAttestors": ["tpm", "challenge"]}, "tpm, challenge are alternatives", True),
        ({"tpm": {}}, "only TPMs that infrastructure machines", True),
        ({"tpm": {"trustOnFirstUse": True}}, "only TPMs that infrastructure machines", False),
        ({"tpm": {"endorsementKeysFrom": {"ec2": EC2}}}, "only TPMs that infrastructure machines", False),
        ({"tpm": {"trustOnFirstUse": True}}, "the first TPM that claims it is believed", True),
        ({"authorizedAttestors": ["challenge"], "tpm": {"trustOnFirstUse": True}}, "trustOnFirstUse", False),
        ({"authorizedAttestors": ["challenge"], "tpm": {"eventLog": "Require"}}, "eventLog Require", False),
        ({"authorizedAttestors": ["challenge"], "tpm": {}}, "the section tpm is without effect", True),
        ({"serving": {"attested": "Refuse"}}, "serving.kubelet is not Approve", True),
    ],
)
def test_what_may_surprise_is_noted_and_no_note_contradicts_another(
    spec: JsonObject, said: str, *, is_noted: bool
) -> None:
    policy = make_policy(**spec)
    assert list(problems(policy)) == []
    assert any(said in note for note in notes(policy)) == is_noted


def test_the_command_tells_by_its_exit_code(check: Check) -> None:
    code, said = check([make_policy(enforcement="Warn")], [named("green"), {"kind": "ConfigMap"}])
    assert code == 1
    assert "blue: spec.enforcement" in said
    assert "green: valid; admits tpm" in said
    code, said = check([{"kind": "ConfigMap"}])
    assert code == 2
    assert "expected a NodeAttestationPolicy" in said


@pytest.mark.parametrize(
    ("labels", "enforcement", "is_noted"),
    [
        (None, "Enforce", True),
        ({}, "Enforce", True),
        ({LABEL: "enabled"}, "Enforce", False),
        ({LABEL: "disabled"}, "Enforce", False),
        (None, "Audit", False),
    ],
    ids=["no Namespace", "no label", "enabled", "disabled", "an audit"],
)
def test_a_namespace_without_the_webhooks_label_is_noted_with_the_command(
    labels: JsonObject | None, enforcement: str, is_noted: bool, check: Check
) -> None:
    namespace: JsonObject = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fleet", "labels": labels}}
    code, said = check([named("blue", "fleet", enforcement=enforcement), *([] if labels is None else [namespace])])
    assert code == 0
    assert (f"kubectl label namespace fleet {LABEL}=enabled" in said) == is_noted


@pytest.mark.parametrize(
    "spec",
    [
        {"authorizedAttestors": ["tpm", "tpmm"]},
        {"authorizedAttestors": ["composite"], "composite": {"anyOf": [{"allOf": ["tpm", "tpmm"]}]}},
    ],
)
def test_a_provider_that_does_not_exist_is_refused_with_the_nearest(check: Check, spec: JsonObject) -> None:
    code, said = check([make_policy(**spec)])
    assert code == 1
    assert "expected a provider that exists, got 'tpmm'; the nearest one is tpm" in said
    assert not list(problems(make_policy(**spec), ("tpmm",)))


def cluster(name: str, **labels: JsonValue) -> JsonObject:
    meta: JsonObject = {"name": name, "namespace": "fleet", "labels": labels}
    return {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": meta, "spec": {}}


@pytest.mark.parametrize(
    ("documents", "code", "says"),
    [
        ([make_policy(clusterSelector=GOLD), cluster("blue", tier="gold")], 0, "ruled by blue, admits tpm"),
        ([make_policy(clusterSelector=GOLD), cluster("blue")], 0, "no policy of this file selects it"),
        (
            [make_policy(), named("rival"), cluster("blue")],
            1,
            "blue, rival select it: the one goes on that most",
        ),
        ([make_policy(), named("rival", "other"), cluster("blue")], 0, "ruled by blue"),
    ],
)
def test_clusters_of_the_file_are_told_who_rules_them(
    check: Check, documents: list[JsonObject], code: int, says: str
) -> None:
    found, said = check(documents)
    assert found == code
    assert f"Cluster blue: {says}" in said


@pytest.mark.parametrize("enforcement", ["Enforce", "Audit"])
def test_joiners_that_are_not_rendered_are_listed_control_planes_included(check: Check, enforcement: str) -> None:
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
    code, said = check([make_policy(enforcement=enforcement), template, control_plane, render(done, plan)])
    assert code == 0
    listed = [line.partition(": note: not rendered")[0] for line in said.splitlines() if "not rendered" in line]
    wanted = ["KubeadmConfigTemplate fleet/workers", "KubeadmControlPlane fleet/masters"]
    assert listed == (wanted if enforcement == "Enforce" else [])
