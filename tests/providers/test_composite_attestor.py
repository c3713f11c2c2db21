"""The node half of composite proofs: every part attests, in every phase, to its own challenge and no other."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from worlds import CSR, FACTS, PIN, SECRET, answering

from nodeattest_providers import envelope, registry
from nodeattest_providers.binding import Binding
from nodeattest_providers.canonical_json import dumps
from nodeattest_providers.composite.attestor import CompositeAttestor
from nodeattest_providers.composite.protocol import PROVIDER, CompositeChallenge
from nodeattest_providers.composite.verifier import CompositeSigner
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason
from nodeattest_providers.names import ProviderName, Purpose, evidence_block, signer_for
from nodeattest_providers.node_interface import Evidence, JsonValue, PublishedChallenge
from nodeattest_providers.platform import Platform
from nodeattest_providers.verifier_interface import NodeRequest

BINDING = Binding(evidence_block(PROVIDER, 1), PIN, signer_for(PROVIDER, Purpose.CLIENT), hashlib.sha256(CSR).digest())
MOON_MODULE = """
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Reason
from nodeattest_providers.node_interface import Evidence
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner
from nodeattest_providers.names import ProviderName


class Attestor:
    provider, versions, two_step = ProviderName("moon"), (2, 1), False
    closed = []

    def __init__(self, settings):
        self._word = settings.get("word", "full")
        self._version = 2

    def in_version(self, version):
        older = Attestor({"word": self._word})
        older._version = version
        return older

    def attest(self, binding, challenge=None):
        assert challenge is None
        return Evidence(self.provider, self._version, {"word": self._word, "binding": binding.digest.hex()})

    def provider_id(self):
        return "moon://1"

    def close(self):
        self.closed.append(self._word)


class Signer(ClusterAPISigner):
    provider, versions, secure = ProviderName("moon"), (2, 1), True

    async def verify_client_attestation_data(self, request, facts):
        checks = Checks()
        bound = {request.binding(pin).digest.hex() for pin in facts.cluster.pins}
        checks.require(
            request.evidence.data["binding"] in bound, "bound", section="", reason=Reason.PROOF_INVALID,
            expected="", got="", remedy="",
        )
        return AttestedNode(provider=self.provider, provider_id=request.csr.provider_id, checks=checks.record())

    verify_serving_attestation_data = verify_client_attestation_data
"""


@pytest.fixture(autouse=True)
def moon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a third party's provider of one step whose newest evidence is version 2."""
    (tmp_path / "moon_provider.py").write_text(MOON_MODULE)
    info = tmp_path / "moon_provider-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: moon-provider\nVersion: 1.0\n")
    entry_points = (
        "[nodeattest.attestors]\nmoon = moon_provider:Attestor\n[nodeattest.signers]\nmoon = moon_provider:Signer\n"
    )
    (info / "entry_points.txt").write_text(entry_points)
    monkeypatch.syspath_prepend(tmp_path)  # pyright: ignore[reportUnknownMemberType] - pytest leaves the path untyped


@pytest.fixture
def settings(tmp_path: Path) -> Mapping[str, JsonValue]:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_bytes(SECRET)
    return {"challenge": {"secretFile": str(path)}, "moon": {"word": "new"}}


def filed(evidence: Evidence) -> NodeRequest:
    parsed, decoded = envelope.decode(envelope.encode(CSR, evidence))
    template = answering(_template(), Evidence(ProviderName("challenge"), 1, {"phase": 1}))
    return replace(
        template,
        name="csr-u-1",
        uid="u-1",
        created=FACTS.verified_at,
        signer_name=BINDING.signer_name,
        request=envelope.encode(CSR, evidence),
        csr=parsed,
        evidence=decoded,
    )


def _template() -> NodeRequest:
    from worlds import filed as plain

    return plain(Evidence(ProviderName("challenge"), 1, {"phase": 1}))


async def test_a_part_of_two_steps_and_one_of_one_step_attest_together(settings: Mapping[str, JsonValue]) -> None:
    attestor = registry.make_attestor(PROVIDER, settings)
    assert attestor.two_step
    facts = replace(FACTS, settings={"allOf": ["moon", "challenge"]})
    signer, first = CompositeSigner(platform=Platform()), filed(attestor.attest(BINDING))
    with pytest.raises(ChallengeRequired) as required:
        await signer.verify_client_attestation_data(first, facts)
    assert set(CompositeChallenge.parse(required.value.challenge).texts) == {"challenge"}
    published = PublishedChallenge(
        name=first.name, uid=first.uid, csr_sha256=first.csr.sha256, text=required.value.challenge
    )
    evidence = attestor.attest(BINDING, published)
    second = replace(filed(evidence), name="csr-u-2", uid="u-2")
    attested = await signer.verify_client_attestation_data(second, replace(facts, first_request=first))
    assert attested.provider == PROVIDER


def test_parts_speak_the_version_that_the_composite_carries(settings: Mapping[str, JsonValue]) -> None:
    parts = CompositeAttestor(settings).attest(BINDING).data["parts"]
    assert isinstance(parts, dict)
    moon = parts["moon"]
    assert isinstance(moon, dict)
    assert moon["v"] == 1


def challenge_of(text: str, csr: bytes = CSR) -> PublishedChallenge:
    return PublishedChallenge(name="csr-u-1", uid="u-1", csr_sha256=hashlib.sha256(csr).digest(), text=text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", Reason.CHALLENGE_UNKNOWN),
        (dumps({"challenge": "x", "moon": "y"}).decode(), Reason.CHALLENGE_UNKNOWN),
        (dumps({"tpm": "x"}).decode(), Reason.CHALLENGE_UNKNOWN),
        (dumps({"challenge": 1}).decode(), Reason.EVIDENCE_MALFORMED),
        (dumps({"insecure": "x"}).decode(), Reason.EVIDENCE_MALFORMED),
        ('{ "challenge":"x"}', Reason.EVIDENCE_MALFORMED),
        ("\ud800", Reason.EVIDENCE_MALFORMED),
        ("", Reason.EVIDENCE_MALFORMED),
    ],
)
def test_a_challenge_of_other_parts_or_none_is_not_answered(
    settings: Mapping[str, JsonValue], text: str, reason: Reason
) -> None:
    with pytest.raises(Denied) as denied:
        CompositeAttestor(settings).attest(BINDING, challenge_of(text))
    assert denied.value.reason is reason


def test_a_challenge_for_another_request_is_not_answered(settings: Mapping[str, JsonValue]) -> None:
    with pytest.raises(Denied) as denied:
        CompositeAttestor(settings).attest(BINDING, challenge_of(dumps({"challenge": "x"}).decode(), b"another CSR"))
    assert denied.value.reason is Reason.CHALLENGE_UNKNOWN


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"moon": {}},
        {"moon": {}, "insecure": {}},
        {"moon": {}, "null": {}},
        {"moon": {}, "composite": {}},
        {"moon": {}, "../x": {}},
        {"moon": {}, "challenge": "x"},
        {"moon": {}, "nobody": {}},
        {"a": {}, "b": {}, "c": {}, "d": {}, "e": {}},
    ],
)
def test_settings_that_make_no_composite_are_denied(wrong: Mapping[str, JsonValue]) -> None:
    with pytest.raises(Denied):
        CompositeAttestor(wrong)


def test_closing_releases_every_part(settings: Mapping[str, JsonValue]) -> None:
    made = CompositeAttestor(settings)
    made.close()
    moon = next(part for part in made.parts if part.provider == "moon")
    assert "new" in getattr(moon, "closed", [])
