"""Joining by kubeadm's own configuration: what is taken from it, what it must not be, and where the token goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from agent_cluster import TOKEN, FakeApi
from agent_machine import NODE
from discovered_cluster import Discoverer, pin, publish

from nodeattest_authenticator.api_client import retry_until
from nodeattest_authenticator.cluster.discover import ByFile, ByToken
from nodeattest_authenticator.commands.kubeadm_config import Joining, parse
from nodeattest_authenticator.errors import AgentError, FailureKind
from nodeattest_discovery.node.clock import Clock, Deadline

HASH = "sha256:" + "ab" * 32
OTHER = "zyxwvu.0123456789abcdef"


def by_token(**changes: Any) -> dict[str, Any]:
    named = {"apiServerEndpoint": "10.0.0.1:6443", "token": TOKEN, "caCertHashes": [HASH]} | changes
    return {"bootstrapToken": {name: value for name, value in named.items() if value is not None}}


def configuration(version: str = "v1beta3", **changes: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"kubeadm.k8s.io/{version}",
        "kind": "JoinConfiguration",
        "discovery": by_token(),
        "nodeRegistration": {"name": NODE},
    } | changes


def read(document: object, limit: int = 300) -> Joining | None:
    return parse(yaml.safe_dump(document).encode(), limit=limit)


def joining(**changes: Any) -> Joining:
    found = read(configuration(**changes))
    assert found is not None
    return found


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


def test_what_cluster_api_writes_tells_cluster_token_name_and_provider_id() -> None:
    found = parse(AS_CLUSTER_API_WRITES_IT.encode(), limit=77)
    assert found is not None
    assert isinstance(found.way, ByToken)
    assert (found.way.servers, found.way.limit) == (("blue.example:6443",), 77)
    assert [str(made) for made in found.way.pins or ()] == [HASH]
    assert found.token is not None
    assert found.token.reveal() == TOKEN
    assert (found.node_name, found.provider_id) == ("node-0", "metal://rack-1/7")
    assert TOKEN[7:] not in repr(found)


def test_kubelets_arguments_are_read_from_a_list_too() -> None:
    arguments = [{"name": "provider-id", "value": "metal://7"}, {"name": "hostname-override", "value": "other"}]
    found = joining(version="v1beta4", nodeRegistration={"name": NODE, "kubeletExtraArgs": arguments})
    assert (found.node_name, found.provider_id) == ("other", "metal://7")


def test_a_token_of_its_own_asks_for_the_certificate() -> None:
    found = joining(discovery=by_token() | {"tlsBootstrapToken": OTHER})
    assert found.token is not None
    assert found.token.reveal() == OTHER


def test_pins_count_beside_the_unsafe_switch_and_the_switch_alone_does_without() -> None:
    both = joining(discovery=by_token(unsafeSkipCAVerification=True)).way
    alone = joining(discovery=by_token(unsafeSkipCAVerification=True, caCertHashes=None)).way
    assert isinstance(both, ByToken) and isinstance(alone, ByToken)  # noqa: PT018 - both are one kind
    assert both.pins is not None
    assert alone.pins is None


def test_a_discovery_file_is_a_way_too() -> None:
    found = joining(
        discovery={"file": {"kubeConfigPath": "/etc/kubernetes/discovery.conf"}, "tlsBootstrapToken": OTHER}
    )
    assert found.way == ByFile(source="/etc/kubernetes/discovery.conf", allow_credentials=True)


@pytest.mark.parametrize(
    "documents", [["InitConfiguration"], ["ClusterConfiguration"], ["ClusterConfiguration", "InitConfiguration"]]
)
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
        found = parse(text.encode(), limit=1)
        assert found is not None
        assert found.node_name == "node-0"


@pytest.mark.parametrize("content", ["a: 0.5", "a: &x 1\nb: *x", "kind: KubeProxyConfiguration", "--- {}"])
def test_a_join_configuration_stays_strict(content: str) -> None:
    with pytest.raises(AgentError, match="without ambiguous values"):
        parse(f"{AS_CLUSTER_API_WRITES_IT}{content}\n".encode(), limit=1)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "got none"),
        ({"apiVersion": "v1", "kind": "Secret"}, "got none"),
        (configuration("v1beta2"), "v1beta2"),
        (configuration() | {"apiVersion": "other/v1beta3"}, "other/v1beta3"),
        (configuration(discovery={}), "either discovery.bootstrapToken or discovery.file"),
        (configuration(discovery=by_token() | {"file": {"kubeConfigPath": "/x"}}), "either"),
        (configuration(discovery=by_token(token=None)), "got none"),
        (configuration(discovery=by_token(token="abc")), "expected a bootstrap token of the form"),
        (configuration(discovery=by_token(token=7)), "expected a string"),
        (configuration(discovery=by_token(apiServerEndpoint=None)), "apiServerEndpoint"),
        (configuration(discovery=by_token(apiServerEndpoint="http://x")), "apiServerEndpoint"),
        (configuration(discovery=by_token(caCertHashes=None)), "caCertHashes"),
        (configuration(discovery=by_token(caCertHashes=[])), "caCertHashes"),
        (configuration(discovery=by_token(caCertHashes="sha256:x")), "caCertHashes"),
        (configuration(discovery=by_token(caCertHashes=["sha256:x"])), "caCertHashes"),
        (configuration(discovery=by_token(unsafeSkipCAVerification="yes")), "true or false"),
        (configuration(discovery=by_token(unsafeSkipCAVerification=1)), "true or false"),
        (configuration(nodeRegistration=[]), "expected a mapping"),
        (configuration(nodeRegistration={"name": 7}), "expected a string"),
        (configuration(nodeRegistration={"kubeletExtraArgs": "x"}), "kubeletExtraArgs"),
        (configuration(nodeRegistration={"kubeletExtraArgs": {"v": 4}}), "kubeletExtraArgs"),
        (configuration(nodeRegistration={"kubeletExtraArgs": [{"name": "v", "value": 4}]}), "kubeletExtraArgs"),
        (configuration(nodeRegistration={"kubeletExtraArgs": ["v"]}), "kubeletExtraArgs"),
    ],
)
def test_what_is_no_join_is_refused_without_its_secrets(document: object, said: str) -> None:
    with pytest.raises(AgentError) as caught:
        read(document)
    assert said in str(caught.value)
    assert TOKEN[7:] not in str(caught.value)


@pytest.fixture
def joiner(tmp_path: Path, api: FakeApi) -> Discoverer:
    """A machine on which Cluster API's user data has run so far."""
    publish(api)
    joiner = Discoverer(tmp_path, api)
    for flag in ("--discovery-server", "--discovery-token-ca-cert-hash", "--token-file", "--node-name"):
        joiner.options[flag] = None
    write(joiner, discovered(api))
    return joiner


def discovered(api: FakeApi, **changes: Any) -> dict[str, Any]:
    server = api.url.removeprefix("https://")
    return configuration(discovery=by_token(apiServerEndpoint=server, caCertHashes=[pin(api.authority)]), **changes)


def write(joiner: Discoverer, document: object, mode: int = 0o640) -> None:
    path = joiner.folder.parent / "kubeadm-join-config.yaml"
    path.write_text(yaml.safe_dump(document))
    path.chmod(mode)
    joiner.options["--kubeadm-config"] = str(path)


def test_kubeadms_configuration_is_enough_to_join(joiner: Discoverer) -> None:
    done = joiner.join()
    assert done.returncode == 0, done.stderr
    assert joiner.settings.endpoint.url == joiner.api.url
    assert joiner.settings.node_name == NODE
    assert {header for _, header in joiner.api.shown} == {f"Bearer {TOKEN}"}
    assert TOKEN[7:] not in done.stdout + done.stderr + joiner.kubeconfig.read_text()
    before = joiner.files()
    assert joiner.join().returncode == 0
    assert joiner.files() == before


def test_a_configuration_that_others_may_write_is_not_obeyed(joiner: Discoverer) -> None:
    write(joiner, discovered(joiner.api), mode=0o660)
    done = joiner.join()
    assert done.returncode == 2
    assert "other users can write" in done.stderr
    assert joiner.files() == {}


def test_the_provider_id_is_the_one_that_kubelet_is_told(joiner: Discoverer) -> None:
    registration = {"name": NODE, "kubeletExtraArgs": {"provider-id": "metal://7"}}
    write(joiner, discovered(joiner.api, nodeRegistration=registration))
    assert joiner.join(provider_id=None).returncode == 0
    assert joiner.settings.provider_id.value == "metal://7"
    done = joiner.join(provider_id="metal://8")
    assert done.returncode == 2
    assert "remove one of them" in done.stderr


@pytest.mark.parametrize(
    ("registration", "node_name"),
    [
        ({"name": "Worker-01"}, "worker-01"),
        ({"name": " worker-01\n"}, "worker-01"),
        ({"name": "a", "kubeletExtraArgs": {"hostname-override": "Worker-02 "}}, "worker-02"),
    ],
)
def test_a_node_name_is_trimmed_and_lowered_as_kubeadm_and_kubelet_do(
    registration: dict[str, Any], node_name: str
) -> None:
    assert joining(nodeRegistration=registration).node_name == node_name


@pytest.mark.parametrize(
    ("registration", "says"),
    [
        ({"name": "worker_1"}, "nodeRegistration.name: expected an RFC 1123 subdomain"),
        ({"name": "  "}, "nodeRegistration.name: expected an RFC 1123 subdomain"),
        (
            {"name": "a", "kubeletExtraArgs": {"hostname-override": "b_c"}},
            "kubeletExtraArgs hostname-override: expected",
        ),
        ({"kubeletExtraArgs": {"provider-id": "x://{{ uuid }}"}}, "kubeletExtraArgs provider-id: expected one word"),
        ({"kubeletExtraArgs": {"provider-id": "x://'{{ uuid }}'"}}, "provider-id: expected a value without {{"),
        ({"kubeletExtraArgs": {"provider-id": "x://{hostname}"}}, "provider-id: kubelet does not expand"),
    ],
)
def test_a_name_or_provider_id_that_is_wrong_is_named_by_its_field(registration: dict[str, Any], says: str) -> None:
    with pytest.raises(AgentError) as caught:
        joining(nodeRegistration=registration)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "more", [("--node-name", "x"), ("--token", TOKEN), ("--server", "https://x"), ("10.0.0.1:6443",)]
)
def test_what_the_file_says_no_flag_says_again(joiner: Discoverer, more: tuple[str, ...]) -> None:
    done = joiner.join(*more)
    assert done.returncode == 2
    assert "--kubeadm-config" in done.stderr


@pytest.mark.parametrize(
    ("kind", "patience", "attempts"),
    [
        (FailureKind.DENIED, 60, 1),
        (FailureKind.USAGE, 60, 1),
        (FailureKind.TEMPORARY, 0, 1),
        (FailureKind.TEMPORARY, 60, 7),
    ],
)
def test_the_agent_gives_up_after_its_limit(kind: FailureKind, patience: int, attempts: int) -> None:
    slept, tried = list[float](), list[float]()
    clock = Clock(monotonic=lambda: sum(slept), sleep=slept.append)

    def attempt() -> None:
        tried.append(sum(slept))
        raise AgentError("APIUnavailable", "nobody is there", remedy="wait", kind=kind)

    with pytest.raises(AgentError):
        retry_until(attempt, Deadline.after(clock, patience), random=lambda: 0.0)
    assert len(tried) == attempts
    assert sum(slept) <= patience
