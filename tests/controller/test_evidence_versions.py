"""Evidence of a version that a provider's signer does not know: the denial names those that it does."""

from __future__ import annotations

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from csr_world import CSRS, NODE, PROVIDER_ID, OneRound, World, request

from nodeattest_providers import envelope
from nodeattest_providers.csr import build_csr
from nodeattest_providers.names import ANNOTATION_SUPPORTED_VERSIONS, ProviderName
from nodeattest_providers.node_interface import Evidence
from nodeattest_sandbox.pki import ClusterPki


class TwoVersions(OneRound):
    """A provider with a made-up second version."""

    versions: tuple[int, ...] = (2, 1)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> ClusterPki:
    return ClusterPki.make(tmp_path_factory.mktemp("pki"), "blue")


async def outcome(pki: ClusterPki, signer: OneRound, version: int) -> tuple[str, str]:
    """File a request in a version; returns the reason of its denial and the versions that this names."""
    world = World(pki, signer)
    async with world.running():
        der = build_csr(ec.generate_private_key(ec.SECP256R1()), NODE, PROVIDER_ID)
        raw = envelope.encode(der, Evidence(ProviderName("tpm"), version, {"x": "y"}))
        world.workload_api.put(f"{CSRS}/r-1", request("r-1", request=base64.b64encode(raw).decode()))
        await world.reconcile("r-1")
        return world.condition("Denied", "r-1"), world.annotation(ANNOTATION_SUPPORTED_VERSIONS, "r-1")


@pytest.mark.parametrize(("signer", "version"), [(OneRound, 1), (TwoVersions, 1), (TwoVersions, 2)])
async def test_each_version_that_the_signer_knows_is_evaluated(
    pki: ClusterPki, signer: type[OneRound], version: int
) -> None:
    made = signer()
    assert await outcome(pki, made, version) == ("", "")
    assert made.calls


@pytest.mark.parametrize(("signer", "version", "names"), [(OneRound, 2, "tpm/v1"), (TwoVersions, 3, "tpm/v2,tpm/v1")])
async def test_another_version_is_denied_unevaluated_and_the_annotation_names_the_known_ones(
    pki: ClusterPki, signer: type[OneRound], version: int, names: str
) -> None:
    made = signer()
    assert await outcome(pki, made, version) == ("EvidenceVersionUnsupported", names)
    assert not made.calls
