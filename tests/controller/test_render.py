"""Rendering: what it adds, what it leaves, what it refuses."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Final

import pytest

from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig import (
    ADOPT_SCRIPT,
    ADOPT_UNIT,
    DROP_IN,
    IGNORED_PREFLIGHT,
    MARK,
    PROVIDER_ID_SCRIPT,
    RenderingRefused,
    RenderOptions,
)
from nodeattest_controller.controllers.bootstrap_config.render import render
from nodeattest_parsing.objects import items, mapping, strings, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.identifiers import ProviderName

VERSIONS: Final = ("v1beta1", "v1beta2")
FORMATS: Final = ("cloud-config", "ignition")
PLAN: Final = RenderOptions(provider=ProviderName("tpm"), provider_id="metal://{{ ds.meta_data.uuid }}")


def args(version: str, **values: str) -> JsonValue:
    """Write kubelet's arguments as the version has them."""
    named = {name.replace("_", "-"): value for name, value in values.items()}
    if version == "v1beta1":
        return dict[str, JsonValue](named)
    return [{"name": name, "value": value} for name, value in named.items()]


def worker(version: str = "v1beta2", **spec: JsonValue) -> JsonObject:
    """A worker's template, with much of the user's own in it."""
    own: JsonObject = {
        "joinConfiguration": {
            "nodeRegistration": {
                "name": "{{ ds.meta_data.local_hostname }}",
                "kubeletExtraArgs": args(version, node_labels="rack=7", cloud_provider="external"),
                "ignorePreflightErrors": ["NumCPU"],
            }
        },
        "files": [{"path": "/etc/motd", "content": "hello"}],
        "preKubeadmCommands": ["hostnamectl set-hostname x", "echo ready"],
        "postKubeadmCommands": ["echo done"],
        "users": [{"name": "ops"}],
    }
    return {
        "apiVersion": f"bootstrap.cluster.x-k8s.io/{version}",
        "kind": "KubeadmConfigTemplate",
        "metadata": {"name": "md-0", "namespace": "fleet"},
        "spec": {"template": {"spec": own | spec}},
    }


def control_plane(version: str = "v1beta2", **spec: JsonValue) -> JsonObject:
    own: JsonObject = {"clusterConfiguration": {"certificatesDir": "/etc/kubernetes/pki"}, "format": "cloud-config"}
    return {
        "apiVersion": f"controlplane.cluster.x-k8s.io/{version}",
        "kind": "KubeadmControlPlane",
        "metadata": {"name": "blue", "namespace": "fleet"},
        "spec": {"version": "v1.34.0", "replicas": 3, "kubeadmConfigSpec": own | spec},
    }


def machines_config(version: str, spec: JsonObject, without: str) -> JsonObject:
    """A KubeadmConfig as Cluster API makes one of a control plane, for a machine that joins or one that inits."""
    return {
        "apiVersion": f"bootstrap.cluster.x-k8s.io/{version}",
        "kind": "KubeadmConfig",
        "metadata": {"name": "blue-x7", "namespace": "fleet", "labels": {"cluster.x-k8s.io/control-plane": ""}},
        "spec": {name: value for name, value in spec.items() if name != without},
    }


def spec_of(document: JsonObject) -> JsonObject:
    spec = mapping(document, "spec")
    return mapping(spec, "kubeadmConfigSpec") or mapping(spec, "template", "spec") or spec


def refused(document: JsonObject, plan: RenderOptions = PLAN) -> str:
    with pytest.raises(RenderingRefused) as caught:
        render(document, plan)
    return str(caught.value)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_worker_joins_by_the_agent_and_keeps_what_its_author_wrote(version: str) -> None:
    made = spec_of(render(worker(version), PLAN))
    registration = mapping(made, "joinConfiguration", "nodeRegistration")
    assert registration["name"] == "{{ ds.meta_data.local_hostname }}"
    assert registration["ignorePreflightErrors"] == ["NumCPU", IGNORED_PREFLIGHT]
    assert registration["kubeletExtraArgs"] == args(
        version,
        node_labels="rack=7",
        cloud_provider="external",
        bootstrap_kubeconfig="",
        rotate_certificates="false",
        rotate_server_certificates="true",
        provider_id="metal://{{ ds.meta_data.uuid }}",
    )
    assert [text(file, "path") for file in items(made, "files")] == ["/etc/motd", DROP_IN]
    *before, last = strings(made, "preKubeadmCommands")
    assert before == ["hostnamectl set-hostname x", "echo ready"]
    assert last == (
        "kubelet-authenticator join --kubeadm-config /run/kubeadm/kubeadm-join-config.yaml --provider tpm "
        f"|| exit 1 {MARK}"
    )
    assert (made["postKubeadmCommands"], made["users"]) == (["echo done"], [{"name": "ops"}])
    assert "initConfiguration" not in made


@pytest.mark.parametrize("version", VERSIONS)
def test_a_control_plane_joins_attested_and_is_adopted_after_init(version: str) -> None:
    made = spec_of(render(control_plane(version), PLAN))
    for role in ("initConfiguration", "joinConfiguration"):
        assert "rotate-certificates" in json.dumps(made[role])
    assert not mapping(made, "initConfiguration", "nodeRegistration").get("ignorePreflightErrors")
    files = {text(file, "path"): text(file, "content") for file in items(made, "files")}
    assert list(files) == [DROP_IN, ADOPT_UNIT, ADOPT_SCRIPT, PROVIDER_ID_SCRIPT]
    assert f"ExecStart=/bin/sh {ADOPT_SCRIPT}" in files[ADOPT_UNIT]
    assert (
        "kubelet-authenticator adopt --provider tpm "
        f"--provider-id-command '/bin/sh {PROVIDER_ID_SCRIPT}'\nsystemctl restart kubelet.service\n"
    ) in files[ADOPT_SCRIPT]
    assert strings(made, "preKubeadmCommands")[-1].startswith("[ -e /run/kubeadm/kubeadm.yaml ] || kubelet-auth")
    assert strings(made, "postKubeadmCommands") == (
        f"systemctl enable --now --no-block nodeattest-adopt.service {MARK}",
    )


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file_format", FORMATS)
def test_rendering_twice_is_rendering_once(version: str, file_format: str) -> None:
    for document in (worker(version, format=file_format), control_plane(version, format=file_format)):
        before = copy.deepcopy(document)
        once = render(document, PLAN)
        assert once != document
        assert render(once, PLAN) == once
        assert document == before
    for without in ("initConfiguration", "joinConfiguration"):
        machines = machines_config(version, spec_of(once), without)
        assert render(machines, PLAN) == machines
    insecure = RenderOptions(provider=ProviderName("insecure"))  # nothing is adopted: only the label tells
    joining = machines_config(version, spec_of(render(document, insecure)), "initConfiguration")
    joining["spec"] = {name: value for name, value in spec_of(joining).items() if name != "clusterConfiguration"}
    assert render(joining, insecure) == joining


@pytest.mark.parametrize("version", VERSIONS)
def test_without_a_proof_the_node_of_init_is_left_as_kubeadm_made_it(version: str) -> None:
    plan = RenderOptions(provider=ProviderName("insecure"), provider_id="metal://1")
    document = render(control_plane(version), plan)
    made = spec_of(document)
    assert "initConfiguration" not in made
    assert [text(file, "path") for file in items(made, "files")] == [DROP_IN]
    assert strings(made, "preKubeadmCommands")[-1].startswith("[ -e /run/kubeadm/kubeadm.yaml ] || ")
    init = machines_config(version, made, "joinConfiguration")
    assert render(init, plan) == init
    assert render(document, plan) == document


def test_a_file_of_ours_with_another_content_is_replaced_not_believed() -> None:
    fake: JsonObject = {"path": DROP_IN, "content": "[Service]\nExecStart=\nExecStart=/bin/evil\n"}
    double: JsonObject = {"path": "/etc//systemd/system/../system/kubelet.service.d/90-nodeattest.conf", "content": "x"}
    made = spec_of(render(worker(files=[fake, {"path": "/etc/motd"}, double]), PLAN))
    files = items(made, "files")
    assert [text(file, "path") for file in files] == [DROP_IN, "/etc/motd"]
    assert "ExecStart" not in text(files[0], "content")


def registration(version: str, **arguments: str) -> JsonValue:
    return {"nodeRegistration": {"kubeletExtraArgs": args(version, **arguments)}}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rotate_certificates", "true"),
        ("rotate_server_certificates", "false"),
        ("bootstrap_kubeconfig", "/etc/kubernetes/bootstrap-kubelet.conf"),
        ("kubeconfig", "/root/other.conf"),
        ("provider_id", "metal://somebody-else"),
        ("tls_cert_file", "/etc/kubelet.crt"),
        ("feature_gates", "A=true,RotateKubeletServerCertificate=false"),
    ],
)
def test_an_argument_that_contradicts_is_refused_by_name(version: str, name: str, value: str) -> None:
    for role in ("joinConfiguration", "initConfiguration"):
        said = refused(control_plane(version, **{role: registration(version, **{name: value})}))
        assert f"{role} kubeletExtraArgs {name.replace('_', '-')}" in said


KUBEADMS_DROP_IN: Final = """\
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/x"
EnvironmentFile=-/etc/default/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
"""
FOLDER: Final = "/etc/systemd/system/kubelet.service.d"


def own_file(path: str, content: str, **more: JsonValue) -> dict[str, JsonValue]:
    return {"files": [{"path": path, "content": content, **more}]}


ROTATES: Final = '[Service]\nEnvironment="KUBELET_EXTRA_ARGS=--rotate-certificates"\n'
HIDDEN: Final[JsonObject] = {"secret": {"name": "s", "key": "k"}}
UNDOES, NOT_SHOWN = "that starts kubelet without --bootstrap-kubeconfig", "with its content in plain sight"
KUBELETS_OWN: Final = own_file("/etc/kubernetes/kubelet.conf", "apiVersion: v1")
REFUSED: Final[dict[str, tuple[dict[str, JsonValue], str]]] = {
    "kubelet's kubeconfig": (KUBELETS_OWN, "no /etc/kubernetes/kubelet.conf in files"),
    "the same, beside a mark at a user's command": (
        {**KUBELETS_OWN, "preKubeadmCommands": [f"true {MARK}"]},
        "no /etc/kubernetes/kubelet.conf in files",
    ),
    "a drop-in after ours": (own_file(f"{FOLDER}/99-own.conf", KUBEADMS_DROP_IN), UNDOES),
    "a drop-in that rotates": (own_file(f"{FOLDER}/20-own.conf", ROTATES), UNDOES),
    "a unit": (own_file("/etc/systemd/system/kubelet.service", "ExecStart=/kubelet --bootstrap-kubeconfig=/b"), UNDOES),
    "extra arguments": (own_file("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--rotate-certificates=true\n"), UNDOES),
    "a patch that rotates": (
        own_file("/etc/patches/kubeletconfiguration0+merge.yaml", "rotateCertificates: true\n"),
        "without rotateCertificates: true",
    ),
    "a patch against serving certificates": (
        own_file("/etc/patches/kubeletconfiguration+json.json", '{"serverTLSBootstrap": false}'),
        "without serverTLSBootstrap: false",
    ),
    "a drop-in from a Secret": (own_file(f"{FOLDER}/99-own.conf", "", contentFrom=HIDDEN), NOT_SHOWN),
    "a packed drop-in": (own_file(f"{FOLDER}/99-own.conf", "H4sI", encoding="gzip+base64"), NOT_SHOWN),
    "a join of the user's own": ({"preKubeadmCommands": ["kubelet-authenticator join --server x"]}, "run another"),
    "no list": ({"files": "x"}, "files: a list"),
    "no object": ({"joinConfiguration": []}, "joinConfiguration: an object"),
    "no arguments": ({"joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": 7}}}, "kubeletExtraArgs: a list"),
    "no argument": ({"joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": [7]}}}, "a list of objects"),
    "no text": ({"preKubeadmCommands": [["ls"]]}, "a list of texts"),
    "another format": ({"format": "toml"}, "format cloud-config or ignition"),
}


@pytest.mark.parametrize(("spec", "words"), REFUSED.values(), ids=REFUSED)
def test_what_undoes_the_rendering_or_cannot_be_read_is_refused(spec: dict[str, JsonValue], words: str) -> None:
    assert words in refused(worker("v1beta2", **spec))


def test_what_is_no_such_object_is_refused() -> None:
    old: JsonObject = {"apiVersion": "bootstrap.cluster.x-k8s.io/v1alpha4", "kind": "KubeadmConfig"}
    for document in ({}, old):
        assert "KubeadmConfig, KubeadmConfigTemplate" in refused(document)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (f"{FOLDER}/10-kubeadm.conf", KUBEADMS_DROP_IN),
        (
            f"{FOLDER}/99-proxy.conf",
            '[Service]\n# no --bootstrap-kubeconfig here\nEnvironment="HTTPS_PROXY=http://p"\n',
        ),
        ("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--rotate-certificates=false --v=4\n"),
        ("/etc/patches/kubeletconfiguration0+merge.yaml", "maxPods: 7\n"),
    ],
)
def test_a_file_that_undoes_nothing_stays(path: str, content: str) -> None:
    own: JsonObject = {"path": path, "content": content}
    assert items(spec_of(render(worker(files=[own]), PLAN)), "files")[0] == own


def test_what_the_machine_fills_in_is_told_to_the_agent_only() -> None:
    plan = RenderOptions(provider=ProviderName("tpm"), provider_id="vsphere://{dmi:product_serial}")
    made = spec_of(render(control_plane(), plan))
    told = "--provider-id 'vsphere://{dmi:product_serial}'"
    assert told in strings(made, "preKubeadmCommands")[-1]
    scripts = {text(file, "path"): text(file, "content") for file in items(made, "files")}
    assert told in scripts[ADOPT_SCRIPT]
    assert PROVIDER_ID_SCRIPT not in scripts
    assert "provider-id" not in str(mapping(made, "joinConfiguration", "nodeRegistration"))
    assert "one source" in refused(worker(joinConfiguration=registration("v1beta2", provider_id="metal://1")), plan)
    to_kubelet = worker(joinConfiguration=registration("v1beta2", provider_id="kubevirt://{hostname}"))
    assert "that only the agent fills in" in refused(to_kubelet)


@pytest.mark.parametrize(
    ("provider_id", "words"),
    [
        ("byoh://{hostnmae}/node", "no braces, except as {dmi:product_uuid}"),
        ("x://{% if a %}1{% endif %}", "one word"),
        ("x://${FOO}", "a value without ${"),
        ("a b --tls-cipher-suites=x", "one word"),
        ("x://{{ a\n}}", "without white space"),
        ("x://\x01", "none of them invisible"),
        ("x://a'b", "each quote closed"),
        ("x://{{ v1.region }}/{hostname}", "either cloud-init or the agent"),
    ],
)
def test_a_provider_id_that_no_machine_could_use_is_refused(provider_id: str, words: str) -> None:
    assert words in refused(worker(), RenderOptions(provider=ProviderName("tpm"), provider_id=provider_id))


AWS: Final = RenderOptions(provider=ProviderName("aws"))


@pytest.mark.parametrize(
    "plan",
    [replace(AWS, provider_id="x"), replace(AWS, provider_id_file="x"), replace(AWS, provider_id_command="x")],
)
def test_a_provider_id_beside_a_provider_that_finds_it_is_refused(plan: RenderOptions) -> None:
    assert "with aws, whose metadata service has it" in refused(worker(), plan)
    render(worker(), replace(plan, provider=ProviderName("composite")))
