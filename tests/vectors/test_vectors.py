"""The code reads and writes the published vectors of docs/wire-format.md; nothing writes them again."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nodeattest_providers import envelope
from nodeattest_providers.canonical_json import b64encode
from nodeattest_providers.challenge.protocol import Challenge, fingerprint, proof
from nodeattest_providers.challenge.verifier import ChallengeSigner
from nodeattest_providers.challenge_response import LABEL_NONCE, LABEL_SECRET, challenge_context, derive
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason
from nodeattest_providers.identifiers import ClusterPin, EvidenceBlock, NodeName, ProviderID, Purpose, SignerName
from nodeattest_providers.node_interface import Binding, Evidence, NodeCsr, SecretBytes, cluster_pin
from nodeattest_providers.tpm import protocol as tpm
from nodeattest_providers.tpm.boot_state import parse_event_log, replay
from nodeattest_providers.tpm.endorsement_key import parse_endorsement_key
from nodeattest_providers.tpm.key_templates import AK_TEMPLATE, check_attestation_key, qualified_name
from nodeattest_providers.tpm.protocol import make_credential
from nodeattest_providers.tpm.structures import Alg, PcrSelection, PublicArea, parse_public
from nodeattest_providers.verifier_interface import ClusterFacts, Facts, MachineFacts, NodeRequest

Json = dict[str, Any]


def load(name: str) -> Any:
    return json.loads((Path(__file__).parent / name).read_text())


def name_of(vector: Json) -> str:
    return str(vector.get("name") or vector.get("signerName") or vector.get("endorsementKey"))


ENVELOPES, EXCHANGE, TPM, EVENT_LOGS = map(load, ("envelope.json", "challenge.json", "tpm.json", "eventlog.json"))


@pytest.mark.parametrize("vector", ENVELOPES["accepted"], ids=name_of)
def test_an_accepted_envelope_is_read_and_written_as_published(vector: Json) -> None:
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


@pytest.mark.parametrize("vector", ENVELOPES["denied"], ids=name_of)
def test_a_denied_envelope_is_denied_as_published(vector: Json) -> None:
    with pytest.raises(Denied) as denied:
        envelope.decode(vector["request"].encode())
    assert denied.value.reason == vector["reason"]


@pytest.mark.parametrize("vector", load("binding.json"), ids=name_of)
def test_the_binding_is_as_published(vector: dict[str, str]) -> None:
    pin = cluster_pin(bytes.fromhex(vector["clusterCASpki"]))
    assert pin == vector["clusterPin"]
    block, signer = EvidenceBlock(vector["evidence"]), SignerName(vector["signerName"])
    assert Binding(block, pin, signer, bytes.fromhex(vector["csrSha256"])).digest.hex() == vector["binding"]


def request_of(vectors: Json, request: str, csr: NodeCsr, evidence: Evidence, created: datetime) -> NodeRequest:
    return NodeRequest(
        name=vectors.get("firstName", "first"),
        uid=vectors["firstUID"],
        created=created,
        signer_name=SignerName(vectors["signerName"]),
        purpose=Purpose.CLIENT,
        username=vectors["username"],
        groups=frozenset(),
        expiration_seconds=None,
        request=request.encode(),
        csr=csr,
        evidence=evidence,
    )


CREATED = datetime.fromisoformat(EXCHANGE["firstCreated"])
FIRST, _SECOND = (
    request_of(EXCHANGE, EXCHANGE[name], *envelope.decode(EXCHANGE[name].encode()), CREATED)
    for name in ("firstRequest", "secondRequest")
)
SECOND = replace(_SECOND, name="second", uid="second-uid")
PIN = ClusterPin(EXCHANGE["clusterPin"])
MASTER_KEY = SecretBytes(bytes.fromhex(EXCHANGE["masterKey"]))
SECRET = SecretBytes(bytes.fromhex(EXCHANGE["machineSecret"]))
FACTS = Facts(
    cluster=ClusterFacts(uid=EXCHANGE["clusterUID"], pins=frozenset({PIN})),
    machine=MachineFacts(
        uid=EXCHANGE["machineUID"], provider_id=ProviderID("metal:///rack-1/7"), attestation_secret=SECRET
    ),
    challenge_keys=(MASTER_KEY,),
    verified_at=CREATED,
)


async def test_the_challenge_is_as_published_and_its_answer_attests_the_node() -> None:
    ctx = challenge_context(FACTS, FIRST)
    assert ctx.hex() == EXCHANGE["context"]
    nonce = derive(LABEL_NONCE, MASTER_KEY, ctx)
    assert nonce.hex() == EXCHANGE["nonce"]
    assert Challenge.parse(EXCHANGE["challenge"]).nonce == nonce
    assert FIRST.binding(PIN).digest.hex() == EXCHANGE["binding"]
    assert proof(SECRET, nonce, FIRST.uid, FIRST.binding(PIN).digest).hex() == EXCHANGE["mac"]
    assert fingerprint(SECRET) == EXCHANGE["secretFingerprint"]
    assert SECOND.evidence.data["mac"] == b64encode(bytes.fromhex(EXCHANGE["mac"]))

    with pytest.raises(ChallengeRequired) as required:
        await ChallengeSigner().verify_client_attestation_data(FIRST, FACTS)
    assert required.value.challenge == EXCHANGE["challenge"]
    attested = await ChallengeSigner().verify_client_attestation_data(SECOND, replace(FACTS, first_request=FIRST))
    assert attested.fingerprints == {"secret": EXCHANGE["secretFingerprint"]}


TPM_CSR = NodeCsr(der=TPM["csr"].encode(), node_name=NodeName("n"), provider_id=ProviderID("p"), spki=b"")


def keys_of(vector: Json) -> tuple[PublicArea, PublicArea]:
    ak = parse_public(bytes.fromhex(vector["akPublic"]), what="AK", reason=Reason.ATTESTATION_KEY_NOT_ALLOWED)
    return parse_endorsement_key(bytes.fromhex(vector["ekPublic"])), ak


@pytest.mark.parametrize("vector", TPM["exchanges"], ids=name_of)
def test_the_formulas_of_the_tpm_protocol_are_as_published(vector: Json) -> None:
    ek, ak = keys_of(vector)
    names = (ek.name.hex(), ek.fingerprint, ak.name.hex(), qualified_name(ak).hex())
    assert names == tuple(vector[key] for key in ("ekName", "ekFingerprint", "akName", "akQualifiedName"))
    check_attestation_key(Checks(), ak, ek)
    assert ak.raw.startswith(AK_TEMPLATE[: -2 * (2 + 32)])

    evidence = Evidence(tpm.PROVIDER, tpm.VERSION, {})
    first = request_of(TPM, TPM["request"], TPM_CSR, evidence, datetime.fromtimestamp(TPM["created"], UTC))
    cluster = ClusterFacts(uid=TPM["clusterUID"], pins=frozenset())
    machine = MachineFacts(uid=TPM["machineUID"], provider_id=ProviderID("p"))
    ctx = challenge_context(
        Facts(cluster=cluster, machine=machine, verified_at=first.created), first, ak.name, ek.spki_sha256
    )
    assert ctx.hex() == vector["context"]
    secret, nonce = (
        derive(label, SecretBytes(bytes.fromhex(TPM["masterKey"])), ctx) for label in (LABEL_SECRET, LABEL_NONCE)
    )
    assert (secret.hex(), nonce.hex()) == (vector["secret"], vector["nonce"])

    random = bytes.fromhex(vector["credential"]["random"])
    blob, encrypted = make_credential(ek, ak.name, secret, random=lambda size: random[-size:])
    assert blob.hex() == vector["credential"]["blob"]
    assert encrypted.hex() == vector["credential"]["encryptedSecret"]
    challenge = tpm.Challenge.parse(vector["challenge"])
    assert (challenge.to_text(), challenge.nonce) == (vector["challenge"], nonce)
    assert challenge.pcrs == PcrSelection(Alg.SHA256, (0, 7))

    block, signer = EvidenceBlock(vector["evidence"]), SignerName(TPM["signerName"])
    binding = Binding(block, ClusterPin(TPM["clusterPin"]), signer, TPM_CSR.sha256).digest
    assert binding.hex() == vector["binding"]
    assert tpm.proof(secret, TPM["firstUID"], TPM_CSR.sha256, binding).hex() == vector["mac"]
    assert tpm.qualifying_data(nonce, TPM["firstUID"], binding).hex() == vector["extraData"]


@pytest.mark.parametrize("vector", EVENT_LOGS["logs"], ids=name_of)
def test_a_log_replays_as_published(vector: Json) -> None:
    log = parse_event_log(bytes.fromhex(vector["log"]))
    assert log.locality == vector["locality"]
    assert set(log.sizes) == {Alg[name.upper()] for name in vector["replay"]}
    for name, values in vector["replay"].items():
        assert {str(pcr): value.hex() for pcr, value in replay(log, Alg[name.upper()]).items()} == values


@pytest.mark.parametrize("vector", EVENT_LOGS["malformed"], ids=name_of)
def test_a_malformed_log_is_denied_as_published(vector: Json) -> None:
    with pytest.raises(Denied) as denied:
        parse_event_log(bytes.fromhex(vector["log"]))
    assert denied.value.reason is Reason.EVENT_LOG_MALFORMED


def test_the_challenge_asks_for_a_log_as_published() -> None:
    without, wished = (tpm.Challenge.parse(EVENT_LOGS["challenge"][name]) for name in ("without", "with"))
    assert wished == replace(without, log=True)
    assert [one.to_text() for one in (without, wished)] == list(EVENT_LOGS["challenge"].values())
