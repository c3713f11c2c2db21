"""Every verifier accepts what was recorded of version 1, and finds in it what was found then."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import FOLDER, Recorded

from nodeattest_providers import registry
from nodeattest_providers.canonical_json import b64decode
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason
from nodeattest_providers.identifiers import ClusterPin, ProviderName
from nodeattest_providers.node_interface import PublishedChallenge
from nodeattest_providers.platform import OFFLINE, make_signer
from nodeattest_providers.registry import make_attestor
from nodeattest_providers.tpm.protocol import Challenge as TpmChallenge
from nodeattest_providers.verifier_interface import AttestedNode, Facts, NodeRequest

JOINS = {path.stem: Recorded.of(path) for path in sorted(FOLDER.glob("*.json"))}
TWO_ROUNDS = sorted(name for name, join in JOINS.items() if join.challenge)
RANDOM = {"blob", "secret"}
"""Parts of a challenge that differ each time they are made; what they hold is checked by the second round."""


async def verify(request: NodeRequest, facts: Facts) -> AttestedNode:
    return await make_signer(request.evidence.provider).verify_client_attestation_data(request, facts)


def fixed(challenge: str) -> dict[str, Any]:
    return {key: value for key, value in json.loads(challenge).items() if key not in RANDOM}


def test_the_records_are_those_of_their_first_day() -> None:
    sums = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(FOLDER.glob("*.json"))
    )
    assert (FOLDER / "SHA256SUMS").read_text() == sums


def _asks_a_platform(name: str) -> bool:
    """Whether a recorded request could be verified again only by those who were asked then.

    ``tpm`` asks EC2 only where a policy says so.
    """
    return name != "tpm" and getattr(make_signer(ProviderName(name), OFFLINE), "takes_platform", False)


def test_each_provider_that_asks_no_platform_has_a_record_and_each_record_its_line_in_the_page() -> None:
    alone = {name for name in registry.BUILT_IN if not _asks_a_platform(name)}
    assert {join.last.evidence.provider for join in JOINS.values()} == alone
    page = (FOLDER / "README.md").read_text()
    assert all(f"| `{name}.json` |" in page for name in JOINS)


@pytest.mark.parametrize("name", TWO_ROUNDS)
async def test_a_recorded_first_request_gets_the_challenge_that_it_got(name: str) -> None:
    join = JOINS[name]
    with pytest.raises(ChallengeRequired) as required:
        await verify(join.first, join.opening)
    assert fixed(required.value.challenge) == fixed(join.challenge or "")


@pytest.mark.parametrize("name", JOINS)
async def test_a_recorded_answer_attests_the_machine_that_it_attested(name: str) -> None:
    join = JOINS[name]
    node = await verify(join.last, join.closing)
    found = join.document["found"]
    assert (node.provider_id, dict(node.fingerprints)) == (found["providerID"], found["fingerprints"])
    if node.boot is not None:
        assert (node.boot.clock, node.boot.reset_count) == (found["clock"], found["resetCount"])
        assert node.boot.pcr_digest == found["pcrDigest"]


@pytest.mark.parametrize("name", JOINS)
async def test_a_recorded_machine_is_known_again_by_its_fingerprints(name: str) -> None:
    join = JOINS[name]
    pinned = replace(join.closing.ledger, fingerprints=join.document["found"]["fingerprints"])
    assert await verify(join.last, replace(join.closing, ledger=pinned))


@pytest.mark.parametrize("name", TWO_ROUNDS)
async def test_a_recorded_answer_serves_no_other_cluster(name: str) -> None:
    join = JOINS[name]
    elsewhere = replace(join.closing.cluster, pins=frozenset({ClusterPin("sha256:" + "cd" * 32)}))
    with pytest.raises(Denied) as denied:
        await verify(join.last, replace(join.closing, cluster=elsewhere))
    expected = Reason.CHALLENGE_UNKNOWN if name.startswith("tpm") else Reason.PROOF_INVALID  # the quote comes first
    assert denied.value.reason is expected


@pytest.mark.parametrize("name", TWO_ROUNDS)
async def test_a_recorded_answer_is_denied_with_one_bit_changed(name: str) -> None:
    join = JOINS[name]
    mac = str(join.last.evidence.data["mac"])
    spoilt: Any = join.last.evidence.data | {"mac": ("B" if mac[0] == "A" else "A") + mac[1:]}
    assert b64decode(str(spoilt["mac"])) != b64decode(mac)
    request = replace(join.last, evidence=replace(join.last.evidence, data=spoilt))
    with pytest.raises(Denied) as denied:
        await verify(request, join.closing)
    assert denied.value.reason is Reason.PROOF_INVALID


def test_a_node_answers_the_recorded_challenge_as_it_did(tmp_path: Path) -> None:
    join = JOINS["challenge"]
    secret = tmp_path / "secret"
    secret.write_bytes(join.secret)
    secret.chmod(0o600)
    first = join.first
    published = PublishedChallenge(
        name=first.name, uid=first.uid, csr_sha256=first.csr.sha256, text=join.challenge or ""
    )
    (pin,) = join.opening.cluster.pins
    half = make_attestor(first.evidence.provider, {"secretFile": str(secret)})
    assert half.attest(first.binding(pin), published) == join.last.evidence


@pytest.mark.parametrize("name", [name for name in TWO_ROUNDS if name.startswith("tpm")])
def test_a_node_reads_a_recorded_tpm_challenge_and_writes_the_same(name: str) -> None:
    text = JOINS[name].challenge or ""
    assert TpmChallenge.parse(text).to_text() == text
