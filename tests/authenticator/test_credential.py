"""The exec protocol, by the real command against a real server."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from agent_cluster import FakeApi
from agent_machine import NODE, Machine
from cryptography import x509
from polling import eventually

from nodeattest_providers.challenge.protocol import Challenge


def challenge_then_sign(api: FakeApi, name: str, **changes: Any) -> None:
    csr, evidence = api.envelope(name)
    if evidence.data["phase"] == 1:
        text = Challenge(uid=api.objects[name]["metadata"]["uid"], spki_sha256=csr.spki_sha256, nonce=b"n" * 32)
        api.annotate(name, challenge=text.to_text())
    else:
        api.sign(name, **changes)


def test_a_cold_call_gets_a_credential(machine: Machine) -> None:
    done = machine.run()
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert answer["apiVersion"] == "client.authentication.k8s.io/v1"
    assert answer["kind"] == "ExecCredential"
    leaf = x509.load_pem_x509_certificate(answer["status"]["clientCertificateData"].encode())
    assert leaf.subject.rfc4514_string() == f"CN=system:node:{NODE},O=system:nodes"
    assert answer["status"]["clientKeyData"].startswith("-----BEGIN PRIVATE KEY-----")


def test_a_call_for_another_cluster_gets_no_credential_even_with_a_full_cache(machine: Machine) -> None:
    assert machine.run().returncode == 0
    done = machine.run(info=machine.info(server="https://10.0.0.1:6443"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "ExecInfoRefused" in done.stderr


def test_fifty_parallel_calls_share_one_denial(machine: Machine) -> None:
    machine.api.on_create = lambda api, name: api.deny(name, "MachineNotFound")
    processes = [machine.start() for _ in range(12)]
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [1] * 12
    assert all("MachineNotFound" in text for text in said)
    assert machine.api.posts() == 1


@pytest.mark.parametrize("delay", [0.05, 0.1, 0.13, 0.16, 0.2, 0.3])
def test_a_call_killed_at_any_moment_costs_no_second_key(machine: Machine, delay: float) -> None:
    machine.challenged()

    def slowly(api: FakeApi, name: str) -> None:
        time.sleep(0.05)
        challenge_then_sign(api, name)

    machine.api.on_create = slowly
    process = machine.start()
    time.sleep(delay)  # the moment of the kill is what is tested: any moment must do
    process.kill()
    process.communicate()
    done = machine.run()
    assert done.returncode == 0, done.stderr
    assert len({machine.api.envelope(name)[0].spki for name in machine.api.objects}) == 1
    assert certificate(machine.run().stdout) == certificate(done.stdout)


def test_a_due_renewal_that_could_not_be_kept_is_not_asked_for(machine: Machine) -> None:
    machine.challenged()
    machine.api.on_create = challenge_then_sign
    old = machine.run().stdout
    make_due(machine)
    machine.cache.joinpath("probe.new").mkdir()
    sent = machine.api.posts()
    assert certificate(machine.run().stdout) == certificate(old)
    log = machine.cache / "renewal.log"
    eventually(lambda: log.exists() and "postponed" in log.read_text())
    assert machine.api.posts() == sent


def test_a_due_renewal_happens_beside_the_answer_and_shows_in_the_next_one(machine: Machine) -> None:
    machine.challenged()
    machine.api.on_create = challenge_then_sign
    old = machine.run().stdout
    make_due(machine)
    due = machine.run()
    assert certificate(due.stdout) == certificate(old)
    eventually(lambda: certificate(machine.run().stdout) != certificate(old))
    users = {item["spec"]["username"] for item in machine.api.objects.values()}
    assert users == {"system:bootstrap:abcdef", f"system:node:{NODE}"}


def test_a_denied_renewal_keeps_the_old_certificate_and_asks_again_later(machine: Machine) -> None:
    machine.challenged()
    machine.api.on_create = challenge_then_sign
    old = machine.run().stdout
    make_due(machine)
    machine.api.on_create = lambda api, name: api.deny(name, "MachineDeleting")
    machine.run()
    eventually(lambda: machine.cache.joinpath("failure").exists())
    sent = machine.api.posts()
    for _ in range(3):
        done = machine.run()
        assert certificate(done.stdout) == certificate(old)
    assert machine.api.posts() == sent
    assert "MachineDeleting" in machine.cache.joinpath("renewal.log").read_text()
    assert "MachineDeleting" in machine.run("status").stdout


def test_a_renewal_whose_certificate_is_not_accepted_falls_back_to_the_token(machine: Machine) -> None:
    machine.challenged()
    machine.api.on_create = challenge_then_sign
    old = machine.run().stdout
    make_due(machine)
    machine.api.not_accepted.add(f"system:node:{NODE}")
    machine.run()
    eventually(lambda: certificate(machine.run().stdout) != certificate(old))


def test_a_cache_on_a_full_disk_still_answers(machine: Machine) -> None:
    # A directory in the way of the temporary file fails every write as a full disk would.
    machine.cache.joinpath("credential.new").mkdir()
    done = machine.run()
    assert done.returncode == 0
    assert certificate(done.stdout)
    assert "cannot be stored" in done.stderr
    assert certificate(machine.run().stdout) == certificate(done.stdout)
    assert machine.api.posts() == 2  # the second found the first's object


def test_nothing_secret_is_ever_told(machine: Machine) -> None:
    machine.api.on_create = lambda api, name: api.deny(name, "MachineNotFound")
    said = machine.run().stderr + machine.run().stderr + machine.run("status").stdout
    assert "0123456789abcdef" not in said
    assert "PRIVATE KEY" not in said


def make_due(machine: Machine, name: str = "credential") -> None:
    """Let the renewal moment of a stored certificate be past."""
    path = machine.cache / name
    head, _, rest = path.read_bytes().partition(b"\n")
    fields = head.split(b" ")
    past = b"%d" % (int(time.time()) - 5)
    fields[3] = past.rjust(len(fields[3]), b"0")
    machine.write(name, b" ".join(fields) + b"\n" + rest)


def certificate(answer: str) -> str:
    return str(json.loads(answer)["status"]["clientCertificateData"])
