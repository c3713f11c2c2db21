"""The example of a third party's provider works as it stands: found by its entry points, and refuses what is forged."""

from __future__ import annotations

import base64
import hashlib
import shutil
import socket
import tomllib
from collections.abc import Generator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nodeattest_controller.model.csr_request import parse_request
from nodeattest_parsing.values import JsonValue as KubeValue
from nodeattest_providers import envelope, registry
from nodeattest_providers.canonical_json import b64encode
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import (
    ClusterPin,
    EvidenceBlock,
    ProviderID,
    ProviderName,
    Purpose,
    SignerName,
    signer_for,
)
from nodeattest_providers.node_interface import Binding, Evidence, JsonValue, length_prefix
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.platform import make_signer
from nodeattest_providers.verifier_interface import (
    AttestedNode,
    ClusterFacts,
    Facts,
    LedgerFacts,
    MachineFacts,
    NodeRequest,
)

EXAMPLE = Path(__file__).parents[2] / "examples" / "contoso"
CONTOSO = ProviderName("contoso")
SLOT, OTHER_SLOT = ProviderID("contoso://rack-1/7"), ProviderID("contoso://rack-1/8")
PIN, OTHER_PIN = ClusterPin("sha256:" + "a1" * 32), ClusterPin("sha256:" + "b2" * 32)
SIGNER_NAME = signer_for(CONTOSO, Purpose.CLIENT)
RACK, OTHER_RACK = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
RACKS: dict[str, JsonValue] = {"rack-1": RACK.public_key().public_bytes_raw().hex()}
NOW = datetime(2026, 3, 1, tzinfo=UTC)
DER, OTHER_DER = (build_csr(ec.generate_private_key(ec.SECP256R1()), "n-7", SLOT) for _ in range(2))
FACTS = Facts(
    cluster=ClusterFacts(uid="u", pins=frozenset({PIN})),
    machine=MachineFacts(uid="u", provider_id=SLOT),
    settings={"racks": RACKS},
    ledger=LedgerFacts(),
    verified_at=NOW,
)


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay the example out as an installer would."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    metadata = tmp_path / "contoso_attestation-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1\n")
    groups = project["entry-points"].items()
    lines = [f"[{group}]\n{name} = {kind}\n" for group, classes in groups for name, kind in classes.items()]
    (metadata / "entry_points.txt").write_text("".join(lines))
    shutil.copy(EXAMPLE / "contoso_attestation.py", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # pyright: ignore[reportUnknownMemberType] - pytest leaves the path untyped


@pytest.fixture
def rack_socket(tmp_path: Path) -> Generator[str]:
    """A rack's controller that answers one question, of slot 7."""
    path = str(tmp_path / "rack")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        server.settimeout(60)

        def answer() -> None:
            node, _ = server.accept()
            with node:
                node.sendall(RACK.sign(length_prefix(b"contoso/v1", SLOT.encode(), node.recv(32))))

        thread = Thread(target=answer)
        thread.start()
        yield path
        thread.join()


def filed(evidence: Evidence, der: bytes) -> NodeRequest:
    """Read a request as the controller does."""
    spec: dict[str, KubeValue] = {
        "request": base64.b64encode(envelope.encode(der, evidence)).decode(),
        "signerName": SIGNER_NAME,
        "usages": ["digital signature", "client auth"],
        "username": "system:bootstrap:abcdef",
        "groups": ["system:bootstrappers"],
    }
    meta: dict[str, KubeValue] = {"name": "csr", "uid": "u-1", "creationTimestamp": "2026-03-01T00:00:00Z"}
    return parse_request({"metadata": meta, "spec": spec})


async def verify(request: NodeRequest, facts: Facts = FACTS) -> AttestedNode:
    return await make_signer(CONTOSO).verify_client_attestation_data(request, facts)


def signed(
    *,
    rack: Ed25519PrivateKey = RACK,
    slot: str = SLOT,
    pin: ClusterPin = PIN,
    signer: SignerName = SIGNER_NAME,
    der: bytes = DER,
) -> bytes:
    """Sign as the rack's controller does."""
    binding = Binding(EvidenceBlock("contoso/v1"), pin, signer, hashlib.sha256(der).digest())
    return rack.sign(length_prefix(b"contoso/v1", slot.encode(), binding.digest))


async def test_a_machine_in_its_slot_is_attested(rack_socket: str) -> None:
    binding = Binding(EvidenceBlock("contoso/v1"), PIN, SIGNER_NAME, hashlib.sha256(DER).digest())
    evidence = registry.make_attestor(CONTOSO, {"socket": rack_socket}).attest(binding)
    attested = await verify(filed(evidence, DER))
    assert (attested.provider, attested.provider_id) == (CONTOSO, SLOT)
    assert all(check.passed for check in attested.checks)


FORGED = {
    "another rack's key": signed(rack=OTHER_RACK),
    "another slot": signed(slot=OTHER_SLOT),
    "another cluster": signed(pin=OTHER_PIN),
    "another signer": signed(signer=signer_for(CONTOSO, Purpose.SERVING)),
    "another node's key": signed(der=OTHER_DER),
    "a bit changed": bytes([signed()[0] ^ 1]) + signed()[1:],
}


@pytest.mark.parametrize("row", FORGED)
async def test_a_forged_signature_is_denied(row: str) -> None:
    assert await verify(filed(Evidence(CONTOSO, 1, {"signature": b64encode(signed())}), DER))
    with pytest.raises(Denied) as denied:
        await verify(filed(Evidence(CONTOSO, 1, {"signature": b64encode(FORGED[row])}), DER))
    assert denied.value.reason is Reason.PROOF_INVALID
    assert not denied.value.checks[-1].passed


@pytest.mark.parametrize("racks", [None, {}, {"rack-1": "no hex"}, {"rack-1": "00"}, {"rack-1": 7}, []])
async def test_a_rack_without_a_key_in_the_policy_is_denied(racks: JsonValue) -> None:
    with pytest.raises(Denied) as denied:
        await verify(
            filed(Evidence(CONTOSO, 1, {"signature": b64encode(signed())}), DER),
            replace(FACTS, settings={"racks": racks}),
        )
    assert denied.value.reason is Reason.PROOF_INVALID


@pytest.mark.parametrize("data", [{}, {"signature": b64encode(bytes(63))}, {"signature": 1}, {"signature": "", "x": 1}])
async def test_evidence_outside_its_schema_is_denied(data: dict[str, JsonValue]) -> None:
    with pytest.raises(Denied) as denied:
        await verify(filed(Evidence(CONTOSO, 1, data), DER))
    assert denied.value.reason is Reason.EVIDENCE_MALFORMED


def test_a_rack_that_does_not_answer_is_asked_again_later(tmp_path: Path) -> None:
    attestor = registry.make_attestor(CONTOSO, {"socket": str(tmp_path / "nobody")})
    with pytest.raises(Unavailable):
        attestor.attest(Binding(EvidenceBlock("contoso/v1"), PIN, SIGNER_NAME, bytes(32)))


def test_the_page_shows_the_example_as_it_is_and_it_is_short() -> None:
    page = (EXAMPLE.parents[1] / "docs" / "write-a-provider.md").read_text()
    module = (EXAMPLE / "contoso_attestation.py").read_text()
    assert f"```python\n{module}```" in page
    assert f"```toml\n{(EXAMPLE / 'pyproject.toml').read_text()}```" in page
    assert len(module.splitlines()) < 150
