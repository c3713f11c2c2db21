"""``explain`` finds a Machine without a provider ID by its token, and shows each source."""

from __future__ import annotations

import pytest
from csr_world import World, request
from late_machines import put_machine, serve_metal3
from tpm_world import SoftTpm

from nodeattest_cli.explain.replay import explain_request
from nodeattest_parsing.objects import mapping
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY, NodeName, ProviderID
from nodeattest_sandbox.pki import ClusterPki

EXPECTED = "metal3://fleet/rack-1/m-1"
KEY = "sha256:" + "0a" * 32


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[JsonObject]:
    """What the management cluster holds of a CAPM3 machine before its Node exists."""
    world = World(ClusterPki.make(tmp_path_factory.mktemp("pki"), "blue"), verifier=None)  # pyright: ignore[reportArgumentType] - nothing verifies here
    serve_metal3(world)
    put_machine(world, "m-1", "abcdef")
    world.policy(tokenBinding="Required", infrastructure={"hostObjects": ["BareMetalHost"]})
    kinds = {"machines": "Machine", "clusters": "Cluster", "metal3machines": "Metal3Machine"}
    kinds |= {"kubeadmconfigs": "KubeadmConfig", "nodeattestationpolicies": "NodeAttestationPolicy"}
    found: list[JsonObject] = []
    for path, obj in world.management_api.objects.items():
        kind = kinds.get(path.split("/")[-2])
        found += [{**obj, "kind": kind}] if kind is not None else []
    consumer: JsonObject = {"kind": "Metal3Machine", "namespace": "fleet", "name": "m-1"}
    meta: JsonObject = {"name": "rack-1", "namespace": "fleet", "annotations": {ANNOTATION_TPM_ENDORSEMENT_KEY: KEY}}
    return [*found, {"kind": "BareMetalHost", "metadata": meta, "spec": {"consumerRef": consumer}}]


def stored(provider_id: str) -> JsonObject:
    """Return a request of the machine as an API server has it."""
    filed = request(
        "r-1", evidence=SoftTpm().first().to_json(), node=NodeName("m-1"), provider_id=ProviderID(provider_id)
    )
    return {**filed, "metadata": {**mapping(filed, "metadata"), "uid": "uid-r-1"}}


def test_each_source_is_shown(documents: list[JsonObject]) -> None:
    explanation = explain_request(stored(EXPECTED), documents)
    facts = dict(explanation.facts)
    assert facts["Machine"] == "Machine m-1"
    assert facts["expected provider ID"].startswith(f"{EXPECTED} (Metal3Machine expression metal3://")
    assert "rack-1 (BareMetalHost)" in facts["node names"]
    assert facts["endorsement key"] == f"{KEY} (BareMetalHost annotation {ANNOTATION_TPM_ENDORSEMENT_KEY})"
