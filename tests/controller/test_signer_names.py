"""The signers' names on the infrastructure object: in its status, or in annotations, and taken back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, cast

import pytest
import yaml
from management_kit import add_cluster, add_policy, cached, cluster_path, management_api
from policy_kit import NOW, condition_of, create_cluster, create_policy, infra_path, working
from polling import until

from nodeattest_controller.controllers.signer_names import (
    PUBLISHED,
    SignerNamesReconciler,
    Signers,
    signers_of,
)
from nodeattest_controller.manifests import crds
from nodeattest_controller.model.policy import parse_attestation_policy
from nodeattest_controller.runtime.guard import ClusterGuard
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.supervisor import ChangeBus
from nodeattest_kube.errors import Forbidden
from nodeattest_parsing.objects import condition, items
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at
from nodeattest_sandbox.control_plane import ControlPlane, start_sandbox
from nodeattest_sandbox.definitions import install_definitions

CLIENT = "cluster.x-k8s.io/kube-apiserver-client-kubelet-"
SERVING = "cluster.x-k8s.io/kubelet-serving-"
FIELDS = ("kubeletClientCertificateSigner", "kubeletServingCertificateSigner")
ANNOTATIONS = (
    "attestation.cluster.x-k8s.io/kubelet-client-certificate-signer",
    "attestation.cluster.x-k8s.io/kubelet-serving-certificate-signer",
)


def signers(*attestors: str, serves: bool = True, **spec: JsonValue) -> Signers:
    policy: JsonObject = {"metadata": {"name": "p"}, "spec": {"authorizedAttestors": [*attestors], **spec}}
    return signers_of(parse_attestation_policy(policy), serves=serves)


def test_one_provider_has_its_two_signers() -> None:
    assert signers("tpm") == Signers(CLIENT + "tpm", SERVING + "tpm")


# On an API server


DEV_CLUSTER: Final = cast(
    "JsonMap",
    yaml.safe_load("""\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: devclusters.infrastructure.cluster.x-k8s.io}
spec:
  group: infrastructure.cluster.x-k8s.io
  scope: Namespaced
  names: {plural: devclusters, kind: DevCluster}
  versions:
    - name: v1beta2
      served: true
      storage: true
      subresources: {status: {}}
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, properties: {backend: {type: object}}}
            status: {type: object, properties: {ready: {type: boolean}}}
"""),
)


@pytest.fixture
def pruning(tmp_path: Path, capi_definitions: Path) -> Iterator[ControlPlane]:
    """Run a server with Cluster API's own definitions, and a DevCluster that has no such fields."""
    with start_sandbox(tmp_path, name="management") as running:
        install_definitions(running.client(), capi_definitions)
        install_definitions(running.client(), [DEV_CLUSTER])
        install_definitions(running.client(), crds())
        yield running


def fields_of(plane: ControlPlane, name: str, contract: str = "v1beta2") -> tuple[JsonValue, ...]:
    status = map_at(plane.client().get(infra_path(name, contract)), "status")
    return tuple(status.get(field) for field in FIELDS)


def annotations_of(plane: ControlPlane, name: str) -> tuple[JsonValue, ...]:
    found = map_at(plane.client().get(infra_path(name)), "metadata", "annotations")
    return tuple(found.get(field) for field in ANNOTATIONS)


def reason_of(plane: ControlPlane, path: str) -> Callable[[], str]:
    return lambda: text_at(condition_of(plane.client().get(path), PUBLISHED), "reason")


@pytest.mark.parametrize("contract", ["v1beta1", "v1beta2"])
async def test_the_names_stand_in_the_status_and_go_with_the_policy(plane: ControlPlane, contract: str) -> None:
    client, name = plane.client(), f"status-{contract}"
    cluster = create_cluster(client, name, labels={"c": name}, contract=contract, infra=name)
    policy = create_policy(client, name, labels={"c": name})
    reason = reason_of(plane, cluster)
    async with working(plane):
        await until(lambda: reason() == "InStatus")
        assert fields_of(plane, name, contract) == (CLIENT + "tpm", SERVING + "tpm")
        assert annotations_of(plane, name) == (None, None)
        client.patch(policy, {"spec": {"authorizedAttestors": ["insecure"]}})
        await until(lambda: fields_of(plane, name, contract) == (CLIENT + "insecure", None))
        client.delete(policy)
        await until(lambda: reason() == "")
        assert fields_of(plane, name, contract) == (None, None)


async def test_a_cluster_of_another_replica_is_left_alone(plane: ControlPlane) -> None:
    create_cluster(plane.client(), "others", labels={"c": "others"}, infra="others")
    create_policy(plane.client(), "others", labels={"c": "others"})
    async with working(plane, leads=lambda: False) as office:
        await office.cluster_reconciled("others")
    assert fields_of(plane, "others") == (None, None)


async def test_where_the_definition_prunes_the_fields_annotations_hold_the_names(pruning: ControlPlane) -> None:
    client = pruning.client()
    cluster = create_cluster(client, "pruned", infra="pruned")
    policy = create_policy(client, "pruned")
    reason = reason_of(pruning, cluster)
    async with working(pruning):
        await until(lambda: reason() == "InAnnotations")
        assert fields_of(pruning, "pruned") == (None, None)
        assert annotations_of(pruning, "pruned") == (CLIENT + "tpm", SERVING + "tpm")
        told = condition_of(client.get(cluster), PUBLISHED)
        assert told["status"] == "True"
        assert "no fields" in text_at(told, "message")
        client.delete(policy)
        await until(lambda: reason() == "")
    assert annotations_of(pruning, "pruned") == (None, None)


INFRA: Final = "/apis/infrastructure.example.com/v1/namespaces/fleet/farmclusters/blue"
FORBIDDEN: Final = Forbidden(403, "Forbidden", "farmclusters is forbidden")


class Farm:
    """A management cluster with a Cluster of a provider that is not in the RBAC manifests."""

    def __init__(self, may_write: Callable[[], bool]) -> None:
        self.api = management_api()
        group: JsonObject = {"versions": [{"version": "v1"}]}
        kinds: JsonObject = {"resources": [{"name": "farmclusters", "kind": "FarmCluster"}]}
        self.api.documents |= {"/apis/infrastructure.example.com": group, "/apis/infrastructure.example.com/v1": kinds}
        reference: JsonObject = {"apiGroup": "infrastructure.example.com", "kind": "FarmCluster", "name": "blue"}
        add_cluster(self.api, infrastructureRef=reference)
        add_policy(self.api)
        self.api.put(INFRA, {"metadata": {"name": "blue"}})
        self.api.on_call = self._call
        self._may_write = may_write

    async def _call(self, method: str, path: str) -> None:
        if method == "PATCH" and path.startswith(INFRA) and not self._may_write():
            raise FORBIDDEN

    def condition(self) -> JsonObject:
        """Return the Cluster's condition; empty where there is none."""
        conditions = items(self.api.objects[cluster_path("blue")], "status", "conditions")
        return dict(condition(conditions, PUBLISHED) or {})

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[None]:
        changes = ChangeBus()
        async with cached(self.api, changes) as management:
            guard = ClusterGuard(management, lambda: True)
            publisher = SignerNamesReconciler(management, guard=guard, serves=True, now=lambda: NOW)
            changes.subscribe_clusters(publisher.cluster_changed)
            publisher.cluster_changed(ClusterKey("fleet/blue"), None)
            running = asyncio.create_task(publisher.run())
            try:
                yield
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


async def test_a_healthy_cluster_whose_names_may_not_be_written_gets_no_condition(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    farm = Farm(may_write=lambda: False)
    async with farm.working():
        await until(lambda: "signers are not published" in caplog.text)
        assert farm.condition() == {}


async def test_names_that_may_not_be_changed_any_more_make_the_condition_false() -> None:
    rights = [True]
    farm = Farm(may_write=lambda: rights[0])
    async with farm.working():
        await until(lambda: farm.condition().get("status") == "True")
        rights[0] = False
        add_policy(farm.api, authorizedAttestors=["insecure"])
        await until(lambda: farm.condition().get("reason") == "Forbidden")
