"""``join``, ``status`` and ``evidence``: a cluster that is given or discovered, and what becomes of token and files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest
from agent_cluster import TOKEN, FakeApi, filed_ids, tells_provider_id
from agent_machine import (
    NODE,
    Discoverer,
    Joiner,
    Machine,
    give_kubelet_configuration,
    killed,
    other_server,
    publish,
)
from lying_servers import Ca

from nodeattest_parsing.endpoint import Endpoint


def test_every_file_is_private_and_the_token_stands_in_one_only(joiner: Joiner) -> None:
    joiner.join()
    assert {path.stat().st_mode & 0o777 for path in joiner.folder.rglob("*") if path.is_file()} == {0o600}
    assert joiner.token_holders() == ["cache/bootstrap-token"]


def test_a_denied_join_leaves_no_kubeconfig_and_the_next_one_asks_at_once(joiner: Joiner) -> None:
    joiner.api.on_create = lambda api, name: api.deny(name, "MachineNotFound", "create the Machine")
    done = joiner.join()
    assert done.returncode == 1
    assert "MachineNotFound" in done.stderr
    assert not joiner.kubeconfig.exists()
    joiner.api.on_create = lambda api, name: api.sign(name)
    assert joiner.join().returncode == 0


def test_a_join_of_a_joined_node_keeps_its_certificate_and_says_how_to_get_another(joiner: Joiner) -> None:
    assert joiner.join().returncode == 0
    again = joiner.join()
    assert again.returncode == 0
    assert "keeps its valid certificate; join --renew" in again.stderr
    assert joiner.api.posts() == 1


def test_a_join_with_renew_attests_anew_with_the_nodes_own_certificate(joiner: Joiner) -> None:
    joiner.attests()
    assert joiner.join().returncode == 0
    before = joiner.stored()
    done = joiner.join("--renew")
    assert done.returncode == 0, done.stderr
    assert joiner.stored() != before
    users = [one["spec"]["username"].split(":")[1] for one in joiner.api.objects.values()]
    assert users == ["bootstrap"] * 2 + ["node"] * 2


def test_join_gets_the_serving_certificate_too_when_asked(joiner: Joiner) -> None:
    joiner.attests()
    names = ["--serving-ip-address", "10.0.0.7", "--serving-dns-name", "a", "--serving-dns-name", "b"]
    done = joiner.join(*names)
    assert done.returncode == 0, done.stderr
    assert "serving.pem: certificate for a, b, 10.0.0.7, valid until" in done.stdout
    assert joiner.cache.joinpath("serving.pem").exists()
    assert joiner.settings.serving is not None
    assert joiner.settings.serving.to_json() == {"dnsNames": ["a", "b"], "ipAddresses": ["10.0.0.7"]}


def test_a_kubeconfig_that_join_did_not_write_is_kept(joiner: Joiner) -> None:
    joiner.kubeconfig.parent.mkdir()
    joiner.kubeconfig.write_text("apiVersion: v1\nkind: Config\n")
    done = joiner.join()
    assert done.returncode == 2
    assert "--replace-kubeconfig" in done.stderr
    assert joiner.files() == {"etc/kubelet.conf": b"apiVersion: v1\nkind: Config\n"}
    assert joiner.join("--replace-kubeconfig").returncode == 0


# A provider ID that the controller tells, or the machine


def test_quotes_are_removed_and_the_machine_fills_in_its_part(joiner: Joiner) -> None:
    assert joiner.join(provider_id="kubevirt://'{hostname}'").returncode == 0
    assert filed_ids(joiner.api) == [f"kubevirt://{os.uname().nodename.lower()}"]


@pytest.fixture
def told(joiner: Joiner) -> Joiner:
    """A machine that has joined with the ID that the controller told it."""
    joiner.options["--provider-id"] = None
    joiner.api.on_create = tells_provider_id("sandbox://told")
    done = joiner.join()
    assert done.returncode == 0, done.stderr
    assert filed_ids(joiner.api) == ["", "sandbox://told"]
    return joiner


@pytest.mark.parametrize("reason", ["ProviderIDMismatch", "TokenNotThisMachines", "MachineNotFound"])
def test_a_stored_answer_is_forgotten_when_a_token_is_denied_with_it(told: Joiner, reason: str) -> None:
    told.cache.joinpath("credential").unlink()
    told.api.on_create = tells_provider_id("sandbox://new", then=lambda api, name: api.deny(name, reason))
    assert reason in told.join().stderr
    told.api.on_create = tells_provider_id("sandbox://new")
    assert told.join().returncode == 0
    assert filed_ids(told.api)[2:] == ["sandbox://told", "", "sandbox://new"]


def test_another_clusters_answer_is_not_used(told: Joiner) -> None:
    with FakeApi(Ca("other")) as api:
        api.on_create = tells_provider_id("sandbox://there")
        told.options |= told.given(api)
        done = told.join()
        assert done.returncode == 0, done.stderr
        assert filed_ids(api) == ["", "sandbox://there"]


def test_a_renewal_has_the_answer_while_the_cas_are_replaced(told: Joiner) -> None:
    told.options |= told.given(told.api, Ca("next"))
    assert told.join("--renew").returncode == 0
    assert filed_ids(told.api)[2:] == ["sandbox://told"]
    assert len(json.loads(told.file("provider-id"))["caPins"]) == 2


def test_an_answer_that_cannot_be_read_is_not_taken_for_none(told: Joiner) -> None:
    told.write("provider-id", b"{")
    done = told.join("--renew")
    assert done.returncode == 1
    assert "CacheUnsafe" in done.stderr
    assert "join again with a bootstrap token" in done.stderr
    assert told.api.posts() == 2


def test_a_certificate_is_not_stored_without_the_answer(joiner: Joiner) -> None:
    joiner.api.on_create = tells_provider_id("sandbox://told")
    joiner.cache.mkdir(mode=0o700)
    joiner.cache.joinpath("provider-id.new").mkdir()  # fails each write as a full disk would
    done = joiner.join(provider_id=None)
    assert (done.returncode, "cannot be stored" in done.stderr) == (0, True)
    assert not joiner.cache.joinpath("credential").exists()
    joiner.cache.joinpath("provider-id.new").rmdir()
    assert joiner.join(provider_id=None).returncode == 0
    assert filed_ids(joiner.api) == ["", "sandbox://told"]
    assert joiner.cache.joinpath("credential").exists()


# A cluster that is discovered


def test_a_token_and_a_pin_are_enough_to_join(discoverer: Discoverer) -> None:
    done = discoverer.join()
    assert done.returncode == 0, done.stderr
    assert discoverer.token_holders() == ["cache/bootstrap-token"]
    settings, api = discoverer.settings, discoverer.api
    assert (settings.endpoint.url, settings.ca_pem) == (api.url, api.authority.pem)
    assert settings.discovery is not None
    assert settings.discovery.servers == (Endpoint.parse(api.url),)
    assert settings.discovery.kubeconfig == str(discoverer.kubeconfig)
    plugin = json.loads(discoverer.kubeconfig.read_bytes())["users"][0]["user"]["exec"]
    words, environment = [plugin["command"], *plugin["args"]], discoverer.environment(discoverer.info())
    answer = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["status"]["clientCertificateData"]
    assert api.posts() == 1
    assert {header for _, header in api.shown} == {f"Bearer {TOKEN}"}
    assert all("certificatesigningrequests" in path for path, _ in api.shown)


def test_a_server_elsewhere_is_told_and_gets_the_request(discoverer: Discoverer, elsewhere: FakeApi) -> None:
    publish(discoverer.api, server=elsewhere.url)
    discoverer.attests()
    done = discoverer.join()
    assert done.returncode == 0, done.stderr
    assert f"the cluster names {elsewhere.url} as its server" in done.stderr
    assert elsewhere.posts() == 2
    assert discoverer.api.shown == []
    assert discoverer.settings.discovery is not None
    assert [one.url for one in discoverer.settings.discovery.servers] == [elsewhere.url, discoverer.api.url]


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_token_file_that_others_may_read_is_warned_of(joiner: Joiner, mode: int) -> None:
    joiner.token.chmod(mode)
    done = joiner.join()
    assert done.returncode == 0
    assert ("is readable by other users: chmod 0600" in done.stderr) == (mode == 0o644)


def test_a_front_that_is_away_gives_way_to_the_servers(discoverer: Discoverer) -> None:
    done = discoverer.join(discovery_front="https://127.0.0.1:1")
    assert done.returncode == 0, done.stderr
    assert "skipping the discovery front" in done.stderr


def test_a_bootstrap_token_in_the_file_joins_where_it_is_wanted(discoverer: Discoverer) -> None:
    discoverer.by_file(token=TOKEN)
    refused = discoverer.join(token_file=None)
    assert "DiscoveryFileNotAllowed" in refused.stderr
    assert discoverer.api.connections == 0
    done = discoverer.join("--discovery-file-allow-credentials", token_file=None)
    assert done.returncode == 0, done.stderr
    assert discoverer.token_holders() == ["cache/bootstrap-token"]
    assert discoverer.settings.ca_pem == discoverer.api.authority.pem
    assert discoverer.settings.discovery is not None
    assert discoverer.settings.discovery.pin_server


def test_a_token_that_is_given_counts_before_the_files(discoverer: Discoverer) -> None:
    discoverer.by_file(token="zyxwvu.fedcba9876543210")
    done = discoverer.join("--discovery-file-allow-credentials")
    assert done.returncode == 0, done.stderr
    assert discoverer.token_holders() == ["cache/bootstrap-token"]


def test_another_credential_in_the_file_is_of_no_use_and_told_so(discoverer: Discoverer) -> None:
    discoverer.by_file(token="an-opaque-token")
    done = discoverer.join("--discovery-file-allow-credentials", token_file=None)
    assert done.returncode == 2
    assert "not a bootstrap token" in done.stderr
    assert "an-opaque-token" not in done.stderr
    assert discoverer.files() == {}


def test_a_file_whose_user_is_this_agent_needs_nothing_else_on_a_node_that_has_a_certificate(
    discoverer: Discoverer,
) -> None:
    assert discoverer.join().returncode == 0
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "kubelet-authenticator"}
    discoverer.by_file(exec=plugin | {"args": ["credential"], "interactiveMode": "Never"})
    done = discoverer.join(token_file=None)
    assert done.returncode == 0, done.stderr
    assert discoverer.api.posts() == 1


def test_a_join_that_is_killed_before_any_of_its_writes_is_taken_up_by_the_next(discoverer: Discoverer) -> None:
    joiner, deaths = discoverer, 0
    give_kubelet_configuration(joiner.api, "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n")
    files = {"kubelet-config": str(joiner.folder / "kubelet.yaml"), "kubelet-ca-file": str(joiner.folder / "ca.crt")}
    joiner.options |= {f"--{name}": path for name, path in files.items()}
    while True:
        shutil.rmtree(joiner.folder)
        joiner.folder.mkdir()
        died = killed(deaths, "join", *joiner.words())
        assert joiner.kubeconfig.exists() == (died.returncode == 0)
        done = joiner.join()
        assert done.returncode == 0, done.stderr
        assert joiner.run(info=joiner.called).returncode == 0
        assert joiner.folder.joinpath("kubelet.yaml").exists()
        if died.returncode == 0:
            break
        assert died.returncode == -9
        deaths += 1
    assert deaths >= 5


@pytest.mark.parametrize("given", [True, False])
def test_a_renewal_needs_no_token_and_keeps_how_the_node_finds_its_cluster(discoverer: Discoverer, given: bool) -> None:
    discoverer.attests()
    assert discoverer.join().returncode == 0
    new = Ca()
    text = publish(discoverer.api, trusts=[new, discoverer.api.authority])
    assert discoverer.do("refresh").returncode == 0
    before = discoverer.settings.discovery
    assert before is not None
    assert before.previous_clusters
    discoverer.cache.joinpath("bootstrap-token").unlink()
    if given:
        discoverer.is_given(discoverer.api, new)
    else:
        discoverer.by_file(text)
    done = discoverer.join("--renew", token_file=None)
    assert done.returncode == 0, done.stderr
    after = discoverer.settings.discovery
    assert after is not None
    assert after.previous_clusters == before.previous_clusters
    assert set(before.servers) <= set(after.servers)
    assert list(discoverer.api.objects.values())[-1]["spec"]["username"].startswith("system:node:")


def test_a_renewal_in_another_cluster_keeps_nothing_of_the_old_one(discoverer: Discoverer) -> None:
    discoverer.attests()
    assert discoverer.join().returncode == 0
    with other_server(Ca()) as other:
        discoverer.is_given(other)
        assert discoverer.join("--renew").returncode == 0
    assert discoverer.settings.discovery is None


# status and evidence


def test_status_tells_the_certificate_in_words_and_in_json(machine: Machine) -> None:
    machine.challenged()
    assert machine.do("status", "--json").returncode == 1
    machine.run()
    done = machine.do("status", "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert (document["state"], document["node"], document["lastFailure"]) == ("valid", NODE, None)
    assert document["signer"] == "cluster.x-k8s.io/kube-apiserver-client-kubelet-challenge"
    found = document["certificate"]
    assert found["subject"] == f"CN=system:node:{NODE},O=system:nodes"
    assert found["notBefore"] < found["renewAt"] < found["notAfter"]
    assert f"subject: CN=system:node:{NODE},O=system:nodes" in machine.do("status").stdout


def test_evidence_sends_nothing(machine: Machine) -> None:
    document = json.loads(machine.do("evidence").stdout)
    assert (document["provider"], document["data"], document["node"]) == ("insecure/v1", {}, NODE)
    assert not machine.api.requests
