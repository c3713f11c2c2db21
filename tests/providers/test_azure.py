"""The azure verifier beside an Azure on loopback, and its Resource Manager asked over real TLS.

Each check that refuses has its attack in docs/proof/checks.md; the attacks are in tests/attacks/test_d6_azure.py.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio
from azure_world import AZURE, document_for, facts_for, now, request_of, signer_for_cloud, verdict, with_document
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from worlds import OLD_PIN, PIN, Calls, denied_for

from clouds import cms
from clouds.authority import CA, Authority, Extension, constraint, purposes, rsa_key
from clouds.azure import DOMAIN, SERVER, SandboxAzure, SandboxMachine, Switches, content_of, signer_of
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.azure.api import Machine, Machines, ResourceManager, Tokens, parse_machine
from nodeattest_providers.azure.attestor import AzureAttestor
from nodeattest_providers.azure.config import parse_platform
from nodeattest_providers.azure.protocol import nonce_for, parse_provider_id
from nodeattest_providers.azure.verifier import AzureSigner
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import ClusterPin
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import OFFLINE, CallOutcome, Platform, make_signer
from nodeattest_providers.verifier_interface import NodeRequest


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


# One part of the evidence spoilt

CLIENT = purposes(ExtendedKeyUsageOID.CLIENT_AUTH)

Spoil = Callable[[NodeRequest, SandboxMachine, SandboxAzure], bytes]


def timed(created: timedelta, life: timedelta = timedelta(hours=6)) -> Spoil:
    return lambda request, machine, cloud: document_for(request, machine, cloud.signing, created=created, life=life)


def by(signing: Callable[[SandboxAzure], Authority]) -> Spoil:
    return lambda request, machine, cloud: document_for(request, machine, signing(cloud))


def named(*names: str, common_name: str = DOMAIN) -> Callable[[SandboxAzure], Authority]:
    return lambda cloud: signer_of(cloud.issuing, *names, common_name=common_name)


def certified(*extensions: Extension, issuer: Authority | None = None) -> Callable[[SandboxAzure], Authority]:
    """Let the issuing authority, or another, certify Azure's names, with these extensions besides."""
    names = (x509.SubjectAlternativeName([x509.DNSName(DOMAIN)]), False)
    return lambda cloud: (issuer or cloud.issuing).below(DOMAIN, names, *extensions)


def certified_without_names(cloud: SandboxAzure) -> Authority:
    return cloud.issuing.below(DOMAIN, SERVER)


def expired(cloud: SandboxAzure) -> Authority:
    names = (x509.SubjectAlternativeName([x509.DNSName(DOMAIN)]), False)
    return cloud.issuing.below(DOMAIN, names, SERVER, end=now() - timedelta(days=1))


async def test_a_server_with_azures_names_signs_whatever_its_certificate_says_besides(
    signer: AzureSigner, cloud: SandboxAzure, machine: SandboxMachine
) -> None:
    request = request_of(machine)
    document = document_for(request, machine, certified(SERVER, (x509.OCSPNoCheck(), False))(cloud))
    assert await signer.verify_client_attestation_data(with_document(request, document), facts_for(machine))


def below_one_for_clients(request: NodeRequest, machine: SandboxMachine, cloud: SandboxAzure) -> bytes:
    """Sign below an embedded authority that an authority of the bundle certified for TLS clients only."""
    between = certified(*CA, CLIENT)(cloud)
    leaf = certified(SERVER, issuer=between)(cloud)
    content = json.dumps(content_of(machine, nonce_for(request.binding(PIN).digest), request.created)).encode()
    return cms.azure_form(content, leaf, [between.certificate]).der()


async def test_a_signer_whose_issuer_is_not_in_the_bundle_is_denied_with_its_issuer_and_validity(
    signer: AzureSigner, machine: SandboxMachine
) -> None:
    issuer = Authority.root("Other Root", key=rsa_key()).below("Microsoft Azure RSA TLS Issuing CA " + "0" * 20)
    signing = signer_of(issuer)
    request = request_of(machine)
    document = document_for(request, machine, signing)
    refused = await verdict(signer, with_document(request, document), facts_for(machine))
    assert refused.reason is UNSIGNED
    name, until = issuer.certificate.subject.rfc4514_string(), signing.certificate.not_valid_after_utc
    assert f"issued by '{name}', valid from " in str(refused)
    assert f" to {until:%Y-%m-%dT%H:%M:%SZ}" in str(refused)


UNSIGNED = Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID
DENIED: dict[str, tuple[Spoil, Reason]] = {
    "no message at all": (lambda _, __, ___: b"{}", Reason.PLATFORM_DOCUMENT_MALFORMED),
    "a signer whose time is over": (by(expired), UNSIGNED),
    "a signer with one foreign name besides": (
        by(named(DOMAIN, "contoso.com")),
        UNSIGNED,
    ),
    "a signer with a wildcard below": (
        by(named(f"*.{DOMAIN}")),
        UNSIGNED,
    ),
    "a signer with a foreign common name": (
        by(named(DOMAIN, common_name="contoso.com")),
        UNSIGNED,
    ),
    "a signer without names": (by(certified_without_names), UNSIGNED),
    "an authority as the signer": (
        by(lambda cloud: cloud.issuing),
        UNSIGNED,
    ),
    "an authority with Azure's names": (
        by(certified(SERVER, constraint(0))),
        UNSIGNED,
    ),
    "a signer for no usage": (by(certified()), UNSIGNED),
    "a signer for TLS clients": (by(certified(CLIENT)), UNSIGNED),
    "a signer with a critical extension that nobody knows": (
        by(certified(SERVER, (x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b""), True))),
        UNSIGNED,
    ),
    "a signer below an authority for TLS clients": (below_one_for_clients, UNSIGNED),
    "half of the nonce": (
        lambda request, machine, cloud: document_for(
            request, machine, cloud.signing, nonce=request.binding(PIN).digest.hex()[:16]
        ),
        Reason.PLATFORM_PROOF_NOT_BOUND,
    ),
    "a document that ended before it began": (
        timed(timedelta(0), timedelta(seconds=-1)),
        Reason.PLATFORM_PROOF_EXPIRED,
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


async def test_a_request_is_evaluated_at_its_own_time_however_much_later(
    signer: AzureSigner, cloud: SandboxAzure, machine: SandboxMachine
) -> None:
    request, facts = honest(machine, cloud), facts_for(machine)
    for days in (0, 100):
        later = dataclasses.replace(facts, verified_at=facts.verified_at + timedelta(days=days))
        assert await signer.verify_client_attestation_data(request, later)


async def test_an_intermediate_that_the_document_embeds_counts_where_a_root_issued_it(
    cloud: SandboxAzure, machine: SandboxMachine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    roots = tmp_path_factory.mktemp("roots") / "roots.pem"
    roots.write_bytes(cloud.trust_bundle.read_bytes().split(b"-----BEGIN", 2)[1].join([b"-----BEGIN", b""]))
    signer = signer_for_cloud(cloud, trustBundle=str(roots))
    request = request_of(machine)
    content = content_of(machine, request.binding(PIN).digest.hex()[:32], request.created)
    data = json.dumps(content).encode()
    alone = cms.azure_form(data, cloud.signing)
    refused = await verdict(signer, with_document(request, alone.der()), facts_for(machine))
    assert refused.reason is UNSIGNED
    stranger = Authority.root("Sandbox Azure TLS Issuing CA 01").certificate
    embedded = [stranger, cloud.issuing.certificate]
    whole = cms.azure_form(data, cloud.signing, embedded)
    assert await signer.verify_client_attestation_data(with_document(request, whole.der()), facts_for(machine))
    await signer.aclose()


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
