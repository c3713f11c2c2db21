from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import generate_tpm
import pytest

from nodeattest_providers.binding import Binding
from nodeattest_providers.challenge_response import LABEL_NONCE, LABEL_SECRET, challenge_context, derive
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import ClusterPin, EvidenceBlock, NodeName, ProviderID, Purpose, SignerName
from nodeattest_providers.node_interface import Evidence, NodeCsr, SecretBytes
from nodeattest_providers.tpm.endorsement_key import parse_endorsement_key
from nodeattest_providers.tpm.key_templates import AK_TEMPLATE, check_attestation_key, qualified_name
from nodeattest_providers.tpm.make_credential import make_credential
from nodeattest_providers.tpm.protocol import PROVIDER, VERSION, Challenge, proof, qualifying_data
from nodeattest_providers.tpm.structures import Alg, PcrSelection, PublicArea, parse_public
from nodeattest_providers.verifier_interface import ClusterFacts, Facts, MachineFacts, NodeRequest

FILE = Path(__file__).parent / "tpm.json"
VECTORS: Any = json.loads(FILE.read_text())
EXCHANGES = pytest.mark.parametrize(
    "vector", VECTORS["exchanges"], ids=[one["endorsementKey"] for one in VECTORS["exchanges"]]
)


def keys_of(vector: dict[str, Any]) -> tuple[PublicArea, PublicArea]:
    ak = parse_public(bytes.fromhex(vector["akPublic"]), what="AK", reason=Reason.ATTESTATION_KEY_NOT_ALLOWED)
    return parse_endorsement_key(bytes.fromhex(vector["ekPublic"])), ak


def context_of(vector: dict[str, Any]) -> bytes:
    csr = NodeCsr(der=VECTORS["csr"].encode(), node_name=NodeName("n"), provider_id=ProviderID("p"), spki=b"")
    first = NodeRequest(
        name="first",
        uid=VECTORS["firstUID"],
        resource_version="1",
        created=datetime.fromtimestamp(VECTORS["created"], UTC),
        signer_name=SignerName(VECTORS["signerName"]),
        purpose=Purpose.CLIENT,
        username=VECTORS["username"],
        groups=frozenset(),
        usages=frozenset(),
        expiration_seconds=None,
        request=VECTORS["request"].encode(),
        csr=csr,
        evidence=Evidence(PROVIDER, VERSION, {}),
    )
    cluster = ClusterFacts(uid=VECTORS["clusterUID"], pins=frozenset())
    machine = MachineFacts(uid=VECTORS["machineUID"], provider_id=ProviderID("p"))
    facts = Facts(cluster=cluster, machine=machine, verified_at=first.created)
    ek, ak = keys_of(vector)
    return challenge_context(facts, first, ak.name, ek.spki_sha256)


def test_generating_again_makes_no_difference() -> None:
    assert generate_tpm.content() == FILE.read_bytes(), "run tests/vectors/generate_tpm.py"


@EXCHANGES
def test_names_and_fingerprints_are_as_published(vector: dict[str, Any]) -> None:
    ek, ak = keys_of(vector)
    assert ek.name.hex() == vector["ekName"]
    assert ek.fingerprint == vector["ekFingerprint"]
    assert ak.name.hex() == vector["akName"]
    assert qualified_name(ak).hex() == vector["akQualifiedName"]
    check_attestation_key(Checks(), ak, ek)
    assert ak.raw.startswith(AK_TEMPLATE[: -2 * (2 + 32)])


@EXCHANGES
def test_secret_and_nonce_are_derived_as_published(vector: dict[str, Any]) -> None:
    master, ctx = SecretBytes(bytes.fromhex(VECTORS["masterKey"])), context_of(vector)
    assert ctx.hex() == vector["context"]
    assert derive(LABEL_SECRET, master, ctx).hex() == vector["secret"]
    assert derive(LABEL_NONCE, master, ctx).hex() == vector["nonce"]


@EXCHANGES
def test_the_credential_is_made_as_published(vector: dict[str, Any]) -> None:
    ek, ak = keys_of(vector)
    expected = vector["credential"]
    random = bytes.fromhex(expected["random"])
    made = make_credential(ek, ak.name, bytes.fromhex(vector["secret"]), random=lambda size: random[-size:])
    assert made.blob.hex() == expected["blob"]
    assert made.secret.hex() == expected["encryptedSecret"]


@EXCHANGES
def test_the_challenge_is_read_and_written_as_published(vector: dict[str, Any]) -> None:
    challenge = Challenge.parse(vector["challenge"])
    assert challenge.to_text() == vector["challenge"]
    assert challenge.nonce.hex() == vector["nonce"]
    assert challenge.pcrs == PcrSelection(Alg.SHA256, (0, 7))
    assert replace(challenge, uid="another").to_text() != vector["challenge"]


@EXCHANGES
def test_the_proof_and_the_quotes_extra_data_are_as_published(vector: dict[str, Any]) -> None:
    csr = NodeCsr(der=VECTORS["csr"].encode(), node_name=NodeName("n"), provider_id=ProviderID("p"), spki=b"")
    block, pin, signer = vector["evidence"], VECTORS["clusterPin"], VECTORS["signerName"]
    binding = Binding(EvidenceBlock(block), ClusterPin(pin), SignerName(signer), csr.sha256).digest
    assert binding.hex() == vector["binding"]
    secret, nonce = bytes.fromhex(vector["secret"]), bytes.fromhex(vector["nonce"])
    assert proof(secret, VECTORS["firstUID"], csr.sha256, binding).hex() == vector["mac"]
    assert qualifying_data(nonce, VECTORS["firstUID"], binding).hex() == vector["extraData"]
