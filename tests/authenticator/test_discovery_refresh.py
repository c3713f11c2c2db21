"""Following a cluster: its CAs are replaced, its servers move, and whatever happens meanwhile, the node works."""

from __future__ import annotations

import base64
import json
import time
from contextlib import ExitStack
from typing import Any

import pytest
from agent_cluster import FakeApi
from agent_machine import Discoverer, Joiner, killed, publish
from lying_servers import Ca
from polling import eventually

from nodeattest_authenticator import refresh
from nodeattest_authenticator.exec_plugin import fast_path
from nodeattest_authenticator.state.storage import exclusive
from nodeattest_discovery import clusterinfo
from nodeattest_discovery.node.clock import Clock, Deadline
from nodeattest_parsing.endpoint import Endpoint


def warmly(node: Discoverer, info: str) -> bool:
    found = fast_path.lookup(str(node.cache), str(node.config), info.encode(), time.time())
    return found is not None and found[0] == 0


def trusted(node: Discoverer) -> bytes:
    """The CAs that kubelet would trust after its next start."""
    cluster: dict[str, Any] = json.loads(node.kubeconfig.read_bytes())["clusters"][0]["cluster"]
    return base64.b64decode(cluster["certificate-authority-data"])


def test_a_cluster_that_is_as_it_was_changes_nothing(node: Discoverer) -> None:
    before = node.files()
    done = node.do("refresh")
    assert (done.returncode, done.stdout) == (0, "nothing changed\n")
    assert node.files() == before


def test_a_second_ca_reaches_every_file_and_the_next_call_is_as_warm_as_the_last(node: Discoverer) -> None:
    old, new, had, info = node.api.authority, Ca(), node.stored(), node.called
    assert warmly(node, info)
    publish(node.api, trusts=[old, new])
    done = node.do("refresh")
    assert done.returncode == 0, done.stderr
    assert f"the node trusts the CA {new.pin}" in done.stdout
    assert "restart kubelet" in done.stdout
    assert node.settings.ca_pem == trusted(node) == old.pem + new.pem
    assert node.folder.joinpath("pki/ca.crt").read_bytes().endswith(old.pem + new.pem)
    assert node.stored() == had
    assert warmly(node, info)
    assert node.run(info=node.called).returncode == 0
    assert warmly(node, node.called)
    assert warmly(node, info)
    assert node.api.posts() == 2
    assert node.do("refresh").stdout == "nothing changed\n"


def test_a_ca_is_replaced_in_three_steps_and_the_certificate_with_it(node: Discoverer) -> None:
    old, new = node.api.authority, Ca("kubernetes-2")
    began = node.called
    publish(node.api, trusts=[old, new])
    assert node.do("refresh").returncode == 0
    node.api.stand_under(new)
    assert node.do("refresh").stdout == "nothing changed\n"
    publish(node.api, trusts=[new])
    done = node.do("refresh")
    assert done.returncode == 0, done.stderr
    assert f"the node no longer trusts the CA {old.pin}" in done.stdout
    assert node.settings.ca_pem == trusted(node) == new.pem
    # The certificate of the old CA answers once more, to a kubelet that was never restarted, and is renewed at once.
    assert node.run(info=began).returncode == 0
    eventually(lambda: node.stored().issuer == new.name)
    assert node.run(info=node.called).returncode == 0


def test_a_server_that_moved_is_followed_and_kubelets_old_question_is_answered(
    node: Discoverer, elsewhere: FakeApi
) -> None:
    began = node.called
    for api in (node.api, elsewhere):
        publish(api, server=elsewhere.url)
    done = node.do("refresh")
    assert done.returncode == 0, done.stderr
    assert f"the cluster moved from {node.api.url} to {elsewhere.url}" in done.stdout
    assert node.settings.endpoint == Endpoint.parse(elsewhere.url)
    assert json.loads(node.called)["spec"]["cluster"]["server"] == elsewhere.url
    assert warmly(node, began)
    assert node.run(info=began).returncode == 0
    assert node.run(info=node.called).returncode == 0
    assert elsewhere.posts() == 0


@pytest.mark.parametrize("news", ["a foreign CA", "a foreign CA besides, at its own server", "a server that is away"])
def test_news_that_cannot_be_believed_changes_nothing(node: Discoverer, news: str) -> None:
    foreign = Ca("foreign")
    with FakeApi(foreign) as other:
        match news:
            case "a foreign CA":
                publish(node.api, trusts=[foreign])
            case "a server that is away":
                publish(node.api, server="https://127.0.0.1:1")
            case _:
                for api in (node.api, other):
                    publish(api, server=other.url, trusts=[node.api.authority, foreign])
        before = node.files()
        done = node.do("refresh")
        assert other.requests == []
    assert done.returncode == 1
    assert node.files() == before
    assert warmly(node, node.called)


def test_a_refresh_that_waited_for_a_join_keeps_what_the_join_configured(node: Discoverer) -> None:
    publish(node.api, trusts=[node.api.authority, Ca()])
    holder, held = node.agent(), ExitStack()
    held.enter_context(exclusive(holder.storage, Deadline.after(holder.clock, 5)))

    def joined(_seconds: float) -> None:
        document = json.loads(node.config.read_bytes())
        node.config.write_text(json.dumps(document | {"timeoutSeconds": 77}))
        held.close()

    assert "the node trusts the CA" in refresh.run(node.agent(clock=Clock(sleep=joined)), limit=60)
    assert node.settings.timeout_seconds == 77


def test_files_of_others_stay_as_they_are(node: Discoverer) -> None:
    for name in ("pki/ca.crt", "etc/kubelet.conf"):
        node.folder.joinpath(name).write_text("apiVersion: v1\nkind: Config\n")
    publish(node.api, trusts=[node.api.authority, Ca()])
    done = node.do("refresh")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("was not written by kubelet-authenticator and is left unchanged") == 2
    for name in ("pki/ca.crt", "etc/kubelet.conf"):
        assert node.folder.joinpath(name).read_text() == "apiVersion: v1\nkind: Config\n"


def test_a_node_that_was_told_its_cluster_says_so(joiner: Joiner) -> None:
    assert joiner.join().returncode == 0
    done = joiner.do("refresh")
    assert done.returncode == 2
    assert "this node joined with a fixed server" in done.stderr


def test_killed_before_any_of_its_writes_it_leaves_a_node_that_works_and_a_refresh_that_finishes(
    node: Discoverer,
) -> None:
    began = node.called
    kept: list[Ca] = [node.api.authority]
    deaths = 0
    while True:
        kept.append(Ca())
        publish(node.api, trusts=kept)
        died = killed(deaths, *node.arguments("refresh")[1:])
        assert node.run(info=began).returncode == 0
        assert node.run(info=node.called).returncode == 0
        assert node.do("refresh").returncode == 0
        bundle = b"".join(authority.pem for authority in kept)
        assert node.settings.ca_pem == trusted(node) == bundle
        assert node.folder.joinpath("pki/ca.crt").read_bytes().endswith(bundle)
        if died.returncode == 0:
            break
        assert died.returncode == -9
        deaths += 1
        if deaths % 3 == 0:  # what was four states ago is no longer kubelet's: it was restarted
            began = node.called
    assert deaths >= 4
    assert node.api.posts() == 2


def test_a_file_keeps_its_server_and_follows_the_cas(discoverer: Discoverer, elsewhere: FakeApi) -> None:
    api, new = discoverer.api, Ca()
    for trusts in ([api.authority], [api.authority, new]):
        for one in (api, elsewhere):
            publish(one, server=elsewhere.url, trusts=trusts)
        if new not in trusts:
            discoverer.by_file()
            assert discoverer.join().returncode == 0
    done = discoverer.do("refresh")
    assert done.returncode == 0, done.stderr
    assert discoverer.settings.endpoint == Endpoint.parse(api.url)
    assert discoverer.settings.ca_pem == api.authority.pem + new.pem


# Before a renewal


def renew(node: Discoverer, info: str | None = None) -> None:
    """Let the renewal moment pass, ask as kubelet does, and wait for the certificate that this leads to."""
    had = node.stored()
    node.make_due()
    assert node.run(info=info or node.called).returncode == 0
    eventually(lambda: node.stored() != had, seconds=20)


@pytest.mark.parametrize("spoilt", ["gone", "no YAML", "a foreign CA"])
def test_a_refresh_that_fails_is_a_line_in_the_log_of_a_renewal_that_succeeds(node: Discoverer, spoilt: str) -> None:
    match spoilt:
        case "gone":
            node.api.public.clear()
        case "no YAML":
            node.api.public[clusterinfo.PATH]["data"]["kubeconfig"] = "{"
        case _:
            publish(node.api, trusts=[Ca("foreign")])
    before = node.settings
    renew(node)
    assert node.settings == before
    assert (
        "stays as it is" in node.file("renewal.log").decode()
        or "the refresh before the renewal failed" in node.file("renewal.log").decode()
    )


def test_a_node_whose_server_is_away_renews_at_another_one_that_it_knows(
    node: Discoverer,
    elsewhere: FakeApi,
) -> None:
    document = json.loads(node.config.read_bytes())
    document["server"] = "https://127.0.0.1:1"
    document["discovery"]["servers"] = ["https://127.0.0.1:1", node.api.url, elsewhere.url]
    node.config.write_text(json.dumps(document))
    info = node.info(server="https://127.0.0.1:1")
    node.api.stand_under(Ca("a stranger in its place"))
    publish(elsewhere, server="https://127.0.0.1:1")
    renew(node, info)
    assert elsewhere.posts() == 2
    assert "skipping the API server https://127.0.0.1:1" in node.file("renewal.log").decode()
    assert f"skipping the API server {node.api.url}" in node.file("renewal.log").decode()
