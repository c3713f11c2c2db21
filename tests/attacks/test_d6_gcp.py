"""D6, Google Cloud: VMs that are not the Machine's, VMs that may not join, tokens, and a Compute API gone wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from catalogue import Row, attacks, evaluated
from gcp_world import (
    MACHINE_ID,
    NUMBER,
    PROJECT,
    Joining,
    instance_of,
    joining,
    node_facts,
    node_request,
    pinned,
    platform_of,
    rsa_tpm,
    verified,
)
from tpm_world import SoftTpm

from clouds.gcp import GoogleCloud
from nodeattest_providers.identifiers import (
    ANNOTATION_TPM_ENDORSEMENT_KEY,
    ProviderID,
    ProviderName,
    Purpose,
    signer_for,
)
from nodeattest_providers.node_interface import Evidence, JsonValue
from nodeattest_providers.platform import Platform
from nodeattest_providers.tpm.endorsement_key import MACHINE_ANNOTATION
from nodeattest_providers.tpm.protocol import VERSION
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import AttestedNode, Facts, NodeRequest

NODES = f"nodes@{PROJECT}.iam.gserviceaccount.com"
LISTED: dict[str, JsonValue] = {"projects": [PROJECT]}
HEADERS = ("eyJhbGciOiJub25lIn0", "eyJhbGciOiJIUzI1NiJ9", "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ")
"""Of algorithm none, HS256 and RS256."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A cloud with the Machine's instance, and the TPM that is its vTPM."""

    cloud: GoogleCloud
    platform: Platform
    tpm: SoftTpm
    folder: Path

    def change(self, **changes: object) -> Stage:
        self.cloud.instances = [replace(self.cloud.instances[0], **changes)]
        return self

    def verify(self, request: NodeRequest | None = None, facts: Facts | None = None) -> AttestedNode:
        """File a request, a first one unless it is another."""
        return verified(self.platform, request or node_request(self.tpm.first()), facts or node_facts())

    def ask(self, tpm: SoftTpm | None = None, settings: dict[str, JsonValue] | None = None) -> AttestedNode:
        return self.verify(node_request((tpm or self.tpm).first()), node_facts(settings))

    def show(self, data: dict[str, JsonValue], provider: str = "gcp") -> AttestedNode:
        """File a first request with other evidence."""
        evidence = Evidence(ProviderName(provider), VERSION, data)
        return self.verify(node_request(self.tpm.first(), evidence=evidence))

    def join(self) -> Joining:
        return joining(self.platform, self.tpm)


Case = Callable[[Stage], AttestedNode]


@pytest.fixture
def stage(google: GoogleCloud, vtpm: SoftTpm, tmp_path: Path) -> Stage:
    return Stage(google, platform_of(google), vtpm, tmp_path)


def changed(settings: dict[str, JsonValue] | None = None, **changes: object) -> Case:
    """Ask for an instance that is otherwise than the Machine's."""
    return lambda stage: stage.change(**changes).ask(settings=settings)


def unwanted(**settings: JsonValue) -> Case:
    """Ask where the policy wants others."""
    return changed(
        {**LISTED, **settings},
        labels={"role": "shared"},
        service_account=NODES,
        secure_boot=False,
        integrity_monitoring=False,
    )


def shown(**fields: JsonValue) -> Case:
    """Put something beside the keys."""
    return lambda stage: stage.show({**stage.tpm.first().to_json(), **fields})


def token(header: str, claims: str) -> Case:
    """Show an instance identity token and nothing else."""
    return lambda stage: stage.show({"identityToken": f"{header}.{claims}.AAAA"})


def about(**changes: Any) -> Facts:
    """Change what is known of the Machine."""
    facts = node_facts()
    return replace(facts, machine=replace(facts.machine, **changes))


def neighbours(stage: Stage) -> AttestedNode:
    other = rsa_tpm()
    stage.cloud.add(instance_of(other, name="node-8", number="8"))
    return stage.ask(other)


def signing_key(stage: Stage) -> AttestedNode:
    other = rsa_tpm()
    stage.change(keys={**stage.cloud.instances[0].keys, "signingKey": instance_of(other).keys["encryptionKey"]})
    return stage.ask(other)


def annotated(stage: Stage) -> AttestedNode:
    other = rsa_tpm()
    noted = {ANNOTATION_TPM_ENDORSEMENT_KEY: other.fingerprint, MACHINE_ANNOTATION: other.fingerprint}
    return stage.verify(node_request(other.first()), about(annotations=noted, endorsement_keys=noted))


def elsewhere(provider_id: str) -> Case:
    """Have a Machine with another provider ID."""
    return lambda stage: stage.verify(facts=about(provider_id=ProviderID(provider_id)))


def deleted(stage: Stage) -> AttestedNode:
    joined = stage.join()
    stage.cloud.instances = []
    return joined.verify()


def exchanged(stage: Stage) -> AttestedNode:
    joined = stage.join()
    stage.change(keys=instance_of(rsa_tpm()).keys, number="78")
    return joined.verify()


def at_tpm(stage: Stage) -> AttestedNode:
    joined, name = stage.join(), signer_for(ProviderName("tpm"), Purpose.CLIENT)
    first = replace(joined.first, signer_name=name, evidence=as_tpm(joined.first.evidence.data))
    second = node_request(joined.answer, signer_name=name, evidence=as_tpm(joined.answer.to_json()))
    listed: dict[str, JsonValue] = {"endorsementKeys": [{"providerID": MACHINE_ID, "sha256": stage.tpm.fingerprint}]}
    facts = replace(joined.facts, settings=listed, first_request=first)
    return asyncio.run(TpmSigner().verify_client_attestation_data(second, facts))


def as_tpm(data: dict[str, JsonValue]) -> Evidence:
    return Evidence(ProviderName("tpm"), VERSION, data)


def redirected(stage: Stage) -> AttestedNode:
    stage.cloud.switches.redirecting[PROJECT] = f"{stage.cloud.endpoint}/compute/v1/projects/other-project"
    return stage.ask()


def other_authority(stage: Stage) -> AttestedNode:
    with GoogleCloud(stage.folder / "other") as other:
        other.instances = [instance_of(stage.tpm)]
        endpoints: dict[str, JsonValue] = {"compute": other.endpoint}
        settings = {**stage.platform.settings, "endpoints": endpoints}
        return verified(Platform(settings=settings), node_request(stage.tpm.first()), node_facts())


def swapped(stage: Stage) -> AttestedNode:
    stage.cloud.switches.swapping[PROJECT] = instance_of(stage.tpm, zone="europe-west4-b")
    return stage.ask()


@pytest.mark.parametrize(
    ("row", "case"),
    attacks(
        {
            "D6-11": token(HEADERS[0], "eyJhdWQiOiJub2RlYXR0ZXN0In0"),
            "D6-12": token(HEADERS[2], "eyJhdWQiOiJlbHNld2hlcmUifQ"),
            "D6-13": token(HEADERS[2], "eyJnb29nbGUiOnsicHJvamVjdF9pZCI6Im90aGVyIn19"),
            "D6-14": shown(identityToken=f"{HEADERS[2]}.e30.AAAA"),
            "D6-70": lambda stage: stage.ask(rsa_tpm()),
            "D6-71": neighbours,
            "D6-72": lambda s: s.change(number="77").verify(facts=node_facts(ledger=pinned(instance=NUMBER))),
            "D6-73": changed(status="TERMINATED"),
            "D6-74": changed(status="SUSPENDED"),
            "D6-75": changed({"projects": ["other-project"]}),
            "D6-76": changed({}),
            "D6-77": unwanted(regions=["us-central1"]),
            "D6-78": unwanted(labels={"capg-cluster-blue": "owned"}),
            "D6-79": unwanted(labels={"role": "owned"}),
            "D6-80": unwanted(serviceAccounts=[f"others@{PROJECT}.iam.gserviceaccount.com"]),
            "D6-81": changed({**LISTED, "serviceAccounts": [NODES]}),
            "D6-82": changed(vtpm=False),
            "D6-83": unwanted(requireSecureBoot=True),
            "D6-84": signing_key,
            "D6-85": shown(ekCert="MIIB"),
            "D6-86": annotated,
            "D6-87": changed({**LISTED, "trustOnFirstUse": True}),
            "D6-88": elsewhere("gce://fleet-project/europe-west4-a/../../other-project/node-7"),
            "D6-89": elsewhere("gce://fleet-project/europe-west4-b/node-7"),
            "D6-90": deleted,
            "D6-91": exchanged,
            "D6-92": at_tpm,
            "D6-93": lambda s: s.show(s.tpm.first().to_json(), "tpm"),
            "D6-94": redirected,
            "D6-95": other_authority,
            "D6-96": changed(labels={"a": "x" * (5 * 1024 * 1024)}),
            "D6-97": swapped,
            "D6-140": unwanted(requireIntegrityMonitoring=True),
        }
    ),
)
def test_a_vm_that_is_not_the_machines_gets_nothing(stage: Stage, row: Row, case: Case) -> None:
    assert evaluated(lambda: case(stage), row) == row.expected


def test_the_stage_is_sound_so_that_each_attack_fails_for_its_own_reason(stage: Stage) -> None:
    assert stage.join().verify().checks
