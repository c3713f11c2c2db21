"""The parts of ``serving``: its section of the configuration, and this machine's addresses."""

from __future__ import annotations

import contextlib
import json
import socket
from ipaddress import ip_address
from typing import Any

import pytest
from agent_cluster import Authority
from hypothesis import given
from hypothesis import strategies as st
from needs import skip_if

from nodeattest_authenticator.config.settings import Settings, parse, settings_to_json
from nodeattest_authenticator.errors import AgentError, FailureKind
from nodeattest_authenticator.formats.strict_json import FieldsError
from nodeattest_authenticator.kubelet_serving.serve import local_addresses, wanted_names
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
