"""D6, Oracle Cloud: certificates of others, signatures for others, chains of one's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final

import pytest
from catalogue import Row, attacks, evaluated
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from oci_world import Instance, OracleCloud, facts_for, issue, ocid, request_of, subject
from worlds import PIN, attested, filed

from clouds.authority import Authority
from nodeattest_providers.identifiers import ClusterPin, ProviderID, Purpose, signer_for
from nodeattest_providers.node_interface import Evidence
from nodeattest_providers.oci.protocol import HASH, PROVIDER, message
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.verifier_interface import AttestedNode, Facts, NodeRequest

_OTHER_PIN: Final = ClusterPin("sha256:" + "c3" * 32)


@dataclasses.dataclass(frozen=True)
class Stage:
    """The region and the victim's instance; every case asks for the victim's Machine."""

    cloud: OracleCloud
    victim: Instance

    def attest(self, request: NodeRequest, facts: Facts | None = None) -> AttestedNode:
        return attested(self.cloud.signer(), request, facts or facts_for(self.victim))

    def file(self, show: Callable[[NodeRequest], Evidence]) -> AttestedNode:
        """Ask with evidence that is made for the request."""
        request = request_of(self.victim)
        return self.attest(dataclasses.replace(request, evidence=show(request)))

    def show(self, instance: Instance) -> AttestedNode:
        """Sign as another instance."""
        return self.file(instance.evidence)


Case = Callable[[Stage], AttestedNode]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    cloud = OracleCloud(tmp_path_factory.mktemp("oci"))
    return Stage(cloud, cloud.launch("victim"))


def for_another_key(stage: Stage) -> AttestedNode:
    csr = build_csr(ec.generate_private_key(ec.SECP256R1()), "n-0", stage.victim.provider_id)
    evidence = request_of(stage.victim).evidence
    return stage.attest(filed(evidence, csr=csr))


def at_the_other_signer(stage: Stage) -> AttestedNode:
    request = request_of(stage.victim)
    return stage.attest(dataclasses.replace(request, signer_name=signer_for(PROVIDER, Purpose.SERVING)))


def in_another_padding(stage: Stage) -> AttestedNode:
    def show(request: NodeRequest) -> Evidence:
        signed = stage.victim.key.sign(message(request.binding(PIN).digest), padding.PKCS1v15(), HASH)
        return stage.victim.showing(signed)

    return stage.file(show)


def of_ones_own_root(stage: Stage) -> AttestedNode:
    own = stage.cloud.directory / "own"
    own.mkdir()
    return stage.show(OracleCloud(own).launch("victim"))


def issued_by_an_instance(stage: Stage) -> AttestedNode:
    thief = stage.cloud.launch("thief")
    key = rsa.generate_private_key(65537, 2048)
    issued = issue(Authority(thief.certificate, thief.key), subject(ocid("victim")), key.public_key())
    return stage.show(Instance(ocid=ocid("victim"), key=key, certificate=issued, intermediate=thief.certificate))


def saying(*units: str, **how: object) -> Case:
    """Show a certificate that says something else, by Oracle's own authority."""
    return lambda stage: stage.show(stage.cloud.launch("victim", [*units] or None, **how))


def elsewhere(stage: Stage) -> AttestedNode:
    facts = facts_for(stage.victim)
    machine = dataclasses.replace(facts.machine, provider_id=ProviderID("oci://ocid1.bootvolume.oc1.phx.victim"))
    return stage.attest(request_of(stage.victim), dataclasses.replace(facts, machine=machine))


CASES: Final[Mapping[str, Case]] = {
    "D6-120": lambda stage: stage.show(stage.cloud.launch("thief")),
    "D6-121": lambda s: s.file(lambda r: s.victim.evidence(r, key=rsa.generate_private_key(65537, 2048))),
    "D6-122": for_another_key,
    "D6-123": at_the_other_signer,
    "D6-124": lambda s: s.file(lambda r: s.victim.evidence(r, pin=_OTHER_PIN)),
    "D6-125": in_another_padding,
    "D6-126": of_ones_own_root,
    "D6-127": issued_by_an_instance,
    "D6-128": saying(age=timedelta(hours=3)),
    "D6-129": saying(*subject(ocid("victim"), certtype="service")),
    "D6-130": saying(*subject(ocid("victim")), f"opc-instance:{ocid('thief')}"),
    "D6-131": saying(*subject(ocid("victim"), tenant="ocid1.tenancy.oc1..thiefs")),
    "D6-132": saying(*subject(ocid("victim"), compartment="ocid1.compartment.oc1..other")),
    "D6-133": elsewhere,
    "D6-134": lambda s: s.file(lambda r: Evidence(PROVIDER, 1, {**r.evidence.data, "key": "AAAA"})),
    "D6-135": saying(usage=ExtendedKeyUsageOID.SERVER_AUTH),
}


def test_the_instance_itself_is_attested(stage: Stage) -> None:
    assert stage.show(stage.victim).checks


@pytest.mark.parametrize(("row", "case"), attacks(CASES))
def test_who_is_not_the_instance_gets_nothing(stage: Stage, row: Row, case: Case) -> None:
    assert evaluated(lambda: case(stage), row) == row.expected
