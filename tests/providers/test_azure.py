"""The azure verifier beside an Azure on loopback, and its Resource Manager asked over real TLS.

Each check that refuses has its attack in docs/proof/checks.md; the attacks are in tests/attacks/test_d6_azure.py.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from azure_world import AZURE, document_for, facts_for, now, request_of, signer_for_cloud, verdict, with_document
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from worlds import OLD_PIN, PIN, Calls, denied_for

from clouds.authority import CA, END, Authority, Extension, constraint, purposes, rsa_key
from clouds.azure import DOMAIN, SERVER, SandboxAzure, SandboxMachine, Switches, signer_of
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.azure.api import Machine, Machines, ResourceManager, Tokens, parse_machine
from nodeattest_providers.azure.attestor import AzureAttestor
from nodeattest_providers.azure.config import parse_platform
from nodeattest_providers.azure.protocol import AttestedDocument, nonce_for, parse_provider_id
from nodeattest_providers.azure.verifier import AzureSigner, check_document, foreign_name, signer_problem
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.identifiers import ClusterPin
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import OFFLINE, CallOutcome, Platform, make_signer
from nodeattest_providers.verifier_interface import LedgerFacts, NodeRequest


@pytest.fixture
def cloud(azure: SandboxAzure) -> SandboxAzure:
    return azure


@pytest.fixture
def machine(cloud: SandboxAzure) -> SandboxMachine:
    return cloud.launch("vm-0", tags={"Team": "nodes"})


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
    machine = cloud.launch("7", scale_set=scale_set, computer_name="Node-7" if serving else "n-7")
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


# Who may sign

ROOT = Authority.root("Root", key=rsa_key())
ISSUING = ROOT.below("Issuing")
CLIENT = purposes(ExtendedKeyUsageOID.CLIENT_AUTH)


def certified(*extensions: Extension, by: Authority = ISSUING, end: datetime = END) -> x509.Certificate:
    """Certify Azure's names, with these extensions besides."""
    names = x509.SubjectAlternativeName([x509.DNSName(DOMAIN)]), False
    return by.issue(DOMAIN, ROOT.certificate.public_key(), names, *extensions, end=end)  # pyright: ignore[reportArgumentType] - an RSA key


def problem(signer: x509.Certificate, *embedded: Authority, trusted: Authority = ISSUING) -> str:
    found = signer_problem(signer, [signer, *(one.certificate for one in embedded)], (trusted.certificate,), now())
    return found or ""


FOREIGN: dict[str, Authority] = {
    "one foreign name besides": signer_of(ISSUING, DOMAIN, "contoso.com"),
    "a wildcard": signer_of(ISSUING, f"*.{DOMAIN}"),
    "a longer label": signer_of(ISSUING, f"not-{DOMAIN}"),
    "a foreign common name": signer_of(ISSUING, common_name="contoso.com"),
    "a name of another kind": ISSUING.below(
        DOMAIN, SERVER, (x509.SubjectAlternativeName([x509.UniformResourceIdentifier(DOMAIN)]), False)
    ),
    "no names": ISSUING.below(DOMAIN, SERVER),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_signer_with_a_name_that_is_not_azures_is_known_by_it(what: str) -> None:
    assert foreign_name(signer_of(ISSUING).certificate, DOMAIN) is None
    assert foreign_name(FOREIGN[what].certificate, DOMAIN)


@pytest.mark.parametrize(
    ("signer", "said"),
    [
        (certified(SERVER, constraint(0)), "a CA"),
        (certified(), "not for TLS servers"),
        (certified(CLIENT), "not for TLS servers"),
        (certified(SERVER, (x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b""), True)), "1.2.3.4"),
        (certified(SERVER, end=now() - timedelta(days=1)), "not valid now"),
        (certified(SERVER, by=ROOT), "no certificate of its issuer"),
    ],
)
def test_a_signer_that_no_authority_certified_as_a_tls_server_signs_nothing(
    signer: x509.Certificate, said: str
) -> None:
    assert said in problem(signer)


def test_a_signer_below_an_authority_for_tls_clients_signs_nothing() -> None:
    between = ISSUING.below("between", *CA, CLIENT)
    assert "extended key usage lacks" in problem(certified(SERVER, by=between), between)


def test_a_signer_may_say_more_and_its_embedded_issuer_counts_where_a_root_issued_it() -> None:
    assert not problem(certified(SERVER, (x509.OCSPNoCheck(), False)))
    stranger = Authority.root("Issuing")
    assert problem(certified(SERVER), stranger, trusted=ROOT)
    assert not problem(certified(SERVER), stranger, ISSUING, trusted=ROOT)


def test_an_issuer_that_is_not_in_the_bundle_is_told_with_the_validity_of_what_it_certified() -> None:
    other = Authority.root("Other Root").below("Microsoft Azure RSA TLS Issuing CA " + "0" * 20)
    said = problem(certified(SERVER, by=other))
    assert f"issued by '{other.certificate.subject.rfc4514_string()}', valid from " in said
    assert f" to {END:%Y-%m-%dT%H:%M:%SZ}" in said


def test_a_document_that_ended_before_it_began_is_for_no_request(machine: SandboxMachine) -> None:
    request = request_of(machine)
    document = AttestedDocument(
        vm_id=machine.vm_id,
        subscription=machine.subscription,
        nonce=nonce_for(request.binding(PIN).digest),
        created=request.created,
        expires=request.created - timedelta(seconds=1),
    )
    with denied_for(Reason.PLATFORM_PROOF_EXPIRED):
        check_document(Checks(), request, facts_for(machine), document)


async def test_a_request_is_evaluated_at_its_own_time_however_much_later(
    signer: AzureSigner, cloud: SandboxAzure, machine: SandboxMachine
) -> None:
    request, facts = honest(machine, cloud), facts_for(machine)
    for days in (0, 100):
        later = dataclasses.replace(facts, verified_at=facts.verified_at + timedelta(days=days))
        assert await signer.verify_client_attestation_data(request, later)


# What Azure tells besides, and what is there without Azure


async def test_the_platform_tells_a_machines_addresses_as_they_are_now(
    signer: AzureSigner, machine: SandboxMachine, cloud: SandboxAzure
) -> None:
    told = (("InternalIP", machine.address), ("Hostname", machine.computer_name))
    assert await signer.addresses(facts_for(machine)) == told
    instance = cloud.launch("12", scale_set="pool-b", computer_name="b000001")
    assert await signer.addresses(facts_for(instance)) == (("InternalIP", instance.address), ("Hostname", "b000001"))


async def test_addresses_of_a_machine_elsewhere_are_not_asked_for(signer: AzureSigner, machine: SandboxMachine) -> None:
    with denied_for(Reason.PLATFORM_ACCOUNT_NOT_ALLOWED):
        await signer.addresses(facts_for(machine, resourceGroups=["other"]))


async def test_addresses_of_a_machine_that_took_the_name_of_another_are_not_told(
    signer: AzureSigner, machine: SandboxMachine
) -> None:
    recorded = LedgerFacts(fingerprints={"vm": "02aab8a4-74ef-476e-8182-f6d2ba4166a6"})
    with denied_for(Reason.PLATFORM_INSTANCE_MISMATCH):
        await signer.addresses(dataclasses.replace(facts_for(machine), ledger=recorded))


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
    refused = await verdict(signer, honest(machine, cloud), facts_for(machine))
    assert isinstance(refused, Unavailable)
    assert "platforms.azure.trustBundle" in refused.remedy


# The Resource Manager


@pytest_asyncio.fixture
async def manager(cloud: SandboxAzure) -> AsyncIterator[ResourceManager]:
    made = manager_for(cloud, Calls())
    yield made
    await made.aclose()


def manager_for(
    cloud: SandboxAzure,
    calls: Calls,
    clock: Callable[[], float] = time.monotonic,
    time_limit: float = 60.0,
    **changes: JsonValue,
) -> ResourceManager:
    settings = dict[str, JsonValue](cloud.configuration) | changes  # type: ignore[arg-type]
    configuration = parse_platform(settings)
    tokens = Tokens(configuration, observe=calls)
    return ResourceManager(configuration, tokens, observe=calls, monotonic=clock, time_limit=time_limit)


async def find(machines: Machines, machine: SandboxMachine) -> Machine | None:
    return await machines.find(parse_provider_id(machine.provider_id), vm_id=machine.vm_id)


def lists(cloud: SandboxAzure) -> list[str]:
    """The lists that were asked for."""
    return [call for call in cloud.state.calls if "/virtualMachines?" in call]


FAULTS: dict[str, tuple[dict[str, object], CallOutcome, str]] = {
    "down": ({"down": True}, CallOutcome.FAILED, "status 503"),
    "throttled": ({"throttled": 17}, CallOutcome.THROTTLED, "throttled"),
    "forbidden": ({"forbidden": True}, CallOutcome.REFUSED, "status 403"),
    "redirecting": ({"redirect": "https://127.0.0.1:1/"}, CallOutcome.FAILED, "status 302"),
    "endless": ({"huge": True}, CallOutcome.FAILED, "no usable answer"),
}


@pytest.mark.parametrize("what", FAULTS)
async def test_an_azure_that_fails_is_waited_for_and_its_failure_is_counted(
    cloud: SandboxAzure, machine: SandboxMachine, what: str
) -> None:
    switches, outcome, said = FAULTS[what]
    calls = Calls()
    signer = signer_for_cloud(cloud, calls)
    request = request_of(machine)
    request = with_document(request, document_for(request, machine, cloud.signing))
    cloud.state.switches = Switches(**switches)  # type: ignore[arg-type]
    refused = await verdict(signer, request, facts_for(machine))
    assert isinstance(refused, Unavailable)
    assert refused.reason is Reason.PLATFORM_UNAVAILABLE
    assert said in refused.detail
    assert refused.checks
    assert calls.seen == [("authority", CallOutcome.OK), ("machines", outcome)]
    if what == "throttled":
        assert refused.retry_after == 17
    await signer.aclose()


async def test_a_throttled_azure_is_not_asked_before_the_time_that_it_named(
    cloud: SandboxAzure, machine: SandboxMachine
) -> None:
    clock = [1000.0]
    manager = manager_for(cloud, Calls(), lambda: clock[0])
    machines = Machines(manager, monotonic=lambda: clock[0])
    cloud.state.switches = Switches(throttled=60)
    with pytest.raises(Unavailable):
        await find(machines, machine)
    cloud.state.switches = Switches()
    clock[0] += 59
    with pytest.raises(Unavailable) as again:
        await find(machines, machine)
    assert again.value.retry_after == pytest.approx(1)
    assert len(lists(cloud)) == 1
    clock[0] += 2
    assert await find(machines, machine)
    await manager.aclose()


async def test_a_next_page_elsewhere_is_not_asked(
    cloud: SandboxAzure, machine: SandboxMachine, manager: ResourceManager
) -> None:
    cloud.launch("vm-1")
    cloud.state.switches = Switches(page=1, elsewhere=f"{cloud.url}.contoso.com")
    with pytest.raises(Unavailable) as refused:
        await find(Machines(manager), machine)
    assert "next page elsewhere" in refused.value.detail


async def test_pages_have_an_end(cloud: SandboxAzure, machine: SandboxMachine, manager: ResourceManager) -> None:
    cloud.state.machines += [dataclasses.replace(machine, name=f"vm-{number}") for number in range(1, 102)]
    cloud.state.switches = Switches(page=1)
    with pytest.raises(Unavailable) as refused:
        await find(Machines(manager), machine)
    assert "more than 100 pages" in refused.value.detail


async def test_a_group_that_azure_does_not_have_is_empty(cloud: SandboxAzure, manager: ResourceManager) -> None:
    nowhere = SandboxMachine(
        subscription=cloud.subscription, group="nowhere", name="vm", computer_name="vm", address="10.0.0.1"
    )
    assert await find(Machines(manager), nowhere) is None


async def test_the_identity_of_the_controllers_own_machine_serves(
    cloud: SandboxAzure, machine: SandboxMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = cloud.launch("controller")
    monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", own.metadata)  # where azure-identity looks for it
    calls = Calls()
    manager = manager_for(cloud, calls, credential={"managedIdentity": {}})
    assert await find(Machines(manager), machine)
    assert calls.seen == [("authority", CallOutcome.OK), ("machines", CallOutcome.OK)]
    assert not [call for call in cloud.state.calls if "oauth2" in call]
    await manager.aclose()


async def test_a_server_of_another_authority_is_not_believed(
    cloud: SandboxAzure, machine: SandboxMachine, tmp_path: Path
) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(cloud.trust_bundle.read_bytes())
    calls = Calls()
    signer: AzureSigner = signer_for_cloud(cloud, calls, caBundle=str(bundle))
    request = request_of(machine)
    request = with_document(request, document_for(request, machine, cloud.signing))
    assert isinstance(await verdict(signer, request, facts_for(machine)), Unavailable)
    assert calls.seen == [("authority", CallOutcome.FAILED)]
    assert cloud.state.calls == []
    await signer.aclose()


def test_answers_of_any_shape_are_no_machines() -> None:
    odd: list[JsonObject] = [{}, {"id": 7}, {"id": "a/b/vm", "properties": [], "tags": "x"}]
    for value in odd:
        assert parse_machine(value).vm_id == ""
    assert parse_machine({"id": "vm", "tags": {"a": 1}}).tags == {"a": "1"}
