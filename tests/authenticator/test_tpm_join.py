"""The real command, a software TPM, and the real verifier behind a loopback API server."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from collections.abc import Generator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import cast

import pytest
from agent_cluster import FakeApi
from agent_machine import Machine
from polling import eventually

from nodeattest_authenticator.certificate import select_ca_pin
from nodeattest_authenticator.enrollment.issue import issue_and_store
from nodeattest_authenticator.state.storage import exclusive
from nodeattest_discovery.node.clock import Clock, Deadline
from nodeattest_providers.errors import ChallengeRequired, Denied
from nodeattest_providers.identifiers import ProviderID, Purpose, SignerName, split_signer
from nodeattest_providers.node_interface import SecretBytes
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import ClusterFacts, Facts, MachineFacts, NodeRequest
from nodeattest_sandbox.swtpm import SoftwareTpm

pytestmark = pytest.mark.swtpm
PROVIDER_ID = "sandbox://machine-0"


class Controller:
    """Verifies as the controller does and signs what passed."""

    def __init__(self, api: FakeApi, fingerprint: str) -> None:
        self.api = api
        self.fingerprint = fingerprint

    def __call__(self, api: FakeApi, name: str) -> None:
        request = self.parse(name)
        reference = cast("dict[str, str]", request.evidence.data.get("first", {}))
        first = self.parse(reference["name"]) if reference else None
        facts = Facts(
            cluster=ClusterFacts(uid="u", pins=frozenset({select_ca_pin(api.authority.pem)})),
            machine=MachineFacts(uid="mu", provider_id=ProviderID(PROVIDER_ID)),
            settings={"endorsementKeys": [{"providerID": PROVIDER_ID, "sha256": self.fingerprint}]},
            first_request=first,
            challenge_keys=(SecretBytes(b"k" * 32),),
            verified_at=datetime.now(UTC),
        )
        try:
            asyncio.run(self.verify(request, facts))
        except ChallengeRequired as required:
            api.annotate(name, challenge=required.challenge)
        except Denied as denied:
            api.deny(name, denied.reason, denied.remedy)
        else:
            api.sign(name)

    async def verify(self, request: NodeRequest, facts: Facts) -> None:
        if request.purpose is Purpose.CLIENT:
            await TpmSigner().verify_client_attestation_data(request, facts)
        else:
            await TpmSigner().verify_serving_attestation_data(request, facts)

    def parse(self, name: str) -> NodeRequest:
        item = self.api.objects[name]
        csr, evidence = self.api.envelope(name)
        found = split_signer(item["spec"]["signerName"])
        assert found is not None
        return NodeRequest(
            name=name,
            uid=item["metadata"]["uid"],
            created=datetime.fromisoformat(item["metadata"]["creationTimestamp"]),
            signer_name=SignerName(item["spec"]["signerName"]),
            purpose=found[1],
            username=item["spec"]["username"],
            groups=frozenset({"system:bootstrappers"}),
            expiration_seconds=None,
            request=base64.b64decode(item["spec"]["request"]),
            csr=csr,
            evidence=evidence,
        )


@pytest.fixture(scope="module")
def tpm(tmp_path_factory: pytest.TempPathFactory) -> Generator[SoftwareTpm]:
    with SoftwareTpm.create(tmp_path_factory.mktemp("tpm"), name="node-0") as running:
        yield running


@pytest.fixture
def attested(machine: Machine, tpm: SoftwareTpm) -> Machine:
    machine.api.on_create = Controller(machine.api, tpm.endorsement_fingerprint())
    return with_tpm(machine, tpm)


def with_tpm(machine: Machine, tpm: SoftwareTpm, **changes: object) -> Machine:
    return machine.prepare(provider={"name": "tpm", "settings": {"tcti": tpm.tcti}}, **changes)


def test_the_serving_certificate_is_got_by_the_same_tpm_while_the_clients_is_got_too(
    attested: Machine, tpm: SoftwareTpm
) -> None:
    # This TPM takes one connection at a time, as /dev/tpm0 does.
    with_tpm(attested, tpm, serving={"ipAddresses": ["10.0.0.7"]})
    assert attested.run().returncode == 0
    serving = attested.start("serving")
    eventually(attested.cache.joinpath("serving.draft").exists)
    attested.cache.joinpath("credential").unlink()
    client = attested.run()
    assert client.returncode == 0, client.stderr
    assert all(": waiting until " in line for line in serving.communicate(timeout=120)[1].splitlines())
    assert serving.returncode == 0
    signers = {item["spec"]["signerName"].rsplit("/")[1] for item in attested.api.objects.values()}
    assert signers == {"kube-apiserver-client-kubelet-tpm", "kubelet-serving-tpm"}


def test_a_client_waits_while_another_call_uses_the_device(attested: Machine) -> None:
    holder, held, waits = attested.agent(), ExitStack(), list[float]()
    held.enter_context(exclusive(holder.storage, Deadline.after(holder.clock, 5), name="device.lock"))

    def wait(seconds: float) -> None:
        waits.append(seconds)
        held.close()

    agent = attested.agent(clock=Clock(sleep=wait))
    issue_and_store(agent, None, Deadline.after(agent.clock, 60))
    assert waits


def test_the_fingerprint_is_shown_without_any_configuration(machine: Machine, tpm: SoftwareTpm) -> None:
    machine.config.unlink()
    done = machine.do("evidence", "--provider", "tpm", "--tcti", tpm.tcti)
    fingerprint = tpm.endorsement_fingerprint()
    assert json.loads(done.stdout) == {"provider": "tpm", "endorsementFingerprint": fingerprint}


def test_a_tpm_that_hangs_ends_the_call_soon_after_its_deadline(attested: Machine, tpm: SoftwareTpm) -> None:
    with_tpm(attested, tpm, timeoutSeconds=1)
    assert tpm.pid is not None
    os.kill(tpm.pid, signal.SIGSTOP)
    try:
        assert attested.run().returncode == 1
    finally:
        os.kill(tpm.pid, signal.SIGCONT)
