"""Requests of machines of the sandbox's Azure, and a signer that reaches it; what can be spoilt is by keyword."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from worlds import FACTS, KEY, PIN, Calls, filed

from clouds.authority import Authority
from clouds.azure import SandboxAzure, SandboxMachine, Switches, attested, content_of
from nodeattest_providers.azure.protocol import AzureEvidence, nonce_for
from nodeattest_providers.azure.verifier import AzureSigner
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_providers.identifiers import ClusterPin, ProviderID, ProviderName, Purpose
from nodeattest_providers.node_interface import Evidence, JsonValue
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.platform import Platform
from nodeattest_providers.verifier_interface import Facts, NodeRequest

AZURE = ProviderName("azure")


@pytest.fixture(scope="session")
def running_azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxAzure]:
    with SandboxAzure(tmp_path_factory.mktemp("azure")) as cloud:
        yield cloud


@pytest.fixture
def azure(running_azure: SandboxAzure) -> SandboxAzure:
    """An Azure without machines and without calls."""
    running_azure.state.switches = Switches()
    running_azure.state.machines.clear()
    running_azure.state.calls.clear()
    return running_azure


def now() -> datetime:
    """This second: Azure's documents and the API server count in whole ones."""
    return datetime.now(UTC).replace(microsecond=0)


def signer_for_cloud(cloud: SandboxAzure, calls: Calls | None = None, **settings: JsonValue) -> AzureSigner:
    configuration = cast("dict[str, JsonValue]", {**cloud.configuration, **settings})
    return AzureSigner(platform=Platform(settings=configuration, observe=calls or Calls()))


def request_of(machine: SandboxMachine, evidence: Evidence | None = None, *, serving: bool = False) -> NodeRequest:
    """A request of this machine, made now."""
    names = (machine.computer_name,) if serving else ()
    csr = build_csr(KEY, machine.computer_name, machine.provider_id, dns_names=names)
    purpose = Purpose.SERVING if serving else Purpose.CLIENT
    request = filed(evidence or Evidence(AZURE, 1, {}), csr=csr, purpose=purpose)
    return dataclasses.replace(request, created=now())


def document_for(
    request: NodeRequest,
    machine: SandboxMachine,
    signing: Authority,
    *,
    pin: ClusterPin = PIN,
    nonce: str | None = None,
    created: timedelta = timedelta(0),
    life: timedelta = timedelta(hours=6),
    changes: Mapping[str, object] | None = None,
) -> bytes:
    """The document that the machine's metadata service would give for a request."""
    said = content_of(machine, nonce or nonce_for(request.binding(pin).digest), request.created + created, life)
    return attested(signing, {**said, **(changes or {})})


def evidence_of(document: bytes) -> Evidence:
    return Evidence(AZURE, 1, AzureEvidence(document).to_json())


def with_document(request: NodeRequest, document: bytes) -> NodeRequest:
    return dataclasses.replace(request, evidence=evidence_of(document))


def facts_for(machine: SandboxMachine, **policy: JsonValue) -> Facts:
    """What the controller gathers about this machine, under a policy for its subscription and group."""
    settings: dict[str, JsonValue] = {
        "subscriptions": [machine.subscription],
        "resourceGroups": [machine.group],
        **policy,
    }
    about = dataclasses.replace(FACTS.machine, provider_id=ProviderID(machine.provider_id))
    return dataclasses.replace(FACTS, machine=about, settings=settings, verified_at=now())


async def verdict(signer: AzureSigner, request: NodeRequest, facts: Facts) -> Denied | Unavailable:
    """How a request is refused."""
    try:
        await signer.verify_client_attestation_data(request, facts)
    except (Denied, Unavailable) as refused:
        return refused
    raise AssertionError("it was granted")
