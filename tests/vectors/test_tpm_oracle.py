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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from agent_cluster import Authority, FakeApi
from agent_machine import Machine
from needs import kubernetes_program
from recorded import FOLDER, Json, Recorded

from nodeattest_authenticator.certificate import select_ca_pin
from nodeattest_providers import envelope
from nodeattest_providers.canonical_json import b64decode, b64encode
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import Evidence
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import AttestedNode
from nodeattest_sandbox.swtpm import SoftwareTpm

pytestmark = pytest.mark.conformance

RECORDED: Final = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("tpm-*.json"))}
JOIN: Final = RECORDED["tpm-p384-certificate"]
OTHER_JOIN: Final = RECORDED["tpm-rsa2048-certificate"]
"""Of another endorsement key of the same TPM, by the same attestation key."""


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
    with FakeApi(tmp_path, Authority()) as api:
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


# What both deny. Each row: what is changed, our reason, and what the oracle says.

Spoil = Callable[[Json], None]


def evidence_of(join: Json, number: int) -> Any:
    """Return the evidence of a request, to read from."""
    return Recorded({"requests": [join["requests"][number]]}).first.evidence.data


def rewrite(number: int, **changes: Callable[[Any], object]) -> Spoil:
    """Rewrite fields of a request's evidence, each by a function of its old value."""

    def spoil(join: Json) -> None:
        request = Recorded({"requests": [join["requests"][number]]}).first
        data: Any = dict(request.evidence.data)
        data |= {key: change(data[key]) for key, change in changes.items()}
        evidence = Evidence(request.evidence.provider, request.evidence.version, data)
        written = envelope.encode(request.csr.der, evidence)
        join["requests"][number]["spec"]["request"] = base64.b64encode(written).decode()

    return spoil


def constant(value: object) -> Callable[[Any], object]:
    return lambda _: value


def octets(change: Callable[[bytes], bytes]) -> Callable[[str], str]:
    return lambda text: b64encode(change(b64decode(text)))


def flip(place: int) -> Callable[[str], str]:
    """Change one bit of the byte at a place."""
    return octets(lambda data: bytes([*data[:place], data[place] ^ 1, *data[place:][1:]]))


def put(place: int, new: bytes) -> Callable[[str], str]:
    """Put other bytes at a place."""
    return octets(lambda data: data[:place] + new + data[place + len(new) :])


def fact(*path: str, value: object) -> Spoil:
    def spoil(join: Json) -> None:
        inner = join["facts"]
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = value

    return spoil


def instead(*, of: Json, number: int, keys: tuple[str, ...]) -> Spoil:
    """Put in what the same request of another join has."""
    other = evidence_of(of, number)
    return rewrite(number, **{key: constant(other[key]) for key in keys})


def another_user(join: Json) -> None:
    join["requests"][1]["spec"] |= {"username": "system:bootstrap:fedcba", "groups": ["system:bootstrappers"]}


def another_request(join: Json) -> None:
    join["requests"][0] = OTHER_JOIN["requests"][0]


SECOND: Final[dict[str, tuple[Spoil, Reason, str]]] = {
    "MAC": (rewrite(1, mac=flip(0)), Reason.PROOF_INVALID, "the MAC proves"),
    "signature": (rewrite(1, signature=flip(-1)), Reason.QUOTE_SIGNATURE_INVALID, "invalid quote signature"),
    "signed quote": (rewrite(1, quote=flip(-1)), Reason.QUOTE_SIGNATURE_INVALID, "invalid quote signature"),
    "replayed quote": (
        instead(of=OTHER_JOIN, number=1, keys=("quote", "signature", "pcrs")),
        Reason.QUOTE_NOT_BOUND,
        "nonce = ",
    ),
    "PCR value": (
        rewrite(1, pcrs=lambda values: [flip(0)(values[0]), *values[1:]]),
        Reason.PCR_DIGEST_MISMATCH,
        "quote digest didn't match",
    ),
    "missing PCR value": (
        rewrite(1, pcrs=lambda values: values[1:]),
        Reason.PCR_SELECTION_MISMATCH,
        "one value for each selected PCR",
    ),
    "another cluster's CA": (
        fact("cluster", "pins", value=["sha256:" + "cd" * 32]),
        Reason.CHALLENGE_UNKNOWN,
        "the MAC proves",
    ),
    "another Cluster": (fact("cluster", "uid", value="another"), Reason.CHALLENGE_UNKNOWN, "the MAC proves"),
    "another Machine": (fact("machine", "uid", value="another"), Reason.CHALLENGE_UNKNOWN, "the MAC proves"),
    "another master key": (fact("challengeKeys", value=["77" * 32]), Reason.CHALLENGE_UNKNOWN, "the MAC proves"),
    "another user": (another_user, Reason.FIRST_REQUEST_MISMATCH, "one signer, user"),
    "another first request": (another_request, Reason.FIRST_REQUEST_MISMATCH, "names the first"),
}
FIRST: Final[dict[str, tuple[Spoil, Reason, str]]] = {
    "unrestricted attestation key": (
        rewrite(0, akPub=put(4, (0x00040472).to_bytes(4, "big"))),
        Reason.ATTESTATION_KEY_NOT_ALLOWED,
        "our template",
    ),
    "attestation key without the mark": (
        rewrite(0, akPub=octets(lambda public: public[:8] + bytes(2) + public[42:])),
        Reason.ATTESTATION_KEY_NOT_ALLOWED,
        "our template",
    ),
    "truncated attestation key": (
        rewrite(0, akPub=octets(lambda public: public[:-1])),
        Reason.ATTESTATION_KEY_NOT_ALLOWED,
        "ran out of data",
    ),
    "signing endorsement key": (
        rewrite(0, ekPub=constant(evidence_of(JOIN, 0)["akPub"])),
        Reason.ENDORSEMENT_KEY_MALFORMED,
        "restricted decryption key",
    ),
    "another TPM's endorsement certificate": (
        instead(of=OTHER_JOIN, number=0, keys=("ekCert",)),
        Reason.ENDORSEMENT_CERTIFICATE_INVALID,
        "the certificate is the endorsement key's",
    ),
}
ROWS: Final = [
    *(pytest.param(2, *row, id=name) for name, row in SECOND.items()),
    *(pytest.param(1, *row, id=name) for name, row in FIRST.items()),
]


@pytest.mark.parametrize(("requests", "spoil", "reason", "says"), ROWS)
def test_both_deny_what_was_tampered_with(requests: int, spoil: Spoil, reason: Reason, says: str) -> None:
    join = copy.deepcopy(JOIN)
    del join["requests"][requests:]
    spoil(join)
    denied = verify_independently(join)
    assert (denied.returncode, denied.stdout) == (1, "")
    assert says in denied.stderr
    with pytest.raises(Denied) as ours:
        verify(join)
    assert ours.value.reason is reason
