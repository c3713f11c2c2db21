"""kubelet's configuration, from the cluster to the node's disk, and the CA file that it names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from agent_machine import Discoverer, give_kubelet_configuration
from lying_servers import Ca

from nodeattest_authenticator import kubelet_config
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.state import kubelet_files
from nodeattest_authenticator.state.kubelet_files import MARK

HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
TEXT = (
    HEAD
    + """authentication:
  anonymous:
    enabled: false
  webhook:
    cacheTTL: 0s
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/other.crt
clusterDNS:
- 10.96.0.10
evictionHard:
  memory.available: 100Mi
  nodefs.available: 10%
healthzPort: 10248
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
  verbosity: 0
maxPods: 250
memorySwap: {}
registryPullQPS: -1
rotateCertificates: true
shutdownGracePeriod: 0s
staticPodPath: /etc/kubernetes/manifests
"""
)
"""As kubeadm 1.36 writes it, with what an operator may add."""


@pytest.fixture
def joiner(discoverer: Discoverer) -> Discoverer:
    give_kubelet_configuration(discoverer.api, TEXT)
    discoverer.options |= {
        "--kubelet-config": str(discoverer.folder / "kubelet/config.yaml"),
        "--kubelet-ca-file": str(discoverer.folder / "pki/ca.crt"),
    }
    return discoverer


def written(joiner: Discoverer) -> dict[str, Any]:
    return yaml.safe_load(joiner.folder.joinpath("kubelet/config.yaml").read_text())


def test_kubelet_gets_the_clusters_configuration_with_what_attestation_needs(joiner: Discoverer) -> None:
    done = joiner.join()
    assert done.returncode == 0, done.stderr
    expected = yaml.safe_load(TEXT) | {"rotateCertificates": False, "serverTLSBootstrap": True}
    expected["authentication"]["x509"] = {"clientCAFile": str(joiner.folder / "pki/ca.crt")}
    assert written(joiner) == expected
    assert joiner.folder.joinpath("pki/ca.crt").read_bytes() == MARK + joiner.api.authority.pem
    assert joiner.folder.joinpath("pki/ca.crt").stat().st_mode & 0o777 == 0o644
    assert joiner.folder.joinpath("kubelet/config.yaml").stat().st_mode & 0o777 == 0o600


def test_with_our_serving_certificate_kubelet_asks_for_none(joiner: Discoverer) -> None:
    joiner.attests()
    done = joiner.join("--serving-ip-address", "10.0.0.7")
    assert done.returncode == 0, done.stderr
    document = written(joiner)
    assert not document["serverTLSBootstrap"]
    served = str(joiner.folder / "cache/serving.pem")
    assert (document["tlsCertFile"], document["tlsPrivateKeyFile"]) == (served, served)


def test_a_cluster_without_one_is_told_what_to_do_and_kubelet_gets_no_kubeconfig(joiner: Discoverer) -> None:
    joiner.api.readable.clear()
    done = joiner.join()
    assert done.returncode == 1
    assert "KubeletConfigurationRefused" in done.stderr
    assert "omit --kubelet-config" in done.stderr
    assert not joiner.kubeconfig.exists()
    assert joiner.join(kubelet_config=None, kubelet_ca_file=None).returncode == 0
    assert joiner.api.posts() == 1


@pytest.mark.parametrize(
    ("document", "says"),
    [
        *((document, "key kubelet with text in it") for document in ({}, {"data": None}, {"data": {"kubelet": 1}})),
        *(
            ({"data": {"kubelet": text}}, says)
            for text, says in (
                ("", "one YAML mapping"),
                ("- a\n", "one YAML mapping"),
                ("kind: KubeletConfiguration\n", "got KubeletConfiguration of None"),
                (HEAD.replace("Kubelet", "KubeProxy"), "got KubeProxyConfiguration of"),
                ("apiVersion: v1\nkind: KubeletConfiguration\n", "got KubeletConfiguration of v1"),
                (HEAD + "maxPods: 0x10\n", "readers read differently"),
                (HEAD + "---\n" + HEAD, "more documents"),
                (HEAD + "authentication: anonymous\n", "authentication to be a mapping"),
                (HEAD + "authentication: {x509: [a]}\n", "x509 to be a mapping"),
            )
        ),
    ],
)
def test_what_is_no_kubelet_configuration_that_all_read_alike_is_refused(document: Any, says: str) -> None:
    with pytest.raises(AgentError) as caught:
        kubelet_config.render(kubelet_config.parse(document), ca_file="/ca.crt")
    assert caught.value.reason == "KubeletConfigurationRefused"
    assert says in caught.value.message


@pytest.mark.parametrize("text", ["0.9", "1.0e+3"])
def test_a_plain_fraction_is_written_as_the_same_number(text: str) -> None:
    document = kubelet_config.parse({"data": {"kubelet": f"{TEXT}memoryThrottlingFactor: {text}\n"}})
    assert json.loads(kubelet_config.render(document, ca_file="/ca.crt"))["memoryThrottlingFactor"] == float(text)


@pytest.mark.parametrize("name", ["pki/ca.crt", "kubelet/config.yaml"])
def test_a_file_of_somebody_else_stays_and_no_certificate_is_asked_for(joiner: Discoverer, name: str) -> None:
    file = joiner.folder / name
    file.parent.mkdir()
    file.write_text("mine\n")
    done = joiner.join()
    assert done.returncode == 2
    assert "--replace-kubelet-files" in done.stderr
    assert joiner.files() == {name: b"mine\n"}
    assert joiner.api.posts() == 0
    assert joiner.join("--replace-kubelet-files").returncode == 0
    assert file.read_text() != "mine\n"


def test_a_ca_file_of_somebody_else_with_the_clusters_cas_is_kept(joiner: Discoverer) -> None:
    file = joiner.folder / "pki/ca.crt"
    file.parent.mkdir()
    kept = b"# from kubeadm\n" + joiner.api.authority.pem
    file.write_bytes(kept)
    done = joiner.join()
    assert done.returncode == 0, done.stderr
    assert file.read_bytes() == kept
    assert written(joiner)["authentication"]["x509"] == {"clientCAFile": str(file)}


@pytest.mark.parametrize("before", [b"  ", b"\xef\xbb\xbf"])
def test_a_ca_file_in_which_kubelet_finds_no_certificate_is_refused(tmp_path: Path, before: bytes) -> None:
    """Go's encoding/pem takes a BEGIN line at the left margin only."""
    file, ca_pem = tmp_path / "ca.crt", Ca("a").pem
    for content, has_cas in ((ca_pem, True), (before + ca_pem, False), (ca_pem + before + ca_pem, False)):
        file.write_bytes(content)
        assert kubelet_files.has_cas(str(file), ca_pem) is has_cas


def test_missing_folders_get_kubeadms_modes_and_others_keep_theirs(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o700)
    before = os.umask(0o077)  # as in the units
    try:
        kubelet_files.write_private(str(kept / "kubelet.conf"), b"")
        kubelet_files.write_private(str(tmp_path / "etc/kubelet.conf"), b"")
        kubelet_files.write(str(tmp_path / "etc/pki/ca.crt"), b"", mode=kubelet_files.PUBLIC)
        kubelet_files.write(str(tmp_path / "lib/kubelet/config.yaml"), b"", mode=kubelet_files.PRIVATE)
    finally:
        os.umask(before)
    modes = {
        name: tmp_path.joinpath(name).stat().st_mode & 0o777
        for name in ("kept", "etc", "etc/pki", "lib", "lib/kubelet")
    }
    assert modes == {"kept": 0o700, "etc": 0o755, "etc/pki": 0o755, "lib": 0o755, "lib/kubelet": 0o700}
