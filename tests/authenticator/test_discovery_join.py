"""Joining a cluster that is discovered: by token with pins or without, by file, and what becomes of the token."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from agent_cluster import TOKEN, Authority, FakeApi
from discovered_cluster import Discoverer, give_kubelet_configuration, killed, other_cluster, publish
from test_credential import challenge_then_sign
from test_join import in_process

from nodeattest_parsing.endpoint import Endpoint


@pytest.fixture
def joiner(tmp_path: Path, api: FakeApi) -> Discoverer:
    publish(api)
    return Discoverer(tmp_path, api)


def test_a_token_and_a_pin_are_enough_to_join(joiner: Discoverer) -> None:
    done = joiner.join()
    assert done.returncode == 0, done.stderr
    settings = joiner.settings
    assert settings.endpoint.url == joiner.api.url
    assert settings.ca_pem == joiner.api.authority.pem
    assert settings.discovery is not None
    assert settings.discovery.servers == (Endpoint.parse(joiner.api.url),)
    assert settings.discovery.kubeconfig == str(joiner.kubeconfig)
    plugin = json.loads(joiner.kubeconfig.read_bytes())["users"][0]["user"]["exec"]
    answer = subprocess.run(
        [plugin["command"], *plugin["args"]],
        env=joiner.machine.environment(joiner.machine.info()),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(answer.stdout)["status"]["clientCertificateData"]
    assert joiner.api.posts() == 1
    assert {header for _, header in joiner.api.shown} == {f"Bearer {TOKEN}"}
    assert all("certificatesigningrequests" in path for path, _ in joiner.api.shown)


def test_a_server_elsewhere_is_told_and_gets_the_request(tmp_path: Path, joiner: Discoverer) -> None:
    with other_cluster(tmp_path, joiner.api.authority) as elsewhere:
        publish(joiner.api, server=elsewhere.url)
        done = joiner.join()
        assert done.returncode == 0, done.stderr
        assert f"the cluster names {elsewhere.url} as its server" in done.stderr
        assert elsewhere.posts() == 1
        assert joiner.api.shown == []
        assert joiner.settings.discovery is not None
        assert [one.url for one in joiner.settings.discovery.servers] == [elsewhere.url, joiner.api.url]


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_token_file_that_others_may_read_is_warned_of(joiner: Discoverer, tmp_path: Path, mode: int) -> None:
    tmp_path.joinpath("token").chmod(mode)
    done = joiner.join()
    assert done.returncode == 0
    assert ("is readable by other users: chmod 0600" in done.stderr) == (mode == 0o644)


def test_a_file_that_names_the_cluster_is_as_good_as_pins(joiner: Discoverer) -> None:
    done = joiner.join(**joiner.with_file())
    assert done.returncode == 0, done.stderr
    assert joiner.settings.ca_pem == joiner.api.authority.pem
    assert joiner.settings.discovery is not None
    assert joiner.settings.discovery.pin_server


def test_a_bootstrap_token_in_the_file_joins_where_it_is_wanted(joiner: Discoverer) -> None:
    changes = joiner.with_file(token=TOKEN) | {"token_file": None}
    refused = joiner.join(**changes)
    assert "DiscoveryFileNotAllowed" in refused.stderr
    assert (TOKEN in refused.stderr, joiner.api.connections) == (False, 0)
    done = joiner.join("--discovery-file-allow-credentials", **changes)
    assert done.returncode == 0, done.stderr
    assert joiner.folder.joinpath("cache/bootstrap-token").read_text().strip() == TOKEN


def test_another_credential_in_the_file_is_of_no_use_and_told_so(joiner: Discoverer) -> None:
    changes = joiner.with_file(token="an-opaque-token") | {"token_file": None}
    done = joiner.join("--discovery-file-allow-credentials", **changes)
    assert done.returncode == 2
    assert "not a bootstrap token" in done.stderr
    assert "an-opaque-token" not in done.stderr
    assert joiner.files() == {}


def test_a_file_whose_user_is_this_agent_needs_nothing_else_on_a_node_that_has_a_certificate(
    joiner: Discoverer,
) -> None:
    assert joiner.join().returncode == 0
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "kubelet-authenticator",
        "args": ["credential"],
        "interactiveMode": "Never",
    }
    done = joiner.join(**joiner.with_file(exec=plugin), token_file=None)
    assert done.returncode == 0, done.stderr
    assert joiner.api.posts() == 1


def test_a_join_that_is_killed_before_any_of_its_writes_is_taken_up_by_the_next(joiner: Discoverer) -> None:
    give_kubelet_configuration(joiner.api, "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n")
    files = {"kubelet-config": str(joiner.folder / "kubelet.yaml"), "kubelet-ca-file": str(joiner.folder / "ca.crt")}
    joiner.options |= {f"--{name}": path for name, path in files.items()}
    words = [word for name, value in joiner.options.items() if value is not None for word in (name, value)]
    deaths = 0
    while True:
        shutil.rmtree(joiner.folder)
        joiner.folder.mkdir()
        died = killed(deaths, "join", *words)
        assert joiner.kubeconfig.exists() == (died.returncode == 0)
        done = joiner.join()
        assert done.returncode == 0, done.stderr
        assert joiner.installed.run(info=joiner.info).returncode == 0
        assert joiner.folder.joinpath("kubelet.yaml").exists()
        if died.returncode == 0:
            break
        assert died.returncode == -9
        deaths += 1
    assert deaths >= 5


def test_a_front_that_is_away_gives_way_to_the_servers(joiner: Discoverer) -> None:
    done = joiner.join(discovery_front="https://127.0.0.1:1")
    assert done.returncode == 0, done.stderr
    assert "skipping the discovery front" in done.stderr


@pytest.mark.parametrize("given", [True, False])
def test_a_renewal_needs_no_token_and_keeps_how_the_node_finds_its_cluster(
    tmp_path: Path, joiner: Discoverer, given: bool
) -> None:
    joiner.challenged()
    assert joiner.join().returncode == 0
    old, new = joiner.api.authority, Authority()
    text = publish(joiner.api, trusts=[old, new])
    assert in_process(*joiner.installed.arguments("refresh")[1:]).returncode == 0
    before = joiner.settings.discovery
    assert before is not None
    assert before.previous_clusters
    joiner.installed.cache.joinpath("bootstrap-token").unlink()
    tmp_path.joinpath("ca.crt").write_bytes(old.pem + new.pem)
    cluster = {"server": joiner.api.url, "ca_file": str(tmp_path / "ca.crt"), "discovery_timeout": None}
    changes = cluster | {"discovery_server": None, "discovery_token_ca_cert_hash": None}
    done = joiner.join("--renew", **(changes if given else joiner.with_file(text)), token_file=None)
    assert done.returncode == 0, done.stderr
    after = joiner.settings.discovery
    assert after is not None
    assert after.previous_clusters == before.previous_clusters
    assert set(before.servers) <= set(after.servers)
    assert list(joiner.api.objects.values())[-1]["spec"]["username"].startswith("system:node:")


def test_a_renewal_in_another_cluster_keeps_nothing_of_the_old_one(tmp_path: Path, joiner: Discoverer) -> None:
    joiner.challenged()
    assert joiner.join().returncode == 0
    with other_cluster(tmp_path, Authority()) as other:
        other.on_create = challenge_then_sign
        tmp_path.joinpath("ca.crt").write_bytes(other.authority.pem)
        cluster = {"server": other.url, "ca_file": str(tmp_path / "ca.crt"), "discovery_timeout": None}
        changes = cluster | {"discovery_server": None, "discovery_token_ca_cert_hash": None}
        assert joiner.join("--renew", **changes).returncode == 0
    assert joiner.settings.discovery is None
