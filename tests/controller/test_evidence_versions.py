"""Which versions of the evidence a policy admits, at the controller: the denial names those that are left."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from csr_world import CSRS, NODE, PROVIDER_ID, OneRound, World, request
from tpm_world import SoftTpm

from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers import envelope
from nodeattest_providers.csr import build_csr
from nodeattest_providers.names import ANNOTATION_CHALLENGE, ANNOTATION_SUPPORTED_VERSIONS
from nodeattest_providers.node_interface import Evidence
from nodeattest_providers.tpm.protocol import PROVIDER
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_sandbox.pki import ClusterPki


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> ClusterPki:
    return ClusterPki.make(tmp_path_factory.mktemp("pki"), "blue")


@pytest.fixture
async def world(pki: ClusterPki) -> AsyncGenerator[World]:
    signer = TpmSigner()
    made = World(pki, OneRound(), signer=signer)
    async with made.running():
        yield made
    await signer.aclose()


def file_first(world: World, tpm: SoftTpm, name: str, version: int | None = None) -> None:
    der = build_csr(ec.generate_private_key(ec.SECP256R1()), NODE, PROVIDER_ID)
    raw = envelope.encode(der, Evidence(PROVIDER, version or tpm.version, tpm.first().to_json()))
    world.workload_api.put(f"{CSRS}/{name}", request(name, request=base64.b64encode(raw).decode()))


@pytest.mark.parametrize(
    ("minimum", "version", "filed_as", "accepted"),
    [
        (1, 1, 1, None),
        (1, 2, 2, None),
        (2, 2, 2, None),
        (2, 1, 1, "tpm/v2"),
        (2, 2, 3, "tpm/v2"),
        (1, 2, 3, "tpm/v2,tpm/v1"),
    ],
)
async def test_a_version_that_the_policy_forbids_is_denied_and_the_annotation_names_the_others(
    world: World, minimum: int, version: int, filed_as: int, accepted: str | None
) -> None:
    tpm = SoftTpm.of_version(version)
    entry: JsonObject = {"providerID": PROVIDER_ID, "sha256": tpm.fingerprint}
    world.policy(tpm={"endorsementKeys": [entry], "minimumVersion": minimum})
    await world.settle()
    file_first(world, tpm, "r-1", filed_as)
    await world.reconcile("r-1")
    if accepted is None:
        assert world.annotation(ANNOTATION_CHALLENGE, "r-1"), world.csr("r-1")
        return
    assert world.condition("Denied", "r-1") == "EvidenceVersionUnsupported"
    assert world.annotation(ANNOTATION_SUPPORTED_VERSIONS, "r-1") == accepted
