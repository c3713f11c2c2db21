"""Google's TPM libraries verify evidence of ``tpm`` as our verifier does, by the page of the wire format alone.

``tests/servers/oracles/tpmevidence`` is the program.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import subprocess
from collections.abc import Callable, Generator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from agent_cluster import FakeApi
from agent_machine import Machine
from lying_servers import Ca
from needs import kubernetes_program
from recorded import FOLDER, Json, Recorded

from nodeattest_authenticator.certificate import select_ca_pin
from nodeattest_providers import envelope
from nodeattest_providers.canonical_json import b64decode, b64encode
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import AttestedNode
from nodeattest_sandbox.swtpm import SoftwareTpm

pytestmark = pytest.mark.conformance

RECORDED: Final = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("tpm-*.json"))}
JOIN: Final = RECORDED["tpm-p384-certificate"]


@pytest.fixture(autouse=True)
def _oracle() -> None:
    """Skip here, and not in a server's thread, if the oracle is missing."""
    kubernetes_program("oracle-tpmevidence")


def verify_independently(join: Json) -> subprocess.CompletedProcess[str]:
    """Run the oracle on a join: exit code 0 with what it proves, or 1 with why it is denied."""
    program = kubernetes_program("oracle-tpmevidence")
    done = subprocess.run([program], input=json.dumps(join), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in {0, 1}, done.stderr
    return done


def verify(join: Json) -> AttestedNode:
    recorded = Recorded(join)
    facts = recorded.closing if len(join["requests"]) > 1 else recorded.opening
    return asyncio.run(TpmSigner().verify_client_attestation_data(recorded.last, facts))


def proven(node: AttestedNode) -> Json:
    """Return what the oracle prints for a node."""
    assert node.boot is not None
    return {
        **node.fingerprints,
        "clock": node.boot.clock,
        "resetCount": node.boot.reset_count,
        "pcrDigest": node.boot.pcr_digest,
    }


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_join_proves_the_same_to_both(name: str) -> None:
    join = RECORDED[name]
    assert json.loads(verify_independently(join).stdout) == proven(verify(join))


# An agent and its TPM, with the oracle as their controller.


@pytest.fixture
def machine(tmp_path: Path) -> Generator[Machine]:
    with FakeApi(Ca()) as api:
        yield Machine(tmp_path, api)


@pytest.fixture(scope="module")
def tpm(tmp_path_factory: pytest.TempPathFactory) -> Generator[SoftwareTpm]:
    with SoftwareTpm.create(tmp_path_factory.mktemp("tpm"), name="oracle") as running:
        yield running


@pytest.mark.swtpm
@pytest.mark.parametrize("kind", ["rsa2048", "rsa2048-high", "ecc-p256", "ecc-p256-high", "ecc-p384"])
def test_an_agent_joins_by_the_oracles_challenge_and_both_accept_its_answer(
    machine: Machine, tpm: SoftwareTpm, kind: str
) -> None:
    machine.prepare(provider={"name": "tpm", "settings": {"tcti": tpm.tcti, "endorsementKey": kind}})
    join = copy.deepcopy(JOIN)
    join["requests"] = []
    join["facts"]["cluster"]["pins"] = [select_ca_pin(machine.api.authority.pem)]
    join["facts"]["machine"]["providerID"] = "sandbox://machine-0"
    join["facts"]["verifiedAt"] = datetime.now(UTC).isoformat()
    answers: list[str] = []

    def decide(api: FakeApi, name: str) -> None:
        item = copy.deepcopy(api.objects[name])
        item["spec"]["groups"] = ["system:bootstrappers", "system:authenticated"]
        join["requests"].append(item)
        done = verify_independently(join)
        answers.append(done.stdout.rstrip("\n"))
        if done.returncode:
            api.deny(name, "ProofInvalid", done.stderr)
        elif len(answers) == 1:
            join["challenge"] = answers[0]
            api.annotate(name, challenge=answers[0])
        else:
            api.sign(name)

    machine.api.on_create = decide
    done = machine.run()
    assert done.returncode == 0, done.stderr
    found = json.loads(answers[-1])
    trusted = {"providerID": "sandbox://machine-0", "sha256": found["ek"]}
    join["facts"]["settings"] = {"endorsementKeys": [trusted]}
    assert found == proven(verify(join))


# What both deny; tests/attacks has everything that our verifier denies.


def rewrite(number: int, key: str, change: Callable[[bytes], bytes]) -> Callable[[Json], None]:
    """Rewrite bytes of a request's evidence."""

    def spoil(join: Json) -> None:
        request = Recorded({"requests": [join["requests"][number]]}).first
        data: Any = {**request.evidence.data, key: b64encode(change(b64decode(str(request.evidence.data[key]))))}
        written = envelope.encode(request.csr.der, replace(request.evidence, data=data))
        join["requests"][number]["spec"]["request"] = base64.b64encode(written).decode()

    return spoil


def fact(about: str, name: str, value: object) -> Callable[[Json], None]:
    return lambda join: join["facts"][about].update({name: value})


def last_bit(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


SPOILT: Final[dict[str, tuple[int, Callable[[Json], None], Reason, str]]] = {
    "MAC": (2, rewrite(1, "mac", last_bit), Reason.PROOF_INVALID, "the MAC proves"),
    "signature": (2, rewrite(1, "signature", last_bit), Reason.QUOTE_SIGNATURE_INVALID, "invalid quote signature"),
    "signed quote": (2, rewrite(1, "quote", last_bit), Reason.QUOTE_SIGNATURE_INVALID, "invalid quote signature"),
    "another cluster's CA": (
        2,
        fact("cluster", "pins", ["sha256:" + "cd" * 32]),
        Reason.CHALLENGE_UNKNOWN,
        "the MAC proves",
    ),
    "another Cluster": (2, fact("cluster", "uid", "another"), Reason.CHALLENGE_UNKNOWN, "the MAC proves"),
    "another Machine": (2, fact("machine", "uid", "another"), Reason.CHALLENGE_UNKNOWN, "the MAC proves"),
    "another master key": (
        2,
        lambda join: join["facts"].update(challengeKeys=["77" * 32]),
        Reason.CHALLENGE_UNKNOWN,
        "the MAC proves",
    ),
    "another user": (
        2,
        lambda join: join["requests"][1]["spec"].update(
            username="system:bootstrap:fedcba", groups=["system:bootstrappers"]
        ),
        Reason.FIRST_REQUEST_MISMATCH,
        "one signer, user",
    ),
    "unrestricted attestation key": (
        1,
        rewrite(0, "akPub", lambda public: public[:4] + bytes.fromhex("00040472") + public[8:]),
        Reason.ATTESTATION_KEY_NOT_ALLOWED,
        "our template",
    ),
    "attestation key without the mark": (
        1,
        rewrite(0, "akPub", lambda public: public[:8] + bytes(2) + public[42:]),
        Reason.ATTESTATION_KEY_NOT_ALLOWED,
        "our template",
    ),
}


@pytest.mark.parametrize(("requests", "spoil", "reason", "says"), SPOILT.values(), ids=SPOILT)
def test_both_deny_what_was_tampered_with(
    requests: int, spoil: Callable[[Json], None], reason: Reason, says: str
) -> None:
    join = copy.deepcopy(JOIN)
    del join["requests"][requests:]
    spoil(join)
    denied = verify_independently(join)
    assert (denied.returncode, denied.stdout) == (1, "")
    assert says in denied.stderr
    with pytest.raises(Denied) as ours:
        verify(join)
    assert ours.value.reason is reason
