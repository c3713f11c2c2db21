"""A renewal asks first what changed, and asks whichever server is there; nothing of that can hold it up."""

from __future__ import annotations

import json

import pytest
from agent_cluster import Authority, FakeApi
from discovered_cluster import Discoverer, publish
from polling import eventually
from test_credential import challenge_then_sign, make_due
from test_discovery_refresh import certificate, trusted, warmly

from nodeattest_discovery import clusterinfo


def renew(node: Discoverer) -> None:
    """Let the renewal moment pass, ask as kubelet does, and wait for the certificate that this leads to."""
    had = certificate(node)
    make_due(node.installed)
    assert node.installed.run(info=node.info).returncode == 0
    eventually(lambda: certificate(node) != had, seconds=20)


def log(node: Discoverer) -> str:
    return node.folder.joinpath("cache/renewal.log").read_text()


def test_a_renewal_follows_the_cluster_and_gets_its_certificate_there(node: Discoverer) -> None:
    old, new = node.api.authority, Authority("kubernetes-2")
    publish(node.api, trusts=[old, new])
    node.api.on_create = lambda api, name: signed_by_the_new(api, name, new)
    renew(node)
    assert certificate(node).issuer == new.name
    assert trusted(node) == old.pem + new.pem
    assert "restart kubelet" in log(node)
    assert node.installed.run(info=node.info).returncode == 0
    assert warmly(node, node.info)


def signed_by_the_new(api: FakeApi, name: str, new: Authority) -> None:

    if api.envelope(name)[1].data["phase"] == 1:
        challenge_then_sign(api, name)
    else:
        api.sign(name, by=new)


@pytest.mark.parametrize("spoilt", ["gone", "no YAML", "a foreign CA"])
def test_a_refresh_that_fails_is_a_line_in_the_log_of_a_renewal_that_succeeds(node: Discoverer, spoilt: str) -> None:
    match spoilt:
        case "gone":
            node.api.public.clear()
        case "no YAML":
            node.api.public[clusterinfo.PATH]["data"]["kubeconfig"] = "{"
        case _:
            publish(node.api, trusts=[Authority("foreign")])
    before = node.settings
    renew(node)
    assert node.settings == before
    assert "stays as it is" in log(node) or "was not asked what changed" in log(node)


def test_a_node_whose_server_is_away_renews_at_another_one_that_it_knows(
    node: Discoverer,
    elsewhere: FakeApi,
) -> None:
    config = node.folder / "config.json"
    document = json.loads(config.read_bytes())
    document["server"] = "https://127.0.0.1:1"
    document["discovery"]["servers"] = ["https://127.0.0.1:1", node.api.url, elsewhere.url]
    config.write_text(json.dumps(document))
    info = node.machine.info(server="https://127.0.0.1:1")
    node.api.stand_under(Authority("a stranger in its place"))
    publish(elsewhere, server="https://127.0.0.1:1")
    had = certificate(node)
    make_due(node.installed)
    assert node.installed.run(info=info).returncode == 0
    eventually(lambda: certificate(node) != had, seconds=20)
    assert elsewhere.posts() == 2
    assert "https://127.0.0.1:1 is not asked" in log(node)
    assert f"{node.api.url} is not asked" in log(node)
