"""The configuration file with its sections: what it accepts, and what it says about the rest."""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lying_servers import Ca

from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.formats.client_go import EXEC_API_VERSION, MAX_CA_PEM, Cluster
from nodeattest_authenticator.formats.strict_json import ConfigFields, FieldsError
from nodeattest_authenticator.refresh import configured_cluster
from nodeattest_authenticator.settings import (
    MAX_PREVIOUS_CLUSTERS,
    MAX_SERVERS,
    Discovery,
    load,
    parse,
    parse_discovery,
    settings_to_json,
)
from nodeattest_discovery.clusterinfo import ClusterInfo
from nodeattest_discovery.node.client import Found
from nodeattest_parsing.endpoint import Endpoint

AUTHORITY = Ca()
CA = AUTHORITY.pem.decode()
GOOD: dict[str, Any] = {
    "apiVersion": "config.nodeattest.x-k8s.io/v1alpha1",
    "kind": "KubeletAuthenticatorConfiguration",
    "server": "https://10.0.0.1:6443",
    "certificateAuthority": CA,
    "provider": {"name": "tpm", "settings": {"tcti": "device:/dev/tpmrm0"}},
    "providerID": {"value": "aws:///eu-west-1a/i-0"},
}
SERVERS = [f"https://10.0.0.{number}:6443" for number in range(1, 30)]
FORMER = {"server": SERVERS[0], "certificateAuthority": CA, "tlsServerName": "kubernetes"}
DISCOVERY: dict[str, Any] = {
    "servers": SERVERS[:2],
    "kubeconfig": "/etc/kubernetes/kubelet.conf",
    "caFile": "/etc/kubernetes/pki/ca.crt",
    "keepsServer": True,
    "former": [FORMER],
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
        {"serving": {}},
        {"serving": {"dnsNames": ["a", "b.example"]}},
        {"serving": {"dnsNames": [], "ipAddresses": ["10.0.0.1", "fd00::1"]}},
        {"discovery": DISCOVERY},
        {"discovery": {"servers": SERVERS[:1], "kubeconfig": "/k"}},
    ],
)
def test_what_is_written_is_read_back(changes: dict[str, Any]) -> None:
    settings = parse(text(**changes), hostname="host")
    written = settings_to_json(settings)
    assert parse(written, hostname="another") == settings
    assert json.loads(written).items() >= {key: value for key, value in changes.items() if value is not None}.items()


WRONG_SERVING: list[tuple[Any, str]] = [
    ([], "must be an object"),
    ({"dnsName": ["a"]}, "serving.dnsName; the nearest known one is dnsNames"),
    ({"dnsNames": "a"}, "serving.dnsNames must be a list"),
    ({"dnsNames": [1]}, "serving.dnsNames must be a list"),
    ({"dnsNames": ["*.example"]}, "without wildcard"),
    ({"dnsNames": ["A"]}, "lower case"),
    ({"dnsNames": ["a."]}, "final dot"),
    ({"dnsNames": ["a", "a"]}, "must not repeat"),
    ({"dnsNames": [f"a{i}" for i in range(32)]}, "at most 32"),
    ({"ipAddresses": ["10.0.0"]}, "IP addresses"),
    ({"ipAddresses": ["10.0.0.0/8"]}, "IP addresses"),
    ({"ipAddresses": ["::ffff:10.0.0.1"]}, "in their own form"),
    ({"ipAddresses": ["fe80::1%eth0"]}, "without zone"),
    ({"ipAddresses": ["fd00::1", "FD00:0::1"]}, "must not repeat"),
    ({"dnsNames": [], "ipAddresses": []}, "both be empty"),
]
WRONG_DISCOVERY: list[tuple[dict[str, Any], str]] = [
    ({"servers": []}, "servers must be a non-empty list"),
    ({"servers": [SERVERS[0], "https://10.0.0.1:6443/"]}, "1 to 16 different URLs"),
    ({"servers": SERVERS[: MAX_SERVERS + 1]}, "1 to 16 different URLs"),
    ({"servers": ["http://10.0.0.1"]}, "discovery.servers must be the API server's URL"),
    ({"servers": ["https://user@10.0.0.1"]}, "no user"),
    ({"kubeconfig": "kubelet.conf"}, "discovery.kubeconfig must be an absolute path"),
    ({"caFile": "/a\0b"}, "discovery.caFile must be an absolute path"),
    ({"keepsServer": "yes"}, "keepsServer must be true or false"),
    ({"former": [FORMER] * (MAX_PREVIOUS_CLUSTERS + 1)}, "at most 4 clusters"),
    ({"former": [FORMER | {"certificateAuthority": "x"}]}, "not a PEM bundle"),
    ({"former": [FORMER | {"server": "10.0.0.1"}]}, "former[].server must be the API server's URL"),
    ({"former": [FORMER | {"caFile": "/x"}]}, "unknown field discovery.former[].caFile"),
    ({"former": [SERVERS[0]]}, "must be an object"),
    ({"token": "x"}, "unknown field discovery.token"),
]


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
        ({"certificateAuthority": CA[:200]}, "not a PEM"),
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
        ({"serving": {}, "provider": {"name": "insecure"}}, "insecure has no serving certificates"),
        *(({"serving": section}, says) for section, says in WRONG_SERVING),
        *(({"discovery": DISCOVERY | changes}, says) for changes, says in WRONG_DISCOVERY),
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
    info = json.dumps({"apiVersion": EXEC_API_VERSION, "kind": "ExecCredential", "spec": {"cluster": cluster}})
    subprocess.run(["/bin/true"], env={"KUBERNETES_EXEC_INFO": info}, check=True)
    with pytest.raises(FieldsError, match="certificateAuthority: expected at most 92160 bytes"):
        parse(text(certificateAuthority=CA * (most + 1)), hostname="host")


def test_a_cluster_that_publishes_more_cas_than_kubelet_can_hand_over_is_refused() -> None:
    certificates = (AUTHORITY.certificate,) * (MAX_CA_PEM // len(CA) + 1)
    info = ClusterInfo(server="https://10.0.0.1:6443", ca_certificates=certificates)
    with pytest.raises(AgentError, match="the cluster's CAs: expected at most 92160 bytes"):
        configured_cluster(Found(info=info, asked=""))


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_a_file_that_others_may_write_is_not_obeyed(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text())
    path.chmod(0o644)
    assert load(str(path), hostname="n").node_name == "n"
    path.chmod(mode)
    with pytest.raises(AgentError, match=f"other users can write .*: owner .*, mode 0{mode:o}"):
        load(str(path), hostname="n")


@given(name=st.sampled_from(sorted(GOOD)), value=st.none() | st.integers() | st.text() | st.lists(st.integers()))
def test_any_value_in_any_field_gives_settings_or_a_named_error(name: str, value: object) -> None:
    with contextlib.suppress(FieldsError):
        assert parse(text(**{name: value}), hostname="host").node_name


# Following a cluster


def section(**changes: Any) -> Discovery:
    return parse_discovery(ConfigFields(DISCOVERY | changes, "discovery."))


def cluster(number: int) -> Cluster:
    return Cluster(endpoint=Endpoint.parse(SERVERS[number]), ca_pem=CA.encode())


def test_earlier_states_are_remembered_the_latest_last_and_a_few_only() -> None:
    discovery = section(former=[])
    for number in range(8):
        discovery = discovery.after(cluster(number), cluster(number + 1))
    assert discovery.previous_clusters == tuple(cluster(number) for number in (4, 5, 6, 7))
    assert discovery.after(cluster(8), cluster(7)).previous_clusters[-1] == cluster(8)
    assert cluster(7) not in discovery.after(cluster(8), cluster(7)).previous_clusters


def test_the_server_that_is_named_now_is_asked_first_and_the_oldest_is_forgotten() -> None:
    discovery = section(servers=SERVERS[:MAX_SERVERS]).with_servers(Endpoint.parse(SERVERS[20]))
    assert discovery.servers[0].url == SERVERS[20]
    assert len(discovery.servers) == MAX_SERVERS
    assert SERVERS[MAX_SERVERS - 1] not in {endpoint.url for endpoint in discovery.servers}
