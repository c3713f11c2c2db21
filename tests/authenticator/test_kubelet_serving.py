"""``serving``, by the real command against a real server: what it asks for, keeps, refuses and says."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from agent_cluster import FakeApi, challenge_then_sign, named
from agent_machine import NODE, Machine
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from needs import skip_if

from nodeattest_authenticator.enrollment.issue import issue_and_store
from nodeattest_authenticator.errors import AgentError, FailureKind
from nodeattest_authenticator.kubelet_serving import (
    ServingEnrollment,
    ensure_serving_certificate,
    local_addresses,
)
from nodeattest_authenticator.state.storage import exclusive
from nodeattest_discovery.node.clock import Clock, Deadline
from nodeattest_parsing.endpoint import Endpoint

ADDRESS = "127.0.0.7"
SERVING = {"dnsNames": [NODE, "alias.example"], "ipAddresses": [ADDRESS, "fd00::7"]}
NAMES = named(SERVING["dnsNames"], SERVING["ipAddresses"])
SIGNER = "cluster.x-k8s.io/kubelet-serving-challenge"


@pytest.fixture
def joined(machine: Machine) -> Machine:
    machine.challenged(serving=SERVING)
    agent = machine.agent()
    issue_and_store(agent, None, Deadline.after(agent.clock, 10))
    return machine


def served(machine: Machine, said: list[str] | None = None) -> ServingEnrollment:
    """Do what the command does, and return the result."""
    agent = machine.agent(said=said)
    with agent.storage:
        return ensure_serving_certificate(agent)


def refused(machine: Machine) -> AgentError:
    with pytest.raises(AgentError) as caught:
        served(machine)
    return caught.value


def path(machine: Machine) -> Path:
    return machine.cache / "serving.pem"


def leaf(machine: Machine) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path(machine).read_bytes())


def alternative_names(machine: Machine) -> x509.SubjectAlternativeName:
    return leaf(machine).extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def asked(machine: Machine) -> list[dict[str, Any]]:
    """List what was filed for the serving signer."""
    return [item for item in machine.api.objects.values() if item["spec"]["signerName"] == SIGNER]


def deny(api: FakeApi, name: str) -> None:
    api.deny(name, "AddressNotAllowed", "ask for the Machine's addresses")


def test_a_certificate_for_the_wanted_names_is_asked_for_by_the_node_itself_and_stored(joined: Machine) -> None:
    done = joined.do("serving")
    assert done.returncode == 0, done.stderr
    assert "alias.example" in done.stdout
    assert {item["spec"]["username"] for item in asked(joined)} == {f"system:node:{NODE}"}
    assert {tuple(item["spec"]["usages"]) for item in asked(joined)} == {("digital signature", "server auth")}
    assert sorted(map(repr, alternative_names(joined))) == sorted(map(repr, NAMES))
    csr, _ = joined.api.envelope(asked(joined)[0]["metadata"]["name"])
    assert csr.provider_id == "sandbox://machine-0"
    before, sent = path(joined).read_bytes(), len(joined.api.requests)
    assert joined.do("serving").returncode == 0  # this one will do
    assert (path(joined).read_bytes(), len(joined.api.requests)) == (before, sent)


def test_a_due_certificate_is_renewed_with_a_new_key_and_the_old_one_serves_until_then(joined: Machine) -> None:
    served(joined)
    joined.make_due("serving.pem")
    old = leaf(joined)
    joined.api.on_create = deny
    first = joined.do("serving")
    assert first.returncode == 1
    assert "AddressNotAllowed" in first.stderr
    assert "ask for the Machine's addresses" in first.stderr
    assert leaf(joined) == old
    sent = len(joined.api.requests)
    again = joined.do("serving")  # repeated without a request
    assert again.returncode == 1
    assert "still refused" in again.stderr
    assert len(joined.api.requests) == sent
    assert joined.run().returncode == 0  # the client's certificate is another matter
    joined.cache.joinpath("serving.failure").unlink()
    joined.api.on_create = challenge_then_sign
    served(joined)
    assert leaf(joined).public_key() != old.public_key()


def test_a_call_that_waited_for_another_takes_its_certificate(joined: Machine) -> None:
    holder, held = joined.agent(), ExitStack()
    held.enter_context(exclusive(holder.storage, Deadline.after(holder.clock, 5), name="serving.lock"))

    def other(_seconds: float) -> None:
        held.close()
        served(joined)

    found = ensure_serving_certificate(joined.agent(clock=Clock(sleep=other)))
    assert found == served(joined)
    assert len(asked(joined)) == 2  # of two steps


def test_other_wanted_names_are_asked_for_at_once(joined: Machine) -> None:
    served(joined)
    joined.challenged(serving=SERVING | {"ipAddresses": ["127.0.0.8"]})
    done = joined.do("serving")
    assert done.returncode == 0
    assert "127.0.0.8" in done.stderr
    assert [str(one) for one in alternative_names(joined).get_values_for_type(x509.IPAddress)] == ["127.0.0.8"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"usage": ExtendedKeyUsageOID.CLIENT_AUTH}, "server authentication"),
        ({"names": NAMES[:-1]}, "names"),
        ({"names": [*NAMES, x509.DNSName("kubernetes.default.svc")]}, "names"),
        ({"names": [*NAMES, x509.UniformResourceIdentifier("spiffe://c/n")]}, "cannot be parsed"),
        ({"names": []}, "names"),
        ({"names": [*NAMES[:2], x509.DNSName(ADDRESS), NAMES[3]]}, "names"),
        ({"lasts": -1}, "expired"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_certificate_that_is_not_the_one_asked_for_is_not_stored(
    joined: Machine, changes: dict[str, Any], says: str
) -> None:
    joined.api.on_create = lambda api, name: challenge_then_sign(api, name, **changes)
    failure = refused(joined)
    assert failure.reason == "CertificateRefused"
    assert says in failure.message
    assert not path(joined).exists()


def test_a_client_certificate_that_the_server_refuses_is_not_made_up_for_by_the_token(joined: Machine) -> None:
    joined.api.not_accepted.add(f"system:node:{NODE}")
    assert refused(joined).reason == "CredentialRejected"
    assert not asked(joined)


def test_without_a_client_certificate_nothing_is_asked_for_and_the_remedy_is_told(machine: Machine) -> None:
    machine.challenged(serving=SERVING)
    failure = refused(machine)
    assert failure.reason == "ClientCertificateMissing"
    assert "start kubelet" in failure.remedy
    assert not machine.api.requests


def link(target: Path) -> None:
    target.rename(target.parent / "elsewhere")
    target.symlink_to("elsewhere")


SPOILT: dict[str, Callable[[Path], object]] = {
    "link": link,
    "readable by others": lambda target: target.chmod(0o644),
    "cut": lambda target: target.write_bytes(target.read_bytes()[:-200]),
    "spoilt": lambda target: target.write_bytes(target.read_bytes().replace(b"MI", b"MJ")),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_a_file_of_ours_that_is_of_no_use_is_replaced(joined: Machine, spoil: Callable[[Path], None]) -> None:
    served(joined)
    old, said = leaf(joined), list[str]()
    spoil(path(joined))
    served(joined, said)
    assert "is not used" in said[0]
    assert leaf(joined).public_key() != old.public_key()
    assert not path(joined).is_symlink()
    assert path(joined).stat().st_mode & 0o777 == 0o600


def test_a_certificate_that_could_not_be_stored_is_not_asked_for(joined: Machine) -> None:
    # A directory in the way of the temporary file fails every write as a full disk would.
    joined.cache.joinpath("serving.pem.probe.new").mkdir()
    assert "cannot be written" in refused(joined).message
    assert not asked(joined)


def test_a_certificate_that_cannot_take_the_old_ones_place_is_a_failure_with_a_pause(joined: Machine) -> None:
    path(joined).mkdir()
    assert "cannot be written" in refused(joined).message
    assert b"cannot be written" in joined.file("serving.failure")


@pytest.mark.parametrize("delay", [0.08, 0.12, 0.16, 0.2, 0.3, 0.4])
@pytest.mark.parametrize(("command", "file"), [("credential", "credential"), ("serving", "serving.pem")])
def test_a_call_killed_at_any_moment_leaves_the_old_file_or_the_new_and_no_second_key(
    joined: Machine, command: str, file: str, delay: float
) -> None:
    served(joined)
    joined.make_due(file)
    old, before = joined.file(file), len(joined.api.objects)
    if command == "credential":  # one that is due would be renewed beside the answer
        joined.cache.joinpath(file).unlink()

    def slowly(api: FakeApi, name: str) -> None:
        time.sleep(0.05)
        challenge_then_sign(api, name)

    joined.api.on_create = slowly
    process = joined.start(command)
    time.sleep(delay)  # the moment of the kill is what is tested: any moment must do
    process.kill()
    process.communicate()
    assert joined.file("serving.pem") == old or leaf(joined)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path(joined))
    done = joined.run(command)
    assert done.returncode == 0, done.stderr
    assert joined.file(file) != old
    assert len({joined.api.envelope(name)[0].spki for name in list(joined.api.objects)[before:]}) == 1


def test_a_client_call_does_not_wait_for_a_serving_one(joined: Machine) -> None:
    filed = threading.Event()
    joined.api.on_create = lambda _api, _name: filed.set()
    waiting = joined.start("serving")
    assert filed.wait(120)
    joined.cache.joinpath("credential").unlink()
    joined.api.on_create = challenge_then_sign
    assert joined.run().returncode == 0
    assert waiting.poll() is None
    waiting.kill()
    waiting.communicate()


def test_the_insecure_provider_has_no_serving_certificates(machine: Machine) -> None:
    done = machine.do("serving")
    assert done.returncode == 2
    assert "serverTLSBootstrap" in done.stderr


def status(machine: Machine) -> Any:
    return json.loads(machine.do("status", "--json").stdout)["serving"]


def test_status_tells_of_the_serving_certificate(joined: Machine) -> None:
    before = status(joined)
    assert (before["state"], before["file"]) == ("none", str(path(joined)))
    served(joined)
    valid = status(joined)
    assert valid["state"] == "valid"
    assert valid["dnsNames"] == sorted(SERVING["dnsNames"])
    assert valid["renewAt"] < valid["notAfter"]
    joined.make_due("serving.pem")
    joined.api.on_create = deny
    refused(joined)
    due = status(joined)
    assert due["state"] == "renewal-due"
    assert due["lastFailure"]["reason"] == "AddressNotAllowed"
    words = joined.do("status").stdout
    assert "  dnsName: alias.example" in words
    assert f"  ipAddress: {ADDRESS}" in words
    joined.challenged(serving={"ipAddresses": []})
    assert status(joined)["state"] == "names-changed"


# The names


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


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 64 + ".example"])
def test_an_address_that_cannot_be_told_is_tried_again_and_can_be_configured(host: str) -> None:
    with pytest.raises(AgentError, match="--serving-ip-address") as caught:
        local_addresses(Endpoint(host, 6443, ""))
    assert caught.value.kind is FailureKind.TEMPORARY
