"""The configuration file: what it accepts, and what it says about the rest."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from agent_cluster import Authority
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_authenticator.cluster.discover import configured_cluster
from nodeattest_authenticator.config.settings import load, parse, settings_to_json
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.formats.endpoint import MAX_CA_PEM
from nodeattest_authenticator.formats.exec_credential import API_VERSION
from nodeattest_authenticator.formats.strict_json import FieldsError
from nodeattest_discovery.clusterinfo import ClusterInfo
from nodeattest_discovery.node.client import Found

CA = Authority().pem.decode()
GOOD: dict[str, Any] = {
    "apiVersion": "config.nodeattest.x-k8s.io/v1alpha1",
    "kind": "KubeletAuthenticatorConfiguration",
    "server": "https://10.0.0.1:6443",
    "certificateAuthority": CA,
    "provider": {"name": "tpm", "settings": {"tcti": "device:/dev/tpmrm0"}},
    "providerID": {"value": "aws:///eu-west-1a/i-0"},
}


def text(**changes: object) -> bytes:
    return json.dumps({name: value for name, value in (GOOD | changes).items() if value is not None}).encode()


def test_the_host_name_in_lower_case_names_the_node_as_kubelet_does() -> None:
    assert parse(text(), hostname=" Node-7.Example ").node_name == "node-7.example"
    assert parse(text(nodeName="other"), hostname="Node-7").node_name == "other"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"nodeName": "node-1", "tlsServerName": "kubernetes", "timeoutSeconds": 5, "expirationSeconds": 600},
        {"providerID": {"file": "/run/id"}},
        {"providerID": {"command": ["cat", "/run/id"]}},
        {"providerID": None, "bootstrapTokenFile": "/run/token"},
        {"server": "https://[fd00::1]:6443/prefix"},
        {"provider": {"name": "tpm", "settings": {"tcti": "swtpm"}}},
    ],
)
def test_what_is_written_is_read_back(changes: dict[str, Any]) -> None:
    settings = parse(text(**changes), hostname="host")
    assert parse(settings_to_json(settings), hostname="another") == settings


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"provder": {}}, "unknown field provder; the nearest known one is provider"),
        ({"timeoutSecond": 5}, "nearest known one is timeoutSeconds"),
        ({"provider": {"name": "tpm", "seting": {}}}, "provider.seting; the nearest known one is settings"),
        ({"providerID": {"valu": "x"}}, "nearest known one is value"),
        ({"apiVersion": "v1"}, "apiVersion"),
        ({"kind": "Pod"}, "kind"),
        ({"server": None}, "server is missing"),
        ({"server": "http://10.0.0.1"}, "https://"),
        ({"server": "https://user@10.0.0.1"}, "no user"),
        ({"server": "https://10.0.0.1?x=1"}, "no query"),
        ({"server": "https://10.0.0.1:99999"}, "server"),
        ({"server": "https://10.0.0.1:"}, "its port must be a number from 1 to 65535"),
        ({"server": "https://10.0.0.1:0"}, "its port must be a number from 1 to 65535"),
        ({"certificateAuthority": None}, "certificateAuthority is missing"),
        ({"certificateAuthority": "nothing"}, "no CERTIFICATE block"),
        ({"certificateAuthority": CA[:200]}, "no PEM"),
        ({"nodeName": "Node_1"}, "nodeName"),
        ({"nodeName": 7}, "nodeName must be a non-empty string"),
        ({"provider": None}, "provider is missing"),
        ({"provider": {"name": "../tpm"}}, "provider.name"),
        ({"provider": {"name": "tpm", "settings": []}}, "provider.settings must be an object"),
        ({"providerID": {}}, "exactly one"),
        ({"providerID": {"value": "a", "file": "b"}}, "exactly one"),
        ({"providerID": {"value": "a\u0000b"}}, "providerID.value"),
        ({"providerID": {"command": []}}, "list of strings"),
        ({"providerID": {"command": ["a", 1]}}, "list of strings"),
        ({"timeoutSeconds": 0}, "timeoutSeconds"),
        ({"timeoutSeconds": True}, "timeoutSeconds"),
        ({"expirationSeconds": 599}, "expirationSeconds"),
        ({"tlsServerName": "half a pair \ud800"}, "lone surrogate"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(FieldsError) as caught:
        parse(text(**changes), hostname="host")
    assert says in str(caught.value)


def test_the_largest_ca_bundle_fits_into_the_variable_in_which_kubelet_hands_it_over() -> None:
    most = MAX_CA_PEM // len(CA)
    ca_pem = parse(text(certificateAuthority=CA * most), hostname="host").ca_pem
    cluster = {"server": "https://" + 253 * "a", "certificate-authority-data": base64.b64encode(ca_pem).decode()}
    info = json.dumps({"apiVersion": API_VERSION, "kind": "ExecCredential", "spec": {"cluster": cluster}})
    subprocess.run(["/bin/true"], env={"KUBERNETES_EXEC_INFO": info}, check=True)
    with pytest.raises(FieldsError, match="certificateAuthority: expected at most 92160 bytes"):
        parse(text(certificateAuthority=CA * (most + 1)), hostname="host")


def test_a_cluster_that_publishes_more_cas_than_kubelet_can_hand_over_is_refused() -> None:
    info = ClusterInfo(server="https://10.0.0.1:6443", ca_certificates=())
    most = (MAX_CA_PEM // len(CA)) * CA.encode()
    assert configured_cluster(Found(kubeconfig="", info=info, ca_pem=most, asked="")).ca_pem == most
    with pytest.raises(AgentError, match="the cluster's CAs: expected at most 92160 bytes"):
        configured_cluster(Found(kubeconfig="", info=info, ca_pem=most + CA.encode(), asked=""))


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_a_file_that_others_may_write_is_not_obeyed(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text())
    path.chmod(0o644)
    assert load(str(path), hostname="n").node_name == "n"
    path.chmod(mode)
    with pytest.raises(AgentError, match=f"may be written by others: owner .*, mode 0{mode:o}"):
        load(str(path), hostname="n")


@given(name=st.sampled_from(sorted(GOOD)), value=st.none() | st.integers() | st.text() | st.lists(st.integers()))
def test_any_value_in_any_field_gives_settings_or_a_named_error(name: str, value: object) -> None:
    with contextlib.suppress(FieldsError):
        assert parse(text(**{name: value}), hostname="host").node_name
