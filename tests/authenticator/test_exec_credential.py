"""``KUBERNETES_EXEC_INFO`` and the answer to it."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import pytest
from agent_cluster import Authority
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_authenticator.config.settings import Settings
from nodeattest_authenticator.config.settings import parse as parse_settings
from nodeattest_authenticator.errors import AgentError, FailureKind
from nodeattest_authenticator.formats import exec_credential

OURS, OTHER = Authority(), Authority("other")


def settings(**changes: object) -> Settings:
    document = {
        "apiVersion": "config.nodeattest.x-k8s.io/v1alpha1",
        "kind": "KubeletAuthenticatorConfiguration",
        "server": "https://API.example:6443/",
        "certificateAuthority": OURS.pem.decode(),
        "nodeName": "node-0",
        "provider": {"name": "insecure"},
    }
    return parse_settings(json.dumps(document | changes).encode(), hostname="host")


def info(**cluster: object) -> bytes:
    good = {
        "server": "https://api.example:6443",
        "certificate-authority-data": base64.b64encode(OURS.pem).decode(),
    }
    spec = {"cluster": {name: value for name, value in (good | cluster).items() if value is not None}}
    return json.dumps(
        {
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "spec": spec | {"interactive": True},
        }
    ).encode()


@pytest.mark.parametrize(
    "cluster",
    [
        {},
        {"server": "https://API.EXAMPLE:6443/"},
        {"certificate-authority-data": base64.b64encode(OTHER.pem + OURS.pem).decode()},
        {"config": {"anything": 1}, "disable-compression": True},
    ],
)
def test_our_cluster_is_recognised_however_it_is_spelt(cluster: dict[str, Any]) -> None:
    exec_credential.check_cluster(exec_credential.parse(info(**cluster)), settings().cluster, ())


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1"])
def test_a_call_in_another_version_is_refused_and_names_the_field_to_correct(version: str) -> None:
    call = {"apiVersion": f"client.authentication.k8s.io/{version}", "kind": "ExecCredential"}
    says = r"apiVersion must be client\.authentication\.k8s\.io/v1; set users\[\]\.user\.exec\.apiVersion to"
    with pytest.raises(AgentError, match=says):
        exec_credential.parse(json.dumps(call).encode())


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        ({"server": "https://api.example:6444"}, "server"),
        ({"server": "https://api.example.evil:6443"}, "server"),
        ({"server": "http://api.example:6443"}, "server"),
        ({"server": "https://api.example:6443/other"}, "server"),
        ({"server": "https://[broken"}, "server"),
        ({"insecure-skip-tls-verify": True}, "insecure-skip-tls-verify"),
        ({"tls-server-name": "evil"}, "tls-server-name"),
        ({"certificate-authority-data": None}, "none of the configured CAs"),
        ({"certificate-authority-data": base64.b64encode(OTHER.pem).decode()}, "none of the configured CAs"),
        ({"certificate-authority-data": base64.b64encode(b"-----BEGIN CERTIFICATE-----\nx").decode()}, "none"),
        ({"certificate-authority-data": "%"}, "KUBERNETES_EXEC_INFO"),
    ],
)
def test_another_cluster_is_refused(cluster: dict[str, Any], says: str) -> None:
    with pytest.raises(AgentError, match="ExecInfoRefused") as caught:
        exec_credential.check_cluster(exec_credential.parse(info(**cluster)), settings().cluster, ())
    assert says in str(caught.value)
    assert caught.value.kind is FailureKind.USAGE


def test_the_configured_server_name_must_be_the_callers() -> None:
    named = settings(tlsServerName="kubernetes")
    exec_credential.check_cluster(
        exec_credential.parse(info(**{"tls-server-name": "kubernetes"})), named.cluster, named.previous_clusters
    )
    with pytest.raises(AgentError, match="tls-server-name"):
        exec_credential.check_cluster(exec_credential.parse(info()), named.cluster, named.previous_clusters)


@given(
    document=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["apiVersion", "kind", "spec", "cluster", "server", "certificate-authority-data"]),
                inner,
            )
        ),
    )
)
def test_any_json_gives_a_call_or_a_failure(document: object) -> None:
    good = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "spec": document}
    for value in (document, good):
        with contextlib.suppress(AgentError):
            assert isinstance(exec_credential.parse(json.dumps(value).encode()), exec_credential.ExecInfo)
