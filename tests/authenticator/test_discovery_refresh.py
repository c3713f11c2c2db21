"""Following a cluster: its CAs are replaced, its servers move, and whatever happens meanwhile, the node works."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from agent_cluster import Authority, FakeApi
from cryptography import x509
from discovered_cluster import Discoverer, killed, pin, publish
from polling import eventually
from test_credential import make_due
from test_join import Joiner, in_process

from nodeattest_authenticator.exec_plugin import fast_path
from nodeattest_authenticator.state import credential_cache
from nodeattest_authenticator.state.storage import Storage
from nodeattest_discovery import clusterinfo
from nodeattest_parsing.endpoint import Endpoint


def refresh(node: Discoverer) -> subprocess.CompletedProcess[str]:
    return in_process(*node.installed.arguments("refresh")[1:])


def warmly(node: Discoverer, info: str) -> bool:
    machine = node.installed
    found = fast_path.lookup(str(machine.cache), str(machine.config), info.encode(), time.time())
    return found is not None and found[0] == 0


def certificate(node: Discoverer) -> x509.Certificate:
    with Storage(str(node.installed.cache)) as storage:
        found = credential_cache.load(storage)
    assert found is not None
    return x509.load_pem_x509_certificate(found.credential.certificate_pem)


def trusted(node: Discoverer) -> bytes:
    """The CAs that kubelet would trust after its next start."""
    cluster: dict[str, Any] = json.loads(node.kubeconfig.read_bytes())["clusters"][0]["cluster"]
    return base64.b64decode(cluster["certificate-authority-data"])


def test_a_cluster_that_is_as_it_was_changes_nothing(node: Discoverer) -> None:
    before = node.files()
    done = refresh(node)
    assert (done.returncode, done.stdout) == (0, "nothing changed\n")
    assert node.files() == before


def test_a_second_ca_reaches_every_file_and_the_next_call_is_as_warm_as_the_last(node: Discoverer) -> None:
    old, new, had, info = node.api.authority, Authority(), certificate(node), node.info
    assert warmly(node, info)
    publish(node.api, trusts=[old, new])
    done = refresh(node)
    assert done.returncode == 0, done.stderr
    assert f"the node trusts the CA {pin(new)}" in done.stdout
    assert "restart kubelet" in done.stdout
    assert node.settings.ca_pem == trusted(node) == old.pem + new.pem
    assert node.folder.joinpath("pki/ca.crt").read_bytes().endswith(old.pem + new.pem)
    assert certificate(node) == had
    assert warmly(node, info)
    assert node.installed.run(info=node.info).returncode == 0
    assert warmly(node, node.info)
    assert warmly(node, info)
    assert node.api.posts() == 2
    assert refresh(node).stdout == "nothing changed\n"


def test_a_ca_is_replaced_in_three_steps_and_the_certificate_with_it(node: Discoverer) -> None:
    old, new = node.api.authority, Authority("kubernetes-2")
    began = node.info
    publish(node.api, trusts=[old, new])
    assert refresh(node).returncode == 0
    node.api.stand_under(new)
    assert refresh(node).stdout == "nothing changed\n"
    publish(node.api, trusts=[new])
    done = refresh(node)
    assert done.returncode == 0, done.stderr
    assert f"the node no longer trusts the CA {pin(old)}" in done.stdout
    assert node.settings.ca_pem == trusted(node) == new.pem
    # The certificate of the old CA answers once more, to a kubelet that was never restarted, and is renewed at once.
    assert node.installed.run(info=began).returncode == 0
    eventually(lambda: certificate(node).issuer == new.name)
    assert node.installed.run(info=node.info).returncode == 0


def test_a_server_that_moved_is_followed_and_kubelets_old_question_is_answered(
    node: Discoverer, elsewhere: FakeApi
) -> None:
    began = node.info
    for api in (node.api, elsewhere):
        publish(api, server=elsewhere.url)
    done = refresh(node)
    assert done.returncode == 0, done.stderr
    assert f"the cluster moved from {node.api.url} to {elsewhere.url}" in done.stdout
    assert node.settings.endpoint == Endpoint.parse(elsewhere.url)
    assert json.loads(node.info)["spec"]["cluster"]["server"] == elsewhere.url
    assert warmly(node, began)
    assert node.installed.run(info=began).returncode == 0
    assert node.installed.run(info=node.info).returncode == 0
    assert elsewhere.posts() == 0


@pytest.mark.parametrize("news", ["a foreign CA", "a foreign CA besides, at its own server", "a server that is away"])
def test_news_that_cannot_be_believed_changes_nothing(node: Discoverer, tmp_path: Path, news: str) -> None:
    foreign = Authority("foreign")
    folder = tmp_path / "foreign"
    folder.mkdir()
    with FakeApi(folder, foreign) as other:
        match news:
            case "a foreign CA":
                publish(node.api, trusts=[foreign])
            case "a server that is away":
                publish(node.api, server="https://127.0.0.1:1")
            case _:
                for api in (node.api, other):
                    publish(api, server=other.url, trusts=[node.api.authority, foreign])
        before = node.files()
        done = refresh(node)
        assert other.requests == []
    assert done.returncode == 1
    assert node.files() == before
    assert warmly(node, node.info)


def test_files_of_others_stay_as_they_are(node: Discoverer) -> None:
    for name in ("pki/ca.crt", "etc/kubelet.conf"):
        node.folder.joinpath(name).write_text("apiVersion: v1\nkind: Config\n")
    publish(node.api, trusts=[node.api.authority, Authority()])
    done = refresh(node)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("was not written by kubelet-authenticator and is left unchanged") == 2
    for name in ("pki/ca.crt", "etc/kubelet.conf"):
        assert node.folder.joinpath(name).read_text() == "apiVersion: v1\nkind: Config\n"


def test_a_node_that_was_told_its_cluster_says_so(tmp_path: Path, api: FakeApi) -> None:
    joiner = Joiner(tmp_path, api)
    assert joiner.join().returncode == 0
    done = in_process(*joiner.machine.arguments("refresh")[1:])
    assert done.returncode == 2
    assert "this node joined with a fixed server" in done.stderr


def test_killed_before_any_of_its_writes_it_leaves_a_node_that_works_and_a_refresh_that_finishes(
    node: Discoverer,
) -> None:
    began = node.info
    kept: list[Authority] = [node.api.authority]
    deaths = 0
    while True:
        kept.append(Authority())
        publish(node.api, trusts=kept)
        died = killed(deaths, *node.installed.arguments("refresh")[1:])
        assert node.installed.run(info=began).returncode == 0
        assert node.installed.run(info=node.info).returncode == 0
        assert refresh(node).returncode == 0
        bundle = b"".join(authority.pem for authority in kept)
        assert node.settings.ca_pem == trusted(node) == bundle
        assert node.folder.joinpath("pki/ca.crt").read_bytes().endswith(bundle)
        if died.returncode == 0:
            break
        assert died.returncode == -9
        deaths += 1
        if deaths % 3 == 0:  # what was four states ago is no longer kubelet's: it was restarted
            began = node.info
    assert deaths >= 4
    assert node.api.posts() == 2


def test_a_file_keeps_its_server_and_follows_the_cas(tmp_path: Path, api: FakeApi, elsewhere: FakeApi) -> None:
    for one in (api, elsewhere):
        publish(one, server=elsewhere.url)
    joiner = Discoverer(tmp_path, api)
    assert joiner.join(**joiner.with_file()).returncode == 0
    new = Authority()
    for one in (api, elsewhere):
        publish(one, server=elsewhere.url, trusts=[api.authority, new])
    done = refresh(joiner)
    assert done.returncode == 0, done.stderr
    assert joiner.settings.endpoint == Endpoint.parse(api.url)
    assert joiner.settings.ca_pem == api.authority.pem + new.pem


# Before a renewal


def renew(node: Discoverer) -> None:
    """Let the renewal moment pass, ask as kubelet does, and wait for the certificate that this leads to."""
    had = certificate(node)
    make_due(node.installed)
    assert node.installed.run(info=node.info).returncode == 0
    eventually(lambda: certificate(node) != had, seconds=20)


def log(node: Discoverer) -> str:
    return node.folder.joinpath("cache/renewal.log").read_text()


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
    assert "stays as it is" in log(node) or "the refresh before the renewal failed" in log(node)


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
    assert "skipping the API server https://127.0.0.1:1" in log(node)
    assert f"skipping the API server {node.api.url}" in log(node)
