from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import generate
import pytest

from nodeattest_providers import canonical_json, envelope
from nodeattest_providers.binding import Binding, cluster_pin
from nodeattest_providers.canonical_json import b64encode
from nodeattest_providers.challenge.protocol import Challenge, fingerprint, parse_evidence, proof
from nodeattest_providers.challenge.verifier import ChallengeSigner
from nodeattest_providers.challenge_response import LABEL_NONCE, challenge_context, derive
from nodeattest_providers.errors import ChallengeRequired, Denied
from nodeattest_providers.identifiers import ClusterPin, EvidenceBlock, ProviderID, Purpose, SignerName
from nodeattest_providers.node_interface import SecretBytes
from nodeattest_providers.pkcs10 import parse_csr
from nodeattest_providers.verifier_interface import ClusterFacts, Facts, MachineFacts, NodeRequest

FOLDER = Path(__file__).parent


def load(name: str) -> Any:
    return json.loads((FOLDER / name).read_text())


ENVELOPES = load("envelope.json")
EXCHANGE = load("challenge.json")


def test_generating_again_makes_no_difference() -> None:
    for name, content in generate.files().items():
        assert (FOLDER / name).read_bytes() == content, f"{name}: run tests/vectors/generate.py"


@pytest.mark.parametrize("vector", ENVELOPES["accepted"], ids=lambda vector: vector["name"])
def test_an_accepted_envelope_is_read_and_written_as_published(vector: dict[str, Any]) -> None:
    request = vector["request"].encode()
    csr, evidence = envelope.decode(request, purpose=Purpose(vector["purpose"]))
    assert {
        "csrSha256": csr.sha256.hex(),
        "spkiSha256": csr.spki_sha256,
        "nodeName": csr.node_name,
        "providerID": csr.provider_id,
        "dnsNames": list(csr.dns_names),
        "ipAddresses": list(csr.ip_addresses),
        "provider": evidence.provider,
        "version": evidence.version,
        "data": evidence.data,
    } == {key: value for key, value in vector.items() if key not in ("name", "purpose", "request")}
    assert envelope.encode(csr.der, evidence) == request


@pytest.mark.parametrize("vector", ENVELOPES["denied"], ids=lambda vector: vector["name"])
def test_a_denied_envelope_is_denied_as_published(vector: dict[str, Any]) -> None:
    with pytest.raises(Denied) as denied:
        envelope.decode(vector["request"].encode())
    assert denied.value.reason == vector["reason"]


@pytest.mark.parametrize("vector", load("binding.json"), ids=lambda vector: vector["signerName"])
def test_the_binding_is_as_published(vector: dict[str, str]) -> None:
    pin = cluster_pin(bytes.fromhex(vector["clusterCASpki"]))
    assert pin == vector["clusterPin"]
    binding = Binding(
        EvidenceBlock(vector["evidence"]), pin, SignerName(vector["signerName"]), bytes.fromhex(vector["csrSha256"])
    )
    assert binding.digest.hex() == vector["binding"]


def _request(text: str, uid: str) -> NodeRequest:
    csr, evidence = envelope.decode(text.encode())
    return NodeRequest(
        name=EXCHANGE["firstName"] if uid == EXCHANGE["firstUID"] else "second",
        uid=uid,
        resource_version="1",
        created=datetime.fromisoformat(EXCHANGE["firstCreated"]),
        signer_name=SignerName(EXCHANGE["signerName"]),
        purpose=Purpose.CLIENT,
        username=EXCHANGE["username"],
        groups=frozenset(),
        usages=frozenset(),
        expiration_seconds=None,
        request=text.encode(),
        csr=csr,
        evidence=evidence,
    )


FIRST = _request(EXCHANGE["firstRequest"], EXCHANGE["firstUID"])
SECOND = _request(EXCHANGE["secondRequest"], "second-uid")
PIN = ClusterPin(EXCHANGE["clusterPin"])
MASTER_KEY = SecretBytes(bytes.fromhex(EXCHANGE["masterKey"]))
SECRET = SecretBytes(bytes.fromhex(EXCHANGE["machineSecret"]))
FACTS = Facts(
    cluster=ClusterFacts(uid=EXCHANGE["clusterUID"], pins=frozenset({PIN})),
    machine=MachineFacts(
        uid=EXCHANGE["machineUID"],
        provider_id=ProviderID("metal:///rack-1/7"),
        attestation_secret=SECRET,
    ),
    challenge_keys=(MASTER_KEY,),
    verified_at=FIRST.created,
)


def test_the_formulas_of_the_challenge_are_as_published() -> None:
    ctx = challenge_context(FACTS, FIRST)
    assert ctx.hex() == EXCHANGE["context"]
    nonce = derive(LABEL_NONCE, MASTER_KEY, ctx)
    assert nonce.hex() == EXCHANGE["nonce"]
    assert Challenge.parse(EXCHANGE["challenge"]).nonce == nonce
    assert FIRST.binding(PIN).digest.hex() == EXCHANGE["binding"]
    assert proof(SECRET, nonce, FIRST.uid, FIRST.binding(PIN).digest).hex() == EXCHANGE["mac"]
    assert fingerprint(SECRET) == EXCHANGE["secretFingerprint"]
    assert SECOND.evidence.data["mac"] == b64encode(bytes.fromhex(EXCHANGE["mac"]))


async def test_the_published_exchange_attests_the_node() -> None:
    signer = ChallengeSigner()
    with pytest.raises(ChallengeRequired) as required:
        await signer.verify_client_attestation_data(FIRST, FACTS)
    assert required.value.challenge == EXCHANGE["challenge"]
    live = Facts(
        cluster=FACTS.cluster,
        machine=FACTS.machine,
        first_request=FIRST,
        challenge_keys=(MASTER_KEY,),
        verified_at=FIRST.created,
    )
    attested = await signer.verify_client_attestation_data(SECOND, live)
    assert attested.fingerprints == {"secret": EXCHANGE["secretFingerprint"]}


def _canonical(data: bytes) -> bool:
    return canonical_json.dumps(canonical_json.loads(data)) == data


def _csr(data: bytes) -> bool:
    return parse_csr(data).der == data


def _envelope(data: bytes) -> bool:
    csr, evidence = envelope.decode(data)
    return envelope.encode(csr.der, evidence) == data


def _evidence(data: bytes) -> bool:
    value = canonical_json.loads(data)
    return parse_evidence(value).to_json() == value


@pytest.mark.parametrize("parser", [_canonical, _csr, _envelope, _evidence])
def test_each_seed_gives_its_one_spelling_or_denied_in_every_parser(parser: Callable[[bytes], bool]) -> None:
    seeds = [path for path in (FOLDER / "fuzz").rglob("*") if path.is_file()]
    assert len(seeds) > 50
    for seed in seeds:
        try:
            assert parser(seed.read_bytes()), seed
        except Denied:
            continue
