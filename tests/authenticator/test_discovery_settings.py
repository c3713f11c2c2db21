"""The section ``discovery``: what is read, what is refused, and how a cluster's earlier states are remembered."""

from __future__ import annotations

from typing import Any

import pytest
from agent_cluster import Authority

from nodeattest_authenticator.config.discovery import MAX_PREVIOUS_CLUSTERS, MAX_SERVERS, Discovery, parse_discovery
from nodeattest_authenticator.formats.endpoint import Cluster
from nodeattest_authenticator.formats.strict_json import ConfigFields, FieldsError
from nodeattest_parsing.endpoint import Endpoint

CA = Authority().pem.decode()
SERVERS = [f"https://10.0.0.{number}:6443" for number in range(1, 30)]
FORMER = {"server": SERVERS[0], "certificateAuthority": CA, "tlsServerName": "kubernetes"}
GOOD: dict[str, Any] = {
    "servers": SERVERS[:2],
    "kubeconfig": "/etc/kubernetes/kubelet.conf",
    "caFile": "/etc/kubernetes/pki/ca.crt",
    "keepsServer": True,
    "former": [FORMER],
}


def read(document: dict[str, Any]) -> Discovery:
    return parse_discovery(ConfigFields(document, "discovery."))


@pytest.mark.parametrize("left_out", [(), ("caFile", "keepsServer", "former")])
def test_what_is_written_is_read_again(left_out: tuple[str, ...]) -> None:
    document = {name: value for name, value in GOOD.items() if name not in left_out}
    assert read(document).to_json() == document


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"servers": None}, "1 to 16 different URLs"),
        ({"servers": []}, "servers must be a non-empty list"),
        ({"servers": [SERVERS[0], "https://10.0.0.1:6443/"]}, "1 to 16 different URLs"),
        ({"servers": SERVERS[: MAX_SERVERS + 1]}, "1 to 16 different URLs"),
        ({"servers": ["http://10.0.0.1"]}, "discovery.servers must be URLs of API servers"),
        ({"servers": ["https://user@10.0.0.1"]}, "no user"),
        ({"kubeconfig": None}, "kubeconfig is missing"),
        ({"kubeconfig": "kubelet.conf"}, "discovery.kubeconfig must be an absolute path"),
        ({"caFile": "/a\0b"}, "discovery.caFile must be an absolute path"),
        ({"keepsServer": "yes"}, "keepsServer must be true or false"),
        ({"former": [FORMER] * (MAX_PREVIOUS_CLUSTERS + 1)}, "at most 4 clusters"),
        ({"former": [FORMER | {"certificateAuthority": "x"}]}, "no PEM bundle"),
        ({"former": [FORMER | {"server": "10.0.0.1"}]}, "former[].server must be URLs"),
        ({"former": [FORMER | {"caFile": "/x"}]}, "unknown field discovery.former[].caFile"),
        ({"former": [SERVERS[0]]}, "must be an object"),
        ({"token": "x"}, "unknown field discovery.token"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], says: str) -> None:
    document = {name: value for name, value in (GOOD | changes).items() if value is not None}
    with pytest.raises(FieldsError) as caught:
        read(document)
    assert says in str(caught.value)


def cluster(number: int) -> Cluster:
    return Cluster(endpoint=Endpoint.parse(SERVERS[number]), ca_pem=CA.encode())


def test_earlier_states_are_remembered_the_latest_last_and_a_few_only() -> None:
    section = read(GOOD | {"former": []})
    for number in range(8):
        section = section.after(cluster(number), cluster(number + 1))
    assert section.previous_clusters == tuple(cluster(number) for number in (4, 5, 6, 7))


def test_a_state_that_comes_back_is_no_longer_former() -> None:
    section = read(GOOD | {"former": []}).after(cluster(0), cluster(1)).after(cluster(1), cluster(0))
    assert section.previous_clusters == (cluster(1),)


def test_the_server_that_is_named_now_is_asked_first_and_the_oldest_is_forgotten() -> None:
    section = read(GOOD | {"servers": SERVERS[:MAX_SERVERS]}).with_servers(Endpoint.parse(SERVERS[20]))
    assert section.servers[0].url == SERVERS[20]
    assert len(section.servers) == MAX_SERVERS
    assert SERVERS[MAX_SERVERS - 1] not in {endpoint.url for endpoint in section.servers}
