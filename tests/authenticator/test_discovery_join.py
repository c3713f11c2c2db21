"""Joining a cluster that is discovered: by token with pins or without, by file, and what becomes of the token."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from agent_cluster import TOKEN, Authority, FakeApi
from discovered_cluster import Discoverer, give_kubelet_configuration, killed, other_cluster, pin, publish
from test_credential import challenge_then_sign
from test_join import in_process

from nodeattest_parsing.endpoint import Endpoint

UNSAFE = "--discovery-token-unsafe-skip-ca-verification"


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


def test_joining_again_asks_for_nothing_and_changes_nothing(joiner: Discoverer) -> None:
    assert joiner.join().returncode == 0
    before = joiner.files()
    assert joiner.join().returncode == 0
    assert joiner.files() == before
    assert joiner.api.posts() == 1


def test_the_token_goes_to_the_verified_server_alone_and_only_to_ask_for_the_certificate(joiner: Discoverer) -> None:
    assert joiner.join().returncode == 0
    assert {header for _, header in joiner.api.shown} == {f"Bearer {TOKEN}"}
    assert all("certificatesigningrequests" in path for path, _ in joiner.api.shown)


def test_no_token_goes_to_a_server_whose_ca_is_not_the_pinned_one(joiner: Discoverer) -> None:
    done = joiner.join(discovery_token_ca_cert_hash=pin(Authority("another")), discovery_timeout="5")
    assert done.returncode == 1
    assert "CANotPinned" in done.stderr
    assert joiner.api.shown == []
    assert joiner.files() == {}


def test_no_token_goes_to_a_server_that_signs_a_bundle_of_the_real_ca_and_its_own(
    tmp_path: Path, authority: Authority
) -> None:
    with other_cluster(tmp_path, Authority("evil")) as evil:
        publish(evil, trusts=[authority, evil.authority])
        joiner = Discoverer(tmp_path, evil)
        done = joiner.join(discovery_token_ca_cert_hash=pin(authority), discovery_timeout="5")
        assert done.returncode == 1
        assert "this is not the cluster's server" in done.stderr
        assert evil.shown == []
    assert joiner.files() == {}


def test_a_wrong_signature_is_told_with_what_to_do(joiner: Discoverer, tmp_path: Path) -> None:
    tmp_path.joinpath("token").write_text("abcdef.ffffffffffffffff")
    done = joiner.join()
    assert done.returncode == 1
    assert "ClusterInfoSignatureInvalid" in done.stderr
    assert "ffffffffffffffff" not in done.stderr
    assert joiner.files() == {}


def test_without_pins_it_joins_and_says_what_that_means(joiner: Discoverer) -> None:
    done = joiner.join(UNSAFE, discovery_token_ca_cert_hash=None)
    assert done.returncode == 0, done.stderr
    assert "no CA was pinned" in done.stderr


def test_a_server_that_does_not_answer_gives_way_to_the_next(joiner: Discoverer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = f"127.0.0.1:{closed.getsockname()[1]}"
    done = joiner.join("--discovery-server", dead, discovery_server=None, discovery_timeout="5")
    assert done.returncode == 1
    done = joiner.join("--discovery-server", dead, discovery_timeout="60")
    assert done.returncode == 0, done.stderr
    assert joiner.settings.discovery is not None
    assert [endpoint.url for endpoint in joiner.settings.discovery.servers] == [joiner.api.url, f"https://{dead}"]


def test_kubeadms_words_join(joiner: Discoverer) -> None:
    words = [joiner.api.url.removeprefix("https://"), "--token", TOKEN]
    done = joiner.join(*words, discovery_server=None, token_file=None)
    assert done.returncode == 0, done.stderr
    assert "--token: a token on the command line can be read by every user" in done.stderr


def test_one_token_discovers_and_another_joins(joiner: Discoverer, tmp_path: Path) -> None:
    other = "zzzzzz.0123456789abcdef"
    publish(joiner.api, signed=[other])
    tmp_path.joinpath("discovery-token").write_text(other)
    done = joiner.join(discovery_token_file=str(tmp_path / "discovery-token"))
    assert done.returncode == 0, done.stderr
    assert {header for _, header in joiner.api.shown} == {f"Bearer {TOKEN}"}
    assert not any(other.encode() in data for data in joiner.files().values())


def test_a_discovery_token_alone_joins_too_as_with_kubeadm(joiner: Discoverer, tmp_path: Path) -> None:
    done = joiner.join(token_file=None, discovery_token_file=str(tmp_path / "token"))
    assert done.returncode == 0, done.stderr
    assert joiner.folder.joinpath("cache/bootstrap-token").read_text().strip() == TOKEN


def test_tokens_are_as_good_from_standard_input(joiner: Discoverer) -> None:
    done = joiner.join(token_file="-", stdin=TOKEN + "\n")
    assert done.returncode == 0, done.stderr


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


def test_nothing_is_asked_before_the_files_are_known_to_be_ours(joiner: Discoverer) -> None:
    joiner.kubeconfig.parent.mkdir()
    joiner.kubeconfig.write_text("apiVersion: v1\nkind: Config\n")
    assert joiner.join().returncode == 2
    assert joiner.api.connections == 0


def test_a_join_that_nobody_answers_ends_in_time_and_writes_nothing(joiner: Discoverer) -> None:
    joiner.api.public.clear()
    done = joiner.join(discovery_timeout="5")
    assert done.returncode == 1
    assert "APIUnavailable" in done.stderr
    assert joiner.files() == {}


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_token_file_that_others_may_read_is_warned_of(joiner: Discoverer, tmp_path: Path, mode: int) -> None:
    tmp_path.joinpath("token").chmod(mode)
    done = joiner.join()
    assert done.returncode == 0
    assert ("can be read by others than its owner: chmod 0600" in done.stderr) == (mode == 0o644)


def test_a_file_that_names_the_cluster_is_as_good_as_pins(joiner: Discoverer) -> None:
    done = joiner.join(**joiner.with_file())
    assert done.returncode == 0, done.stderr
    assert joiner.settings.ca_pem == joiner.api.authority.pem
    assert joiner.settings.discovery is not None
    assert joiner.settings.discovery.pin_server


def test_the_file_may_come_by_standard_input(joiner: Discoverer) -> None:
    changes = joiner.with_file()
    done = joiner.join(stdin=joiner.by_file.read_text(), **(changes | {"discovery_file": "-"}))
    assert done.returncode == 0, done.stderr


def test_a_file_by_url_that_nobody_public_vouches_for_is_not_believed(joiner: Discoverer) -> None:
    changes = joiner.with_file() | {"discovery_file": f"{joiner.api.url}/discovery.conf", "discovery_timeout": "1"}
    done = joiner.join(**changes)
    assert done.returncode == 1
    assert "does not pass" in done.stderr
    assert joiner.api.requests == []


def test_a_file_with_credentials_is_refused_unless_they_are_wanted(joiner: Discoverer) -> None:
    changes = joiner.with_file(token="zzzzzz.0123456789abcdef")
    done = joiner.join(**changes)
    assert done.returncode == 1
    assert "DiscoveryFileNotAllowed" in done.stderr
    assert "zzzzzz.0123456789abcdef" not in done.stderr
    assert joiner.api.connections == 0


def test_a_bootstrap_token_in_the_file_joins_where_it_is_wanted(joiner: Discoverer) -> None:
    changes = joiner.with_file(token=TOKEN) | {"token_file": None}
    done = joiner.join("--discovery-file-allow-credentials", **changes)
    assert done.returncode == 0, done.stderr
    assert joiner.folder.joinpath("cache/bootstrap-token").read_text().strip() == TOKEN


def test_another_credential_in_the_file_is_of_no_use_and_told_so(joiner: Discoverer) -> None:
    changes = joiner.with_file(token="an-opaque-token") | {"token_file": None}
    done = joiner.join("--discovery-file-allow-credentials", **changes)
    assert done.returncode == 2
    assert "no bootstrap token" in done.stderr
    assert "an-opaque-token" not in done.stderr
    assert joiner.files() == {}


def test_a_file_without_any_credential_needs_a_token_file(joiner: Discoverer) -> None:
    done = joiner.join(**joiner.with_file(), token_file=None)
    assert done.returncode == 2
    assert "no token, and the discovery file has none" in done.stderr
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


def test_a_file_whose_user_is_this_agent_is_not_enough_on_a_machine_that_has_nothing(joiner: Discoverer) -> None:
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "kubelet-authenticator",
        "interactiveMode": "Never",
    }
    done = joiner.join(**joiner.with_file(exec=plugin), token_file=None)
    assert done.returncode == 1
    assert "TokenMissing" in done.stderr
    assert not joiner.kubeconfig.exists()


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
    assert deaths >= 6


def test_pins_may_stand_in_one_list_as_in_kubeadm(joiner: Discoverer) -> None:
    both = f"sha256:{'0' * 64},{pin(joiner.api.authority)}"
    assert joiner.join(discovery_token_ca_cert_hash=both).returncode == 0


def test_a_front_that_is_away_gives_way_to_the_servers(joiner: Discoverer) -> None:
    done = joiner.join(discovery_front="https://127.0.0.1:1")
    assert done.returncode == 0, done.stderr
    assert "the discovery front is left out" in done.stderr


def test_a_cluster_whose_ca_is_no_root_is_as_good(tmp_path: Path) -> None:
    root, middle = Authority("root"), Authority("kubernetes")
    middle.certificate = root.sign(middle.name, middle.key.public_key(), is_ca=True)
    with other_cluster(tmp_path, middle) as api:
        publish(api)
        joiner = Discoverer(tmp_path, api)
        done = joiner.join()
        assert done.returncode == 0, done.stderr
        assert joiner.settings.ca_pem == middle.pem


@pytest.mark.parametrize("given", [True, False])
def test_a_renewal_needs_no_token_and_keeps_how_the_node_finds_its_cluster(
    tmp_path: Path, joiner: Discoverer, given: bool
) -> None:
    joiner.challenged()
    joiner.api.on_create = challenge_then_sign
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
    joiner.api.on_create = challenge_then_sign
    assert joiner.join().returncode == 0
    with other_cluster(tmp_path, Authority()) as other:
        other.on_create = challenge_then_sign
        tmp_path.joinpath("ca.crt").write_bytes(other.authority.pem)
        cluster = {"server": other.url, "ca_file": str(tmp_path / "ca.crt"), "discovery_timeout": None}
        changes = cluster | {"discovery_server": None, "discovery_token_ca_cert_hash": None}
        assert joiner.join("--renew", **changes).returncode == 0
    assert joiner.settings.discovery is None


def test_a_renewal_without_a_certificate_and_a_token_says_that_it_needs_one(joiner: Discoverer) -> None:
    done = joiner.join("--renew", **joiner.with_file(), token_file=None)
    assert done.returncode == 1
    assert "TokenMissing" in done.stderr
    assert not joiner.kubeconfig.exists()
