"""Joining by kubeadm's own configuration: what is taken from it, what it must not be, and where the token goes."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from agent_cluster import TOKEN, FakeApi
from agent_machine import NODE, Discoverer

from nodeattest_authenticator.commands.flags import ByFile, ByToken
from nodeattest_authenticator.commands.kubeadm_config import Joining, parse
from nodeattest_authenticator.errors import AgentError

HASH = "sha256:" + "ab" * 32
OTHER = "zyxwvu.0123456789abcdef"
AS_CLUSTER_API_WRITES_IT = f"""\
---
apiVersion: kubeadm.k8s.io/v1beta3
controlPlane:
  localAPIEndpoint:
    bindPort: 6443
discovery:
  bootstrapToken:
    apiServerEndpoint: blue.example:6443
    caCertHashes:
    - {HASH}
    token: {TOKEN}
kind: JoinConfiguration
nodeRegistration:
  imagePullPolicy: IfNotPresent
  kubeletExtraArgs:
    bootstrap-kubeconfig: ""
    provider-id: metal://rack-1/7
    rotate-certificates: "false"
  name: node-0
  taints: null
timeouts:
  tlsBootstrap: 5m0s
"""


def by_token(**changes: Any) -> dict[str, Any]:
    named = {"apiServerEndpoint": "10.0.0.1:6443", "token": TOKEN, "caCertHashes": [HASH]} | changes
    return {"bootstrapToken": {name: value for name, value in named.items() if value is not None}}


def configuration(version: str = "v1beta3", *, name: object = NODE, args: object = None, **changes: Any) -> str:
    """Write a JoinConfiguration; ``args`` are kubelet's extra arguments."""
    registration = {"name": name} | ({} if args is None else {"kubeletExtraArgs": args})
    document = {"apiVersion": f"kubeadm.k8s.io/{version}", "kind": "JoinConfiguration", "discovery": by_token()}
    return yaml.safe_dump(document | {"nodeRegistration": registration} | changes)


def joining(text: str, limit: int = 300) -> Joining:
    found = parse(text.encode(), limit=limit)
    assert found is not None
    return found


def pins(**changes: Any) -> object:
    way = joining(configuration(discovery=by_token(**changes))).way
    assert isinstance(way, ByToken)
    return way.pins


def test_what_cluster_api_writes_tells_cluster_token_name_and_provider_id() -> None:
    found = joining(AS_CLUSTER_API_WRITES_IT, limit=77)
    assert isinstance(found.way, ByToken)
    assert (found.way.servers, found.way.limit) == (("blue.example:6443",), 77)
    assert [str(made) for made in found.way.pins or ()] == [HASH]
    assert found.token is not None
    assert found.token.reveal() == TOKEN
    assert (found.node_name, found.provider_id) == ("node-0", "metal://rack-1/7")
    assert TOKEN[7:] not in repr(found)


@pytest.mark.parametrize(
    ("registration", "node_name"),
    [
        ({"name": "Worker-01"}, "worker-01"),
        ({"name": " worker-01\n"}, "worker-01"),
        ({"args": {"hostname-override": "Worker-02 "}}, "worker-02"),
        ({"version": "v1beta4", "args": [{"name": "hostname-override", "value": "other"}]}, "other"),
    ],
)
def test_a_node_name_is_trimmed_and_lowered_as_kubeadm_and_kubelet_do(
    registration: dict[str, Any], node_name: str
) -> None:
    assert joining(configuration(**registration)).node_name == node_name


def test_a_token_of_its_own_asks_for_the_certificate() -> None:
    found = joining(configuration(discovery=by_token() | {"tlsBootstrapToken": OTHER}))
    assert found.token is not None
    assert found.token.reveal() == OTHER


def test_pins_count_beside_the_unsafe_switch_and_the_switch_alone_does_without() -> None:
    assert pins(unsafeSkipCAVerification=True)
    assert pins(unsafeSkipCAVerification=True, caCertHashes=None) is None


def test_a_discovery_file_is_a_way_too() -> None:
    path = "/etc/kubernetes/discovery.conf"
    found = joining(configuration(discovery={"file": {"kubeConfigPath": path}, "tlsBootstrapToken": OTHER}))
    assert found.way == ByFile(source=path, allow_credentials=True)


@pytest.mark.parametrize("documents", [["InitConfiguration"], ["ClusterConfiguration", "InitConfiguration"]])
def test_what_kubeadm_init_takes_joins_nothing(documents: list[str]) -> None:
    text = "---\n" + "---\n".join(f"apiVersion: kubeadm.k8s.io/v1beta3\nkind: {kind}\na: .5\n" for kind in documents)
    assert parse(text.encode(), limit=1) is None


@pytest.mark.parametrize(
    "proxy",
    [
        '{"kind": "KubeProxyConfiguration", "qps": 0.5}',
        "  kind: KubeProxyConfiguration\n  qps: 0.5",
        "\ufeffkind: KubeProxyConfiguration\nqps: 0.5",
        "...\nkind: KubeProxyConfiguration\nqps: 0.5",
        "%YAML 1.1\n---\nkind: KubeProxyConfiguration\nqps: 0.5",
    ],
)
def test_a_document_of_another_kind_is_skipped_in_whatever_form(proxy: str) -> None:
    for text in (f"{AS_CLUSTER_API_WRITES_IT}---\n{proxy}\n", f"{proxy}\n{AS_CLUSTER_API_WRITES_IT}"):
        assert joining(text).node_name == "node-0"


DISCOVERY, ARGUMENTS = "discovery.bootstrapToken", "nodeRegistration.kubeletExtraArgs"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *((f"{AS_CLUSTER_API_WRITES_IT}{more}\n", "ambiguous") for more in ("a: 0.5", "a: &x 1\nb: *x", "--- {}")),
        (f"{AS_CLUSTER_API_WRITES_IT}kind: KubeProxyConfiguration\n", "without ambiguous values"),
        ("{}", "got none"),
        ("apiVersion: v1\nkind: Secret", "got none"),
        (configuration("v1beta2"), "v1beta2"),
        (configuration(apiVersion="other/v1beta3"), "other/v1beta3"),
        (configuration(discovery={}), f"either {DISCOVERY} or discovery.file"),
        (configuration(discovery=by_token() | {"file": {"kubeConfigPath": "/x"}}), "either"),
        (configuration(discovery=by_token(token=None)), f"{DISCOVERY}: expected a token, got none"),
        (configuration(discovery=by_token(token="abc")), "expected a bootstrap token of the form"),
        (configuration(discovery=by_token(token=7)), "expected a string"),
        (configuration(discovery=by_token(apiServerEndpoint=None)), "apiServerEndpoint"),
        (configuration(discovery=by_token(apiServerEndpoint="http://x")), "apiServerEndpoint"),
        (configuration(discovery=by_token(caCertHashes=[])), "caCertHashes"),
        (configuration(discovery=by_token(caCertHashes="sha256:x")), "caCertHashes"),
        (configuration(discovery=by_token(caCertHashes=["sha256:x"])), "caCertHashes"),
        (configuration(discovery=by_token(unsafeSkipCAVerification="yes")), "true or false"),
        (configuration(discovery=by_token(unsafeSkipCAVerification=1)), "true or false"),
        (configuration(nodeRegistration=[]), "expected a mapping"),
        (configuration(name=7), "expected a string"),
        (configuration(args="x"), "kubeletExtraArgs"),
        (configuration(args={"v": 4}), "kubeletExtraArgs"),
        (configuration(args=[{"name": "v", "value": 4}]), "kubeletExtraArgs"),
        (configuration(args=["v"]), "kubeletExtraArgs"),
        (configuration(name="worker_1"), "nodeRegistration.name: expected an RFC 1123 subdomain"),
        (configuration(name="  "), "nodeRegistration.name: expected an RFC 1123 subdomain"),
        (configuration(args={"hostname-override": "b_c"}), f"{ARGUMENTS} hostname-override: expected"),
        (configuration(args={"provider-id": "x://{{ uuid }}"}), f"{ARGUMENTS} provider-id: expected one word"),
        (configuration(args={"provider-id": "x://'{{ uuid }}'"}), "provider-id: expected a value without {{"),
        (configuration(args={"provider-id": "x://{hostname}"}), "provider-id: kubelet does not expand"),
    ],
)
def test_what_is_no_join_is_refused_by_its_field_and_without_its_secrets(text: str, says: str) -> None:
    with pytest.raises(AgentError) as caught:
        parse(text.encode(), limit=300)
    assert says in str(caught.value)
    assert TOKEN[7:] not in str(caught.value)


# By the command


@pytest.fixture
def kubeadms(discoverer: Discoverer) -> Discoverer:
    """A machine on which Cluster API's user data has run so far."""
    for flag in ("--discovery-server", "--discovery-token-ca-cert-hash", "--token-file", "--node-name"):
        discoverer.options[flag] = None
    write(discoverer)
    return discoverer


def write(joiner: Discoverer, *, mode: int = 0o640, **changes: Any) -> None:
    api: FakeApi = joiner.api
    discovery = by_token(apiServerEndpoint=api.endpoint, caCertHashes=[str(api.authority.pin)])
    path = joiner.folder.parent / "kubeadm-join-config.yaml"
    path.write_text(configuration(discovery=discovery, **changes))
    path.chmod(mode)
    joiner.options["--kubeadm-config"] = str(path)


def test_kubeadms_configuration_is_enough_to_join(kubeadms: Discoverer) -> None:
    done = kubeadms.join()
    assert done.returncode == 0, done.stderr
    assert (kubeadms.settings.endpoint.url, kubeadms.settings.node_name) == (kubeadms.api.url, NODE)
    assert {header for _, header in kubeadms.api.shown} == {f"Bearer {TOKEN}"}
    assert kubeadms.token_holders() == ["cache/bootstrap-token"]
    before = kubeadms.files()
    assert kubeadms.join().returncode == 0
    assert kubeadms.files() == before


def test_a_configuration_that_others_may_write_is_not_obeyed(kubeadms: Discoverer) -> None:
    write(kubeadms, mode=0o660)
    done = kubeadms.join()
    assert done.returncode == 2
    assert "other users can write" in done.stderr
    assert kubeadms.files() == {}


def test_the_provider_id_is_the_one_that_kubelet_is_told(kubeadms: Discoverer) -> None:
    write(kubeadms, args={"provider-id": "metal://7"})
    assert kubeadms.join(provider_id=None).returncode == 0
    assert kubeadms.settings.provider_id.value == "metal://7"
    done = kubeadms.join(provider_id="metal://8")
    assert done.returncode == 2
    assert "remove one of them" in done.stderr


@pytest.mark.parametrize("more", [("--node-name", "x"), ("--token", TOKEN), ("--server", "https://x"), ("a:6443",)])
def test_what_the_file_says_no_flag_says_again(kubeadms: Discoverer, more: tuple[str, ...]) -> None:
    done = kubeadms.join(*more)
    assert done.returncode == 2
    assert "--kubeadm-config" in done.stderr
