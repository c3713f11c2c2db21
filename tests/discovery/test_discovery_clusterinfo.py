"""Cluster-info: written as kubeadm writes it, and read only if it says where and whom to trust."""

from __future__ import annotations

import base64
import json

import pytest
import yaml
from core_kit import CA, HERE, SERVER, Spoil, certificate, cluster_of, kubeconfig, pem, row_of, spoilt, written
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_discovery import clusterinfo
from nodeattest_discovery.clusterinfo import MAX_KUBECONFIG
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import JsonObject, JsonValue

NO_SERVERS = [
    "",
    "https://",
    "https://:6443",
    "10.0.0.1:6443",
    "http://10.0.0.1:6443",
    "file:///etc/kubernetes/admin.conf",
    "https://10.0.0.1:0",
    "https://10.0.0.1:65536",
    "https://10.0.0.1:06443",
    "https://10.0.0.1:",
    "https://10.0.0.1:\u0661",
    "https://admin@10.0.0.1:6443",
    "https://10.0.0.1:6443?x=y",
    "https://10.0.0.1:6443#x",
    "https://10.0.0.1:6443/a b",
    "https://10.0.0.1:6443\n",
    "https://10.0.0.1\r\nHost: x",
    "https://10.0.0.1\\@evil",
    "https://10.0.0.1%00.evil",
    "https://$(id):6443",
    "https://a;b:6443",
    "https://a..b:6443",
    "https://-a:6443",
    f"https://{'a' * 64}:6443",
    f"https://{'.'.join(['a' * 63] * 4)}:6443",
    "https://[::1",
    "https://::1:6443",
    "https://[10.0.0.1]:6443",
    "https://[fe80::1%25eth0]:6443",
    "https://b\xfccher.example:6443",
    "https://\uff11\uff10.0.0.1:6443",
    "https://a\u3002b:6443",
]


def denied(text: str) -> Denied:
    with pytest.raises(Denied) as raised:
        clusterinfo.parse(text)
    return raised.value


def test_the_text_that_kubeadm_wrote_is_written_byte_for_byte() -> None:
    text = yaml.safe_load(HERE.joinpath("cluster-info.yaml").read_text(encoding="utf-8"))["data"]["kubeconfig"]
    cluster = yaml.safe_load(text)["clusters"][0]["cluster"]
    ca_pem = base64.b64decode(cluster["certificate-authority-data"])
    assert clusterinfo.build("https://127.0.0.1:26443", ca_pem) == text
    info = clusterinfo.parse(text)
    assert (info.server, info.ca_pem, info.tls_server_name) == ("https://127.0.0.1:26443", ca_pem, None)


def test_a_credential_in_it_does_not_reach_the_message() -> None:
    secret = "abcdef.0123456789abcdef"
    for text in (
        spoilt(lambda document: document.update(users=[{"name": secret, "user": {"token": secret}}])),
        spoilt(lambda document: cluster_of(document).update(server=f"https://x:{secret}@10.0.0.1")),
        f"users: [{{token: {secret}, token: {secret}}}]",
        f"users: '{secret}",
    ):
        refusal = denied(text)
        assert secret not in f"{refusal} {refusal.got} {refusal.expected} {refusal!r}"


def test_a_certificate_of_an_unknown_version_is_refused() -> None:
    der = CA.public_bytes(Encoding.DER).replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05")
    block = f"-----BEGIN CERTIFICATE-----\n{base64.b64encode(der).decode()}\n-----END CERTIFICATE-----\n"
    with pytest.raises(Denied, match="certificates in PEM"):
        clusterinfo.parse_ca_bundle(block.encode())


def top(**fields: JsonValue) -> Spoil:
    return lambda document: document.update(fields)


def row(**fields: JsonValue) -> Spoil:
    return lambda document: row_of(document).update(fields)


def member(name: str, value: JsonValue) -> Spoil:
    return lambda document: cluster_of(document).update({name: value})


def without(name: str) -> Spoil:
    return lambda document: cluster_of(document).pop(name)


TAMPERED: dict[str, tuple[Spoil, str]] = {
    "another version": (top(apiVersion="v2"), "apiVersion v1"),
    "another kind": (top(kind="ConfigMap"), "kind Config"),
    "an unknown field": (top(x="y"), "only"),
    "users that are no list": (top(users={"a": "b"}), "no users"),
    "contexts that are no list": (top(contexts="a"), "contexts"),
    "a current context that is no text": (lambda document: document.update({"current-context": ["a"]}), "contexts"),
    "no clusters": (top(clusters=[]), "exactly one cluster"),
    "a cluster that is text": (top(clusters=["a"]), "clusters[].cluster"),
    "a row without a cluster": (row(cluster=None), "clusters[].cluster"),
    "a user in the cluster's row": (row(user={"token": "x"}), "only"),
    "a name that is no text": (row(name=["a"]), "clusters[].name"),
    "no server": (without("server"), "server"),
    "a server that is not verified, in another case": (member("Insecure-Skip-TLS-Verify", "true"), "only"),
    "a CA in a file": (member("certificate-authority", "/etc/ssl/ca.pem"), "only"),
    "a TLS name that is a URL": (member("tls-server-name", SERVER), "tls-server-name"),
    "a TLS name with NUL": (member("tls-server-name", "a\0b"), "tls-server-name"),
    "a TLS name with a zone": (member("tls-server-name", "fe80::1%eth0"), "tls-server-name"),
    "no CA": (without("certificate-authority-data"), "certificate-authority-data"),
    "a CA that is no base64": (member("certificate-authority-data", pem(CA).decode()), "base64"),
    "a leaf behind a CA": (
        member("certificate-authority-data", base64.b64encode(pem(CA, certificate(ca=False))).decode()),
        "CA certificates",
    ),
    "a CA in base64url": (member("certificate-authority-data", "_-__"), "base64"),
}


@pytest.mark.parametrize(("spoil", "expected"), TAMPERED.values(), ids=TAMPERED)
def test_one_spoilt_field_is_denied_for_that_field(spoil: Spoil, expected: str) -> None:
    refusal = denied(spoilt(spoil))
    assert refusal.reason is Reason.CLUSTER_INFO_MALFORMED
    assert expected in refusal.expected


@pytest.mark.parametrize("text", ["", "[]", "{", "a: b\0\n", "a: \ud800\n", "#" * (MAX_KUBECONFIG + 1)])
def test_what_is_no_yaml_mapping_of_a_bounded_size_is_denied(text: str) -> None:
    assert denied(text).reason is Reason.CLUSTER_INFO_MALFORMED


@pytest.mark.parametrize("server", NO_SERVERS, ids=[ascii(server)[:40] for server in NO_SERVERS])
def test_any_other_server_is_denied(server: str) -> None:
    for refuses in (
        lambda: clusterinfo.check_server(server),
        lambda: clusterinfo.build(server, pem(CA)),
        lambda: clusterinfo.parse(written(kubeconfig(server=server))),
    ):
        with pytest.raises(Denied) as raised:
            refuses()
        assert raised.value.reason is Reason.CLUSTER_INFO_MALFORMED


scalars: st.SearchStrategy[JsonValue] = st.none() | st.booleans() | st.text(max_size=5) | st.just(SERVER)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)


@given(
    st.sampled_from(["apiVersion", "kind", "clusters", "contexts", "current-context", "users", "preferences", "x"]),
    st.sampled_from(
        ["server", "certificate-authority-data", "tls-server-name", "insecure-skip-tls-verify", "proxy-url"]
    ),
    anything,
    anything,
)
def test_whatever_stands_in_a_field_there_is_a_value_or_a_refusal(
    field: str, member: str, value: JsonValue, inner: JsonValue
) -> None:
    def spoil(document: JsonObject) -> None:
        cluster_of(document)[member] = inner
        document[field] = value

    try:
        info = clusterinfo.parse(spoilt(spoil))
    except Denied:
        return
    assert info.server.startswith("https://")
    assert info.ca_certificates == (CA,)
    assert json.dumps(info.tls_server_name)
