"""The parts of ``serving``: its section of the configuration, this machine's addresses, and the long wait."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from dataclasses import replace
from ipaddress import ip_address
from itertools import pairwise
from typing import Any

import pytest
from agent_cluster import Authority
from hypothesis import given
from hypothesis import strategies as st
from needs import skip_if
from test_agent_parts import VirtualTime

from nodeattest_authenticator.config.settings import Settings, parse, settings_to_json
from nodeattest_authenticator.errors import AgentError, FailureKind
from nodeattest_authenticator.formats.strict_json import FieldsError
from nodeattest_authenticator.kubelet_serving.serve import local_addresses, wanted_names
from nodeattest_authenticator.kubelet_serving.watch import WatchState, watch
from nodeattest_parsing.endpoint import Endpoint

CA = Authority().pem.decode()


def settings(serving: object, provider: str = "tpm") -> Settings:
    document = {
        "apiVersion": "config.nodeattest.x-k8s.io/v1alpha1",
        "kind": "KubeletAuthenticatorConfiguration",
        "server": "https://127.0.0.1:6443",
        "certificateAuthority": CA,
        "nodeName": "node-7",
        "provider": {"name": provider},
        "serving": serving,
    }
    return parse(
        json.dumps({name: value for name, value in document.items() if value is not None}).encode(), hostname="h"
    )


# The section


@pytest.mark.parametrize(
    "section",
    [
        {},
        {"dnsNames": ["a", "b.example"]},
        {"dnsNames": [], "ipAddresses": ["10.0.0.1", "fd00::1"]},
        {"ipAddresses": [], "file": "/var/lib/kubelet/pki/kubelet-server.pem"},
    ],
)
def test_a_serving_section_that_is_written_is_read_back(section: dict[str, Any]) -> None:
    made = settings(section)
    assert made.serving is not None
    assert parse(settings_to_json(made), hostname="other") == made
    assert json.loads(settings_to_json(made))["serving"] == section


def test_without_the_section_nothing_is_written_for_it() -> None:
    made = settings(None)
    assert made.serving is None
    assert "serving" not in json.loads(settings_to_json(made))


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ([], "must be an object"),
        ({"dnsName": ["a"]}, "serving.dnsName; the nearest known one is dnsNames"),
        ({"dnsNames": "a"}, "serving.dnsNames must be a list"),
        ({"dnsNames": [1]}, "serving.dnsNames must be a list"),
        ({"dnsNames": ["*.example"]}, "without wildcard"),
        ({"dnsNames": ["A"]}, "lower case"),
        ({"dnsNames": ["a."]}, "final dot"),
        ({"dnsNames": ["a", "a"]}, "twice"),
        ({"dnsNames": [f"a{i}" for i in range(32)]}, "at most 32"),
        ({"ipAddresses": ["10.0.0"]}, "IP addresses"),
        ({"ipAddresses": ["10.0.0.0/8"]}, "IP addresses"),
        ({"ipAddresses": ["::ffff:10.0.0.1"]}, "in their own form"),
        ({"ipAddresses": ["fe80::1%eth0"]}, "without zone"),
        ({"ipAddresses": ["fd00::1", "FD00:0::1"]}, "twice"),
        ({"dnsNames": [], "ipAddresses": []}, "both be empty"),
        ({"file": "serving.pem"}, "absolute"),
        ({"file": "/var/lib/kubelet-authenticator/credential"}, "ends with .pem"),
        ({"file": "/var/lib/kubelet-authenticator/device.lock"}, "ends with .pem"),
        ({"file": "/etc/kubernetes/serving.pem/"}, "ends with .pem"),
        ({"file": "/etc/\0/serving.pem"}, "absolute path"),
    ],
)
def test_a_wrong_serving_section_is_named(section: object, says: str) -> None:
    with pytest.raises(FieldsError) as caught:
        settings(section)
    assert says in str(caught.value)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@given(section=st.dictionaries(st.sampled_from(["dnsNames", "ipAddresses", "file", "other"]), ANYTHING, max_size=4))
def test_any_serving_section_gives_settings_or_a_named_error(section: dict[str, Any]) -> None:
    with contextlib.suppress(FieldsError):
        made = settings(section)
        assert parse(settings_to_json(made), hostname="other") == made


def test_a_serving_section_beside_the_insecure_provider_is_refused() -> None:
    with pytest.raises(FieldsError, match="insecure has no serving certificates"):
        settings({}, provider="insecure")


# The names


def test_configured_names_are_wanted_as_they_are_in_one_order() -> None:
    names = wanted_names(settings({"dnsNames": ["b", "a"], "ipAddresses": ["fd00::1", "10.0.0.1"]}))
    assert (names.dns_names, names.ip_addresses) == (("a", "b"), ("10.0.0.1", "fd00::1"))
    assert str(names) == "a, b, 10.0.0.1, fd00::1"


def test_the_nodes_name_is_wanted_by_default() -> None:
    assert wanted_names(settings({"ipAddresses": []})).dns_names == ("node-7",)


def own_addresses() -> list[str]:
    """Ask the kernel by which address it would leave, if it would."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return []
        return [probe.getsockname()[0]]


@skip_if(not own_addresses(), "this machine has no network but the loopback")
def test_the_address_towards_a_server_beside_is_this_machines_own() -> None:
    (own,) = own_addresses()
    assert local_addresses(Endpoint(own, 6443, "")) == (own,)
    assert local_addresses(Endpoint("127.0.0.1", 6443, "")) == (own,)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_the_loopbacks_address_is_never_wanted(host: str) -> None:
    with contextlib.suppress(AgentError):  # where there is no other address
        found = local_addresses(Endpoint(host, 6443, ""))
        assert not any(ip_address(one).is_loopback for one in found)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 64 + ".example"])
def test_an_address_that_cannot_be_told_is_tried_again_and_can_be_configured(host: str) -> None:
    with pytest.raises(AgentError, match="--serving-ip-address") as caught:
        local_addresses(Endpoint(host, 6443, ""))
    assert caught.value.kind is FailureKind.TEMPORARY


# The long wait


class Stopped(Exception):
    pass


class Watched(VirtualTime):
    """A watch in virtual time: what its attempts return, what it sees, and when it tried."""

    def __init__(self, codes: list[int], *, renew_at: int = 0, paused_until: int = 0) -> None:
        super().__init__()
        self.codes = codes
        self.state = WatchState(wanted=(b"1", "a"), renew_at=renew_at, paused_until=paused_until)
        self.changes: dict[float, WatchState] = {}
        self.tried: list[float] = []
        self.said: list[str] = []

    def attempt(self) -> int:
        self.tried.append(self.time)
        if not self.codes:
            raise Stopped
        return self.codes.pop(0)

    def look(self) -> WatchState:
        due = [at for at in self.changes if at <= self.time]
        return self.changes[max(due)] if due else self.state

    def run(self) -> list[float]:
        with pytest.raises(Stopped):
            watch(self.attempt, self.look, clock=self.clock, random=lambda: 0.5, log=self.said.append)
        return [round(at - 1000) for at in self.tried]


def test_after_success_the_next_attempt_is_at_the_renewal_moment() -> None:
    watched = Watched([0], renew_at=1000 + 86_400)
    assert watched.run() == [0, 86_400]
    assert not watched.said


def test_after_a_failure_the_next_attempt_is_when_its_pause_is_over() -> None:
    watched = Watched([1], paused_until=1000 + 90)
    assert watched.run() == [0, 90]
    assert watched.said == ["the next attempt is in 88 s"]


def test_failures_that_nothing_remembers_are_retried_ever_slower() -> None:
    tried = Watched([1] * 9).run()
    pauses = [later - before for before, later in pairwise(tried)]
    assert pauses == [4, 6, 10, 18, 34, 62, 62, 62, 62]


@pytest.mark.parametrize(
    "change",
    [
        {"wanted": (b"2", "a")},
        {"wanted": (b"1", "b")},
        {"renew_at": 0},
    ],
    ids=["configuration", "names", "file"],
)
def test_what_changes_is_noticed_within_a_minute(change: dict[str, Any]) -> None:
    watched = Watched([0], renew_at=1000 + 86_400)
    watched.changes[1500] = replace(watched.state, **change)
    first, second = watched.run()
    assert first == 0
    assert 500 <= second <= 560


def test_an_attempt_that_cannot_be_made_is_a_failed_one() -> None:
    program = """
import sys
from nodeattest_discovery.node.clock import Clock
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.kubelet_serving.watch import run

def open_agent():
    raise AgentError("ConfigurationInvalid", "none", remedy="none")

def tell(words):
    print(words)
    if "next attempt" in words:
        sys.exit(7)

run(open_agent, ["/nonexistent/kubelet-authenticator"], clock=Clock(), random=lambda: 0.5, log=tell)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("/nonexistent/kubelet-authenticator: No such file")


def test_what_changes_during_an_attempt_is_not_missed() -> None:
    watched = Watched([0], renew_at=1000 + 86_400)
    watched.changes[1001] = WatchState(wanted=(b"1", "b"), renew_at=1000 + 86_400, paused_until=0)
    assert watched.run() == [0, 2]


def test_names_that_come_and_go_are_followed_ever_slower() -> None:
    watched = Watched([0] * 20, renew_at=1000 + 86_400)
    states = [replace(watched.state, wanted=(b"1", name)) for name in "ab"]
    watched.look = lambda: states[int(watched.time) % 4 // 2]  # another at each look
    tried = watched.run()
    assert tried[1] <= 64
    assert all(later - before >= 300 for before, later in pairwise(tried[10:]))


def test_a_change_after_a_calm_while_is_followed_at_once_again() -> None:
    watched = Watched([0] * 4, renew_at=1000 + 86_400)
    for number, second in enumerate((1, 3, 5, 5000)):
        watched.changes[1000 + second] = replace(watched.state, wanted=(b"1", "bcde"[number]))
    tried = watched.run()
    assert 5000 <= tried[-2] <= 5062
    assert tried[-1] == 86_400


def test_a_success_that_leaves_no_certificate_is_repeated_ever_slower() -> None:
    tried = Watched([0] * 9, renew_at=0).run()
    assert [later - before for before, later in pairwise(tried)] == [4, 6, 10, 18, 34, 62, 62, 62, 62]
