"""The verifier against an Azure on loopback: honest evidence passes, and one part spoilt is refused for that part."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta

import pytest
import pytest_asyncio
from azure_world import (
    AZURE,
    document_for,
    facts_for,
    now,
    request_of,
    signer_for_cloud,
    verdict,
    with_document,
)
from cryptography import x509
from worlds import OLD_PIN, PIN

from nodeattest_providers.azure.attestor import AzureAttestor
from nodeattest_providers.azure.verifier import AzureSigner
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.names import ClusterPin, ProviderID
from nodeattest_providers.node_interface import Evidence, JsonValue
from nodeattest_providers.platform import OFFLINE, ClosingSigner, Platform, make_signer
from nodeattest_providers.verifier_interface import LedgerFacts, NodeRequest, PlatformAddresses
from nodeattest_sandbox.clouds import cms
from nodeattest_sandbox.clouds.azure.authority import Issuer, signer_of
from nodeattest_sandbox.clouds.azure.cloud import SandboxAzure
from nodeattest_sandbox.clouds.azure.metadata import Signing, content_of
from nodeattest_sandbox.clouds.azure.state import SandboxMachine, Switches


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxAzure]:
    with SandboxAzure(tmp_path_factory.mktemp("azure")) as running:
        yield running


@pytest.fixture
def machine(cloud: SandboxAzure) -> SandboxMachine:
    cloud.state.switches = Switches()
    return cloud.launch(f"vm-{len(cloud.state.machines)}", tags={"Team": "nodes"})


@pytest_asyncio.fixture
async def signer(cloud: SandboxAzure) -> AsyncIterator[AzureSigner]:
    made = signer_for_cloud(cloud)
    yield made
    await made.aclose()


def honest(machine: SandboxMachine, cloud: SandboxAzure) -> NodeRequest:
    request = request_of(machine)
    return with_document(request, document_for(request, machine, cloud.signing))


@pytest.mark.parametrize("serving", [False, True])
@pytest.mark.parametrize("pin", [PIN, OLD_PIN])
@pytest.mark.parametrize("scale_set", [None, "Pool"])
async def test_a_machine_proves_itself_by_what_its_metadata_service_gives(
    signer: AzureSigner, cloud: SandboxAzure, pin: ClusterPin, scale_set: str | None, *, serving: bool
) -> None:
    number = len(cloud.state.machines)
    machine = cloud.launch(
        str(number), scale_set=scale_set, computer_name=f"Node-{number}" if serving else f"n-{number}"
    )
    attestor = AzureAttestor({"metadataEndpoint": machine.metadata})
    assert attestor.provider_id() == machine.provider_id
    machine.computer_name = machine.computer_name.lower()
    request = request_of(machine, serving=serving)
    request = dataclasses.replace(request, evidence=attestor.attest(request.binding(pin)))
    verify = signer.verify_serving_attestation_data if serving else signer.verify_client_attestation_data
    proven = await verify(request, facts_for(machine))
    assert proven.provider_id == machine.provider_id
    assert proven.proven_node_name == machine.computer_name
    assert proven.fingerprints == {"vm": machine.vm_id}
    assert all(check.passed for check in proven.checks)


@pytest.mark.parametrize("computer_name", ["", "näme", "a_b"])
async def test_a_name_that_no_node_can_have_proves_none(
    signer: AzureSigner, cloud: SandboxAzure, machine: SandboxMachine, computer_name: str
) -> None:
    request, facts = honest(machine, cloud), facts_for(machine)
    machine.computer_name = computer_name
    assert (await signer.verify_client_attestation_data(request, facts)).proven_node_name is None


# One part of the evidence spoilt

Spoil = Callable[[NodeRequest, SandboxMachine, SandboxAzure], bytes]


def signed(**changes: object) -> Spoil:
    """Let Azure sign another content."""
    return lambda request, machine, cloud: document_for(request, machine, cloud.signing, changes=changes)


def timed(created: timedelta, life: timedelta = timedelta(hours=6)) -> Spoil:
    return lambda request, machine, cloud: document_for(request, machine, cloud.signing, created=created, life=life)


def by(signing: Callable[[SandboxAzure], Signing]) -> Spoil:
    return lambda request, machine, cloud: document_for(request, machine, signing(cloud))


def raw(content: Callable[[dict[str, object]], bytes]) -> Spoil:
    """Let Azure sign any bytes."""

    def spoil(request: NodeRequest, machine: SandboxMachine, cloud: SandboxAzure) -> bytes:
        said = content_of(machine, "0" * 32, request.created)
        return cms.azure_form(content(said), cloud.signing.key, cloud.signing.certificate).der()

    return spoil


def named(*names: x509.GeneralName, common_name: str = "metadata.azure.com") -> Callable[[SandboxAzure], Signing]:
    return lambda cloud: Signing(*cloud.issuing.issue(common_name, names))


def changed_after(request: NodeRequest, machine: SandboxMachine, cloud: SandboxAzure) -> bytes:
    document = document_for(request, machine, cloud.signing)
    assert machine.vm_id.encode() in document
    return document.replace(machine.vm_id.encode(), b"0" * 8 + machine.vm_id.encode()[8:])


def without_certificate(_: NodeRequest, __: SandboxMachine, cloud: SandboxAzure) -> bytes:
    good = cms.azure_form(b"{}", cloud.signing.key, cloud.signing.certificate)
    return dataclasses.replace(good, certificates=()).der()


def another_machines(request: NodeRequest, machine: SandboxMachine, cloud: SandboxAzure) -> bytes:
    return document_for(request, cloud.launch(f"other-{machine.name}"), cloud.signing)


def self_made(_: SandboxAzure) -> Signing:
    return Signing(*signer_of(Issuer.root("Sandbox Global Root").issuing("Sandbox Azure TLS Issuing CA 01")))


def of_another_cloud(cloud: SandboxAzure) -> Signing:
    return Signing(*signer_of(cloud.issuing, "metadata.azure.us"))


def expired(cloud: SandboxAzure) -> Signing:
    names = [x509.DNSName("metadata.azure.com")]
    return Signing(*cloud.issuing.issue("metadata.azure.com", names, now=now() - timedelta(days=400)))


DNS = x509.DNSName
DENIED: dict[str, tuple[Spoil, Reason]] = {
    "no message at all": (lambda _, __, ___: b"{}", Reason.PLATFORM_DOCUMENT_MALFORMED),
    "bytes behind": (
        lambda request, machine, cloud: document_for(request, machine, cloud.signing) + b"\0",
        Reason.PLATFORM_DOCUMENT_MALFORMED,
    ),
    "no signer's certificate": (without_certificate, Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID),
    "a content changed after it was signed": (changed_after, Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID),
    "a chain of one's own with the right names": (by(self_made), Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID),
    "the signer of another cloud": (by(of_another_cloud), Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID),
    "a signer whose time is over": (by(expired), Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID),
    "a signer of other names": (by(named(DNS("contoso.com"))), Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID),
    "a signer with one foreign name besides": (
        by(named(DNS("metadata.azure.com"), DNS("contoso.com"))),
        Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID,
    ),
    "a signer named like Azure": (
        by(named(DNS("metadata.azure.com.contoso.com"))),
        Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID,
    ),
    "a signer with Azure's name as a tail of its own": (
        by(named(DNS("my-metadata.azure.com"))),
        Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID,
    ),
    "a signer with a wildcard": (by(named(DNS("*.azure.com"))), Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID),
    "a signer with a wildcard below": (
        by(named(DNS("*.metadata.azure.com"))),
        Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID,
    ),
    "a signer with a foreign common name": (
        by(named(DNS("metadata.azure.com"), common_name="contoso.com")),
        Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID,
    ),
    "a signer without names": (by(named()), Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID),
    "a signer with an address": (
        by(named(DNS("metadata.azure.com"), x509.UniformResourceIdentifier("https://metadata.azure.com"))),
        Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID,
    ),
    "an authority as the signer": (
        by(lambda cloud: Signing(cloud.issuing.certificate, cloud.issuing.key)),
        Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID,
    ),
    "a content that is not JSON": (raw(lambda _: b"signed"), Reason.PLATFORM_DOCUMENT_MALFORMED),
    "a content of another kind": (raw(lambda _: b"[1]"), Reason.PLATFORM_DOCUMENT_MALFORMED),
    "a key twice": (
        raw(lambda said: json.dumps(said).encode()[:-1] + b',"vmId":"x"}'),
        Reason.PLATFORM_DOCUMENT_MALFORMED,
    ),
    "a time without its zone": (
        raw(lambda said: json.dumps(said).encode().replace(b" -0000", b"")),
        Reason.PLATFORM_DOCUMENT_MALFORMED,
    ),
    "no vmId": (signed(vmId=""), Reason.PLATFORM_DOCUMENT_MALFORMED),
    "a vmId that is no text": (signed(vmId=7), Reason.PLATFORM_DOCUMENT_MALFORMED),
    "no subscription": (signed(subscriptionId=None), Reason.PLATFORM_DOCUMENT_MALFORMED),
    "no times": (signed(timeStamp={}), Reason.PLATFORM_DOCUMENT_MALFORMED),
    "another nonce": (signed(nonce="0" * 32), Reason.PLATFORM_PROOF_NOT_BOUND),
    "half of the nonce": (
        lambda request, machine, cloud: document_for(
            request, machine, cloud.signing, nonce=request.binding(PIN).digest.hex()[:16]
        ),
        Reason.PLATFORM_PROOF_NOT_BOUND,
    ),
    "the nonce of another cluster": (
        lambda request, machine, cloud: document_for(
            request, machine, cloud.signing, pin=ClusterPin("sha256:" + "c3" * 32)
        ),
        Reason.PLATFORM_PROOF_NOT_BOUND,
    ),
    "the nonce of another request": (
        lambda _, machine, cloud: document_for(
            request_of(cloud.launch(f"else-{machine.name}")), machine, cloud.signing
        ),
        Reason.PLATFORM_PROOF_NOT_BOUND,
    ),
    "a document of the future": (timed(timedelta(seconds=301)), Reason.PLATFORM_PROOF_EXPIRED),
    "an old document": (timed(timedelta(seconds=-301)), Reason.PLATFORM_PROOF_EXPIRED),
    "a document that ended before it began": (
        timed(timedelta(0), timedelta(seconds=-1)),
        Reason.PLATFORM_PROOF_EXPIRED,
    ),
    "another machine's document": (another_machines, Reason.PLATFORM_INSTANCE_MISMATCH),
    "another subscription's document": (
        signed(subscriptionId="8d10da13-8125-4ba9-a717-bf7490507b3d"),
        Reason.PLATFORM_INSTANCE_MISMATCH,
    ),
}


@pytest.mark.parametrize("what", DENIED)
async def test_evidence_with_one_part_spoilt_is_denied_for_that_part(
    signer: AzureSigner, cloud: SandboxAzure, machine: SandboxMachine, what: str
) -> None:
    spoil, reason = DENIED[what]
    request = request_of(machine)
    refused = await verdict(signer, with_document(request, spoil(request, machine, cloud)), facts_for(machine))
    assert refused.reason is reason, refused
    assert isinstance(refused, Denied)
    assert not refused.checks[-1].passed
    assert all(check.passed for check in refused.checks[:-1])


@pytest.mark.parametrize("seconds", [-300, 300])
async def test_five_minutes_between_two_clocks_are_tolerated(
    signer: AzureSigner, cloud: SandboxAzure, machine: SandboxMachine, seconds: int
) -> None:
    request = request_of(machine)
    document = document_for(request, machine, cloud.signing, created=timedelta(seconds=seconds))
    assert await signer.verify_client_attestation_data(with_document(request, document), facts_for(machine))


async def test_a_request_is_evaluated_at_its_own_time_however_much_later(
    signer: AzureSigner, cloud: SandboxAzure, machine: SandboxMachine
) -> None:
    request, facts = honest(machine, cloud), facts_for(machine)
    for days in (0, 100):
        later = dataclasses.replace(facts, verified_at=facts.verified_at + timedelta(days=days))
        assert await signer.verify_client_attestation_data(request, later)


@pytest.mark.parametrize("data", [{}, {"signature": "AA", "url": "x"}, {"signature": 1}, {"signature": ""}])
async def test_evidence_outside_the_schema_is_denied(
    signer: AzureSigner, machine: SandboxMachine, data: dict[str, JsonValue]
) -> None:
    refused = await verdict(signer, request_of(machine, Evidence(AZURE, 1, data)), facts_for(machine))
    assert refused.reason is Reason.EVIDENCE_MALFORMED


async def test_an_intermediate_that_the_document_embeds_counts_where_a_root_issued_it(
    cloud: SandboxAzure, machine: SandboxMachine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    roots = tmp_path_factory.mktemp("roots") / "roots.pem"
    roots.write_bytes(cloud.trust_bundle.read_bytes().split(b"-----BEGIN", 2)[1].join([b"-----BEGIN", b""]))
    signer = signer_for_cloud(cloud, trustBundle=str(roots))
    request = request_of(machine)
    content = content_of(machine, request.binding(PIN).digest.hex()[:32], request.created)
    data = json.dumps(content).encode()
    alone = cms.azure_form(data, cloud.signing.key, cloud.signing.certificate)
    refused = await verdict(signer, with_document(request, alone.der()), facts_for(machine))
    assert refused.reason is Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID
    stranger = Issuer.root("Sandbox Azure TLS Issuing CA 01").certificate
    embedded = [stranger, cloud.issuing.certificate]
    whole = cms.azure_form(data, cloud.signing.key, cloud.signing.certificate, embedded)
    assert await signer.verify_client_attestation_data(with_document(request, whole.der()), facts_for(machine))
    await signer.aclose()


async def test_a_signer_whose_issuer_is_not_in_the_bundle_is_denied_with_its_issuer_and_validity(
    signer: AzureSigner, machine: SandboxMachine
) -> None:
    issuer = Issuer.root("Other Root").issuing("Microsoft Azure RSA TLS Issuing CA " + "0" * 20)
    signing = Signing(*signer_of(issuer))
    request = request_of(machine)
    document = document_for(request, machine, signing)
    refused = await verdict(signer, with_document(request, document), facts_for(machine))
    assert refused.reason is Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID
    name, until = issuer.certificate.subject.rfc4514_string(), signing.certificate.not_valid_after_utc
    assert f"issued by '{name}', valid from " in str(refused)
    assert f" to {until:%Y-%m-%dT%H:%M:%SZ}: " in str(refused)


# The machine, the policy, the ledger

Change = Callable[[SandboxMachine], None]


def gone(machine: SandboxMachine) -> None:
    machine.exists = False


def made_anew(machine: SandboxMachine) -> None:
    machine.vm_id = "02aab8a4-74ef-476e-8182-f6d2ba4166a6"


def in_state(state: str) -> Change:
    return lambda machine: setattr(machine, "provisioning_state", state)


MACHINES: dict[str, tuple[Change, dict[str, JsonValue], Reason | None]] = {
    "that Azure deletes": (in_state("Deleting"), {}, Reason.PLATFORM_INSTANCE_NOT_RUNNING),
    "in a state that nobody knows": (in_state("Quarantined"), {}, Reason.PLATFORM_INSTANCE_NOT_RUNNING),
    "that Azure still makes": (in_state("Creating"), {}, None),
    "whose last change failed": (in_state("Failed"), {}, None),
    "that Azure does not have": (gone, {}, Reason.PLATFORM_INSTANCE_NOT_FOUND),
    "made anew under its name": (made_anew, {}, Reason.PLATFORM_INSTANCE_MISMATCH),
    "with the tag, whose name has another case": (lambda _: None, {"tags": {"team": "nodes"}}, None),
    "with another value of the tag": (lambda _: None, {"tags": {"Team": "Nodes"}}, Reason.PLATFORM_TAGS_NOT_ALLOWED),
    "without the tag": (lambda _: None, {"tags": {"owner": ""}}, Reason.PLATFORM_TAGS_NOT_ALLOWED),
    "of no scale set, where one is demanded": (
        lambda _: None,
        {"scaleSets": ["pool"]},
        Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
    ),
    "of another group": (lambda _: None, {"resourceGroups": ["other"]}, Reason.PLATFORM_ACCOUNT_NOT_ALLOWED),
    "where no group is listed": (lambda _: None, {"resourceGroups": []}, Reason.PLATFORM_ACCOUNT_NOT_ALLOWED),
    "where no subscription is listed": (lambda _: None, {"subscriptions": []}, Reason.PLATFORM_ACCOUNT_NOT_ALLOWED),
    "of a listed group in another case": (lambda _: None, {"resourceGroups": ["FLEET-RG"]}, None),
}


@pytest.mark.parametrize("what", MACHINES)
async def test_a_machine_is_held_to_what_azure_says_and_the_policy_demands(
    signer: AzureSigner, cloud: SandboxAzure, machine: SandboxMachine, what: str
) -> None:
    change, policy, reason = MACHINES[what]
    request, facts = honest(machine, cloud), facts_for(machine, **policy)
    change(machine)
    if reason is None:
        assert await signer.verify_client_attestation_data(request, facts)
    else:
        assert (await verdict(signer, request, facts)).reason is reason


async def test_a_machine_of_a_listed_scale_set_may_join_whichever_its_kind(
    signer: AzureSigner, cloud: SandboxAzure, machine: SandboxMachine
) -> None:
    uniform = cloud.launch(str(len(cloud.state.machines)), scale_set="Pool-A", computer_name="a000000")
    machine.flexible_set = "POOL-A"
    for one in (uniform, machine):
        facts = facts_for(one, scaleSets=["pool-a"])
        assert await signer.verify_client_attestation_data(honest(one, cloud), facts)


async def test_a_policy_without_the_section_lets_nobody_in(
    signer: AzureSigner, cloud: SandboxAzure, machine: SandboxMachine
) -> None:
    facts = dataclasses.replace(facts_for(machine), settings={})
    assert (await verdict(signer, honest(machine, cloud), facts)).reason is Reason.PLATFORM_ACCOUNT_NOT_ALLOWED


async def test_the_ledgers_machine_is_the_only_one(
    signer: AzureSigner, cloud: SandboxAzure, machine: SandboxMachine
) -> None:
    request, facts = honest(machine, cloud), facts_for(machine)
    same = dataclasses.replace(facts, ledger=LedgerFacts(fingerprints={"vm": machine.vm_id}))
    other = dataclasses.replace(facts, ledger=LedgerFacts(fingerprints={"vm": "0" * 36}))
    assert await signer.verify_client_attestation_data(request, same)
    assert (await verdict(signer, request, other)).reason is Reason.PLATFORM_INSTANCE_MISMATCH


@pytest.mark.parametrize(
    "provider_id",
    [
        "azure://{0}x",
        "aws:///eu-central-1a/i-0123456789abcdef0",
        "azure:///subscriptions/{1}/resourceGroups/../providers/Microsoft.Compute/virtualMachines/x/y",
        "azure:///subscriptions/{1}/resourceGroups/FLEET/providers/Microsoft.Compute/virtualMachines/vm",
        "azure:///subscriptions/{1}/resourceGroups/f%2e/providers/Microsoft.Compute/virtualMachines/vm",
        "azure:///subscriptions/{1}/resourceGroups/fleet/providers/Microsoft.Compute/virtualMachines/vm?a=b",
        "azure:///subscriptions/{1}/resourceGroups/fleet/providers/Microsoft.Network/virtualMachines/vm",
        "azure:///SUBSCRIPTIONS/{1}/resourceGroups/fleet/providers/Microsoft.Compute/virtualMachines/vm",
    ],
)
async def test_a_provider_id_of_another_spelling_is_denied(
    signer: AzureSigner, cloud: SandboxAzure, machine: SandboxMachine, provider_id: str
) -> None:
    text = provider_id.format("/subscriptions/", machine.subscription)
    facts = facts_for(machine)
    facts = dataclasses.replace(facts, machine=dataclasses.replace(facts.machine, provider_id=ProviderID(text)))
    assert (await verdict(signer, honest(machine, cloud), facts)).reason is Reason.PROVIDER_ID_INVALID


# What Azure tells besides, and what is there without Azure


async def test_the_platform_tells_a_machines_addresses_as_they_are_now(
    signer: AzureSigner, machine: SandboxMachine, cloud: SandboxAzure
) -> None:
    assert isinstance(signer, PlatformAddresses)
    told = (("InternalIP", machine.address), ("Hostname", machine.computer_name))
    assert await signer.addresses(facts_for(machine)) == told
    instance = cloud.launch(str(len(cloud.state.machines)), scale_set="pool-b", computer_name="b000001")
    assert await signer.addresses(facts_for(instance)) == (("InternalIP", instance.address), ("Hostname", "b000001"))


async def test_addresses_of_a_machine_made_anew_are_not_those_of_the_one_that_joined(
    signer: AzureSigner, machine: SandboxMachine
) -> None:
    ledger = LedgerFacts(fingerprints={"vm": machine.vm_id})
    facts = dataclasses.replace(facts_for(machine), ledger=ledger)
    assert await signer.addresses(facts)
    machine.vm_id = str(uuid.uuid4())
    # The kept list has the old machine still; whoever asks later sees the new one.
    later = dataclasses.replace(facts, ledger=LedgerFacts(fingerprints={"vm": machine.vm_id}))
    assert await signer.addresses(later)
    with pytest.raises(Denied) as denied:
        await signer.addresses(facts)
    assert denied.value.reason is Reason.PLATFORM_INSTANCE_MISMATCH


async def test_addresses_of_a_machine_elsewhere_are_not_asked_for(signer: AzureSigner, machine: SandboxMachine) -> None:
    with pytest.raises(Denied) as denied:
        await signer.addresses(facts_for(machine, resourceGroups=["other"]))
    assert denied.value.reason is Reason.PLATFORM_ACCOUNT_NOT_ALLOWED


async def test_offline_the_document_is_checked_and_azure_is_not_asked(
    cloud: SandboxAzure, machine: SandboxMachine
) -> None:
    settings: dict[str, JsonValue] = {"trustBundle": str(cloud.trust_bundle)}
    offline = AzureSigner(platform=Platform(settings=settings, may_call=False))
    called = len(cloud.state.calls)
    refused = await verdict(offline, honest(machine, cloud), facts_for(machine))
    assert isinstance(refused, Unavailable)
    assert [check.name for check in refused.checks][-1] == "subscription of the document"
    assert len(cloud.state.calls) == called


async def test_without_a_trust_bundle_nobody_is_believed_and_nothing_is_denied_for_good(
    cloud: SandboxAzure, machine: SandboxMachine
) -> None:
    signer = make_signer(AZURE, OFFLINE)
    assert isinstance(signer, AzureSigner)
    assert isinstance(signer, ClosingSigner)
    refused = await verdict(signer, honest(machine, cloud), facts_for(machine))
    assert isinstance(refused, Unavailable)
    assert "platforms.azure.trustBundle" in refused.remedy


async def test_no_message_and_no_record_holds_the_document_or_a_token(
    signer: AzureSigner, cloud: SandboxAzure, machine: SandboxMachine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    request, facts = honest(machine, cloud), facts_for(machine)
    proven = await signer.verify_client_attestation_data(request, facts)
    document = str(request.evidence.data["signature"])
    shown = caplog.text + repr(proven) + repr(request)
    assert "eyJ" not in shown  # what every JSON Web Token begins with, and the controller sent and got two
    assert cloud.token_file.read_text().startswith("eyJ")
    assert document[:64] not in shown


def test_settings_with_which_no_request_could_be_evaluated_are_refused(cloud: SandboxAzure) -> None:
    signer = signer_for_cloud(cloud)
    signer.check_settings({"subscriptions": [], "resourceGroups": []})
    with pytest.raises(Denied):
        signer.check_settings({"subscription": []})


async def test_judging_again_asks_nobody_again(
    signer: AzureSigner, cloud: SandboxAzure, machine: SandboxMachine
) -> None:
    request, facts = honest(machine, cloud), facts_for(machine)
    await signer.verify_client_attestation_data(request, facts)
    called = len(cloud.state.calls)
    for _ in range(20):
        await signer.verify_client_attestation_data(request, facts)
    assert len(cloud.state.calls) == called
