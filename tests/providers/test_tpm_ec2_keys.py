"""``spec.tpm.endorsementKeysFrom.ec2``: EC2's word decides whose TPM an instance's is, and no weaker source does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

import pytest
from ec2_world import FROM_EC2, INSTANCE, OURS
from tpm_world import MACHINE, SoftTpm, facts_of, ledger, machine, new_key, request_of, sound_round, verify

from nodeattest_providers.endorsement_fingerprint import endorsement_fingerprint
from nodeattest_providers.errors import ChallengeRequired, Check, Denied, Reason, Unavailable
from nodeattest_providers.key_types import PublicKey
from nodeattest_providers.names import ProviderID, ProviderName
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import OFFLINE, Platform, make_signer
from nodeattest_providers.tpm.config import parse_policy
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import ClusterAPISigner, Facts, NamedEndorsementKey

OTHER = "sha256:" + "0f" * 32
TPM = SoftTpm("ecc-p384", new_key("ecc-p384"))


@dataclass(slots=True)
class Ec2:
    """The ``aws`` provider's signer, as far as it is asked here; implements ``EndorsementKeySource``."""

    key: str = TPM.fingerprint
    fails: bool = False
    asked: list[tuple[str, frozenset[str], str]] = field(default_factory=list[tuple[str, frozenset[str], str]])

    async def endorsement_key(
        self, machine: ProviderID, *, accounts: frozenset[str], shown: PublicKey
    ) -> NamedEndorsementKey:
        self.asked.append((machine, accounts, endorsement_fingerprint(shown)))
        if self.fails:
            raise Unavailable(Reason.PLATFORM_UNAVAILABLE, "AWS EC2 is down", remedy="wait")
        return NamedEndorsementKey(fingerprint=self.key, checks=(Check("asked", "EC2", "it", "it", passed=True),))

    def find(self, name: ProviderName) -> ClusterAPISigner:
        assert name == "aws"
        return cast("ClusterAPISigner", self)

    @property
    def signer(self) -> TpmSigner:
        return TpmSigner(platform=Platform(find_signer=self.find))


def instance(settings: dict[str, JsonValue] | None = None, **changes: object) -> Facts:
    of_ec2 = replace(machine(), provider_id=INSTANCE, **changes)
    return facts_of(FROM_EC2 if settings is None else settings, machine=of_ec2)


def outcome(facts: Facts, ec2: Ec2, tpm: SoftTpm = TPM) -> Reason | None:
    """Tell why a first request is refused; None when it is challenged."""
    try:
        verify(request_of(tpm.first()), facts, ec2.signer)
    except ChallengeRequired:
        return None
    except Denied as denied:
        return denied.reason
    raise AssertionError("a first request never attests a node")


def test_the_key_that_ec2_names_is_trusted_and_the_shown_one_says_which_is_asked_for() -> None:
    ec2 = Ec2()
    assert outcome(instance(), ec2) is None
    assert ec2.asked == [(INSTANCE, {OURS}, TPM.fingerprint)]


def test_another_key_than_ec2_names_is_denied() -> None:
    assert outcome(instance(), Ec2(key=OTHER)) is Reason.ENDORSEMENT_KEY_UNTRUSTED


def test_no_entry_and_no_first_use_overrules_ec2() -> None:
    entry: JsonValue = {"providerID": INSTANCE, "sha256": TPM.fingerprint}
    settings: dict[str, JsonValue] = {**FROM_EC2, "endorsementKeys": [entry], "trustOnFirstUse": True}
    assert outcome(instance(settings), Ec2(key=OTHER)) is Reason.ENDORSEMENT_KEY_UNTRUSTED


@pytest.mark.parametrize(("annotation", "told"), [(OTHER, TPM.fingerprint), (TPM.fingerprint, OTHER)], ids=range(2))
def test_an_annotation_and_ec2_that_disagree_are_denied(annotation: str, told: str) -> None:
    facts = instance(endorsement_keys={"infrastructure machine": annotation})
    assert outcome(facts, Ec2(key=told)) is Reason.ENDORSEMENT_KEY_UNTRUSTED


def test_machines_of_other_platforms_are_trusted_by_the_other_sources_and_ec2_is_not_asked() -> None:
    entry: JsonValue = {"providerID": MACHINE, "sha256": TPM.fingerprint}
    ec2 = Ec2()
    assert outcome(facts_of({**FROM_EC2, "endorsementKeys": [entry]}), ec2) is None
    assert outcome(facts_of(FROM_EC2), ec2) is Reason.ENDORSEMENT_KEY_UNTRUSTED
    assert not ec2.asked


def test_without_the_setting_ec2_is_not_asked() -> None:
    ec2 = Ec2()
    assert outcome(instance({}), ec2) is Reason.ENDORSEMENT_KEY_UNTRUSTED
    assert not ec2.asked


def test_while_ec2_is_down_the_request_waits() -> None:
    with pytest.raises(Unavailable, match="AWS EC2 is down"):
        verify(request_of(TPM.first()), instance(), Ec2(fails=True).signer)


@pytest.mark.parametrize("make", [lambda: TpmSigner(platform=OFFLINE), lambda: TpmSigner(platform=Platform())])
def test_where_ec2_cannot_be_asked_nobody_is_trusted(make: Callable[[], TpmSigner]) -> None:
    with pytest.raises(Unavailable, match="EC2 is not asked here") as unavailable:
        verify(request_of(TPM.first()), instance({**FROM_EC2, "trustOnFirstUse": True}), make())
    assert unavailable.value.checks


def test_the_second_request_is_held_to_what_ec2_names_by_then() -> None:
    made = sound_round(TPM)
    facts = replace(made.facts, settings=FROM_EC2, machine=replace(made.facts.machine, provider_id=INSTANCE))
    ec2 = Ec2()
    attested = verify(made.request(), facts, ec2.signer)
    assert attested.fingerprints["ek"] == TPM.fingerprint
    assert attested.checks[0].name == "EC2: asked"
    assert ec2.asked == [(INSTANCE, {OURS}, TPM.fingerprint)]
    with pytest.raises(Denied) as denied:
        verify(made.request(), facts, Ec2(key=OTHER).signer)
    assert denied.value.reason is Reason.ENDORSEMENT_KEY_UNTRUSTED


def test_malformed_evidence_is_denied_before_ec2_is_asked() -> None:
    ec2 = Ec2()
    request = request_of(TPM.first(ek_public=TPM.ek_public[:-1]))
    with pytest.raises(Denied) as denied:
        verify(request, instance(), ec2.signer)
    assert denied.value.reason is Reason.ENDORSEMENT_KEY_MALFORMED
    assert not ec2.asked


def test_a_record_of_an_instance_says_that_ec2_was_not_asked() -> None:
    facts = replace(instance(), ledger=ledger(fingerprints={"ek": TPM.fingerprint}))
    assert any("EC2 is not asked" in one for one in TpmSigner().check_recorded(facts, None))


def test_the_platform_of_tpm_has_no_settings_of_its_own() -> None:
    with pytest.raises(Denied, match=r"platforms\.aws"):
        make_signer(ProviderName("tpm"), Platform(settings={"endpoints": {}}))


WRONG: list[tuple[JsonValue, str]] = [
    ([], "an object"),
    ({"gce": {}}, "did you mean 'ec2'"),
    ({"ec2": {}}, "the key accounts"),
    ({"ec2": {"accounts": []}}, "1 to 16 accounts"),
    ({"ec2": {"accounts": [111111111111]}}, "12 digits"),
    ({"ec2": {"accounts": ["1"]}}, "12 digits"),
    ({"ec2": {"accounts": [f"{number:012d}" for number in range(17)]}}, "1 to 16 accounts"),
    ({"ec2": {"accounts": [OURS], "endpoint": "https://example.com"}}, "one of accounts"),
]


@pytest.mark.parametrize(("value", "words"), WRONG)
def test_a_wrong_source_is_refused_in_words_that_help(value: JsonValue, words: str) -> None:
    with pytest.raises(Denied, match="endorsementKeysFrom") as denied:
        parse_policy({"endorsementKeysFrom": value})
    assert words in str(denied.value)
