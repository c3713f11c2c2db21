"""D6, Azure: documents of other machines, times, clusters and clouds, and documents that Azure never signed."""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from azure_world import AZURE, document_for, facts_for, now, request_of, signer_for_cloud, with_document
from catalogue import Row, attacks, evaluated
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import AuthorityInformationAccessOID
from worlds import PIN, attested

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
        return attested(signer_for_cloud(self.cloud), request, facts or facts_for(self.victim))

    def content(self, request: NodeRequest, machine: SandboxMachine | None = None) -> bytes:
        """What the honest document says."""
        nonce = request.binding(PIN).digest.hex()[:32]
        return json.dumps(content_of(machine or self.victim, nonce, request.created)).encode()

    def shown(self, make: Callable[[NodeRequest], bytes], facts: Facts | None = None) -> AttestedNode:
        """Ask for the victim's machine with a document that is made for the request."""
        request = request_of(self.victim)
        return self.attest(with_document(request, make(request)), facts)

    def document(self, request: NodeRequest, machine: SandboxMachine | None = None) -> bytes:
        """Make the document that Azure signs."""
        return document_for(request, machine or self.victim, self.cloud.signing)

    def other(self, name: str) -> SandboxMachine:
        return self.cloud.launch(f"{name}-{len(self.cloud.state.machines)}")


Case = Callable[[Stage], AttestedNode]


@pytest.fixture
def stage(azure: SandboxAzure) -> Iterator[Stage]:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        yield Stage(cloud=azure, victim=azure.launch("victim"), trap=trap)


def show(make: Callable[[Stage, NodeRequest], bytes]) -> Case:
    return lambda stage: stage.shown(lambda request: make(stage, request))


def signed(
    *, machine: Callable[[Stage], SandboxMachine] | None = None,
    signing: Callable[[Stage], Authority] | None = None, **how: Any,
) -> Case:  # fmt: skip
    """Show a document that is otherwise in one thing."""
    return show(
        lambda s, r: document_for(
            r, machine(s) if machine else s.victim, signing(s) if signing else s.cloud.signing, **how
        )
    )


def named(name: str) -> Case:
    return signed(signing=lambda s: signer_of(s.cloud.issuing, name, common_name=name))


def packed(change: Callable[[cms.Document], bytes]) -> Case:
    """Spoil the message around the right content."""
    return show(lambda s, r: change(cms.azure_form(s.content(r), s.cloud.signing)))


def beside_azures(stage: Stage, request: NodeRequest, *, named_as_signer: bool) -> bytes:
    """Sign with a key of one's own, and embed the certificate of Azure's signer first."""
    azures = stage.cloud.signing.certificate
    document = cms.azure_form(stage.content(request), signer_of(Authority.root("mine", key=rsa_key())))
    certificates = (azures.public_bytes(Encoding.DER), *document.certificates)
    signer = cms.named(azures) if named_as_signer else document.signer
    return dataclasses.replace(document, certificates=certificates, signer=signer).der()


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
        return signed(signing=lambda _: signing)(stage)
    finally:
        stage.trap.settimeout(0)
        with pytest.raises(BlockingIOError):
            stage.trap.accept()


def maze(stage: Stage, request: NodeRequest) -> bytes:
    """Embed authorities of one name and key, so that each is the issuer of all."""
    key = rsa_key()
    own = Authority(Authority.root("Maze").certificate, key)
    embedded = [Authority(own.certificate, key).below("Maze").certificate for _ in range(7)]
    return cms.azure_form(stage.content(request), signer_of(own), embedded).der()


def token(**more: JsonValue) -> Case:
    def case(stage: Stage) -> AttestedNode:
        return stage.attest(request_of(stage.victim, Evidence(AZURE, 1, {"token": "eyJhbGciOiJub25lIn0.e30.", **more})))

    return case


def twice(stage: Stage, request: NodeRequest) -> bytes:
    data = stage.content(request, stage.other("other"))[:-1] + f',"vmId":"{stage.victim.vm_id}"}}'.encode()
    return cms.azure_form(data, stage.cloud.signing).der()


def after(**changes: object) -> Case:
    """Let the machine become another after it got its document."""

    def make(stage: Stage, request: NodeRequest) -> bytes:
        document = stage.document(request)
        for name, value in changes.items():
            setattr(stage.victim, name, value)
        return document

    return show(make)


def altered(stage: Stage, request: NodeRequest) -> bytes:
    other = stage.other("mine")
    return stage.document(request, other).replace(other.vm_id.encode(), stage.victim.vm_id.encode())


def as_content(stage: Stage, request: NodeRequest) -> bytes:
    signing = stage.cloud.signing
    honest = cms.aws_form(stage.content(request), signing, now())
    own = cms.azure_form(b"", signing).certificates
    return dataclasses.replace(honest, content=honest.signed_bytes(), attributes=None, certificates=own).der()


def traversing(stage: Stage) -> AttestedNode:
    facts = facts_for(stage.victim)
    away = ProviderID(stage.victim.provider_id.replace("/fleet-rg/", "/fleet-rg/../other-rg/"))
    about = dataclasses.replace(facts.machine, provider_id=away)
    return stage.shown(stage.document, dataclasses.replace(facts, machine=about))


def under(**policy: JsonValue) -> Case:
    return lambda stage: stage.shown(stage.document, facts_for(stage.victim, **policy))


def pinned(stage: Stage) -> AttestedNode:
    facts = dataclasses.replace(facts_for(stage.victim), ledger=LedgerFacts(fingerprints={"vm": "0" * 36}))
    return stage.shown(stage.document, facts)


CASES: dict[str, Case] = {
    "D6-08": signed(nonce="0" * 32),
    "D6-09": signed(created=timedelta(minutes=6)),
    "D6-10": signed(machine=lambda s: s.other("thief")),
    "D6-40": lured,
    "D6-41": named("contoso.azurewebsites.net"),
    "D6-42": named("*.azure.com"),
    "D6-43": named(f"{DOMAIN}.contoso.com"),
    "D6-44": named("metadata.azure.us"),
    "D6-45": signed(created=timedelta(minutes=-6)),
    "D6-46": signed(machine=lambda s: s.cloud.launch("victim", subscription="8d10da13-8125-4ba9-a717-bf7490507b3d")),
    "D6-47": under(resourceGroups=["other-rg"]),
    "D6-48": show(lambda s, r: s.document(request_of(dataclasses.replace(_NOBODY, name=r.name)))),
    "D6-49": signed(pin=ClusterPin("sha256:" + "ee" * 32)),
    "D6-50": show(lambda s, r: s.document(dataclasses.replace(r, signer_name=_SERVING))),
    "D6-51": packed(lambda document: dataclasses.replace(document, signers=2).der()),
    "D6-52": packed(lambda document: dataclasses.replace(document, digest=cms.algorithm(SHA1)).der()),
    "D6-53": packed(lambda document: document.der() + b"\0"),
    "D6-54": show(twice),
    "D6-55": token(),
    "D6-56": token(signature="AA"),
    "D6-57": after(vm_id="02aab8a4-74ef-476e-8182-f6d2ba4166a6"),
    "D6-58": after(provisioning_state="Deleting"),
    "D6-59": show(maze),
    "D6-60": show(as_content),
    "D6-61": traversing,
    "D6-62": show(altered),
    "D6-63": show(partial(beside_azures, named_as_signer=False)),
    "D6-64": show(partial(beside_azures, named_as_signer=True)),
    "D6-65": packed(lambda document: dataclasses.replace(document, certificates=()).der()),
    "D6-66": after(exists=False),
    "D6-67": pinned,
    "D6-68": under(scaleSets=["pool"]),
    "D6-69": under(tags={"owner": "us"}),
}


def test_the_honest_machine_passes(stage: Stage) -> None:
    assert stage.shown(stage.document).fingerprints == {"vm": stage.victim.vm_id}


@pytest.mark.parametrize(("row", "case"), attacks(CASES))
def test_a_document_that_is_not_this_machines_proof_is_refused(stage: Stage, row: Row, case: Case) -> None:
    assert evaluated(lambda: case(stage), row) == row.expected
