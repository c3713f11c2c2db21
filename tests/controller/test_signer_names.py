"""The signers' names on the infrastructure object: in its status, or in annotations, and taken back."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

import pytest
from management_kit import add_cluster, add_policy, cached, cluster_path, deps_of, management_api, tasks
from polling import until
from virtual import advance, virtually

from nodeattest_controller.controllers import signer_names
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_kube.errors import Forbidden
from nodeattest_parsing.objects import condition, items, mapping
from nodeattest_parsing.values import JsonObject, JsonValue

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CLIENT = "cluster.x-k8s.io/kube-apiserver-client-kubelet-"
SERVING = "cluster.x-k8s.io/kubelet-serving-"
FIELDS = ("kubeletClientCertificateSigner", "kubeletServingCertificateSigner")
ANNOTATIONS = (
    "attestation.cluster.x-k8s.io/kubelet-client-certificate-signer",
    "attestation.cluster.x-k8s.io/kubelet-serving-certificate-signer",
)


# In a management cluster

GROUP: Final = "/apis/infrastructure.example.com"
FORBIDDEN: Final = Forbidden(403, "Forbidden", "farmclusters is forbidden")


class Farm:
    """A management cluster with a Cluster of a provider that is not in the RBAC manifests."""

    def __init__(self, contract: str = "v1beta2") -> None:
        self.api = management_api()
        kinds: JsonObject = {"resources": [{"name": "farmclusters", "kind": "FarmCluster"}]}
        group: JsonObject = {"versions": [{"version": contract}]}
        self.api.documents |= {GROUP: group, f"{GROUP}/{contract}": kinds}
        place: JsonObject = (
            {"apiGroup": GROUP[6:]} if contract == "v1beta2" else {"apiVersion": f"{GROUP[6:]}/{contract}"}
        )
        add_cluster(self.api, infrastructureRef={**place, "kind": "FarmCluster", "name": "blue"})
        self.policy = add_policy(self.api)
        self.infra = f"{GROUP}/{contract}/namespaces/fleet/farmclusters/blue"
        self.api.put(self.infra, {"metadata": {"name": "blue"}})
        self.api.on_call = self._call
        self.may_write = self.leads = True

    async def _call(self, method: str, path: str) -> None:
        if method == "PATCH" and path.startswith(self.infra) and not self.may_write:
            raise FORBIDDEN

    def condition(self) -> JsonObject:
        conditions = items(self.api.objects[cluster_path("blue")], "status", "conditions")
        return dict(condition(conditions, signer_names.PUBLISHED) or {})

    async def says(self, reason: str | None) -> None:
        await until(lambda: self.condition().get("reason") == reason)

    def fields(self) -> tuple[JsonValue, ...]:
        status = mapping(self.api.objects[self.infra], "status")
        return tuple(status.get(field) for field in FIELDS)

    def annotations(self) -> tuple[JsonValue, ...]:
        found = mapping(self.api.objects[self.infra], "metadata", "annotations")
        return tuple(found.get(field) for field in ANNOTATIONS)

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[None]:
        async with cached(self.api) as management:
            deps = deps_of(management, now=lambda: NOW, leads=lambda: self.leads)
            publisher = signer_names.SignerNamesReconciler(deps, serves=True)
            management.changes.subscribe_clusters(publisher.cluster_changed)
            publisher.cluster_changed(ClusterKey("fleet/blue"), None)
            async with tasks(publisher.run()):
                yield


@pytest.mark.parametrize("contract", ["v1beta1", "v1beta2"])
async def test_the_names_stand_in_the_status_and_go_with_the_policy(contract: str) -> None:
    farm = Farm(contract)
    async with farm.working():
        await farm.says("InStatus")
        assert farm.fields() == (CLIENT + "tpm", SERVING + "tpm")
        assert farm.annotations() == (None, None)
        add_policy(farm.api, authorizedAttestors=["insecure"])
        await until(lambda: farm.fields() == (CLIENT + "insecure", None))
        farm.api.remove(farm.policy)
        await farm.says(None)
        assert farm.fields() == (None, None)


@virtually
async def test_a_policy_that_is_none_takes_no_names_back() -> None:
    """Nodes go on asking the signers that they know."""
    farm = Farm()
    async with farm.working():
        await farm.says("InStatus")
        add_policy(farm.api, allowPigs=True)
        await advance(2 * signer_names.SETTLE)
        assert farm.fields() == (CLIENT + "tpm", SERVING + "tpm")


@virtually
async def test_a_cluster_of_another_replica_is_left_alone() -> None:
    farm = Farm()
    farm.leads = False
    async with farm.working():
        await advance(2 * signer_names.SETTLE)
    assert not farm.api.writes()


async def test_where_the_definition_prunes_the_fields_annotations_hold_the_names() -> None:
    farm = Farm()
    farm.api.pruned = FIELDS
    async with farm.working():
        await farm.says("InAnnotations")
        assert farm.fields() == (None, None)
        assert farm.annotations() == (CLIENT + "tpm", SERVING + "tpm")
        assert farm.condition()["status"] == "True"
        assert "no fields" in str(farm.condition()["message"])
        farm.api.remove(farm.policy)
        await farm.says(None)
    assert farm.annotations() == (None, None)


async def test_a_healthy_cluster_whose_names_may_not_be_written_gets_no_condition(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    farm = Farm()
    farm.may_write = False
    async with farm.working():
        await until(lambda: "signers are not published" in caplog.text)
        assert farm.condition() == {}


async def test_names_that_may_not_be_changed_any_more_make_the_condition_false() -> None:
    farm = Farm()
    async with farm.working():
        await until(lambda: farm.condition().get("status") == "True")
        farm.may_write = False
        add_policy(farm.api, authorizedAttestors=["insecure"])
        await farm.says("Forbidden")
