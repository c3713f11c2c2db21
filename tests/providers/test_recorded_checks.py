"""What providers find on record agrees with their verification, and what no record holds is never called a pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
from azure_world import AZURE
from composite_world import composite
from gcp_world import MACHINE_ID as GCP_MACHINE
from gcp_world import PROJECT
from tpm_world import MACHINE, PCR_VALUES, SoftTpm, facts_of, ledger, machine, sound_round

from clouds.authority import Authority
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderID, ProviderName
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import OFFLINE, make_signer
from nodeattest_providers.verifier_interface import AttestedNode, BootState, Facts

BOOTED = {"0": PCR_VALUES[0].hex(), "7": PCR_VALUES[1].hex()}
OTHER = "ab" * 32


@pytest.fixture(scope="module")
def tpm() -> SoftTpm:
    return SoftTpm()


@pytest.fixture(scope="module")
def joined(tpm: SoftTpm) -> AttestedNode:
    return sound_round(tpm).verify()


def recorded(joined: AttestedNode, settings: dict[str, JsonValue], **changes: object) -> Facts:
    """What a controller knows of a machine that joined, under settings that may be others than it joined by."""
    return facts_of(settings, **{"ledger": replace(ledger(), fingerprints=dict(joined.fingerprints)), **changes})


def check(provider: str, facts: Facts, boot: BootState | None = None) -> tuple[str, ...]:
    signer = make_signer(ProviderName(provider), OFFLINE)
    return signer.check_recorded(facts, boot)


def refusal(provider: str, facts: Facts, boot: BootState | None = None) -> Reason:
    with pytest.raises(Denied) as denied:
        check(provider, facts, boot)
    return denied.value.reason


def with_values(tpm: SoftTpm, **pcrs: JsonValue) -> dict[str, JsonValue]:
    return {**tpm.settings, "pcrs": pcrs}


def test_what_was_proved_passes_under_the_settings_that_it_was_proved_by(tpm: SoftTpm, joined: AttestedNode) -> None:
    settings = with_values(tpm, values={pcr: [value] for pcr, value in BOOTED.items()})
    assert sound_round(tpm, settings).verify().checks
    assert check("tpm", recorded(joined, settings), joined.boot) == ()


def test_a_register_value_that_is_not_listed_is_refused_as_at_a_renewal(tpm: SoftTpm, joined: AttestedNode) -> None:
    settings = with_values(tpm, values={"7": [OTHER]})
    with pytest.raises(Denied) as denied:
        sound_round(tpm, settings).verify()
    with pytest.raises(Denied) as simulated:
        check("tpm", recorded(joined, settings), joined.boot)
    assert simulated.value.reason == denied.value.reason == Reason.PCR_VALUE_NOT_ALLOWED
    assert simulated.value.checks[-1] == denied.value.checks[-1]
    assert (simulated.value.expected, simulated.value.got) == (denied.value.expected, denied.value.got)


@pytest.mark.parametrize(
    ("pcrs", "said"),
    [
        ({"selection": [0, 4], "values": {"4": [OTHER]}}, "PCR 4 is not on record"),
        ({"bank": "sha384", "values": {"0": ["ab" * 48]}}, "PCRs of the bank sha384 are not on record"),
    ],
)
def test_a_register_that_was_not_quoted_is_unknown(
    tpm: SoftTpm, joined: AttestedNode, pcrs: dict[str, JsonValue], said: str
) -> None:
    (unknown,) = check("tpm", recorded(joined, with_values(tpm, **pcrs)), joined.boot)
    assert said in unknown


def test_an_event_log_is_on_no_record(tpm: SoftTpm, joined: AttestedNode) -> None:
    (unknown,) = check("tpm", recorded(joined, {**tpm.settings, "eventLog": "Require"}), joined.boot)
    assert "event logs are not stored" in unknown


def test_a_key_that_no_source_binds_any_more_is_refused_as_at_a_renewal(joined: AttestedNode) -> None:
    other: JsonValue = {"providerID": MACHINE, "sha256": "sha256:" + "0f" * 32}
    listed: dict[str, JsonValue] = {"endorsementKeys": [other]}
    for settings in ({}, listed):
        assert refusal("tpm", recorded(joined, settings), joined.boot) is Reason.ENDORSEMENT_KEY_UNTRUSTED


def test_a_chain_of_certificates_is_on_no_record(tpm: SoftTpm, joined: AttestedNode) -> None:
    annotated = machine(annotations={"attestation.cluster.x-k8s.io/tpm-endorsement-key": tpm.fingerprint})
    anchored: dict[str, JsonValue] = {"endorsementCAs": Authority.root().pem}
    (unknown,) = check("tpm", recorded(joined, anchored, machine=annotated), joined.boot)
    assert "certificate is not on record" in unknown
    # Without authorities there is no chain, whatever the certificate is.
    assert refusal("tpm", recorded(joined, {}, machine=annotated)) is Reason.ENDORSEMENT_KEY_UNTRUSTED


def test_a_record_without_a_key_is_unknown(joined: AttestedNode) -> None:
    assert check("tpm", recorded(joined, {}, ledger=ledger()), joined.boot) == ("the endorsement key is not on record",)


def test_a_clouds_place_is_refused_and_the_rest_is_unknown() -> None:
    aws = facts_of(
        {"accounts": ["123456789012"], "regions": ["eu-west-1"], "roles": ["nodes"]},
        machine=replace(machine(), provider_id=ProviderID("aws:///eu-west-1a/i-0123456789abcdef0")),
        ledger=replace(ledger(), fingerprints={"instance": "123456789012/i-0123456789abcdef0"}),
    )
    assert any("AWS is not asked" in one for one in check("aws", aws))
    assert check("aws", replace(aws, ledger=ledger())) == check("aws", aws)
    elsewhere = replace(aws, settings={**aws.settings, "regions": ["us-east-1"]})
    assert refusal("aws", elsewhere) is Reason.PLATFORM_REGION_NOT_ALLOWED
    anothers = replace(aws, settings={**aws.settings, "accounts": ["210987654321"]})
    assert refusal("aws", anothers) is Reason.PLATFORM_ACCOUNT_NOT_ALLOWED

    gcp = facts_of({"projects": [PROJECT]}, machine=replace(machine(), provider_id=GCP_MACHINE))
    assert any("Google Cloud is not asked" in one for one in check("gcp", gcp))
    assert refusal("gcp", replace(gcp, settings={"projects": ["other-project"]})) is Reason.PLATFORM_ACCOUNT_NOT_ALLOWED

    place = "subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/fleet"
    name = ProviderID(f"azure:///{place}/providers/Microsoft.Compute/virtualMachines/n-0")
    listed: dict[str, JsonValue] = {
        "subscriptions": ["00000000-0000-0000-0000-000000000001"],
        "resourceGroups": ["fleet"],
    }
    azure = facts_of(listed, machine=replace(machine(), provider_id=name))
    assert any("Resource Manager is not asked" in one for one in check(AZURE, azure))
    assert refusal(AZURE, replace(azure, settings={**listed, "resourceGroups": ["other"]}))

    assert any("not on record" in one for one in check("oci", facts_of({})))


def test_a_clouds_registers_are_checked_like_a_tpms(joined: AttestedNode) -> None:
    settings: dict[str, JsonValue] = {"projects": [PROJECT], "pcrs": {"values": {"0": [OTHER]}}}
    facts = facts_of(settings, machine=replace(machine(), provider_id=GCP_MACHINE))
    assert refusal("gcp", facts, joined.boot) is Reason.PCR_VALUE_NOT_ALLOWED


def test_insecure_renews_nothing_and_a_secret_has_no_settings(joined: AttestedNode) -> None:
    assert refusal("insecure", recorded(joined, {})) is Reason.ROTATION_NOT_ALLOWED
    assert check("challenge", recorded(joined, {})) == ()


def test_a_composite_record_is_checked_part_by_part(tpm: SoftTpm) -> None:
    values = {"tpm.ek": tpm.fingerprint, "challenge.secret": "sha256:" + "5" * 64, "aws.instance": "1/i-1"}

    def check(*pins: str, trusted: bool = True) -> tuple[str, ...]:
        recorded = replace(ledger(), fingerprints={pin: values[pin] for pin in pins})
        sections = {ProviderName("tpm"): tpm.settings} if trusted else {}
        facts = facts_of({"allOf": ["tpm", "challenge"]}, ledger=recorded, sections=sections)
        return composite().check_recorded(facts, None)

    assert check("tpm.ek", "challenge.secret") == ()
    assert check(*values) == ("which parts the node shows is not on record",)
    with pytest.raises(Denied, match=Reason.PROOF_MISSING):
        check("tpm.ek")
    with pytest.raises(Denied, match=Reason.ENDORSEMENT_KEY_UNTRUSTED) as denied:
        check("tpm.ek", "challenge.secret", trusted=False)
    assert denied.value.expected.startswith("tpm: ")
