"""D6, Azure: documents of other machines, times, clusters and clouds, and documents that Azure never signed."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
from azure_world import AZURE, document_for, facts_for, now, request_of, signer_for_cloud, with_document
from catalogue import Row, attacks, evaluated
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import AuthorityInformationAccessOID
from worlds import PIN

from clouds import cms
from clouds.authority import Authority, rsa_key
from clouds.azure import DOMAIN, SERVER, SandboxAzure, SandboxMachine, content_of, signer_of
from nodeattest_providers.identifiers import ClusterPin, ProviderID, Purpose, signer_for
from nodeattest_providers.node_interface import Evidence, JsonValue
from nodeattest_providers.verifier_interface import AttestedNode, Facts, LedgerFacts, NodeRequest

SHA1 = bytes.fromhex("06052b0e03021a")
_SERVING = signer_for(AZURE, Purpose.SERVING)
_NOBODY = SandboxMachine(
    subscription="8d10da13-8125-4ba9-a717-bf7490507b3d", group="g", name="vm", computer_name="vm", address="10.0.0.4"
)


@dataclass(frozen=True)
class Stage:
    """The cloud, the victim's machine, and an address that nobody may be led to."""

    cloud: SandboxAzure
    victim: SandboxMachine
    trap: socket.socket

    def attest(self, request: NodeRequest, facts: Facts | None = None) -> AttestedNode:
        async def asked() -> AttestedNode:
            signer = signer_for_cloud(self.cloud)
            try:
                return await signer.verify_client_attestation_data(request, facts or facts_for(self.victim))
            finally:
                await signer.aclose()

        return asyncio.run(asked())

    def request(self) -> NodeRequest:
        return request_of(self.victim)

    def content(self, request: NodeRequest, machine: SandboxMachine | None = None) -> bytes:
        """What the honest document says."""
        nonce = request.binding(PIN).digest.hex()[:32]
        return json.dumps(content_of(machine or self.victim, nonce, request.created)).encode()

    def shown(self, make: Callable[[NodeRequest], bytes], facts: Facts | None = None) -> AttestedNode:
        """Ask for the victim's machine with a document that is made for the request."""
        request = self.request()
        return self.attest(with_document(request, make(request)), facts)

    def honest(self, request: NodeRequest, machine: SandboxMachine | None = None) -> bytes:
        """Make the document that Azure signs, of the victim unless of another machine."""
        return document_for(request, machine or self.victim, self.cloud.signing)

    def other(self, name: str) -> SandboxMachine:
        return self.cloud.launch(f"{name}-{len(self.cloud.state.machines)}")


Case = Callable[[Stage], AttestedNode]


@pytest.fixture
def stage(azure: SandboxAzure) -> Iterator[Stage]:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        yield Stage(cloud=azure, victim=azure.launch("victim"), trap=trap)


def changed(created: timedelta = timedelta(0), nonce: str | None = None, **content: object) -> Case:
    """Show a document that Azure signed, and that says otherwise."""

    def case(stage: Stage) -> AttestedNode:
        signing = stage.cloud.signing
        return stage.shown(
            lambda request: document_for(request, stage.victim, signing, created=created, nonce=nonce, changes=content)
        )

    return case


def of(machine: Callable[[Stage], SandboxMachine]) -> Case:
    """Show another machine's document, right in all but whose it is."""
    return lambda stage: stage.shown(lambda request: stage.honest(request, machine(stage)))


def by(signing: Callable[[Stage], Authority]) -> Case:
    """Show the right document, signed by somebody else."""
    return lambda stage: stage.shown(lambda request: document_for(request, stage.victim, signing(stage)))


def named(common_name: str, *names: str) -> Case:
    return by(lambda stage: signer_of(stage.cloud.issuing, *names, common_name=common_name))


def packed(change: Callable[[cms.Document], bytes]) -> Case:
    """Spoil the message around the right content."""

    def case(stage: Stage) -> AttestedNode:
        signing = stage.cloud.signing
        return stage.shown(lambda request: change(cms.azure_form(stage.content(request), signing)))

    return case


def beside_azures(*, named_as_signer: bool) -> Case:
    """Sign with a key of one's own, and embed the certificate of Azure's signer first."""

    def case(stage: Stage) -> AttestedNode:
        request, azures = stage.request(), stage.cloud.signing.certificate
        own = signer_of(Authority.root("mine", key=rsa_key()))
        document = cms.azure_form(stage.content(request), own)
        certificates = (azures.public_bytes(Encoding.DER), *document.certificates)
        signer = cms.named(azures) if named_as_signer else document.signer
        document = dataclasses.replace(document, certificates=certificates, signer=signer)
        return stage.attest(with_document(request, document.der()))

    return case


def replayed(to: Callable[[NodeRequest], NodeRequest]) -> Case:
    """Show a document that was made for something else."""
    return lambda stage: stage.shown(lambda request: stage.honest(to(request)))


def of_another_cluster(stage: Stage) -> AttestedNode:
    pin = ClusterPin("sha256:" + "ee" * 32)
    return stage.shown(lambda request: document_for(request, stage.victim, stage.cloud.signing, pin=pin))


def lured(stage: Stage) -> AttestedNode:
    """Certify oneself under Azure's names, and name an address where the issuer waits."""
    port = stage.trap.getsockname()[1]
    fetch = x509.AccessDescription(
        AuthorityInformationAccessOID.CA_ISSUERS, x509.UniformResourceIdentifier(f"http://127.0.0.1:{port}/ca.crt")
    )
    names = x509.SubjectAlternativeName([x509.DNSName(DOMAIN)])
    stranger = Authority(stage.cloud.issuing.certificate, rsa_key())
    signing = stranger.below(DOMAIN, (x509.AuthorityInformationAccess([fetch]), False), (names, False), SERVER)
    try:
        return stage.shown(lambda request: document_for(request, stage.victim, signing))
    finally:
        stage.trap.settimeout(0)
        with pytest.raises(BlockingIOError):
            stage.trap.accept()


def maze(stage: Stage) -> AttestedNode:
    """Embed authorities of one name and key, so that each is the issuer of all."""
    key = rsa_key()
    own = Authority(Authority.root("Maze").certificate, key)
    embedded = [Authority(own.certificate, key).below("Maze").certificate for _ in range(7)]
    leaf = signer_of(own)
    return stage.shown(lambda request: cms.azure_form(stage.content(request), leaf, embedded).der())


def token(**more: JsonValue) -> Case:
    def case(stage: Stage) -> AttestedNode:
        return stage.attest(request_of(stage.victim, Evidence(AZURE, 1, {"token": "eyJhbGciOiJub25lIn0.e30.", **more})))

    return case


def twice(stage: Stage) -> AttestedNode:
    request, signing = stage.request(), stage.cloud.signing
    data = stage.content(request, stage.other("other"))[:-1] + f',"vmId":"{stage.victim.vm_id}"}}'.encode()
    return stage.attest(with_document(request, cms.azure_form(data, signing).der()))


def after(change: Callable[[SandboxMachine], None]) -> Case:
    """Let the machine become another after it got its document."""

    def case(stage: Stage) -> AttestedNode:
        request = stage.request()
        request = with_document(request, stage.honest(request))
        change(stage.victim)
        return stage.attest(request)

    return case


def altered(stage: Stage) -> AttestedNode:
    other = stage.other("mine")
    return stage.shown(
        lambda request: stage.honest(request, other).replace(other.vm_id.encode(), stage.victim.vm_id.encode())
    )


def as_content(stage: Stage) -> AttestedNode:
    request, signing = stage.request(), stage.cloud.signing
    honest = cms.aws_form(stage.content(request), signing, now())
    swapped = dataclasses.replace(
        honest,
        content=honest.signed_bytes(),
        attributes=None,
        certificates=cms.azure_form(b"", signing).certificates,
    )
    return stage.attest(with_document(request, swapped.der()))


def traversing(stage: Stage) -> AttestedNode:
    facts = facts_for(stage.victim)
    away = ProviderID(stage.victim.provider_id.replace("/fleet-rg/", "/fleet-rg/../other-rg/"))
    about = dataclasses.replace(facts.machine, provider_id=away)
    return stage.shown(stage.honest, dataclasses.replace(facts, machine=about))


def under(**policy: JsonValue) -> Case:
    return lambda stage: stage.shown(stage.honest, facts_for(stage.victim, **policy))


def pinned(stage: Stage) -> AttestedNode:
    facts = dataclasses.replace(facts_for(stage.victim), ledger=LedgerFacts(fingerprints={"vm": "0" * 36}))
    return stage.shown(stage.honest, facts)


CASES: dict[str, Case] = {
    "D6-08": changed(nonce="0" * 32),
    "D6-09": changed(created=timedelta(minutes=6)),
    "D6-10": of(lambda stage: stage.other("thief")),
    "D6-40": lured,
    "D6-41": named("contoso.azurewebsites.net", "contoso.azurewebsites.net"),
    "D6-42": named("*.azure.com", "*.azure.com"),
    "D6-43": named(f"{DOMAIN}.contoso.com", f"{DOMAIN}.contoso.com"),
    "D6-44": by(lambda stage: signer_of(stage.cloud.issuing, "metadata.azure.us", common_name="metadata.azure.us")),
    "D6-45": changed(created=timedelta(minutes=-6)),
    "D6-46": of(lambda stage: stage.cloud.launch("victim", subscription="8d10da13-8125-4ba9-a717-bf7490507b3d")),
    "D6-47": under(resourceGroups=["other-rg"]),
    "D6-48": replayed(lambda request: request_of(dataclasses.replace(_NOBODY, name=request.name))),
    "D6-49": of_another_cluster,
    "D6-50": replayed(lambda request: dataclasses.replace(request, signer_name=_SERVING)),
    "D6-51": packed(lambda document: dataclasses.replace(document, signers=2).der()),
    "D6-52": packed(lambda document: dataclasses.replace(document, digest=cms.algorithm(SHA1)).der()),
    "D6-53": packed(lambda document: document.der() + b"\0"),
    "D6-54": twice,
    "D6-55": token(),
    "D6-56": token(signature="AA"),
    "D6-57": after(lambda machine: setattr(machine, "vm_id", "02aab8a4-74ef-476e-8182-f6d2ba4166a6")),
    "D6-58": after(lambda machine: setattr(machine, "provisioning_state", "Deleting")),
    "D6-59": maze,
    "D6-60": as_content,
    "D6-61": traversing,
    "D6-62": altered,
    "D6-63": beside_azures(named_as_signer=False),
    "D6-64": beside_azures(named_as_signer=True),
    "D6-65": packed(lambda document: dataclasses.replace(document, certificates=()).der()),
    "D6-66": after(lambda machine: setattr(machine, "exists", False)),
    "D6-67": pinned,
    "D6-68": under(scaleSets=["pool"]),
    "D6-69": under(tags={"owner": "us"}),
}


def test_the_honest_machine_passes(stage: Stage) -> None:
    assert stage.shown(stage.honest).fingerprints == {"vm": stage.victim.vm_id}


@pytest.mark.parametrize(("row", "case"), attacks(CASES))
def test_a_document_that_is_not_this_machines_proof_is_refused(stage: Stage, row: Row, case: Case) -> None:
    assert evaluated(lambda: case(stage), row) == row.expected
